"""Quality control: agreement and gold items."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.agreement.records import (
    Selection,
    agreeing_share,
    by_comparison,
    decides_a_pair,
)
from annotation.choices import (
    AssignmentState,
    Purpose,
    TaskName,
    Verdict,
)
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    GoldAnswer,
    Judgment,
    Project,
    Prompt,
    Review,
    User,
)
from annotation.selectors import access
from annotation.selectors.allocation import allotted_to
from annotation.selectors.judged import judged_in
from annotation.services import audit
from annotation.services.assignments import display_order
from annotation.services.assignments.leases import only_self
from annotation.services.jobs import send, send_after_commit
from annotation.services.judgments.checks import check_ranks
from annotation.services.texts import NewComparison, checked_ids, write_comparison

# Agreement of annotators, and reports that a worker computes.


def record_agreement_after(*, judgment: Judgment, comparison: Comparison) -> None:
    """Record the agreement of a comparison of which a judgment was written. Call it in its transaction.

    Costs one query where nobody else judged the comparison. No annotator waits for it: where someone else
    has locked the comparison, a worker records it once this transaction is committed.
    """
    if comparison.purpose != Purpose.WORK:
        return
    others = Judgment.objects.filter(comparison=comparison).exclude(annotator_id=judgment.annotator_id)
    # With a lock alone would two who submit at once see each other.
    if comparison.overlap == 1 and not others.exists():
        return
    if not record_agreement(comparisons=[comparison.pk], skip_locked=True):
        send_after_commit(TaskName.RECORD_AGREEMENT, comparison.pk)


@transaction.atomic
def record_agreement(*, comparisons: Collection[int], skip_locked: bool = False) -> int:
    """Record the agreement of comparisons of one project; return how many were looked at.

    It is None where fewer than two people judged; machines do not count. Four queries at most where
    agreement changes little, whatever their number. skip_locked: leave out those that someone else has
    locked, instead of waiting for them.
    """
    locked = Comparison.objects.select_for_update(no_key=True, skip_locked=skip_locked, of=only_self())
    work = locked.filter(pk__in=comparisons, purpose=Purpose.WORK).select_related("project")
    rows = list(work.order_by("pk").only("agreement", "project"))
    if not rows:
        return 0
    of_them = Q(comparison__in=[row.pk for row in rows])
    items = by_comparison(judged_in(rows[0].project, narrowed=of_them))
    changed = []
    for row in rows:
        share = agreeing_share(items.get(row.pk, ()))
        if share != row.agreement:
            row.agreement = share
            changed.append(row)
    if changed:
        Comparison.objects.bulk_update(changed, ["agreement"], batch_size=500)
    return len(rows)


def request_report(*, project_id: int, selection: Selection) -> bool:
    """Ask a worker to compute a report; return False where no message could be sent."""
    return send(TaskName.COMPUTE_REPORT, project_id, *astuple(selection))


# Gold items: comparisons whose answer is known, mixed in unseen to tell how good answers are.

_DRAWN_FROM = 200


def create_gold_item(
    *,
    prompt: Prompt,
    completions: Sequence[Completion],
    verdict: str,
    ranks: Mapping[int, int],
    created_by: User,
    explanation: str = "",
    purpose: Purpose = Purpose.GOLD,
    round_number: int | None = None,
) -> Comparison:
    """Make a comparison whose answer is known: gold, or an item of the qualification set.

    It has no open places, so nobody meets it by way of the queue. Refuses who does not manage the
    project, a known answer that decides nothing, what `create_comparison` refuses, and the same
    completions a second time for the same purpose. `round_number` is the newest when left out.
    """
    project = prompt.project
    access.refuse_unless_manager(created_by, project, "manager_sets_known_answers")
    if purpose == Purpose.WORK:
        raise Refusal(
            "invalid_gold_purpose",
            _("A known answer is for gold or for qualification, not for work."),
            field="purpose",
        )
    ids = checked_ids(prompt, completions)
    known = _checked_answer(verdict, ranks, ids)
    try:
        with transaction.atomic():
            comparison = write_comparison(
                NewComparison(
                    project_id=project.pk,
                    prompt_id=prompt.pk,
                    completions=ids,
                    round_number=round_number or access.current_round(project),
                    purpose=purpose,
                )
            )
            GoldAnswer.objects.create(
                comparison=comparison,
                verdict=verdict,
                ranks={str(pk): rank for pk, rank in known.items()},
                explanation=explanation.replace("\x00", "").strip(),
                created_by=created_by,
            )
            return comparison
    except IntegrityError as error:
        raise Refusal(
            "known_answer_exists",
            _("These responses have a known answer already. Choose others."),
            field="completions",
        ) from error


def mark_as_gold(
    *,
    comparison: Comparison,
    created_by: User,
    explanation: str = "",
    purpose: Purpose = Purpose.GOLD,
    verdict: str = "",
    ranks: Mapping[int, int] | None = None,
) -> Comparison:
    """Make a gold item of a comparison; the comparison and its votes stay as they are.

    Its known answer is `verdict` with `ranks`; without them what reviewers decided, else what all annotators
    said alike. Refuses a comparison that is still being judged, and one of which nobody knows the answer. Who
    judged it does not get the gold item.
    """
    if (
        Comparison.objects.filter(pk=comparison.pk, open_slots__gt=0).exists()
        or comparison.assignments.filter(state=AssignmentState.LEASED, annotator__is_machine=False).exists()
    ):
        raise Refusal(
            "comparison_in_annotation",
            _("This comparison is still being annotated. Wait until all annotations are submitted."),
        )
    if not verdict:
        verdict, ranks = _agreed_answer(comparison)
    return create_gold_item(
        prompt=comparison.prompt,
        completions=[
            candidate.completion
            for candidate in comparison.candidates.select_related("completion").order_by("index")
        ],
        verdict=verdict,
        ranks=ranks or {},
        created_by=created_by,
        explanation=explanation,
        purpose=purpose,
        round_number=comparison.round_number,
    )


def edit_gold_item(
    *, known: GoldAnswer, edited_by: User, verdict: str, ranks: Mapping[int, int], explanation: str
) -> GoldAnswer:
    """Change the known answer of a gold or qualification item, and its explanation.

    Answers that were given already are compared with the new one from now on. The audit log keeps the old
    one. Refuses who does not manage the project, and a known answer that decides nothing.
    """
    comparison = known.comparison
    access.refuse_unless_manager(edited_by, comparison.project, "manager_sets_known_answers")
    ids = list(comparison.completions.values_list("pk", flat=True))
    checked = {str(pk): rank for pk, rank in _checked_answer(verdict, ranks, ids).items()}
    text = explanation.replace("\x00", "").strip()
    with transaction.atomic():
        locked = GoldAnswer.objects.select_for_update(no_key=True).get(pk=known.pk)
        before = {"verdict": locked.verdict, "ranks": locked.ranks, "explanation": locked.explanation}
        after = {"verdict": str(verdict), "ranks": checked, "explanation": text}
        if before != after:
            GoldAnswer.objects.filter(pk=known.pk).update(**after)
            audit.record(
                action="gold.edit",
                subject=locked,
                actor=edited_by,
                project=comparison.project,
                details={"comparison": comparison.pk, "before": before},
            )
    known.refresh_from_db()
    return known


def retire_gold_item(*, known: GoldAnswer, retired_by: User, retired: bool = True) -> GoldAnswer:
    """Hand a gold or qualification item out no more, or again. What was answered still counts.

    Of a qualification set a retired item is no part: it need not be passed. Refuses who does not manage the
    project.
    """
    project = known.comparison.project
    access.refuse_unless_manager(retired_by, project, "manager_sets_known_answers")
    with transaction.atomic():
        changed = GoldAnswer.objects.filter(pk=known.pk, retired_at__isnull=retired).update(
            retired_at=timezone.now() if retired else None
        )
        if changed:
            audit.record(
                action="gold.retire" if retired else "gold.restore",
                subject=known,
                actor=retired_by,
                project=project,
                details={"comparison": known.comparison_id},
            )
    known.refresh_from_db()
    return known


def next_gold_item(*, project: Project, annotator: User, turn: int) -> Comparison | None:
    """A gold item that this person has not had, neither as gold nor as work; drawn by chance."""
    had = Assignment.objects.filter(
        comparison__project=project,
        comparison__round_number=OuterRef("round_number"),
        comparison__completion_set=OuterRef("completion_set"),
        annotator=annotator,
        state__in=access.SPENT_STATES,
    )
    left = list(
        Comparison.objects.filter(
            ~Exists(had),
            allotted_to(project, annotator),
            project=project,
            purpose=Purpose.GOLD,
            gold_answer__retired_at__isnull=True,
        )
        .order_by("id")
        .values_list("pk", flat=True)[:_DRAWN_FROM]
    )
    if not left:
        return None
    place = display_order.number_below(
        len(left), "gold-item", project=project, annotator=annotator, turn=turn
    )
    return Comparison.objects.select_related("prompt").get(pk=left[place])


def _checked_answer(verdict: str, ranks: Mapping[int, int], ids: Sequence[int]) -> dict[int, int]:
    if verdict == Verdict.NOT_ASKED:
        raise Refusal(
            "preference_missing",
            _("Choose the better response: a known answer needs a preference."),
            field="verdict",
        )
    known = check_ranks(verdict=verdict, ranks=ranks, completion_ids=ids)
    if verdict == Verdict.RANKED and not decides_a_pair(known, len(ids)):
        raise Refusal(
            "winner_missing", _("This order has no winner: rank one response above another."), field="ranks"
        )
    return known


def _agreed_answer(comparison: Comparison) -> tuple[str, dict[int, int]]:
    review = Review.objects.filter(comparison=comparison, decided_at__isnull=False).first()
    if review is not None:
        return review.verdict, {int(pk): rank for pk, rank in review.ranks.items()}
    answers = [
        (judgment.verdict, {place.completion_id: place.rank for place in judgment.ranks.all()})
        for judgment in Judgment.objects.current()
        .filter(
            comparison=comparison,
            assignment__retest_of__isnull=True,
            annotator__is_machine=False,
        )
        .prefetch_related("ranks")
    ]
    if not answers or any(answer != answers[0] for answer in answers):
        raise Refusal(
            "annotators_disagree",
            _("Annotators do not agree on this comparison. Have a reviewer decide it first."),
        )
    return answers[0]
