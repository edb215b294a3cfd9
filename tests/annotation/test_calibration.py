"""Calibration sessions: blind answers, reveal, talk, α before and after, retests, and who sees what."""

import json
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from annotation.acquisition.bayesian import DIMENSIONS, arrays_of, clear_cache, read_new, unread
from annotation.acquisition.gain import gain_of_strategy
from annotation.choices import (
    AcquisitionArm,
    AssignmentState,
    Availability,
    CalibrationDraw,
    NotificationKind,
    Purpose,
    Role,
    Verdict,
)
from annotation.exchange.file_exports import ExportFilters, count_export, export_of, manifest_of
from annotation.exchange.file_imports import import_file
from annotation.models import (
    Assignment,
    AuditEntry,
    CalibrationAnswer,
    CalibrationItem,
    CalibrationSession,
    Comment,
    Comparison,
    HelpReveal,
    Judgment,
    Membership,
    Notification,
    Project,
    Review,
    User,
    WebhookMessage,
)
from annotation.record.judgment import JudgmentRecord, RatingPart
from annotation.selectors.access import current_judgment, judgments_current
from annotation.selectors.calibration import ItemPage, progress_in, sessions_for
from annotation.selectors.eligibility import availability_of_annotators
from annotation.selectors.judged import judged_in
from annotation.services.assignments.leases import skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.calibration import (
    close_session,
    create_session,
    delete_session,
    reveal_session,
    start_retest,
)
from annotation.services.inbox import edit_comment, post_talk
from annotation.services.judgments.submission import create_machine, record_vote, submit_judgment
from annotation.services.projects.projects import publish_guideline
from annotation.statistics.calibration import alpha_rows, curve_of, item_rows, preference_alpha, versions_of
from annotation.statistics.help import passes_in
from tests import factories
from tests.annotation.assignments.test_concurrency import at_once
from tests.records import judgment_record
from tests.refusals import refused
from training.selectors.judges import report_of
from training.services.judges import create_judge
from training.services.rounds.controls import open_first_round
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


@pytest.fixture
def dora(project: Project) -> User:
    """The third annotator of `project`."""
    dora = factories.make_user("dora")
    Membership.objects.create(project=project, user=dora, role=Role.ANNOTATOR)
    return dora


@pytest.fixture
def pairs(project: Project) -> list[Comparison]:
    return [factories.make_comparison(project, question=f"Question {number}?") for number in range(2)]


@pytest.fixture
def session(
    project: Project, pairs: list[Comparison], alice: User, bob: User, dora: User, carol: User
) -> CalibrationSession:
    return begin(project, carol, [alice, bob, dora], pairs)


def begin(
    project: Project, manager: User, people: Sequence[User], comparisons: Sequence[Comparison], **fields: Any
) -> CalibrationSession:
    return create_session(
        project=project,
        created_by=manager,
        name="Spring",
        participants=[user.pk for user in people],
        comparisons=[comparison.pk for comparison in comparisons],
        **fields,
    ).session


def record_of(comparison: Comparison, ranks: Sequence[int], **parts: Any) -> JudgmentRecord:
    ids = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    return judgment_record(verdict=Verdict.RANKED, ranks=dict(zip(ids, ranks, strict=True)), **parts)


def answer(project: Project, person: User, *votes: Sequence[int], **parts: Any) -> list[Assignment]:
    """Take what comes next as often as there are votes; ranks stand in the order of the candidates."""
    done = []
    for ranks in votes:
        assignment = assign_next(project=project, annotator=person)
        assert assignment is not None
        submit(assignment, person, record_of(assignment.comparison, ranks, **parts))
        done.append(assignment)
    return done


def submit(assignment: Assignment, person: User, record: JudgmentRecord) -> Judgment:
    return submit_judgment(
        assignment=assignment, annotator=person, answer=record, idempotency_key=uuid.uuid4()
    )


FIRST, SECOND = (1, 2), (2, 1)
"""The first response is better, or the second."""


def answer_all(project: Project, alice: User, bob: User, dora: User) -> None:
    """Two prefer the first response of the first comparison, one the second; all the second of the other."""
    answer(project, alice, FIRST, SECOND)
    answer(project, bob, FIRST, SECOND)
    answer(project, dora, SECOND, SECOND)


# ── Making a session ──────────────────────────────────────────────────────────────────


