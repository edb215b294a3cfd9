"""Bulk actions: the preview says what happens, and nothing else happens."""

from collections.abc import Callable

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.choices import ReviewReason, Verdict
from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Comparison, Project, Review, User, Withholding
from annotation.services import bulk
from annotation.services import bulk as effects
from annotation.services.assignments.leases import take_slot
from tests import factories
from tests.refusals import refused

ClientOf = Callable[[User], Client]


@pytest.fixture
def done(project: Project, alice: User) -> Comparison:
    """A comparison that Alice has annotated, as many as its overlap asks for."""
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice)
    return comparison


def test_a_requeued_comparison_is_asked_of_one_more_annotator(
    project: Project, carol: User, bob: User, done: Comparison
):
    waiting = factories.make_comparison(project)
    gold = factories.make_gold_item(project)
    chosen = [done.pk, waiting.pk, gold.pk]
    preview = bulk.requeue(project=project, actor=carol, chosen=chosen, dry_run=True)
    done.refresh_from_db()
    assert (done.overlap, done.open_slots) == (1, 0)
    effect = bulk.requeue(project=project, actor=carol, chosen=chosen)
    assert (effect.changed, effect.chosen) == (1, 3)
    assert effect == preview
    done.refresh_from_db()
    waiting.refresh_from_db()
    assert (done.overlap, done.open_slots) == (2, 1)
    assert (waiting.overlap, waiting.open_slots) == (1, 1)
    judgment = factories.make_judgment(done, bob)
    assert judgment.comparison == done


def test_what_a_review_decided_is_not_requeued(project: Project, carol: User, done: Comparison):
    Review.objects.create(
        comparison=done,
        reason=ReviewReason.REQUESTED,
        reviewer=carol,
        verdict=Verdict.EQUAL,
        decided_at=timezone.now(),
    )
    effect = bulk.requeue(project=project, actor=carol, chosen=[done.pk])
    assert (effect.changed, {str(why): count for why, count in effect.skipped.items()}) == (
        0,
        {"decided by a review": 1},
    )


def test_a_comparison_that_somebody_labels_now_is_not_requeued(project: Project, alice: User, carol: User):
    comparison = factories.make_comparison(project)
    factories.lease_to(comparison, alice)
    assert bulk.requeue(project=project, actor=carol, chosen=[comparison.pk]).changed == 0
    comparison.refresh_from_db()
    assert (comparison.overlap, comparison.open_slots) == (1, 0)


def test_an_overlap_raised_after_a_comparison_was_read_gives_its_next_place(
    project: Project, carol: User, alice: User, bob: User
):
    comparison = factories.make_comparison(project)
    stale = Comparison.objects.get(pk=comparison.pk)
    assert factories.lease_to(comparison, alice).slot == 0
    bulk.raise_overlap(project=project, actor=carol, chosen=[comparison.pk], value="2")
    with transaction.atomic():
        assert take_slot(stale) == 1


def test_overlap_is_raised_and_never_lowered(project: Project, carol: User, done: Comparison):
    high = factories.make_comparison(project)
    Comparison.objects.filter(pk=high.pk).update(overlap=5, open_slots=4)
    effect = bulk.raise_overlap(project=project, actor=carol, chosen=[done.pk, high.pk], value="3")
    assert effect.changed == 1
    done.refresh_from_db()
    high.refresh_from_db()
    # One of three places is taken by Alice.
    assert (done.overlap, done.open_slots) == (3, 2)
    assert (high.overlap, high.open_slots) == (5, 4)


def test_a_quarantined_comparison_is_not_handed_out_by_a_bulk_action(project: Project, carol: User):
    comparison = factories.make_comparison(project)
    Comparison.objects.filter(pk=comparison.pk).update(open_slots=0)
    completion = comparison.candidates.all()[0].completion
    Withholding.objects.create(comparison=comparison, completion=completion, start=0, end=3, quote="Two")
    chosen = [comparison.pk]
    assert bulk.requeue(project=project, actor=carol, chosen=chosen).changed == 0
    assert bulk.raise_overlap(project=project, actor=carol, chosen=chosen, value="4").changed == 0
    comparison.refresh_from_db()
    assert comparison.open_slots == 0


def test_priority_is_set_and_audited(project: Project, carol: User, done: Comparison):
    bulk.set_priority(project=project, actor=carol, chosen=[done.pk], value="-7")
    done.refresh_from_db()
    assert done.priority == -7
    entry = AuditEntry.objects.get(action="data.priority")
    assert (entry.actor, entry.details) == (carol, {"comparisons": 1, "priority": -7})


