"""States of a round: opened, started, paused, cancelled, resumed, repeated. Every call is audited."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.choices import Purpose
from annotation.errors import Refusal
from annotation.models import Comparison, Project, User
from annotation.selectors.access import judgments_current
from annotation.services import audit, bulk
from annotation.services.jobs import send_after_commit
from training.choices import (
    CAN_START,
    CAN_START_AGAIN,
    STATE_OF_STEP,
    TRAINS,
    RoundState,
    StepKind,
    StepState,
    TrainingTask,
)
from training.models import EvaluatedPrompt, Evaluation, Round, RoundStep
from training.recipe.recipe import default_recipe
from training.selectors.rounds import place_of, recipe_to_train
from training.services.chat_templates import untrainable_template
from training.services.evaluation.evaluating import trains_evaluator
from training.services.jobs import tell_of_round
from training.services.rounds.base_choice import first_policy
from training.services.rounds.dry_run import refuse_unless_fits
from training.services.rounds.guarding import withdraw_questions
from training.services.snapshots import refuse_unless_learnable

# ── Transitions between the states of a round ──


_ENDS_EARLY = frozenset({RoundState.PAUSED, RoundState.FAILED, RoundState.CANCELLED})
_GOES_ON = frozenset({RoundState.DRAFT, RoundState.SAMPLING, RoundState.LABELLING, *TRAINS})

MAY_FOLLOW: Mapping[RoundState, frozenset[RoundState]] = {
    RoundState.DRAFT: frozenset({RoundState.SAMPLING, RoundState.CANCELLED}),
    RoundState.SAMPLING: frozenset({RoundState.LABELLING, RoundState.TRAINING_REWARD_MODELS}) | _ENDS_EARLY,
    RoundState.LABELLING: frozenset({RoundState.SAMPLING, RoundState.TRAINING_REWARD_MODELS}) | _ENDS_EARLY,
    RoundState.TRAINING_REWARD_MODELS: frozenset({RoundState.TRAINING_POLICY}) | _ENDS_EARLY,
    RoundState.TRAINING_POLICY: frozenset({RoundState.EVALUATING}) | _ENDS_EARLY,
    RoundState.EVALUATING: frozenset({RoundState.DECIDING}) | _ENDS_EARLY,
    # A step may be done anew while the decision waits.
    RoundState.DECIDING: frozenset(
        {RoundState.PROMOTED, RoundState.REJECTED, RoundState.NOT_ENOUGH_EVIDENCE, RoundState.SAMPLING}
    )
    | frozenset(TRAINS) - {RoundState.DECIDING}
    | _ENDS_EARLY,
    # Evidence may still come in, or a person decides.
    RoundState.NOT_ENOUGH_EVIDENCE: frozenset({RoundState.PROMOTED, RoundState.REJECTED}),
    RoundState.PAUSED: _GOES_ON - {RoundState.DRAFT} | {RoundState.CANCELLED},
    RoundState.FAILED: _GOES_ON - {RoundState.DRAFT} | {RoundState.CANCELLED},
    RoundState.CANCELLED: _GOES_ON,
    RoundState.PROMOTED: frozenset(),
    RoundState.REJECTED: frozenset(),
}
"""From each state, those that may come next. Where a round stands still it may go on from any step."""

CAN_DISCARD = (
    RoundState.DRAFT,
    RoundState.LABELLING,
    RoundState.PAUSED,
    RoundState.FAILED,
    RoundState.CANCELLED,
)
"""States in which a round that trained nothing may be deleted."""
_DISCARDED = 2_000
"""Comparisons that are deleted in one transaction."""

IN_PROGRESS = (RoundState.SAMPLING, RoundState.LABELLING, *TRAINS)
"""States in which workers look for steps to do."""

TRAINING_STEPS = (
    StepKind.FREEZE_SNAPSHOT,
    StepKind.TRAIN_REWARD_MODEL,
    StepKind.TRAIN_EVALUATOR,
    StepKind.TRAIN_POLICY,
    StepKind.REGISTER_CHECKPOINTS,
    StepKind.EVALUATE,
    StepKind.DECIDE,
)
"""In this order; the evaluator's only in rounds that train one (`trains_evaluator`)."""


FROM_THE_BEGINNING: Mapping[str, Any] = {
    "state": StepState.WAITING,
    "current": 0,
    "total": 0,
    "message": "",
    "error": "",
    "worker": "",
    "heartbeat_at": None,
    "finished_at": None,
}
"""Columns of a step that is done again."""


def move(
    round_: Round, to: RoundState, *, sources: Collection[RoundState] = tuple(RoundState), **values: object
) -> bool:
    """Take a round to another state in one guarded UPDATE, `values` with it; whether it was moved.

    It is moved only from a state of `sources` after which `to` may come: of any that try at once, one does.
    """
    may_precede = [state for state, following in MAY_FOLLOW.items() if to in following and state in sources]
    with transaction.atomic():
        moved = Round.objects.filter(pk=round_.pk, state__in=may_precede).update(state=to, **values)
        if moved:
            tell_of_round(round_, to)
    return bool(moved)


