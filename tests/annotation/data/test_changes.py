"""Bulk changes are undone for a day, and deletion shows first what goes with it."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from annotation.choices import Purpose, ReviewReason, WithholdingState
from annotation.errors import NotAllowed
from annotation.exchange.prompts import import_prompts
from annotation.models import (
    BulkChange,
    Comparison,
    Completion,
    Judgment,
    Project,
    Prompt,
    Review,
    User,
    Withholding,
)
from annotation.selectors.access import judgments_current
from annotation.services import bulk
from annotation.services.assignments.next import assign_next
from annotation.services.changes import forget_changes, undo_change
from annotation.services.reviews import open_review
from tests import factories
from tests.refusals import refused
from training.models import Snapshot

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]


def state() -> dict[str, Any]:
    """Return all that a bulk action may change."""
    return {
        "places": list(
            Comparison.objects.order_by("pk").values_list(
                *("pk", "overlap", "open_slots", "priority", "purpose")
            )
        ),
        "reserved": sorted(Comparison.reserved_for.through.objects.values_list("comparison", "user")),
        "withheld": sorted(Withholding.objects.values_list("comparison", "state")),
        "reviews": sorted(Review.objects.values_list("comparison", "reason")),
        "prompts": list(Prompt.objects.order_by("pk").values_list("pk", "tags")),
        "responses": list(Completion.objects.order_by("pk").values_list("pk", "deleted_at")),
    }


@pytest.fixture
def rows(project: Project, alice: User, bob: User, carol: User) -> list[Comparison]:
    """An annotated comparison, one in the queue, one that was released, and one in quarantine."""
    project.overlap = 2
    project.save()
    made = [factories.make_comparison(project) for _ in range(4)]
    done, _queued, released, withheld = made
    factories.make_judgment(done, alice)
    factories.make_judgment(done, bob)
    Comparison.objects.filter(pk=done.pk).update(priority=3)
    done.reserved_for.add(alice)
    Prompt.objects.filter(pk=done.prompt_id).update(tags=["old"])
    for comparison, withholding in (
        (released, WithholdingState.RELEASED),
        (withheld, WithholdingState.PENDING),
    ):
        Withholding.objects.create(comparison=comparison, requested_by=carol, state=withholding)
    Comparison.objects.filter(pk=withheld.pk).update(open_slots=0)
    return made


@pytest.mark.parametrize(
    ("action", "value"),
    [
        (bulk.requeue, None),
        (bulk.raise_overlap, "4"),
        (bulk.set_priority, "7"),
        (bulk.close, None),
        (bulk.send_to_review, None),
        (bulk.release, None),
        (bulk.quarantine, None),
        (bulk.reserve, "bob"),
        (bulk.reserve, ""),
        (bulk.delete_comparisons, None),
        (bulk.add_tag, "new"),
        (bulk.add_tag, "old"),
        (bulk.remove_tag, "old"),
        (bulk.delete_prompts, None),
        (bulk.delete_responses, None),
    ],
)
def test_an_undo_leaves_everything_as_before(
    action: Callable[..., bulk.Effect],
    value: str | None,
    project: Project,
    carol: User,
    rows: list[Comparison],
):
    is_of_prompts = action in (bulk.add_tag, bulk.remove_tag, bulk.delete_prompts)
    chosen = [row.prompt_id if is_of_prompts else row.pk for row in rows]
    if action is bulk.delete_responses:
        # Both of the first comparison, and one of the second.
        chosen = list(Completion.objects.order_by("pk").values_list("pk", flat=True)[:3])
    before = state()
    effect = action(
        project=project, actor=carol, chosen=chosen, **({} if value is None else {"value": value})
    )
    assert effect.changed > 0
    assert state() != before
    change = BulkChange.objects.get()
    assert change.changed == effect.changed
    assert undo_change(change=change, undone_by=carol) == effect.changed
    assert state() == before
    with refused("change_not_undoable"):
        undo_change(change=change, undone_by=carol)


def test_a_preview_is_no_change_and_only_managers_undo_and_only_for_a_day(
    project: Project, alice: User, carol: User, rows: list[Comparison]
):
    keys = [row.pk for row in rows]
    bulk.set_priority(project=project, actor=carol, chosen=keys, value="7", dry_run=True)
    assert not BulkChange.objects.exists()
    bulk.set_priority(project=project, actor=carol, chosen=keys, value="7")
    change = BulkChange.objects.get()
    with refused("manager_changes_data", NotAllowed):
        undo_change(change=change, undone_by=alice)
    BulkChange.objects.update(created_at=timezone.now() - timedelta(days=1, minutes=1))
    with refused("change_not_undoable"):
        undo_change(change=change, undone_by=carol)


def test_what_changed_meanwhile_stays(project: Project, alice: User, carol: User, rows: list[Comparison]):
    done, queued = rows[:2]
    bulk.set_priority(project=project, actor=carol, chosen=[done.pk, queued.pk], value="7")
    first = BulkChange.objects.get()
    bulk.set_priority(project=project, actor=carol, chosen=[queued.pk], value="9")
    assert undo_change(change=first, undone_by=carol) == 1
    assert dict(Comparison.objects.values_list("pk", "priority"))[queued.pk] == 9
    # A place that somebody has taken stays theirs.
    bulk.requeue(project=project, actor=carol, chosen=[done.pk])
    third = factories.make_user("third")
    project.memberships.create(user=third, role="annotator")
    done.reserved_for.clear()
    factories.make_judgment(done, third)
    assert undo_change(change=BulkChange.objects.order_by("-pk")[0], undone_by=carol) == 0
    assert Comparison.objects.get(pk=done.pk).overlap == 3


def test_deletion_says_what_goes_with_it_and_nothing_learns_from_it_any_more(
    project: Project, alice: User, carol: User, rows: list[Comparison], client_of: ClientOf
):
    done, queued = rows[:2]
    snapshot = Snapshot.objects.create(project=project, digest="0" * 64, folder="s", rounds=[1], counts={})
    snapshot.judgments.add(Judgment.objects.order_by("pk")[0])
    post = {"action": "delete", "chosen": [done.prompt_id, queued.prompt_id], "query": ""}
    page = client_of(carol).post("/projects/tea/data/prompts/act/", post).content.decode()
    for number, what in (
        (2, "comparisons"),
        (2, "annotations by people"),
        (1, "annotations in snapshots, which stay for the record"),
    ):
        assert f'{what}: <strong class="number">{number}</strong>' in page
    assert Prompt.objects.count() == 4
    client_of(carol).post("/projects/tea/data/prompts/act/", {**post, "confirmed": "yes"})
    assert Prompt.objects.count() == 2
    assert not judgments_current(project).exists()
    listed = client_of(carol).get("/api/v1/projects/tea/comparisons/").json()["results"]
    assert [row["id"] for row in listed] == [rows[3].pk, rows[2].pk]
    table = client_of(carol).get("/projects/tea/data/prompts/").content.decode()
    assert "Bulk actions of the last day" in table
    client_of(carol).post(f"/projects/tea/changes/{BulkChange.objects.get().pk}/undo/")
    assert judgments_current(project).count() == 2


def test_what_is_labelled_or_in_review_is_not_deleted(
    project: Project, alice: User, carol: User, rows: list[Comparison]
):
    done = rows[0]
    open_review(comparison=done, reason=ReviewReason.FLAGGED)
    leased = assign_next(project=project, annotator=alice)
    assert leased is not None
    keys = [done.pk, leased.comparison_id]
    effect = bulk.delete_comparisons(project=project, actor=carol, chosen=keys)
    assert (effect.changed, sum(effect.skipped.values())) == (0, 2)
    prompts = [done.prompt_id, leased.comparison.prompt_id]
    effect = bulk.delete_prompts(project=project, actor=carol, chosen=prompts)
    assert (effect.changed, sum(effect.skipped.values())) == (0, 2)


def test_after_a_day_what_was_deleted_is_gone_but_for_what_a_snapshot_holds(
    project: Project, alice: User, carol: User, rows: list[Comparison]
):
    kept, gone = rows[:2]
    factories.make_judgment(gone, alice)
    snapshot = Snapshot.objects.create(project=project, digest="0" * 64, folder="s", rounds=[1], counts={})
    snapshot.judgments.set(Judgment.objects.filter(comparison=kept))
    bulk.delete_prompts(project=project, actor=carol, chosen=[kept.prompt_id, gone.prompt_id])
    assert forget_changes() == 0
    assert forget_changes(now=timezone.now() + timedelta(days=1, minutes=1)) == 1
    assert not Comparison.objects.filter(pk=gone.pk).exists()
    assert not Prompt.with_deleted.filter(pk=gone.prompt_id).exists()
    assert not Completion.objects.filter(prompt=gone.prompt_id).exists()
    assert Comparison.objects.get(pk=kept.pk).purpose == Purpose.DELETED
    assert snapshot.judgments.count() == 2
    assert BulkChange.objects.get().before == []


def test_a_deleted_prompt_comes_back_where_it_is_added_again(
    project: Project, carol: User, rows: list[Comparison], tmp_path: Path
):
    prompt = rows[1].prompt
    bulk.delete_prompts(project=project, actor=carol, chosen=[prompt.pk])
    assert not project.prompts.filter(pk=prompt.pk).exists()
    import_prompts(project=project, lines=[f'{{"prompt": "{prompt.last_question}"}}'], name="again")
    assert project.prompts.filter(pk=prompt.pk).exists()