def test_a_manager_makes_a_session_and_the_participants_hear_of_it(
    session: CalibrationSession, pairs: list[Comparison], alice: User, bob: User, dora: User
):
    assert list(session.items.values_list("comparison", "index")) == [(pairs[0].pk, 0), (pairs[1].pk, 1)]
    assert set(session.participants.all()) == {alice, bob, dora}
    assert Comparison.objects.filter(is_sealed=True).count() == 2
    told = Notification.objects.filter(kind=NotificationKind.CALIBRATION_BEGUN)
    assert {row.user for row in told} == {alice, bob, dora}
    assert AuditEntry.objects.get(action="calibration.create").details == {
        "comparisons": 2,
        "participants": 3,
    }


def test_what_makes_no_session_is_refused(
    project: Project, pairs: list[Comparison], alice: User, bob: User, carol: User, oscar: User
):
    values: dict[str, Any] = {
        "project": project,
        "created_by": carol,
        "name": "Spring",
        "participants": [alice.pk, bob.pk],
        "comparisons": [pairs[0].pk],
    }
    machine = create_machine(name="machine")
    Membership.objects.create(project=project, user=machine, role=Role.ANNOTATOR)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("manager_calibrates", {"created_by": alice}),
        ("calibration_name_invalid", {"name": "  "}),
        ("calibration_name_invalid", {"name": "x" * 101}),
        ("calibration_participants_invalid", {"participants": [alice.pk]}),
        ("calibration_participants_invalid", {"participants": [alice.pk, oscar.pk, machine.pk]}),
        ("calibration_number_invalid", {"comparisons": [], "draw": 0}),
        ("calibration_number_invalid", {"comparisons": [], "draw": 201}),
        ("calibration_empty", {"comparisons": [factories.make_gold_item(project).pk]}),
    ]
    for code, changed in cases:
        with refused(code):
            create_session(**{**values, **changed})
    assert not CalibrationSession.objects.exists()
    assert not Comparison.objects.filter(is_sealed=True).exists()


def test_comparisons_that_cannot_be_in_a_session_are_left_out_and_counted(
    session: CalibrationSession,
    project: Project,
    pairs: list[Comparison],
    alice: User,
    bob: User,
    carol: User,
):
    free = factories.make_comparison(project)
    named = factories.make_comparison(project, ["As SmolLM, I say two.", "Two."])
    made = create_session(
        project=project,
        created_by=carol,
        name="Second",
        participants=[alice.pk, bob.pk],
        comparisons=[pairs[0].pk, free.pk, named.pk, 10**9, free.pk],
    )
    assert [item.comparison_id for item in made.session.items.all()] == [free.pk]
    assert sorted(made.skipped.values()) == [1, 2]


def test_the_database_keeps_a_comparison_to_one_open_session(
    session: CalibrationSession, pairs: list[Comparison], project: Project, carol: User
):
    other = CalibrationSession.objects.create(project=project, name="Other", created_by=carol)
    with pytest.raises(IntegrityError), transaction.atomic():
        CalibrationItem.objects.create(session=other, comparison=pairs[0], index=0)
    session.items.update(is_open=False)
    CalibrationItem.objects.create(session=other, comparison=pairs[0], index=0)


def test_some_are_drawn_from_what_is_open_to_all_participants_or_annotated(
    project: Project, alice: User, bob: User, carol: User
):
    had = factories.make_comparison(project)
    factories.make_judgment(had, alice)
    fresh = [factories.make_comparison(project) for _ in range(4)]
    draw = partial(
        create_session, project=project, created_by=carol, name="Drawn", participants=[alice.pk, bob.pk]
    )
    opened = draw(draw=3, draw_from=CalibrationDraw.OPEN).session
    drawn = {item.comparison_id for item in opened.items.all()}
    assert len(drawn) == 3
    assert drawn <= {comparison.pk for comparison in fresh}
    annotated = draw(draw=3, draw_from=CalibrationDraw.ANSWERED).session
    assert [item.comparison_id for item in annotated.items.all()] == [had.pk]


# ── Answering ─────────────────────────────────────────────────────────────────────────


def test_the_items_come_first_to_participants_and_to_nobody_twice(
    session: CalibrationSession, pairs: list[Comparison], project: Project, alice: User
):
    other = factories.make_comparison(project, priority=100)
    got = [assignment.comparison_id for assignment in answer(project, alice, FIRST, FIRST, FIRST)]
    assert got == [pairs[0].pk, pairs[1].pk, other.pk]
    assert assign_next(project=project, annotator=alice) is None


