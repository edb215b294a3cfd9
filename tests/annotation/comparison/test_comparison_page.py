"""The page of one comparison: letters as shown, spans, versions and agreement."""

import re
import uuid

import pytest
from django.urls import reverse

from annotation.choices import Purpose, Verdict
from annotation.models import ItemFlag, Judgment, Project, RankedCompletion, User
from tests import factories
from tests.annotation.comparison.comparison_scene import ClientOf, page_of
from tests.annotation.statistics.statistics_scene import ids_of, item, say

pytestmark = pytest.mark.django_db


def test_a_comparison_is_not_found_through_another_project(
    project: Project, carol: User, client_of: ClientOf
):
    comparison = item(project)
    other = factories.make_project(slug="coffee", managers=[carol])
    client = client_of(carol)
    assert client.get(reverse("statistics-item", args=[project.slug, comparison.pk])).status_code == 200
    assert client.get(reverse("statistics-item", args=[other.slug, comparison.pk])).status_code == 404


def test_a_comparison_shows_everything_that_was_said_of_it(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two **minutes**.", "Ten hours.", "<b>No</b> idea."])
    judgment = say(
        comparison,
        alice,
        [2, 1, 2],
        order=[2, 0, 1],
        marks=[(1, 0, 3, "untruthful")],
        comment="The second is clear.",
        active_seconds=75,
    )
    say(comparison, bob, [])
    ItemFlag.objects.create(assignment=judgment.assignment, reason="Odd question", details="It has no end.")
    text = (
        client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk])).content.decode()
    )
    for expected in (
        "minutes</span></strong>",
        "&lt;b&gt;",
        # Second best, the others tie. Alice saw the third as A, the first as B, the second as C.
        "C &gt; A = B",
        "Letters as alice saw them: A is response 3, B is response 1, C is response 2.",
        "<q>Ten</q>",
        "Untruthful",
        "The second is clear.",
        "1 min 15 s",
        "cannot judge",
        "Odd question",
        "It has no end.",
        "alice",
        "bob",
    ):
        assert expected in text, expected
    # A manager may label, too: the page gives no checkpoint away.
    assert "starter" not in text


def test_the_marks_of_everyone_stand_in_the_text_and_below_it_with_their_names(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two minutes.", "Ten hours."])
    say(comparison, alice, [1, 2], marks=[(1, 0, 3, "untruthful")])
    first = say(comparison, bob, [1, 2], marks=[(1, 4, 9, "irrelevant")])
    text = (
        client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk])).content.decode()
    )
    assert '<mark data-category="untruthful">Ten</mark>' in text
    assert '<mark data-category="irrelevant">hours</mark>' in text
    below = re.findall(
        r'<span class="number">(\d)</span>.*?<q>(\w+)</q> <span class="muted">(\w+)</span>', text
    )
    assert below == [("1", "Ten", "alice"), ("2", "hours", "bob")]
    # A judgment that was replaced tells nothing of the text any more.
    Judgment.objects.create(
        assignment=first.assignment,
        comparison=comparison,
        annotator=bob,
        verdict=Verdict.BOTH_BAD,
        idempotency_key=uuid.uuid4(),
        supersedes=first,
    )
    text = (
        client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk])).content.decode()
    )
    assert '<mark data-category="untruthful">Ten</mark>' in text
    assert '<mark data-category="irrelevant">' not in text


def test_each_judgment_is_shown_in_the_letters_that_its_annotator_saw(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two minutes.", "Ten hours."])
    # Both prefer the second response. Alice saw it as A, Bob as B, and their comments say so.
    say(comparison, alice, [2, 1], order=[1, 0], marks=[(0, 0, 3, "untruthful")], comment="A is right.")
    say(comparison, bob, [2, 1], order=[0, 1], comment="B is right.")
    page = client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk]))
    said_alice, said_bob = page.context["page"].judgments
    assert (said_alice.preference, said_bob.preference) == ("A > B", "B > A")
    assert [(remark.about, remark.quote) for remark in said_alice.remarks if remark.quote] == [("B", "Two")]
    first, second = page.context["page"].responses
    assert [(first.number, first.seen_as), (second.number, second.seen_as)] == [
        (1, [("A", "bob"), ("B", "alice")]),
        (2, [("A", "alice"), ("B", "bob")]),
    ]
    text = page.content.decode()
    assert "Response 2" in text
    assert "Letters as alice saw them: A is response 2, B is response 1." in text
    assert "Letters as bob saw them: A is response 1, B is response 2." in text


def test_an_imported_judgment_without_a_displayed_order_counts_letters_as_recorded(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    comparison = item(project, ["Two minutes.", "Ten hours."])
    judgment = say(comparison, alice, [2, 1])
    judgment.assignment.display_order = []
    judgment.assignment.save()
    page = client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk]))
    assert page.context["page"].judgments[0].preference == "B > A"


