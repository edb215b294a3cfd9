"""Decisions of a manager about single items: withheld texts and gold items."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.choices import Purpose, ReviewReason, Verdict, WithholdingState
from annotation.models import Assignment, Comparison, GoldAnswer, Judgment, Project, User, Withholding
from annotation.selectors.queues import EXCERPT, gold_candidates, known_items, withheld_texts
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from annotation.services.reviews import decide_review, open_review
from tests import factories
from tests.annotation.judgments.answers import completions_of
from tests.records import judgment_record

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


@pytest.fixture
def withheld(project: Project) -> Withholding:
    """A comparison of which the second answer names its model."""
    factories.make_comparison(project, ["Two minutes.", "As SmolLM2, I say <b>two</b> minutes."])
    return Withholding.objects.get()


@pytest.fixture
def doubled(project: Project) -> Project:
    project.overlap = 2
    project.save()
    return project


def page(client: Client, name: str, project: Project) -> str:
    answer = client.get(reverse(name, args=[project.slug]))
    assert answer.status_code == 200
    return answer.content.decode()


def decide(client: Client, withholding: Withholding, decision: str) -> str:
    project = withholding.comparison.project
    address = reverse("withheld-decide", args=[project.slug, withholding.pk])
    answer = client.post(address, {"decision": decision}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


# ── Quarantined responses ────────────────────────────────────────────────────────────────────


def test_a_withheld_text_is_shown_with_its_quote_marked_and_nothing_of_it_as_html(
    withheld: Withholding, project: Project, carol: User, client_of: ClientOf
):
    shown = page(client_of(carol), "withheld", project)
    assert f"<mark>{withheld.quote}</mark>" in shown
    assert "SmolLM2" in withheld.quote
    assert "&lt;b&gt;two&lt;/b&gt;" in shown


def test_only_what_stands_around_the_quote_of_a_long_text_is_shown(project: Project):
    factories.make_comparison(project, ["No.", "x" * 500 + " As SmolLM2, I say so. " + "y" * 500])
    (text,) = withheld_texts(project)
    assert text.before.startswith("…")
    assert text.after.endswith("…")
    assert len(text.before) == len(text.after) == EXCERPT + 1


def test_a_released_text_goes_to_annotators(
    withheld: Withholding, project: Project, alice: User, carol: User, client_of: ClientOf
):
    assert assign_next(project=project, annotator=alice) is None
    assert "Released: annotators may get it now." in decide(client_of(carol), withheld, "release")
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    assert assignment.comparison == withheld.comparison


def test_a_button_that_does_not_exist_decides_nothing(
    withheld: Withholding, carol: User, client_of: ClientOf
):
    assert "Choose whether to release" in decide(client_of(carol), withheld, "perhaps")
    withheld.refresh_from_db()
    assert withheld.state == WithholdingState.PENDING


def test_a_withheld_text_is_not_found_through_another_project(
    withheld: Withholding, admin: User, client_of: ClientOf
):
    other = factories.make_project(slug="coffee")
    address = reverse("withheld-decide", args=[other.slug, withheld.pk])
    assert client_of(admin).post(address, {"decision": "release"}).status_code == 404


# ── Gold ──────────────────────────────────────────────────────────────────────────────


def test_gold_items_show_their_answer_and_how_annotators_did(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    gold = factories.make_gold_item(project, (2, 1, 2), texts=["a", "b", "c"])
    # Alice puts b first, as is known, and tells a from c, which is left open; Bob puts a first.
    for user, ranks in ((alice, (2, 1, 3)), (bob, (1, 2, 3))):
        answer_known(gold, user, ranks)
    (item,) = known_items(project)
    assert (item.answer, item.answered, item.right, item.percent_right) == ("2 > 1 = 3", 2, 1, 50)
    shown = page(client_of(carol), "gold", project)
    assert "50 %" in shown
    assert "Two minutes are enough." in shown


def answer_known(comparison: Comparison, annotator: User, ranks: tuple[int, ...]) -> None:
    """Lease a known item, as `assign_next` does where the dice say so, and answer it."""
    ids = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
    now = timezone.now()
    assignment = Assignment.objects.create(
        comparison=comparison,
        annotator=annotator,
        display_order=ids,
        leased_at=now,
        lease_expires_at=now + timedelta(hours=1),
    )
    submit_judgment(
        assignment=assignment,
        annotator=annotator,
        answer=judgment_record(verdict=Verdict.RANKED, ranks=dict(zip(ids, ranks, strict=True))),
        idempotency_key=uuid.uuid4(),
    )


def agree(project: Project, *users: User) -> Comparison:
    comparison = factories.make_comparison(project)
    for user in users:
        factories.make_judgment(comparison, user, (2, 1))
    return comparison


def test_what_reviewers_decided_or_two_said_alike_can_become_gold(
    doubled: Project, alice: User, bob: User, carol: User
):
    alike = agree(doubled, alice, bob)
    disputed = factories.make_comparison(doubled)
    factories.make_judgment(disputed, alice, (1, 2))
    factories.make_judgment(disputed, bob, (2, 1))
    factories.make_judgment(factories.make_comparison(doubled), alice)
    assert [
        (candidate.comparison, candidate.answer, candidate.by_reviewer)
        for candidate in gold_candidates(doubled)
    ] == [(alike, "2 > 1", False)]
    review = open_review(comparison=disputed, reason=ReviewReason.DISAGREEMENT)
    a, b = completions_of(disputed)
    decide_review(review=review, reviewer=carol, verdict=Verdict.RANKED, ranks={a.pk: 1, b.pk: 2})
    assert [
        (candidate.comparison, candidate.answer, candidate.by_reviewer)
        for candidate in gold_candidates(doubled)
    ] == [
        (disputed, "1 > 2", True),
        (alike, "2 > 1", False),
    ]


def make(client: Client, project: Project, **fields: object):
    return client.post(reverse("gold-make", args=[project.slug]), fields)


def test_a_judged_comparison_is_made_gold_by_a_plain_form(
    doubled: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = agree(doubled, alice, bob)
    client = client_of(carol)
    assert f'value="{comparison.pk}"' in page(client, "gold", doubled)
    answer = make(
        client, doubled, comparison=comparison.pk, purpose="qualification", explanation="Everyone says so."
    )
    assert answer.status_code == 302
    known = GoldAnswer.objects.get()
    assert known.comparison.purpose == Purpose.QUALIFICATION
    assert known.comparison != comparison
    a, b = completions_of(comparison)
    assert known.ranks == {str(a.pk): 2, str(b.pk): 1}
    shown = page(client, "gold", doubled)
    assert "Everyone says so." in shown
    assert "2 &gt; 1" in shown


def test_made_gold_once_it_is_no_candidate_again(
    doubled: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = agree(doubled, alice, bob)
    make(client_of(carol), doubled, comparison=comparison.pk, purpose="gold")
    assert gold_candidates(doubled) == []
    answer = make(client_of(carol), doubled, comparison=comparison.pk, purpose="gold")
    assert answer.status_code == 422
    assert "have a known answer already" in answer.content.decode()
    assert GoldAnswer.objects.count() == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"purpose": "gold"}, "Choose a comparison."),
        ({"purpose": "work", "comparison": "0"}, "not one of the available choices"),
    ],
)
def test_a_form_without_a_choice_comes_back(
    doubled: Project, carol: User, client_of: ClientOf, fields: dict[str, str], message: str
):
    answer = make(client_of(carol), doubled, explanation="as I wrote", **fields)
    assert answer.status_code == 422
    assert message in answer.content.decode()
    assert "as I wrote" in answer.content.decode()


def test_a_comparison_of_another_project_cannot_be_made_gold(
    doubled: Project, alice: User, bob: User, admin: User, client_of: ClientOf
):
    comparison = agree(doubled, alice, bob)
    other = factories.make_project(slug="coffee")
    assert make(client_of(admin), other, comparison=comparison.pk, purpose="gold").status_code == 404


def test_a_disputed_comparison_is_refused_in_words(
    doubled: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = factories.make_comparison(doubled)
    factories.make_judgment(comparison, alice, (1, 2))
    factories.make_judgment(comparison, bob, (2, 1))
    answer = make(client_of(carol), doubled, comparison=comparison.pk, purpose="gold")
    assert answer.status_code == 422
    assert "Have a reviewer decide it first" in answer.content.decode()


@pytest.mark.parametrize("name", ["withheld", "gold"])
def test_a_long_list_takes_few_queries(
    name: str,
    doubled: Project,
    alice: User,
    bob: User,
    carol: User,
    client_of: ClientOf,
    django_assert_max_num_queries,
):
    for _ in range(5):
        factories.make_comparison(doubled, ["Two minutes.", "As SmolLM2, I say two minutes."])
        factories.make_gold_item(doubled)
        agree(doubled, alice, bob)
    client = client_of(carol)
    with django_assert_max_num_queries(16):
        page(client, name, doubled)


def test_the_projects_page_leads_managers_to_their_queues(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    addresses = [reverse(name, args=[project.slug]) for name in ("withheld", "gold", "reviews")]
    home, quality = (reverse(name, args=[project.slug]) for name in ("project", "statistics"))
    assert quality in client_of(carol).get(home).content.decode()
    assert all(f'href="{address}"' in client_of(carol).get(quality).content.decode() for address in addresses)
    assert not any(address in client_of(alice).get(home).content.decode() for address in addresses)


GOLD_FILE = """prompt,answer_1,answer_2,winner,comment
How long?,Two minutes.,Ten hours.,1,Ten hours is bitter.
How hot?,Boiling.,80 degrees.,2,
"""


def test_a_file_of_annotations_makes_gold_items_once_and_one_bad_row_makes_none(
    project: Project, carol: User, client_of: ClientOf
):
    def send(text: str) -> Any:
        upload = SimpleUploadedFile("gold.csv", text.encode())
        address = reverse("gold-file", args=[project.slug])
        return client_of(carol).post(address, {"file": upload, "purpose": "gold"})

    refused = send(GOLD_FILE + "Which?,Green.,,1,\n")
    assert refused.status_code == 422
    assert "row 3" in refused.content.decode()
    assert GoldAnswer.objects.count() == 0
    for _ in range(2):
        assert send(GOLD_FILE).status_code == 302
    first, second = GoldAnswer.objects.order_by("pk")
    assert (first.explanation, second.explanation) == ("Ten hours is bitter.", "")
    by_text = dict(second.comparison.completions.values_list("text", "pk"))
    assert second.ranks == {str(by_text["80 degrees."]): 1, str(by_text["Boiling."]): 2}
    assert not Judgment.objects.exists()