def test_more_people_answer_than_the_overlap_asks_and_nobodys_place_is_opened(
    session: CalibrationSession, pairs: list[Comparison], project: Project, alice: User, bob: User, dora: User
):
    assert pairs[0].overlap == 1
    answer_all(project, alice, bob, dora)
    assert Judgment.everything.filter(comparison=pairs[0]).count() == 3
    pairs[0].refresh_from_db()
    # The first answer took the one place; the others took none.
    assert (pairs[0].overlap, pairs[0].open_slots) == (1, 0)
    slots = Assignment.objects.filter(comparison=pairs[0]).values_list("slot", flat=True)
    assert sorted(slots, key=str) == [0, None, None]


def test_who_annotated_a_comparison_before_is_asked_again_in_another_order(
    project: Project, alice: User, bob: User, carol: User
):
    pair = factories.make_comparison(project)
    before = factories.make_judgment(pair, alice, FIRST)
    begin(project, carol, [alice, bob], [pair])
    (again,) = answer(project, alice, SECOND)
    assert again.retest_of_id == before.assignment_id
    assert again.display_order == before.assignment.display_order[::-1]
    # The work that is learned from stays what it was.
    standing = current_judgment(before.assignment)
    assert standing is not None
    assert standing.pk == before.pk


def test_what_a_participant_has_in_hand_as_the_session_begins_is_their_answer(
    project: Project, alice: User, bob: User, carol: User
):
    pair = factories.make_comparison(project)
    in_hand = factories.lease_to(pair, alice)
    session = begin(project, carol, [alice, bob], [pair])
    submit(in_hand, alice, record_of(pair, FIRST))
    assert assign_next(project=project, annotator=alice) is None
    assert [person.answered for person in progress_in(session)] == [1, 0]


def test_a_skip_counts_and_one_from_before_the_session_does_not(
    project: Project, alice: User, bob: User, carol: User
):
    pair = factories.make_comparison(project)
    skip_assignment(assignment=factories.lease_to(pair, alice), annotator=alice, reason="Unclear")
    session = begin(project, carol, [alice, bob], [pair])
    asked = assign_next(project=project, annotator=alice)
    assert asked is not None
    assert asked.comparison_id == pair.pk
    skip_assignment(assignment=asked, annotator=alice, reason="Still unclear")
    assert assign_next(project=project, annotator=alice) is None
    (progress, _bob) = progress_in(session)
    assert (progress.answered, progress.skipped, progress.left) == (0, 1, 0)


# ── Hidden until the reveal ───────────────────────────────────────────────────────────


def test_before_the_reveal_statistics_exports_and_training_are_blind_to_the_votes(
    session: CalibrationSession, pairs: list[Comparison], project: Project, alice: User, bob: User, dora: User
):
    answer_all(project, alice, bob, dora)
    assert not judgments_current(project).exists()
    assert judged_in(project) == []
    assert not Judgment.objects.exists()
    assert not pairs[0].judgments.exists()
    assert set(Comparison.objects.values_list("agreement", flat=True)) == {None}
    assert Judgment.everything.count() == 6


def test_earlier_annotations_of_the_comparisons_are_hidden_too_and_come_back(
    project: Project, alice: User, bob: User, carol: User
):
    project.overlap = 2
    project.save()
    pair = factories.make_comparison(project)
    factories.make_judgment(pair, alice)
    factories.make_judgment(pair, bob)
    pair.refresh_from_db()
    assert pair.agreement == 1.0
    session = begin(project, carol, [alice, bob], [pair])
    pair.refresh_from_db()
    assert pair.agreement is None
    assert not judgments_current(project).exists()
    delete_session(session=session, deleted_by=carol)
    pair.refresh_from_db()
    assert pair.agreement == 1.0
    assert judgments_current(project).count() == 2


def test_a_webhook_hears_of_a_vote_at_the_reveal_and_not_before(
    session: CalibrationSession, project: Project, alice: User, carol: User
):
    from annotation.models import WebhookEndpoint
    from annotation.models.webhooks import seal

    WebhookEndpoint.objects.create(
        project=project,
        url="https://example.org",
        secret=seal("whsec_", purpose="webhook secret"),
        is_enabled=True,
        events=["judgment.submitted"],
    )
    Project.objects.update(has_webhooks=True)
    project.refresh_from_db()
    session.project = project
    answer(project, alice, FIRST)
    assert not WebhookMessage.objects.exists()
    reveal_session(session=session, revealed_by=carol)
    assert '"verdict":"ranked"' in WebhookMessage.objects.get().body


