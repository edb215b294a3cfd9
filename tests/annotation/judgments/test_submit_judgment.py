"""One submit is one judgment: whole, checked, written once, superseded and never changed."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from annotation.choices import AssignmentState, Role, Verdict
from annotation.errors import InvalidAnswer, LeaseLost, NotAllowed, WrittenOnceError
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    Correction,
    Judgment,
    Membership,
    MissingInfo,
    Project,
    RankedCompletion,
    SpanFlag,
    User,
)
from annotation.record.judgment import CorrectionPart, EvidencePointer
from annotation.selectors import access
from annotation.services.assignments.leases import expire_leases, skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.checks import dense_ranks
from annotation.services.projects.projects import add_member, publish_guideline
from tests import factories
from tests.annotation.judgments.answers import (
    TEXT,
    completions_of,
    missing,
    nothing_was_written,
    prefer_first,
    span,
    submit,
)
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db

# ── What is stored ────────────────────────────────────────────────────────────────────


def test_everything_that_was_said_is_there_afterwards(pair: Comparison, assignment: Assignment):
    first, second = completions_of(pair)
    answer = prefer_first(
        pair,
        strength=3,
        comment="Clear.",
        active_seconds=41,
        spans=(span(pair, "🍵 ist", note="it is not"),),
        missing=(missing(pair, text="How hot?", evidence=(EvidencePointer(passage=0, sentence=1),)),),
        corrections=(CorrectionPart(completion=str(second.pk), text="Yes."),),
    )
    judgment = Judgment.objects.get(pk=submit(assignment, answer).pk)
    assert (judgment.verdict, judgment.strength, judgment.comment) == ("ranked", 3, "Clear.")
    assert (judgment.active_seconds, judgment.guideline) == (41, access.current_guideline(pair.project))
    assert dict(judgment.ranks.values_list("completion_id", "rank")) == {first.pk: 1, second.pk: 2}
    flag = judgment.span_flags.get()
    # G r ü n space = 5 code points before the tea; tea, space, i, s, t = 5 more.
    assert (flag.start, flag.end, flag.quote, flag.note) == (5, 10, "🍵 ist", "it is not")
    gap = judgment.missing_info.get()
    assert (gap.text, gap.passage, gap.sentence, gap.quote) == ("How hot?", 0, 1, "It is hot.")
    assert judgment.corrections.get().text == "Yes."
    assignment.refresh_from_db()
    assert assignment.state == AssignmentState.SUBMITTED
    assert assignment.closed_at is not None


@pytest.mark.parametrize("quote", ["🍵", "\r\n  g", "\tש", "e\u0301", "\u0301", TEXT])
def test_a_span_stands_on_any_text(pair: Comparison, assignment: Assignment, quote: str):
    judgment = submit(assignment, prefer_first(pair, spans=(span(pair, quote),)))
    flag = judgment.span_flags.get()
    assert completions_of(pair)[0].text[flag.start : flag.end] == flag.quote == quote


def test_ranks_are_stored_without_gaps_and_with_their_ties(project: Project, alice: User):
    comparison = factories.make_comparison(project, ["a", "b", "c", "d"])
    # 2 = 2 over 5 over 9 is the weak order 1 = 1 over 2 over 3.
    judgment = factories.make_judgment(comparison, alice, (5, 2, 9, 2))
    by_index = judgment.ranks.order_by("completion__candidacies__index").values_list("rank", flat=True)
    assert list(by_index) == [2, 1, 3, 1]


def test_dense_ranks_close_gaps_and_keep_ties():
    assert dense_ranks({7: 1, 8: 1, 9: 3}) == {7: 1, 8: 1, 9: 2}
    assert dense_ranks({}) == {}


@pytest.mark.parametrize("verdict", [Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD])
@pytest.mark.parametrize("is_ranked", [True, False])
def test_a_pair_without_a_winner_is_tied_and_says_how(
    pair: Comparison, assignment: Assignment, verdict: Verdict, is_ranked: bool
):
    ids = [completion.pk for completion in completions_of(pair)]
    judgment = submit(
        assignment, judgment_record(verdict=verdict, ranks=dict.fromkeys(ids, 1) if is_ranked else {})
    )
    assert judgment.verdict == verdict
    assert dict(judgment.ranks.values_list("completion_id", "rank")) == dict.fromkeys(ids, 1)


def test_cannot_judge_has_no_ranks(pair: Comparison, assignment: Assignment):
    judgment = submit(assignment, judgment_record(verdict=Verdict.CANNOT_JUDGE, comment="I know no German."))
    assert not judgment.ranks.exists()
    assert judgment.comment == "I know no German."


def test_a_single_answer_can_be_marked_up(project: Project, alice: User):
    judgment = factories.make_judgment(factories.make_comparison(project, ["Only this."]), alice, (1,))
    assert list(judgment.ranks.values_list("rank", flat=True)) == [1]


def test_evidence_may_be_a_title_and_more_than_one_sentence(pair: Comparison, assignment: Assignment):
    missing_info = missing(
        pair,
        evidence=(
            EvidencePointer(passage=1),
            EvidencePointer(passage=0, sentence=0),
            EvidencePointer(passage=0),
        ),
    )
    gap = submit(assignment, prefer_first(pair, missing=(missing_info,))).missing_info.get()
    assert (gap.passage, gap.sentence, gap.quote) == (1, None, "Water")
    assert gap.further_evidence == [
        {"passage": 0, "sentence": 0, "quote": "Tea is a drink."},
        {"passage": 0, "sentence": None, "quote": "Tea"},
    ]


def test_the_guideline_on_screen_is_kept_when_a_newer_one_appears(
    pair: Comparison, assignment: Assignment, carol: User
):
    shown = access.current_guideline(pair.project)
    publish_guideline(project=pair.project, text="New rules.", author=carol)
    assert submit(assignment, prefer_first(pair), guideline=shown).guideline == shown


# ── Whose it is ───────────────────────────────────────────────────────────────────────


def test_nobody_answers_for_another_and_no_former_member_answers(
    pair: Comparison, assignment: Assignment, alice: User, bob: User
):
    with refused("assigned_to_another", NotAllowed):
        submit(assignment, prefer_first(pair), annotator=bob)
    Membership.objects.filter(user=alice).delete()
    with refused("not_an_annotator", NotAllowed):
        submit(assignment, prefer_first(pair))
    assert nothing_was_written(assignment)


def test_a_manager_may_annotate_too(project: Project, carol: User):
    assert factories.make_judgment(factories.make_comparison(project), carol).annotator == carol


# ── Twice, late, again ────────────────────────────────────────────────────────────────


def test_a_submit_that_is_sent_twice_is_one_judgment(pair: Comparison, assignment: Assignment):
    key = uuid.uuid4()
    first = submit(assignment, prefer_first(pair), key=key)
    again = submit(assignment, judgment_record(verdict=Verdict.CANNOT_JUDGE), key=key)
    assert again.pk == first.pk
    assert Judgment.objects.get().verdict == Verdict.RANKED
    assert RankedCompletion.objects.count() == 2


def test_a_key_of_another_comparison_is_refused(project: Project, pair: Comparison, assignment: Assignment):
    key = uuid.uuid4()
    submit(assignment, prefer_first(pair), key=key)
    other = factories.make_comparison(project)
    second = assign_next(project=project, annotator=assignment.annotator)
    assert second is not None
    with refused("idempotency_key_reused", InvalidAnswer) as refusal:
        submit(second, prefer_first(other), key=key)
    assert refusal.value.field == "idempotency_key"


def test_a_change_of_mind_supersedes_and_leaves_the_first_as_it_was(pair: Comparison, assignment: Assignment):
    first = submit(assignment, prefer_first(pair, comment="first"))
    a, b = completions_of(pair)
    second = submit(assignment, judgment_record(verdict=Verdict.RANKED, ranks={a.pk: 2, b.pk: 1}))
    third = submit(assignment, judgment_record(verdict=Verdict.BOTH_BAD))
    assert (second.supersedes, third.supersedes) == (first, second)
    stored = Judgment.objects.get(pk=first.pk)
    assert (stored.comment, stored.ranks.get(completion=a).rank) == ("first", 1)
    assert list(access.judgments_current(pair.project)) == [third]
    assert access.current_judgment(assignment) == third
    assert Comparison.objects.get(pk=pair.pk).open_slots == 0


def end_lease(assignment: Assignment) -> None:
    Assignment.objects.filter(pk=assignment.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))


def test_an_answer_just_after_its_time_counts_while_nobody_took_the_place(
    pair: Comparison, assignment: Assignment
):
    end_lease(assignment)
    assert submit(assignment, prefer_first(pair)).pk


def test_a_late_answer_counts_while_a_place_is_free(pair: Comparison, assignment: Assignment):
    end_lease(assignment)
    expire_leases(project=pair.project)
    submit(assignment, prefer_first(pair))
    assignment.refresh_from_db()
    assert assignment.state == AssignmentState.SUBMITTED
    assert Comparison.objects.get(pk=pair.pk).open_slots == 0


@pytest.mark.parametrize("bob_answers", [False, True])
def test_a_late_answer_is_refused_when_another_has_the_place(
    pair: Comparison, assignment: Assignment, bob: User, bob_answers: bool
):
    end_lease(assignment)
    next_assignment = assign_next(project=pair.project, annotator=bob)
    assert next_assignment is not None
    if bob_answers:
        submit(next_assignment, prefer_first(pair))
    with refused("lease_expired", LeaseLost):
        submit(assignment, prefer_first(pair))
    assert Judgment.objects.filter(annotator=assignment.annotator).count() == 0
    assignment.refresh_from_db()
    assert assignment.state == AssignmentState.EXPIRED


def test_a_late_answer_replaces_the_new_lease_of_the_same_person(pair: Comparison, assignment: Assignment):
    end_lease(assignment)
    expire_leases(project=pair.project)
    newer = assign_next(project=pair.project, annotator=assignment.annotator)
    assert newer is not None
    assert newer.pk != assignment.pk
    submit(assignment, prefer_first(pair))
    newer.refresh_from_db()
    assert newer.state == AssignmentState.RELEASED
    assert Comparison.objects.get(pk=pair.pk).open_slots == 0
    with refused("submitted_elsewhere", LeaseLost):
        submit(newer, prefer_first(pair))
    assert Judgment.objects.count() == 1


def test_who_skipped_may_still_answer_while_a_place_is_free(pair: Comparison, assignment: Assignment):
    skip_assignment(assignment=assignment, annotator=assignment.annotator, reason="too long")
    submit(assignment, prefer_first(pair))
    assert Comparison.objects.get(pk=pair.pk).open_slots == 0


def test_a_refused_late_answer_takes_no_place(pair: Comparison, assignment: Assignment):
    end_lease(assignment)
    expire_leases(project=pair.project)
    with refused("ranks_incomplete", InvalidAnswer):
        submit(assignment, judgment_record(verdict="ranked"))
    assert Comparison.objects.get(pk=pair.pk).open_slots == 1


# ── Written once ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", [Judgment, RankedCompletion, SpanFlag, MissingInfo, Correction, Completion])
def test_rows_cannot_be_changed_or_deleted(model: Any, pair: Comparison, assignment: Assignment):
    first = completions_of(pair)[0]
    submit(
        assignment,
        prefer_first(
            pair,
            spans=(span(pair, "gut"),),
            missing=(missing(pair, text="x"),),
            corrections=(CorrectionPart(completion=str(first.pk), text=""),),
        ),
    )
    row = model.objects.first()
    for change in (
        row.save,
        row.delete,
        lambda: model.objects.update(pk=1),
        lambda: model.objects.filter(pk=row.pk).delete(),
        lambda: model.objects.bulk_update([row], ["pk"]),
    ):
        with pytest.raises(WrittenOnceError):
            change()
    assert model.objects.filter(pk=row.pk).exists()


def test_the_database_itself_keeps_a_slot_from_two_and_a_comparison_from_the_same_person(
    pair: Comparison, assignment: Assignment, alice: User, bob: User
):
    add_member(project=pair.project, user=bob, role=Role.ANNOTATOR)
    now = timezone.now()
    same = {
        "comparison": pair,
        "display_order": assignment.display_order,
        "leased_at": now,
        "lease_expires_at": now,
    }
    for annotator, slot in ((bob, assignment.slot), (alice, assignment.slot + 1)):
        with pytest.raises(IntegrityError), transaction.atomic():
            Assignment.objects.create(annotator=annotator, slot=slot, **same)
    with pytest.raises(IntegrityError), transaction.atomic():
        Comparison.objects.filter(pk=pair.pk).update(open_slots=2)
    assert connection.in_atomic_block