def test_tags_are_added_once_and_removed(project: Project, carol: User):
    first = factories.make_prompt(project, "One?", tags=["hard"])
    second = factories.make_prompt(project, "Two?")
    chosen = [first.pk, second.pk]
    effect = bulk.add_tag(project=project, actor=carol, chosen=chosen, value="  hard ")
    assert (effect.changed, effect.chosen) == (1, 2)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.tags, second.tags) == (["hard"], ["hard"])
    bulk.remove_tag(project=project, actor=carol, chosen=chosen, value="hard")
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.tags, second.tags) == ([], [])


@pytest.mark.parametrize("value", ["", " ", "a,b", "x" * 41, "a\0b"])
def test_a_tag_that_cannot_be_is_refused(project: Project, carol: User, value: str):
    prompt = factories.make_prompt(project, "One?")
    with refused("invalid_tag"):
        bulk.add_tag(project=project, actor=carol, chosen=[prompt.pk], value=value)


@pytest.mark.parametrize("value", ["", "0", "21", "x", "²", "1e3", "-1", "9" * 30])
def test_an_overlap_that_cannot_be_is_refused(project: Project, carol: User, done: Comparison, value: str):
    with refused("number_out_of_range", least=1, most=20):
        bulk.raise_overlap(project=project, actor=carol, chosen=[done.pk], value=value)


def test_only_managers_of_the_project_act_on_its_rows_alone(
    project: Project, alice: User, carol: User, done: Comparison
):
    with refused("manager_changes_data", NotAllowed):
        bulk.requeue(project=project, actor=alice, chosen=[done.pk])
    other = factories.make_project(slug="coffee", managers=[carol])
    assert bulk.requeue(project=other, actor=carol, chosen=[done.pk]).chosen == 0
    done.refresh_from_db()
    assert done.open_slots == 0


def test_more_rows_than_an_action_changes_are_refused(
    project: Project, carol: User, done: Comparison, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(effects, "MOST_ROWS", 2)
    with refused("too_many_selected_rows", most=2):
        bulk.requeue(project=project, actor=carol, chosen=[1, 2, 3])


def test_a_page_shows_the_effect_before_it_happens(
    project: Project, carol: User, client_of: ClientOf, done: Comparison
):
    browser = client_of(carol)
    address = reverse("data-act", args=["tea", "comparisons"])
    page = browser.post(address, {"action": "requeue", "chosen": [done.pk], "query": "round=1"})
    assert "1 of 1 selected rows" in page.content.decode()
    assert "one more annotator who has not annotated it" in page.content.decode()
    done.refresh_from_db()
    assert done.open_slots == 0
    after = browser.post(
        address,
        {"action": "requeue", "chosen": page.context["chosen"], "query": "round=1", "confirmed": "yes"},
        follow=True,
    )
    assert "1 row changed." in after.content.decode()
    assert after.redirect_chain[0][0].endswith("/data/comparisons/?round=1")
    done.refresh_from_db()
    assert done.open_slots == 1


def test_all_that_match_are_chosen_where_the_box_is_checked(
    project: Project, carol: User, client_of: ClientOf
):
    tagged = [factories.make_prompt(project, f"{n}?", split="train") for n in range(3)]
    factories.make_prompt(project, "Held out?", split="held-out")
    page = client_of(carol).post(
        reverse("data-act", args=["tea", "prompts"]),
        {"action": "tag", "value-tag": "new", "matching": "1", "query": "split=train"},
    )
    assert page.context["effect"].changed == 3
    assert page.context["chosen"] == ",".join(str(prompt.pk) for prompt in tagged)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"action": "nothing"}, "Choose an action"),
        ({"action": "requeue"}, "No row is selected"),
        ({"action": "requeue", "chosen": ["abc", "-1", "9" * 30]}, "No row is selected"),
        ({"action": "overlap", "chosen": ["1"], "value-overlap": "many"}, "Enter a whole number"),
    ],
)
def test_a_form_that_cannot_be_comes_back_with_the_reason(
    project: Project, carol: User, client_of: ClientOf, form: dict[str, object], message: str
):
    address = reverse("data-act", args=["tea", "comparisons"])
    assert message in client_of(carol).post(address, form, follow=True).content.decode()