def test_exports_and_snapshots_say_how_many_annotations_they_leave_out(
    session: CalibrationSession,
    pairs: list[Comparison],
    project: Project,
    alice: User,
    bob: User,
    dora: User,
    carol: User,
    client_of: ClientOf,
):
    prompt = factories.make_prompt(project, "Seen?", split="train")
    eve = factories.make_user("eve")
    Membership.objects.create(project=project, user=eve, role=Role.ANNOTATOR)
    factories.make_judgment(factories.make_comparison(project, prompt=prompt), eve)
    answer(project, alice, FIRST, SECOND)
    answer(project, bob, FIRST, comment="first")

    def exported(**filters: Any) -> tuple[int, int]:
        export = export_of(project=project, format_name="jsonl", filters=ExportFilters(**filters))
        counted = count_export(export)
        manifest = manifest_of(export)
        assert manifest["hidden judgments of calibration sessions"] == counted.hidden
        return counted.judgments, counted.hidden

    assert exported() == (1, 3)
    assert exported(comparisons=[pairs[1].pk]) == (0, 1)
    # What a hidden annotation says, or who made it, does not narrow the number.
    assert exported(annotator=str(bob.pseudonym), category="untruthful") == (0, 3)
    page = client_of(carol).get(reverse("export-choose", args=[project.slug]), {"format": "jsonl"})
    assert page.context["counts"].hidden == 3
    assert freeze_snapshot(project=project, rounds=[1]).counts["hidden"] == 3
    reveal_session(session=session, revealed_by=carol)
    assert exported() == (4, 0)
    assert "hidden" not in freeze_snapshot(project=project, rounds=[1]).counts


def test_active_learning_learns_from_a_hidden_annotation_once_it_is_revealed(
    project: Project, alice: User, bob: User, carol: User
):
    pair = factories.make_comparison(project)
    factories.make_judgment(pair, bob)
    free = factories.make_comparison(project)
    visible = factories.make_judgment(free, bob)

    def learned() -> set[int]:
        project.refresh_from_db()
        arrays = arrays_of(project, 1)
        for pk in unread(arrays):
            arrays.add(pk, np.zeros(DIMENSIONS, dtype=np.float32))
        read_new(arrays)
        return set(arrays.rankings)

    clear_cache()
    assert len(learned()) == 2
    session = begin(project, carol, [alice, bob], [pair])
    project.refresh_from_db()
    answer(project, alice, FIRST)
    assert learned() == {visible.pk}
    reveal_session(session=session, revealed_by=carol)
    # Bob's from before, and Alice's.
    assert len(learned()) == 3
    clear_cache()


def test_reports_of_strategies_help_and_ai_annotators_are_blind_to_hidden_annotations(
    project: Project, alice: User, bob: User, carol: User
):
    checkpoint = open_first_round(project=project).policy
    judge = create_judge(project=project, name="Judge", checkpoint=checkpoint, created_by=carol)
    pair = factories.make_comparison(project)
    judgment = factories.make_judgment(pair, alice, FIRST)
    record_vote(
        comparison=pair,
        voter=judge.user,
        shown=judgment.assignment.display_order,
        answer=record_of(pair, FIRST),
        idempotency_key=uuid.uuid4(),
    )
    HelpReveal.objects.create(assignment=judgment.assignment, arm="helped", first_judgment=judgment)
    Assignment.objects.filter(pk=judgment.assignment_id).update(arm=AcquisitionArm.STRATEGY)

    def figures() -> tuple[int, ...]:
        report = report_of(judge)
        strategy = sum(arm.judged for arm in gain_of_strategy(project, 1))
        return report.judged, report.shared, len(passes_in(project)), strategy

    assert figures() == (1, 1, 1, 1)
    session = begin(project, carol, [alice, bob], [pair])
    assert figures() == (0, 0, 0, 0)
    reveal_session(session=session, revealed_by=carol)
    assert figures() == (1, 1, 1, 1)