def test_a_truncated_response_says_so_on_the_page_of_its_comparison(
    project: Project, carol: User, client_of: ClientOf
):
    prompt = factories.make_prompt(project)
    completions = factories.make_completions(prompt, ["Two minutes.", "Ten"], truncated=[1])
    comparison = item(project, prompt=prompt, completions=completions)
    page = client_of(carol).get(reverse("statistics-item", args=[project.slug, comparison.pk]))
    assert [answer.is_truncated for answer in page.context["page"].responses] == [False, True]
    assert page.content.decode().count("Truncated at max tokens") == 1


def test_a_gold_item_shows_what_is_known(project: Project, carol: User, client_of: ClientOf):
    gold = item(project, purpose=Purpose.GOLD, known=[2, 1])
    text = client_of(carol).get(reverse("statistics-item", args=[project.slug, gold.pk])).content.decode()
    assert "Known answer" in text
    assert "2 &gt; 1" in text


def test_a_comparison_with_many_judgments_costs_as_many_queries_as_one_with_few(
    project: Project, carol: User, client_of: ClientOf, django_assert_max_num_queries
):
    comparison = item(project)
    for number in range(8):
        say(comparison, factories.make_user(f"person{number}"), [1, 2], marks=[(0, 0, 2, "untruthful")])
    client = client_of(carol)
    # Session, person, membership, comparison, review, neighbours, candidates, judgments and six kinds of what
    # belongs to them with two kinds of categories, agreement, flags, skips, use in training.
    # Four of them for the questions and comments; one for what waits in the sidebar.
    with django_assert_max_num_queries(29):
        client.get(reverse("statistics-item", args=[project.slug, comparison.pk]))


def test_superseded_versions_stand_below_the_one_that_counts(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    comparison = item(project)
    versions = [say(comparison, alice, [1, 2], order=[1, 0])]
    for verdict, ranks in ((Verdict.EQUAL, [1, 1]), (Verdict.RANKED, [2, 1])):
        versions.append(
            Judgment.objects.create(
                assignment=versions[0].assignment,
                comparison=comparison,
                annotator=alice,
                verdict=verdict,
                idempotency_key=uuid.uuid4(),
                supersedes=versions[-1],
            )
        )
        RankedCompletion.objects.bulk_create(
            RankedCompletion(judgment=versions[-1], completion_id=pk, rank=rank)
            for pk, rank in zip(ids_of(comparison), ranks, strict=True)
        )
    answer = page_of(client_of(carol), comparison)
    (thread,) = answer.context["page"].threads
    # First she preferred the first response, which she saw as B; then neither; now the second, her A.
    assert thread.shown.preference == "A > B"
    assert [version.preference for version in thread.earlier] == ["equal", "B > A"]
    assert "2 earlier versions" in answer.content.decode()


@pytest.mark.parametrize(
    ("votes", "sentence"),
    [
        ([], "0 annotations: agreement needs two annotators."),
        ([[1, 2]], "1 annotation: agreement needs two annotators."),
        # Of three pairs of annotators one agrees: 1/3.
        (
            [[2, 1], [2, 1], [1, 2]],
            "3 annotators agree 33\N{NO-BREAK SPACE}% on 1 pair of responses. "
            "1 prefers response 1. 2 prefer response 2.",
        ),
        (
            [[1, 2], [1, 1]],
            "2 annotators agree 0\N{NO-BREAK SPACE}% on 1 pair of responses. "
            "1 prefers response 1. 1 prefers neither.",
        ),
        # Pairs 12, 13, 23: both say 1 over 2 and 1 over 3, and they differ on 2 and 3. 2/3.
        ([[1, 2, 3], [1, 3, 2]], "2 annotators agree 67\N{NO-BREAK SPACE}% on 3 pairs of responses."),
        ([[], []], "No two annotators gave a preference on the same pair of responses."),
    ],
)
def test_the_agreement_is_a_sentence(
    votes: list[list[int]], sentence: str, project: Project, carol: User, client_of: ClientOf
):
    size = max((len(ranks) for ranks in votes), default=0) or 2
    comparison = item(project, [f"Response {number}." for number in range(size)])
    for number, ranks in enumerate(votes):
        say(comparison, factories.make_user(f"person{number}"), ranks)
    answer = page_of(client_of(carol), comparison)
    assert answer.context["page"].agreement == sentence
    assert sentence in answer.content.decode()


def test_a_gold_item_has_no_agreement(project: Project, alice: User, carol: User, client_of: ClientOf):
    gold = item(project, purpose=Purpose.GOLD, known=[1, 2])
    say(gold, alice, [1, 2])
    assert page_of(client_of(carol), gold).context["page"].agreement == ""


def test_an_impossible_number_is_not_found(project: Project, carol: User, client_of: ClientOf):
    assert client_of(carol).get(f"/projects/{project.slug}/items/{2**63}/").status_code == 404


def test_votes_of_an_arena_are_called_so(project: Project, alice: User, carol: User, client_of: ClientOf):
    comparison = item(project, purpose=Purpose.ARENA)
    say(comparison, alice, [1, 2], blind=False)
    text = page_of(client_of(carol), comparison).content.decode()
    assert "Votes" in text
    assert '<span class="badge badge--accent">arena</span>' in text
    assert "unblinded" in text
