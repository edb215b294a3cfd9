"""A round is stopped, goes on, and does a step anew. Every deed is in the audit log."""

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import User
from annotation.services import audit
from annotation.services.jobs.messages import send_after_commit
from training.choices import CAN_START_AGAIN, STATE_OF_STEP, RoundState, StepKind, StepState, TaskName
from training.models import EvaluatedPrompt, Evaluation, Round, RoundStep
from training.selectors.round_states import place_of
from training.services.rounds.transitions import (
    FROM_THE_BEGINNING,
    IN_PROGRESS,
    alone_in_training,
    is_being_done,
    move,
    unfinished,
)

CAN_RETRY = (*CAN_START_AGAIN, RoundState.PAUSED, RoundState.DECIDING)
"""States in which nobody works, so that a step can be done anew."""

CAN_CANCEL = (RoundState.DRAFT, RoundState.PAUSED, *IN_PROGRESS)


def pause_round(*, round_: Round, actor: User) -> None:
    """Ask whoever works on a round to save and stop; at once where nobody does.

    A paused round starts nothing by itself, and goes on exactly where it was. Refuses one that
    does not go on.
    """
    with transaction.atomic():
        if not Round.objects.filter(pk=round_.pk, state__in=IN_PROGRESS).update(pause_requested=True):
            raise Refusal(
                "round_not_running", _("%(round)s is not running: there is nothing to pause."), round=round_
            )
        _write_down("round.pause", round_, actor)
        if not is_being_done(round_):
            settle_pause(round_)
    round_.refresh_from_db()


def resume_round(*, round_: Round, actor: User) -> None:
    """Let a paused round go on exactly where it was. Refuses one that is not paused."""
    with alone_in_training(round_):
        place = place_of(round_)
        if not move(round_, place, sources=(RoundState.PAUSED,), pause_requested=False):
            raise Refusal(
                "round_not_paused", _("%(round)s is not paused: there is nothing to resume."), round=round_
            )
        _write_down("round.resume", round_, actor, goes_on=str(place))
        send_after_commit(TaskName.ADVANCE_ROUND, round_.pk)
    round_.refresh_from_db()


def cancel_round(*, round_: Round, actor: User) -> None:
    """Ask whoever works on a round to stop; at once where nobody does. Finished steps stand.

    Refuses a round that has ended.
    """
    with transaction.atomic():
        updated = Round.objects.filter(pk=round_.pk, state__in=CAN_CANCEL).update(cancel_requested=True)
        if not updated:
            raise Refusal(
                "nothing_to_cancel",
                _("Nothing of %(round)s is going on: there is nothing to cancel."),
                round=round_,
            )
        _write_down("round.cancel", round_, actor)
        if not is_being_done(round_):
            _cancel_at_once(round_)
    round_.refresh_from_db()


def start_again(*, round_: Round, actor: User) -> None:
    """Go on where a failed or cancelled round ended; what is finished is not done again.

    Its budget of hours counts anew. In labelling it takes up the answering that failed. Refuses
    where nothing failed and nothing was cancelled.
    """
    with alone_in_training(round_):
        steps = RoundStep.objects.filter(round=round_)
        ended = steps.filter(state__in=[StepState.FAILED, StepState.CANCELLED])
        # Once training has started, an answering that it ended is not taken up again.
        ended = ended.filter(position__gt=0) if steps.filter(position__gt=0).exists() else ended
        place = place_of(round_)
        moved = move(round_, place, sources=CAN_START_AGAIN, cancel_requested=False, finished_at=None)
        taken_up = ended.update(state=StepState.WAITING, error="", message="", finished_at=None)
        labelling = Round.objects.filter(pk=round_.pk, state=RoundState.LABELLING).exists()
        if not moved and not (labelling and taken_up):
            raise Refusal(
                "nothing_to_restart",
                _("Nothing of %(round)s failed or was cancelled: there is nothing to start again."),
                round=round_,
            )
        steps.update(seconds_worked=0.0)
        _write_down("round.again", round_, actor, goes_on=str(place))
        send_after_commit(TaskName.ADVANCE_ROUND, round_.pk)
    round_.refresh_from_db()


def reopen_round(*, round_: Round, actor: User) -> None:
    """Take a failed or cancelled round back to labelling, to label more or to change the recipe.

    Its snapshot and runs stay in the records, but the next start freezes and trains anew, and a
    person has to start it. Refuses once the next round is open.
    """
    with transaction.atomic():
        _refuse_if_followed(round_)
        gone = _runs_of(round_, from_position=1)
        back = place_of(round_) == RoundState.DRAFT
        if not move(
            round_,
            RoundState.DRAFT if back else RoundState.LABELLING,
            sources=CAN_START_AGAIN,
            snapshot=None,
            reasons=[],
            verdict="",
            started_at=None,
            started_by=None,
            finished_at=None,
            cancel_requested=False,
            starts_by_itself=False,
        ):
            raise Refusal(
                "round_not_failed",
                _("%(round)s neither failed nor was cancelled: it stays as it is."),
                round=round_,
            )
        RoundStep.objects.filter(round=round_, position__gt=0).delete()
        _write_down("round.reopen", round_, actor, runs=gone)
    round_.refresh_from_db()