def test_a_participant_who_has_items_left_does_not_wait_for_work(
    session: CalibrationSession, project: Project, alice: User, carol: User
):
    Comparison.objects.update(open_slots=0)

    def availability() -> str:
        project.refresh_from_db()
        return availability_of_annotators(project)[alice.pk].availability

    assert availability() == Availability.READY
    answer(project, alice, FIRST)
    assert availability() == Availability.READY
    answer(project, alice, FIRST)
    assert availability() == Availability.WAITING
    reveal_session(session=session, revealed_by=carol)
    assert availability() == Availability.WAITING


def test_an_imported_annotation_of_a_hidden_comparison_is_taken_and_hidden_too(
    project: Project, alice: User, bob: User, carol: User, tmp_path: Path
):
    def bring_in(annotator: str) -> None:
        row = {"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No.", "winner": 1, "annotator": annotator}
        path = tmp_path / f"{annotator}.jsonl"
        path.write_text(json.dumps(row))
        import_file(project=project, path=path)

    bring_in("before")
    session = begin(project, carol, [alice, bob], [Comparison.objects.get()])
    bring_in("during")
    assert Judgment.everything.filter(comparison__is_sealed=True).count() == 2
    assert not judgments_current(project).exists()
    assert Comparison.objects.get().agreement is None
    reveal_session(session=session, revealed_by=carol)
    assert judgments_current(project).count() == 2
    # Nobody who takes part made them: they are in no figure of the session.
    assert not versions_of(session).before


def test_no_review_of_a_hidden_comparison_is_open_to_a_reviewer(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User, rita: User
):
    from annotation.selectors.reviews import open_reviews_for

    Project.objects.update(review_every=1, review_disagreements=True)
    project.refresh_from_db()
    answer_all(project, alice, bob, dora)
    assert not open_reviews_for(project, rita).exists()
    reveal_session(session=session, revealed_by=carol)
    assert open_reviews_for(project, rita).exists()
    assert Review.objects.count() == 2


# ── The reveal, the talk and the close ────────────────────────────────────────────────