def test_the_api_previews_and_acts(project: Project, carol: User, client_of: ClientOf, done: Comparison):
    browser = client_of(carol)
    address = "/api/v1/projects/tea/comparisons/act/"
    body = {"comparisons": [done.pk], "overlap": 2, "priority": 5, "dry_run": True}
    expected = [
        {"action": "overlap", "changed": 1, "skipped": {}, "lost": {}},
        {"action": "priority", "changed": 1, "skipped": {}, "lost": {}},
    ]
    assert browser.post(address, body, content_type="application/json").json() == expected
    done.refresh_from_db()
    assert (done.overlap, done.priority) == (1, 0)
    assert (
        browser.post(address, body | {"dry_run": False}, content_type="application/json").json() == expected
    )
    done.refresh_from_db()
    assert (done.overlap, done.priority) == (2, 5)
    refused = {"comparisons": [done.pk], "overlap": 21}
    assert browser.post(address, refused, content_type="application/json").status_code == 422


def test_the_api_tags_prompts(project: Project, carol: User, client_of: ClientOf):
    prompt = factories.make_prompt(project, "One?", tags=["old"])
    body = {"prompts": [prompt.pk], "tag": "new", "untag": "old"}
    client_of(carol).post("/api/v1/projects/tea/prompts/act/", body, content_type="application/json")
    prompt.refresh_from_db()
    assert prompt.tags == ["new"]


def test_a_closed_comparison_asks_nobody_and_keeps_its_annotations(
    project: Project, alice: User, bob: User, carol: User
):
    project.overlap = 3
    project.save()
    begun, untouched, leased = (factories.make_comparison(project) for _ in range(3))
    factories.make_judgment(begun, alice)
    factories.lease_to(leased, bob)
    chosen = [begun.pk, untouched.pk, leased.pk]
    preview = bulk.close(project=project, actor=carol, chosen=chosen, dry_run=True)
    effect = bulk.close(project=project, actor=carol, chosen=chosen)
    assert effect == preview
    assert (effect.changed, effect.chosen) == (2, 3)
    for comparison in (begun, untouched, leased):
        comparison.refresh_from_db()
    assert (begun.overlap, begun.open_slots) == (1, 0)
    assert (untouched.overlap, untouched.open_slots) == (1, 0)
    assert (leased.overlap, leased.open_slots) == (3, 2)
    assert begun.judgments.count() == 1
    assert bulk.requeue(project=project, actor=carol, chosen=[untouched.pk]).changed == 1
    factories.make_judgment(untouched, alice)


def test_annotated_comparisons_are_sent_to_review_once(project: Project, alice: User, carol: User):
    judged, other = factories.make_comparison(project), factories.make_comparison(project)
    factories.make_judgment(judged, alice)
    chosen = [judged.pk, other.pk]
    assert bulk.send_to_review(project=project, actor=carol, chosen=chosen, dry_run=True).changed == 1
    assert not Review.objects.exists()
    assert bulk.send_to_review(project=project, actor=carol, chosen=chosen).changed == 1
    assert bulk.send_to_review(project=project, actor=carol, chosen=chosen).changed == 0
    review = Review.objects.get()
    assert (review.comparison, review.reason) == (judged, ReviewReason.REQUESTED)


def test_quarantined_comparisons_are_released_into_the_queue(project: Project, alice: User, carol: User):
    quarantined, plain = factories.make_comparison(project), factories.make_comparison(project)
    Withholding.objects.create(
        comparison=quarantined, completion=quarantined.completions.first(), start=0, end=3, quote="Two"
    )
    Comparison.objects.filter(pk=quarantined.pk).update(open_slots=0)
    effect = bulk.release(project=project, actor=carol, chosen=[quarantined.pk, plain.pk])
    assert (effect.changed, effect.chosen) == (1, 2)
    quarantined.refresh_from_db()
    assert quarantined.open_slots == quarantined.overlap
    assert quarantined.withholding.decided_by == carol
    factories.make_judgment(quarantined, alice)
    assert bulk.release(project=project, actor=carol, chosen=[quarantined.pk]).changed == 0


def test_the_new_actions_are_for_managers(project: Project, alice: User):
    comparison = factories.make_comparison(project)
    for action in (bulk.close, bulk.send_to_review, bulk.release):
        with refused("manager_changes_data", NotAllowed):
            action(project=project, actor=alice, chosen=[comparison.pk])


def test_the_api_carries_out_several_actions_at_once(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    comparison = factories.make_comparison(project)
    factories.make_judgment(comparison, alice)
    answer = client_of(carol).post(
        f"/api/v1/projects/{project.slug}/comparisons/act/",
        {"comparisons": [comparison.pk], "review": True, "requeue": True},
        content_type="application/json",
    )
    assert [(result["action"], result["changed"]) for result in answer.json()] == [
        ("requeue", 1),
        ("review", 1),
    ]