def retry_step(*, round_: Round, kind: StepKind, actor: User) -> None:
    """Do a step of a round anew, from its beginning, and all that later steps made of it.

    What was made stays in the records: snapshots, runs and checkpoints are not deleted, and the
    audit log names the runs. A round that has only failed is better started again. Refuses while
    a worker is at it, and once the next round is open.
    """
    with alone_in_training(round_):
        _refuse_if_followed(round_)
        step = RoundStep.objects.filter(round=round_, kind=kind).order_by("position").first()
        if step is None or is_being_done(round_):
            raise Refusal(
                "step_not_repeatable",
                _("%(step)s of %(round)s cannot be repeated now: pause or cancel the round first."),
                step=kind.label.capitalize(),
                round=round_,
            )
        gone = _runs_of(round_, from_position=max(step.position, 1))
        values: dict[str, object] = {"reasons": [], "verdict": ""}
        if kind in (StepKind.ANSWER_PROMPTS, StepKind.FREEZE_SNAPSHOT):
            values["snapshot"] = None
        moved = move(
            round_,
            STATE_OF_STEP[kind],
            sources=CAN_RETRY,
            cancel_requested=False,
            pause_requested=False,
            finished_at=None,
            **values,
        )
        # The decision itself is made anew where the round stands.
        waiting = Round.objects.filter(pk=round_.pk, state=RoundState.DECIDING)
        if not moved and not (kind == StepKind.DECIDE and waiting.update(reasons=[], verdict="")):
            raise Refusal(
                "step_not_repeatable",
                _("%(step)s of %(round)s cannot be repeated now: pause or cancel the round first."),
                step=kind.label.capitalize(),
                round=round_,
            )
        _begin_anew(round_, step)
        _write_down("round.retry", round_, actor, step=str(kind), runs=gone)
        send_after_commit(TaskName.ADVANCE_ROUND, round_.pk)
    round_.refresh_from_db()


def settle_requests(round_id: int | None = None) -> None:
    """Stop every round, or this one, that was to stop while its worker was ending a step and did not hear."""
    rounds = Round.objects.filter(Q(cancel_requested=True) | Q(pause_requested=True), state__in=IN_PROGRESS)
    for round_ in rounds if round_id is None else rounds.filter(pk=round_id):
        with transaction.atomic():
            if is_being_done(round_):
                continue
            if round_.cancel_requested:
                _cancel_at_once(round_)
            else:
                settle_pause(round_)


def settle_pause(round_: Round) -> None:
    """Move the round to paused and clear the request."""
    move(round_, RoundState.PAUSED, sources=IN_PROGRESS)
    Round.objects.filter(pk=round_.pk).update(pause_requested=False)


def settle_cancel(round_: Round) -> None:
    """Move the round to cancelled and clear the requests."""
    move(round_, RoundState.CANCELLED, sources=CAN_CANCEL, finished_at=Now())
    Round.objects.filter(pk=round_.pk).update(cancel_requested=False, pause_requested=False)


def _cancel_at_once(round_: Round) -> None:
    unfinished(round_).update(
        state=StepState.CANCELLED, message="cancelled before it began", finished_at=Now()
    )
    settle_cancel(round_)


def _begin_anew(round_: Round, step: RoundStep) -> None:
    if step.kind != StepKind.DECIDE:
        _evaluate_anew(round_)
    if step.position == 0:
        # What was answered stands and costs nothing; training begins from other judgments.
        RoundStep.objects.filter(round=round_, position__gt=0).delete()
    RoundStep.objects.filter(round=round_, position__gte=step.position).update(
        **FROM_THE_BEGINNING, run=None, seconds_worked=0.0, started_at=None
    )


def _evaluate_anew(round_: Round) -> None:
    """Answers stand, for the same seed gives them again; what was found of them is found anew."""
    evaluations = Evaluation.objects.filter(round=round_)
    EvaluatedPrompt.objects.filter(evaluation__in=evaluations).update(figures={})
    evaluations.update(finished_at=None)


def _refuse_if_followed(round_: Round) -> None:
    if Round.objects.filter(project=round_.project, number=round_.number + 1).exists():
        raise Refusal(
            "next_round_open",
            _("The round after %(round)s is open already: continue with that one."),
            round=round_,
        )


def _runs_of(round_: Round, *, from_position: int) -> list[str]:
    steps = RoundStep.objects.filter(round=round_, position__gte=from_position, run__isnull=False)
    return list(steps.order_by("position").values_list("run__name", flat=True))


def _write_down(action: str, round_: Round, actor: User | None, **details: object) -> None:
    audit.record(action=action, subject=round_, actor=actor, project=round_.project, details=details)