def test_alpha_before_and_after_the_talk_is_that_worked_out_by_hand(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    answer_all(project, alice, bob, dora)
    session = reveal_session(session=session, revealed_by=carol)
    versions = versions_of(session)
    # Values + + − and − − −: six, two of them +. Observed disagreement: of the first comparison's ordered
    # pairs 4 differ, over 3 − 1 people 2, so 2 / 6. Expected: 2 · 2 · 4 / (6 · 5) = 16 / 30.
    # α = 1 − (1 / 3) / (8 / 15) = 3 / 8.
    assert preference_alpha(versions.before).value == pytest.approx(3 / 8)
    assert preference_alpha(versions.after).value == pytest.approx(3 / 8)
    assert [(row.before, row.after) for row in item_rows(session, versions)] == [
        (pytest.approx(1 / 3), pytest.approx(1 / 3)),
        (1.0, 1.0),
    ]
    changed = Assignment.objects.get(annotator=dora, comparison=session.items.all()[0].comparison)
    submit(changed, dora, record_of(changed.comparison, FIRST))
    versions = versions_of(session)
    # + + + and − − −: nothing differs within a comparison.
    assert preference_alpha(versions.before).value == pytest.approx(3 / 8)
    assert preference_alpha(versions.after).value == pytest.approx(1.0)
    (row,) = alpha_rows(session, versions)
    assert row.label == "Preference"
    assert Judgment.everything.count() == 7


def test_alpha_of_ratings_stands_beside_that_of_the_preference(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    from annotation.models import Criterion

    Criterion.objects.create(project=project, key="helpful", label="Helpful")
    for person, values in ((alice, (1, 5)), (bob, (1, 5)), (dora, (1, 5))):
        for ranks in (FIRST, SECOND):
            assignment = assign_next(project=project, annotator=person)
            assert assignment is not None
            ids = sorted(assignment.display_order)
            ratings = tuple(
                RatingPart(completion=str(pk), criterion="helpful", value=value, scale="five")
                for pk, value in zip(ids, values, strict=True)
            )
            submit(assignment, person, record_of(assignment.comparison, ranks, ratings=ratings))
    session = reveal_session(session=session, revealed_by=carol)
    rows = alpha_rows(session, versions_of(session))
    assert [(row.label, row.before.value) for row in rows] == [("Preference", 1.0), ("Helpful", 1.0)]


def test_the_version_at_the_reveal_stays_and_who_answers_later_takes_no_part(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    answer(project, alice, FIRST, SECOND)
    answer(project, bob, FIRST)
    late = assign_next(project=project, annotator=dora)
    assert late is not None
    assert [person.left for person in progress_in(session)] == [0, 1, 2]
    session = reveal_session(session=session, revealed_by=carol)
    assert assign_next(project=project, annotator=bob) is None
    submit(late, dora, record_of(late.comparison, SECOND))
    answers = CalibrationAnswer.objects.filter(before__isnull=False)
    assert answers.count() == 3
    assert {answer.before.annotator for answer in answers if answer.before} == {alice, bob}
    page = ItemPage(session.items.select_related("comparison__prompt").get(index=0))
    assert [(vote.user, vote.preference, vote.before is None) for vote in page.votes] == [
        (alice, "1 > 2", False),
        (bob, "1 > 2", False),
        (dora, "2 > 1", True),
    ]
    with refused("calibration_revealed"):
        reveal_session(session=session, revealed_by=carol)


def test_after_the_close_a_change_is_no_longer_one_of_the_talk(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    answer_all(project, alice, bob, dora)
    with refused("calibration_not_revealed"):
        close_session(session=session, closed_by=carol)
    reveal_session(session=session, revealed_by=carol)
    session = close_session(session=session, closed_by=carol)
    changed = Assignment.objects.get(annotator=dora, comparison=session.items.all()[0].comparison)
    submit(changed, dora, record_of(changed.comparison, FIRST))
    assert preference_alpha(versions_of(session).after).value == pytest.approx(3 / 8)
    with refused("calibration_closed"):
        close_session(session=session, closed_by=carol)
    # The annotation itself is the changed one, for everything else.
    newest = current_judgment(changed)
    assert newest is not None
    assert newest.supersedes is not None


def test_participants_and_managers_talk_and_only_after_the_reveal(
    session: CalibrationSession, project: Project, alice: User, bob: User, carol: User, rita: User
):
    item = session.items.first()
    assert item is not None
    with refused("not_concerned_with_comparison"):
        post_talk(item=item, author=alice, text="What do you think?")
    answer(project, alice, FIRST)
    session = reveal_session(session=session, revealed_by=carol)
    item.session = session
    comment = post_talk(item=item, author=alice, text="Why the second, @bob?")
    post_talk(item=item, author=carol, text="It is shorter.")
    with refused("not_concerned_with_comparison"):
        post_talk(item=item, author=rita, text="I am no participant.")
    kinds = {(row.user, row.kind) for row in Notification.objects.filter(key__startswith="comment:")}
    assert kinds == {(bob, NotificationKind.MENTION), (alice, NotificationKind.REPLY)}
    edit_comment(comment=comment, author=alice, text="Why the second?")
    assert Comment.objects.get(pk=comment.pk).edited_at is not None


def test_a_deleted_session_leaves_its_annotations_and_hides_nothing(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    answer_all(project, alice, bob, dora)
    delete_session(session=session, deleted_by=carol)
    assert not CalibrationSession.objects.exists()
    assert not Comparison.objects.filter(is_sealed=True).exists()
    # The places of the overlap, and what was beyond it.
    assert judgments_current(project).count() == 6
    with refused("calibration_deleted"):
        reveal_session(session=session, revealed_by=carol)


# ── Retests ───────────────────────────────────────────────────────────────────────────


def test_a_retest_of_the_same_closes_the_session_and_hides_its_votes_again(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    answer_all(project, alice, bob, dora)
    session = reveal_session(session=session, revealed_by=carol)
    retest = start_retest(session=session, started_by=carol, is_same=True).session
    session.refresh_from_db()
    assert session.closed_at is not None
    assert (retest.name, retest.retest_of) == ("Spring, retest 1", session)
    assert set(retest.participants.all()) == {alice, bob, dora}
    page = ItemPage(session.items.select_related("comparison__prompt").get(index=0))
    assert page.votes == []
    # Everybody agrees now, on both.
    for person in (alice, bob, dora):
        answer(project, person, FIRST, SECOND)
    assert Assignment.objects.filter(retest_of__isnull=False).count() == 6
    retest = reveal_session(session=retest, revealed_by=carol)
    points = curve_of(project, [session, retest]).points
    assert [point.label for point in points] == ["before the talk", "after the talk", "retest"]
    assert [point.estimate.value for point in points] == pytest.approx([3 / 8, 3 / 8, 1.0])
    again = start_retest(session=retest, started_by=carol, is_same=True).session
    assert (again.name, again.retest_of) == ("Spring, retest 2", session)
    answer(project, alice, FIRST, SECOND)
    assert progress_in(again)[0].answered == 2


def test_a_retest_of_fresh_comparisons_has_none_that_a_participant_has_had(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    answer_all(project, alice, bob, dora)
    fresh = [factories.make_comparison(project) for _ in range(3)]
    session = reveal_session(session=session, revealed_by=carol)
    retest = start_retest(session=session, started_by=carol, is_same=False).session
    keys = {item.comparison_id for item in retest.items.all()}
    assert len(keys) == 2
    assert keys <= {comparison.pk for comparison in fresh}


def test_the_interval_of_a_retest_is_the_bootstrap_over_its_comparisons(
    project: Project, alice: User, bob: User, carol: User
):
    pairs = [factories.make_comparison(project) for _ in range(8)]
    session = begin(project, carol, [alice, bob], pairs)
    votes = [FIRST, SECOND] * 4
    answer(project, alice, *votes)
    answer(project, bob, *votes[:6], FIRST, FIRST)
    session = reveal_session(session=session, revealed_by=carol)
    estimate = preference_alpha(versions_of(session).before)
    # Sixteen values, nine +; one of eight comparisons differs: D_o = 2 / 16, D_e = 2 · 9 · 7 / (16 · 15).
    assert estimate.value == pytest.approx(1 - (1 / 8) / (126 / 240))
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < estimate.value < estimate.high == 1.0


def test_changes_of_the_guidelines_are_marked_between_the_points(
    session: CalibrationSession, project: Project, alice: User, bob: User, dora: User, carol: User
):
    answer_all(project, alice, bob, dora)
    publish_guideline(project=project, text="Before the reveal.", author=carol)
    session = reveal_session(session=session, revealed_by=carol)
    publish_guideline(project=project, text="After the talk.", author=carol)
    session = close_session(session=session, closed_by=carol)
    curve = curve_of(project, [session])
    assert [version for version, _at in curve.guidelines] == [3]
    assert curve.plot is not None
    (mark,) = curve.plot.marks
    assert 0 < mark.x < 320


# ── Pages ─────────────────────────────────────────────────────────────────────────────


def test_a_session_is_made_answered_revealed_and_talked_about_on_its_pages(
    project: Project,
    pairs: list[Comparison],
    alice: User,
    bob: User,
    dora: User,
    carol: User,
    client_of: ClientOf,
):
    manager, annotator = client_of(carol), client_of(dora)
    new = reverse("calibration-new", args=[project.slug])
    chosen = f"{new}?comparisons={pairs[0].pk},{pairs[1].pk}"
    assert "2 comparisons are selected" in manager.get(chosen).content.decode()
    people = [str(user.pk) for user in (alice, bob, dora)]
    assert manager.post(chosen, {"name": "Spring", "participants": people[:1]}).status_code == 422
    made = manager.post(chosen, {"name": "Spring", "participants": people})
    session = CalibrationSession.objects.get()
    page = reverse("calibration", args=[project.slug, session.pk])
    assert made["Location"] == page
    assert "Annotate" in annotator.get(page).content.decode()
    project.refresh_from_db()
    answer_all(project, alice, bob, dora)
    item = reverse("calibration-item", args=[project.slug, session.pk, 0])
    assert annotator.get(item).status_code == 404
    assert "Everybody has answered." in manager.get(page).content.decode()
    assert manager.post(reverse("calibration-reveal", args=[project.slug, session.pk])).status_code == 302
    shown = annotator.get(page).content.decode()
    assert "0.38" in shown
    assert "Reveal" not in shown
    shown = annotator.get(item).content.decode()
    assert shown.count("data-vote=") == 3
    assert "Change my annotation" in shown
    assert annotator.post(item, {"text": "Mine is wrong."}).status_code == 302
    assert "Mine is wrong." in annotator.get(item).content.decode()
    assert annotator.post(item, {"text": " "}).status_code == 422
    comment = Comment.objects.get()
    assert annotator.get(reverse("comment-edit", args=[project.slug, comment.pk])).status_code == 200
    manager.post(reverse("calibration-retest", args=[project.slug, session.pk]), {"which": "same"})
    assert CalibrationSession.objects.count() == 2
    listed = manager.get(reverse("calibrations", args=[project.slug])).content.decode()
    assert "Spring, retest 1" in listed
    assert "α over time" in listed
    retest = CalibrationSession.objects.latest("pk")
    assert manager.post(reverse("calibration-delete", args=[project.slug, retest.pk])).status_code == 302
    assert CalibrationSession.objects.count() == 1


def test_a_selection_of_the_data_browser_becomes_a_session(
    project: Project, pairs: list[Comparison], carol: User, client_of: ClientOf
):
    answered = client_of(carol).post(
        reverse("data-act", args=[project.slug, "comparisons"]),
        {"action": "calibrate", "chosen": [str(pair.pk) for pair in pairs]},
    )
    new = reverse("calibration-new", args=[project.slug])
    assert answered["Location"] == f"{new}?comparisons={pairs[0].pk},{pairs[1].pk}"


def test_who_takes_no_part_sees_no_session(
    session: CalibrationSession, project: Project, alice: User, rita: User, oscar: User, client_of: ClientOf
):
    page = reverse("calibration", args=[project.slug, session.pk])
    assert client_of(rita).get(page).status_code == 404
    assert client_of(oscar).get(page).status_code == 404
    assert client_of(alice).get(page).status_code == 200
    assert not sessions_for(project, rita).exists()
    reveal = reverse("calibration-reveal", args=[project.slug, session.pk])
    assert client_of(alice).post(reveal).status_code == 403


def test_an_annotator_sees_their_own_hidden_annotation_and_changes_it(
    session: CalibrationSession, project: Project, alice: User, client_of: ClientOf
):
    parts = {"critiques": ()}
    (assignment, *_rest) = answer(project, alice, FIRST, SECOND, **parts)
    client = client_of(alice)
    assert client.get(reverse("revise", args=[project.slug, assignment.pk])).status_code == 200
    mine = client.get(reverse("my-work", args=[project.slug])).content.decode()
    assert reverse("revise", args=[project.slug, assignment.pk]) in mine


# ── Twenty at once ────────────────────────────────────────────────────────────────────


def _answer_everything(project: int, person: int) -> int:
    """Answer until nothing is left; return how many."""
    chosen, annotator = Project.objects.get(pk=project), User.objects.get(pk=person)
    done = 0
    while (assignment := assign_next(project=chosen, annotator=annotator)) is not None:
        ranks = FIRST if (person + done) % 3 else SECOND
        submit(assignment, annotator, record_of(assignment.comparison, ranks))
        done += 1
    return done


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestOnPostgres:
    def scene(self) -> tuple[Project, list[User], User, CalibrationSession]:
        people = [factories.make_user(f"person-{number}") for number in range(20)]
        manager = factories.make_user("manager")
        project = factories.make_project(annotators=people, managers=[manager])
        pairs = [factories.make_comparison(project) for _ in range(5)]
        return project, people, manager, begin(project, manager, people, pairs)

    def test_twenty_answer_everything_at_once(self):
        project, people, manager, session = self.scene()
        done = at_once(*(partial(_answer_everything, project.pk, person.pk) for person in people))
        assert done == [5] * 20
        assert not Judgment.objects.exists()
        session = reveal_session(session=session, revealed_by=manager)
        assert CalibrationAnswer.objects.filter(before__isnull=False).count() == 100
        # One place each, by overlap; the others took none.
        assert Assignment.objects.filter(slot__isnull=False).count() == 5
        assert not Comparison.objects.exclude(open_slots=0).exists()
        assert {len(item) for item in versions_of(session).before.values()} == {20}

    def test_a_reveal_amid_twenty_who_answer_has_each_vote_whole_or_not_at_all(self):
        project, people, manager, session = self.scene()
        got = at_once(
            *(partial(_answer_everything, project.pk, person.pk) for person in people),
            partial(reveal_session, session=session, revealed_by=manager),
        )
        assert isinstance(got[-1], CalibrationSession), got[-1]
        assert all(isinstance(number, int) for number in got[:-1]), got
        session.refresh_from_db()
        kept = CalibrationAnswer.objects.filter(before__isnull=False).select_related("before__assignment")
        for answered in kept:
            assert answered.before is not None
            assert answered.before.assignment_id == answered.assignment_id
        # Nothing is lost, hidden, or twice: every submission is a judgment, and all are seen.
        assert Judgment.objects.count() == sum(number for number in got[:-1] if isinstance(number, int))
        submitted = Assignment.objects.filter(state=AssignmentState.SUBMITTED)
        assert submitted.count() == Judgment.objects.count()
        assert set(Comparison.objects.values_list("purpose", "is_sealed")) == {(Purpose.WORK, False)}