def enter(step: RoundStep) -> bool:
    """Note that a round does this step now. False where it was stopped in the meantime.

    Answering goes on in labelling, so that a round in labelling is not taken back to sampling by it.
    """
    to = STATE_OF_STEP[StepKind(step.kind)]
    here = (RoundState.SAMPLING, RoundState.LABELLING) if to == RoundState.SAMPLING else (to,)
    # An UPDATE even where nothing changes: whoever stops the round at this moment holds its row.
    if Round.objects.filter(pk=step.round_id, state__in=here).update(cancel_requested=F("cancel_requested")):
        return True
    return to in TRAINS and move(step.round, to, sources=TRAINS)


@contextmanager
def alone_in_training(round_: Round) -> Iterator[None]:
    """Open a transaction that may take a round into training. Refuses while another round trains."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        raise Refusal(
            "another_round_trains",
            _("Another round of %(project)s is training: wait for it, or cancel it."),
            project=round_.project,
        ) from error


def unfinished(round_: Round) -> QuerySet[RoundStep]:
    """Steps that somebody does, or is to do."""
    return RoundStep.objects.filter(round=round_, state__in=[StepState.WAITING, StepState.RUNNING])


def is_being_done(round_: Round) -> bool:
    """Return whether a worker has a step of the round."""
    return RoundStep.objects.filter(round=round_, state=StepState.RUNNING).exists()


# ── Drafted, opened for sampling, started to train ──


def draft_first_round(
    *, project: Project, created_by: User | None, recipe: Mapping[str, Any] | None = None
) -> Round:
    """Write down a project's first round, whose recipe may still change; nothing is sampled yet.

    Idempotent: a project that has its first round keeps it as it is.
    """
    with transaction.atomic():
        round_, created = Round.objects.get_or_create(
            project=project,
            number=1,
            defaults={
                "policy": first_policy(project),
                "recipe": recipe or default_recipe(),
                "created_by": created_by,
            },
        )
        if created:
            tell_of_round(round_, RoundState.DRAFT)
            audit.record(action="round.draft", subject=round_, actor=created_by, project=project)
    return round_


def open_round(*, round_: Round, opened_by: User | None) -> None:
    """Let a draft's policy answer its prompts. A worker is told after the commit.

    Comparisons appear as answers come. Refuses a round that is no draft any more, and one whose responses
    could be judged and not trained on.
    """
    for problem in untrainable_template(round_.policy):
        raise Refusal("recipe_invalid", problem, field="recipe")
    with transaction.atomic():
        if not move(round_, RoundState.SAMPLING, sources=(RoundState.DRAFT,)):
            raise Refusal(
                "round_not_draft", _("%(round)s is no draft any more: it was opened already."), round=round_
            )
        RoundStep.objects.get_or_create(round=round_, position=0, defaults={"kind": StepKind.ANSWER_PROMPTS})
        audit.record(action="round.open", subject=round_, actor=opened_by, project=round_.project)
        send_after_commit(TrainingTask.ADVANCE_ROUND, round_.pk)
    round_.refresh_from_db()


def open_first_round(
    *, project: Project, started_by: User | None = None, recipe: Mapping[str, Any] | None = None
) -> Round:
    """Draft and open a project's first round at once: the starter model is to answer its prompts.

    Idempotent.
    """
    # Checked here once, so that no transaction waits for the check below: its result is stored.
    list(untrainable_template(first_policy(project)))
    with transaction.atomic():
        round_ = draft_first_round(project=project, created_by=started_by, recipe=recipe)
        if round_.state == RoundState.DRAFT:
            open_round(round_=round_, opened_by=started_by)
    return round_


def start_round(*, round_: Round, started_by: User | None, despite_memory: bool = False) -> None:
    """Start training on the judgments of now. A worker is told after the commit.

    `started_by` is None where the recipe's trigger starts it. Refuses a round that is not in
    sampling or labelling, a project that trains already, judgments from which nothing can be
    learnt, and a recipe whose runs cannot fit into the memory of any worker that trains. With
    `despite_memory` an administrator lets these start all the same, which the audit log records.
    Writes down the policy's settings that `policy_method` auto stands for, of the judgments of now.
    Ends the answering of prompts that still goes on: the machine is needed for training, and what
    is not labelled yet cannot be learnt from.
    """
    refuse_unless_learnable(
        round_.project,
        range(1, round_.number + 1),
        ai_feedback=round_.parsed_recipe.ai_feedback,
        first_passes=round_.parsed_recipe.first_passes,
    )
    if despite_memory and not (started_by and started_by.is_superuser):
        raise Refusal(
            "administrator_starts_large_training",
            _("Only an administrator may start training that does not fit into memory."),
        )
    overridden = refuse_unless_fits(round_, despite_memory=despite_memory)
    with alone_in_training(round_):
        # As it is stored: the caller's may be older.
        stored = Round.objects.select_for_update(of=("self",)).select_related("project").get(pk=round_.pk)
        chosen = recipe_to_train(stored)
        has_moved = move(
            round_,
            RoundState.TRAINING_REWARD_MODELS,
            sources=CAN_START,
            started_at=Now(),
            started_by=started_by,
            cancel_requested=False,
            pause_requested=False,
            recipe=chosen.to_json() if chosen != stored.parsed_recipe else F("recipe"),
        )
        if not has_moved:
            raise Refusal(
                "round_not_labelling",
                _("%(round)s is not in labelling any more: look at where it is now."),
                round=round_,
            )
        unfinished(round_).filter(position=0).update(
            state=StepState.CANCELLED,
            worker="",
            heartbeat_at=None,
            message="ended when training started; what was answered stands",
            finished_at=Now(),
        )
        RoundStep.objects.bulk_create(
            RoundStep(round=round_, position=position, kind=kind)
            for position, kind in enumerate(_training_steps(round_), start=1)
        )
        audit.record(
            action="round.start",
            subject=round_,
            actor=started_by,
            project=round_.project,
            details={
                "judgments": judgments_current(round_.project, [round_.number]).count(),
                **({"despite_memory": overridden} if overridden else {}),
            },
        )
        send_after_commit(TrainingTask.ADVANCE_ROUND, round_.pk)
    round_.refresh_from_db()


def _training_steps(round_: Round) -> list[StepKind]:
    second = trains_evaluator(round_)
    return [kind for kind in TRAINING_STEPS if second or kind != StepKind.TRAIN_EVALUATOR]


# ── Paused, cancelled, resumed, repeated ──


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
        send_after_commit(TrainingTask.ADVANCE_ROUND, round_.pk)
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
        send_after_commit(TrainingTask.ADVANCE_ROUND, round_.pk)
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
        send_after_commit(TrainingTask.ADVANCE_ROUND, round_.pk)
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
    """Move the round to cancelled, clear the requests, and close the pairs that its runs ask about."""
    withdraw_questions(round_)
    move(round_, RoundState.CANCELLED, sources=CAN_CANCEL, finished_at=Now())
    Round.objects.filter(pk=round_.pk).update(cancel_requested=False, pause_requested=False)


def _cancel_at_once(round_: Round) -> None:
    unfinished(round_).update(
        state=StepState.CANCELLED, message="cancelled before it began", finished_at=Now()
    )
    settle_cancel(round_)


def _begin_anew(round_: Round, step: RoundStep) -> None:
    withdraw_questions(round_)
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


# ── Deleted, where nothing was trained ──


def comparisons_in(round_: Round) -> list[int]:
    """Return the comparisons of work of a round."""
    work = Comparison.objects.filter(
        project=round_.project_id, round_number=round_.number, purpose=Purpose.WORK
    )
    return list(work.order_by("pk").values_list("pk", flat=True))


def is_discardable(round_: Round, steps: Collection[RoundStep]) -> bool:
    """Return whether a round can be deleted: nobody works on it, and it froze and trained nothing."""
    return (
        round_.state in CAN_DISCARD
        and round_.snapshot_id is None
        and not any(step.run_id or step.state == StepState.RUNNING for step in steps)
    )


def discard_round(*, round_: Round, actor: User) -> None:
    """Delete a round that trained nothing, with its comparisons, which can be brought back for a day.

    Refuses one that others follow, one of which a comparison is labelled or reviewed now, and one that froze
    or trained anything: it stays for the record.
    """
    _refuse_unless_discardable(round_)
    if Round.objects.filter(project=round_.project_id, number__gt=round_.number).exists():
        raise Refusal(
            "round_is_followed",
            _("A later round follows %(round)s. Delete that one first."),
            round=round_,
        )
    keys = comparisons_in(round_)
    batches = [keys[start : start + _DISCARDED] for start in range(0, len(keys), _DISCARDED)]
    arguments: dict[str, Any] = {"project": round_.project, "actor": actor}
    for batch in batches:
        if bulk.delete_comparisons(**arguments, chosen=batch, dry_run=True).skipped:
            raise Refusal(
                "round_in_annotation",
                _("Comparisons of %(round)s are labelled or reviewed now. Wait until they are not."),
                round=round_,
            )
    # Each batch is a transaction of its own, so that others can write meanwhile; the round goes last.
    for batch in batches:
        bulk.delete_comparisons(**arguments, chosen=batch)
    with transaction.atomic():
        locked = Round.objects.select_for_update(no_key=True).get(pk=round_.pk)
        _refuse_unless_discardable(locked)
        _write_down("round.discard", round_, actor, comparisons=len(keys))
        Round.objects.filter(pk=round_.pk).delete()


def _refuse_unless_discardable(round_: Round) -> None:
    if not is_discardable(round_, list(RoundStep.objects.filter(round=round_))):
        raise Refusal(
            "round_on_record",
            _("%(round)s has trained, or a worker is on it. Only a round that trained nothing is deleted."),
            round=round_,
        )
