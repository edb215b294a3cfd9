"""Live learning: while people label, their judgments move the policy, and it answers the next prompts.

One job for a project does all of it, one thing after another: it keeps some comparisons of fresh responses in
the queue, and whenever enough judgments are in it makes an update: one snapshot, one run that continues the
last checkpoint, one checkpoint. So there is one update at a time, and what comes in meanwhile counts to the
next. Each part keeps what is there, so that a worker may be killed anywhere.

    staleness   an update begins once enough judgments are in and the last one is done; the comparisons that
                wait are at most `ahead`, and those of an earlier update are closed once there are newer ones
    guard       length or divergence of its responses may ask people whether the policy is worse than some
                updates ago; until they have answered no update begins. Worse, or no answer in time: learning
                goes back and stops
    rounds      held-out prompts are answered by the round's policy as ever, and nothing is learned from them.
                A round trains from its own policy, and its decision knows no update
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Avg, Count, Exists, Max, OuterRef, Q
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import JobState, Split
from annotation.errors import Refusal, Unavailable
from annotation.models import Candidate, Comparison, Completion, Project, Prompt, User
from annotation.selectors import access
from annotation.services import audit, job_runs
from annotation.services.bulk import CLOSED
from annotation.services.job_runs import EXPECTED, call_with_heartbeat, run_job
from annotation.services.jobs import Heartbeat, send_after_commit, still_held, sweep
from training.choices import (
    CheckpointKind,
    JobKind,
    LiveState,
    QuestionOutcome,
    RunState,
    StepKind,
    StepState,
    TrainingTask,
)
from training.contract import ContractError, log_lines
from training.contract.guard import (
    PAIRS_AT_ONCE,
    GuardedPair,
    GuardQuestion,
    GuardSignal,
    SampledText,
    SignalHeight,
    height_of_doublings,
    height_of_length,
    read_question,
    write_question,
)
from training.contract.methods.policy import GuardSettings
from training.contract.run import STATE_FOLDER
from training.engine import Engine, EngineError
from training.models import (
    LEAST_AHEAD,
    LEAST_JUDGMENTS,
    MOST_AHEAD,
    MOST_JUDGMENTS,
    Checkpoint,
    LiveLearning,
    LiveUpdate,
    Round,
    RoundStep,
    Run,
    RunQuestion,
    Snapshot,
)
from training.recipe.live import continuing, live_policy
from training.selectors.live import (
    learnable,
    learning_round,
    new_judgments,
    policy_now,
    served_update,
    waiting_comparisons,
)
from training.selectors.projects import chat_of
from training.services.checkpoint_files import delete_files, remove_folder
from training.services.checkpoints import register_checkpoint
from training.services.jobs import InterruptedStepError, StopAskedError
from training.services.rounds.guarding import Asker, attend_to_questions, end_question
from training.services.runs.runs import create_run, drive_run, unused_name
from training.services.sampling import MOST_DRAWS_OF_A_PAIR, answer_apart, answer_pairs, prompts_of
from training.services.snapshots import freeze_snapshot

logger = logging.getLogger(__name__)

KEPT_EVERY = 5
"""Of the superseded updates each so-many-th keeps its checkpoint's files, to go back to and compare with."""
PRIORITY = 100
"""Of comparisons in the queue, one more for each update of the round: those of the newest come first."""
PAIRS_OF_A_QUESTION = 24
"""Pairs that are sampled for a question of the guard; eight at once are asked."""
FEWEST_BETWEEN = 3
"""Updates at least between the policy of now and the one that people compare it with."""
MEASURED_RESPONSES = 4
"""Responses of an update whose divergence is measured."""
_MOST_PRIORITY = 900
"""Below what a person may set, and below what a guard asks."""


# ── Settings ──


def set_live(
    *,
    project: Project,
    by: User,
    is_active: bool,
    every: int | None = None,
    ahead: int | None = None,
    policy: Mapping[str, Any] | None = None,
) -> LiveLearning:
    """Switch live learning of a project on or off, with its settings; what is None stays as it is. Audited.

    What is switched off stops and saves at once; updates that are there stay, and the round's policy answers
    the prompts that have no responses yet. policy: settings of an update. Refuses who does not manage the
    project, and settings that a trainer would refuse.
    """
    access.refuse_unless_manager(by, project, "manager_changes_live_learning")
    stored = LiveLearning.objects.filter(project=project).first() or LiveLearning(project=project)
    every = stored.every if every is None else every
    ahead = stored.ahead if ahead is None else ahead
    _refuse_outside("every", every, LEAST_JUDGMENTS, MOST_JUDGMENTS)
    _refuse_outside("ahead", ahead, LEAST_AHEAD, MOST_AHEAD)
    try:
        settings = live_policy(stored.policy if policy is None else policy)
    except ContractError as error:
        raise Refusal("invalid_live_policy", str(error), field="policy") from error
    with transaction.atomic():
        fields: dict[str, Any] = {
            "is_active": is_active,
            "every": every,
            "ahead": ahead,
            "policy": dataclasses.asdict(settings),
        }
        if is_active:
            fields["stopped_because"] = ""
        live, _created = LiveLearning.objects.update_or_create(
            project=project, defaults=fields, create_defaults={**fields, "created_by": by}
        )
        if is_active:
            LiveLearning.objects.filter(pk=live.pk).exclude(state=JobState.RUNNING).update(
                state=JobState.WAITING, error="", message=""
            )
            send_after_commit(TrainingTask.DO_JOB, JobKind.LIVE, live.pk)
        else:
            _let_the_round_answer(project)
        audit.record(
            action="project.live_learning",
            subject=project,
            actor=by,
            project=project,
            details={"is_active": is_active, "every": every, "ahead": ahead},
        )
    live.refresh_from_db()
    return live


def _refuse_outside(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise Refusal(
            "number_out_of_range",
            _("%(value)d is not between %(least)d and %(most)d."),
            field=field,
            value=value,
            least=least,
            most=most,
        )


def _let_the_round_answer(project: Project) -> None:
    """Have the round's own answering take up the prompts that were left to live learning."""
    round_ = learning_round(project)
    if round_ is None:
        return
    step = RoundStep.objects.filter(round=round_, kind=StepKind.ANSWER_PROMPTS, state=StepState.FINISHED)
    if step.update(state=StepState.WAITING, finished_at=None):
        send_after_commit(TrainingTask.ADVANCE_ROUND, round_.pk)


# ── The job ──


class LiveHeartbeat(Heartbeat):
    """The heartbeat of live learning. Raises `StopAskedError` once it was switched off or its round is no
    longer labelled."""

    job: LiveLearning

    def __init__(self, live: LiveLearning, round_: Round) -> None:
        super().__init__(live)
        self._round = round_

    def _check(self) -> None:
        if not LiveLearning.objects.filter(pk=self.job.pk, is_active=True).exists():
            raise StopAskedError("switched off")
        round_ = learning_round(self.job.project)
        if round_ is None or round_.pk != self._round.pk:
            raise StopAskedError("the round is not labelled now")
        if job_runs.is_low():
            raise StopAskedError(job_runs.sentence())


def do_live(live_id: int) -> None:
    """Do what live learning of a project has to do now, unless another worker does."""
    jobs = LiveLearning.objects.select_related("project", "created_by")
    run_job(jobs, live_id, _learn, expected=(*EXPECTED, ContractError))


def sweep_live() -> None:
    """Wake every live learning with something to do: judgments, an empty queue, or a worker that died."""
    awake = LiveLearning.objects.filter(
        is_active=True, project__archived_at__isnull=True, project__is_incomplete=False
    )
    for live in awake.filter(state=JobState.FINISHED).select_related("project"):
        if _has_work(live):
            LiveLearning.objects.filter(pk=live.pk, state=JobState.FINISHED).update(state=JobState.WAITING)
    sweep(awake, TrainingTask.DO_JOB, JobKind.LIVE)


def _has_work(live: LiveLearning) -> bool:
    round_ = learning_round(live.project)
    if round_ is None:
        return False
    if _open_question(round_):
        return True
    if _unfinished(live) or new_judgments(round_).count() >= live.every:
        return True
    return bool(_next_prompts(round_, live.ahead))


def _learn(live: LiveLearning, _heartbeat: Heartbeat) -> str:
    """Supply responses and make updates until nothing is to be done."""
    job_runs.refuse_without_room()
    try:
        with Engine() as engine:
            while True:
                live.refresh_from_db(fields=["is_active", "every", "ahead", "policy"])
                round_ = learning_round(live.project)
                _cancel_updates(live, but=round_)
                if round_ is None or not live.is_active:
                    return "no round is labelled now" if live.is_active else "switched off"
                heartbeat = LiveHeartbeat(live, round_)
                if _is_asking(live, round_):
                    _supply(live, round_, heartbeat, engine, most=live.ahead)
                    return "people compare the policy with an earlier one"
                if not LiveLearning.objects.filter(pk=live.pk, is_active=True).exists():
                    continue
                update = _unfinished(live) or _begin(live, round_)
                # Nobody waits for an update with an empty queue.
                _supply(live, round_, heartbeat, engine, most=live.ahead // 2 if update else live.ahead)
                if update is None:
                    return f"{new_judgments(round_).count()} of {live.every} judgments for the next update"
                _make(update, live, heartbeat)
                _supply(live, round_, heartbeat, engine, most=live.ahead)
                _thin(live.project)
                _raise_question(live, update, heartbeat, engine)
    except StopAskedError as stop:
        job_runs.refuse_without_room()
        return str(stop)
    except InterruptedStepError as error:
        raise Unavailable("trainer_interrupted", str(error)) from error


# ── Updates ──


def _unfinished(live: LiveLearning) -> LiveUpdate | None:
    updates = LiveUpdate.objects.filter(project=live.project, state=LiveState.TRAINING)
    return updates.select_related("round__project", "round__policy", "snapshot", "run__snapshot").first()


def _cancel_updates(live: LiveLearning, *, but: Round | None) -> None:
    """Give up an update whose round is over: the next round begins from another policy.

    One whose round is paused or trains waits for what becomes of that.
    """
    if but is None:
        return
    unfinished = _unfinished(live)
    if unfinished is not None and unfinished.round_id != but.pk:
        with still_held(live):
            LiveUpdate.objects.filter(pk=unfinished.pk).update(state=LiveState.CANCELLED)
    asked = RunQuestion.objects.filter(run__live_update__project=live.project, outcome=QuestionOutcome.OPEN)
    for question in asked.exclude(run__live_update__round=but):
        end_question(question, QuestionOutcome.WITHDRAWN)


def _begin(live: LiveLearning, round_: Round) -> LiveUpdate | None:
    """Begin an update where enough judgments are in: what it learns from is decided now."""
    new = list(new_judgments(round_).values_list("pk", "created_at"))
    if len(new) < live.every:
        return None
    number = LiveUpdate.objects.filter(project=live.project).aggregate(last=Max("number"))["last"] or 0
    try:
        with still_held(live):
            return LiveUpdate.objects.create(
                project=live.project,
                number=number + 1,
                round=round_,
                judgments=len(new),
                last_judgment=new[-1][0],
                judged_at=new[live.every - 1][1],
            )
    except IntegrityError:
        return _unfinished(live)


def _make(update: LiveUpdate, live: LiveLearning, heartbeat: LiveHeartbeat) -> None:
    """Take an update from where it is to a policy that can be asked. Raises `Refusal` where it fails."""
    try:
        snapshot = update.snapshot or _freeze(update, live, heartbeat)
        run = update.run or _create_run(update, live, snapshot)
        with log_lines.bearing(run=run.pk):
            drive_run(run, heartbeat=heartbeat)
        heartbeat(message=f"update {update.number}: checking the checkpoint")
        register_checkpoint(run=run)
    except (Refusal, ContractError) as error:
        if isinstance(error, Unavailable):
            raise
        _fail(update, live, str(error))
        raise
    with still_held(live):
        behind = learnable(update.round).filter(pk__gt=update.last_judgment).count()
        LiveUpdate.objects.filter(pk=update.pk).update(state=LiveState.SERVED, served_at=Now(), behind=behind)
    update.refresh_from_db()


def _freeze(update: LiveUpdate, live: LiveLearning, heartbeat: LiveHeartbeat) -> Snapshot:
    heartbeat(message=f"update {update.number}: writing judgments")
    snapshot = freeze_snapshot(
        project=live.project,
        rounds=[update.round.number],
        created_by=live.created_by,
        weigh_by_reliability=update.round.parsed_recipe.reliability_weights,
        first_passes=update.round.parsed_recipe.first_passes,
        only=_judgments_of(update),
    )
    with still_held(live):
        update.snapshot = snapshot
        update.save(update_fields=["snapshot"])
    return snapshot


def _judgments_of(update: LiveUpdate) -> list[int]:
    """Return the judgments that an update learns from: the same for a worker that takes over."""
    new = new_judgments(update.round).filter(pk__lte=update.last_judgment)
    return list(new.values_list("pk", flat=True))


def _create_run(update: LiveUpdate, live: LiveLearning, snapshot: Snapshot) -> Run:
    """Write down the run, which continues the policy that answers now."""
    before = policy_now(update.round)
    parent = before if before.kind == CheckpointKind.POLICY else None
    settings = live_policy(live.policy)
    if parent is not None and parent.run is not None:
        settings = continuing(settings, parent.run.spec.get("settings", {}))
    with still_held(live):
        update.run = run = create_run(
            name=unused_name(f"{update.project.slug}-live-{update.number}"),
            snapshot=snapshot,
            settings_of_method=settings,
            base_model=before.base_model,
            parent=parent,
            seed=update.round.parsed_recipe.seed + update.number,
        )
        update.save(update_fields=["run"])
    return run


def _fail(update: LiveUpdate, live: LiveLearning, error: str) -> None:
    """Note that an update failed. The judgments that it was to learn from count to the next one."""
    with still_held(live):
        LiveUpdate.objects.filter(pk=update.pk).update(state=LiveState.FAILED, error=error)


# ── Responses ──


def _supply(
    live: LiveLearning, round_: Round, heartbeat: LiveHeartbeat, engine: Engine, *, most: int
) -> None:
    """Have the policy of now answer training prompts until `most` comparisons of it wait."""
    update = served_update(round_)
    checkpoint = policy_now(round_)
    prompts = _next_prompts(round_, most)
    if prompts:
        priority = _priority(round_) if update else 0
        answer_pairs(
            round_=round_,
            checkpoint=checkpoint,
            prompts=prompts,
            heartbeat=heartbeat,
            engine=engine,
            priority=priority,
            on_comparison=partial(_note_answer, update),
        )
        if update:
            _bring_held_out(round_, priority, len(prompts))
    if update and waiting_comparisons(round_, _source(checkpoint)).exists():
        _close_superseded(live, round_, checkpoint)


def _next_prompts(round_: Round, most: int) -> list[Prompt]:
    """Return the training prompts that are to be answered next: those with the fewest comparisons, each once
    by one policy."""
    checkpoint = policy_now(round_)
    is_first = checkpoint == round_.policy
    # Before the first update the round's own answering supplies most of them.
    waiting = waiting_comparisons(round_, None if is_first else _source(checkpoint)).count()
    if waiting >= most or _is_answering(round_):
        return []
    in_round = Q(comparisons__round_number=round_.number)
    source = checkpoint.source_id
    by_it = Candidate.objects.filter(
        comparison__prompt=OuterRef("pk"), comparison__round_number=round_.number, completion__source=source
    )
    answered = Count("completions", filter=Q(completions__source=source), distinct=True)
    counted = (
        Prompt.objects.filter(project=round_.project_id, split=Split.TRAIN)
        .exclude(Exists(by_it))
        .annotate(answered=answered, times=Count("comparisons", filter=in_round, distinct=True))
        # With so many alike there is nothing to compare.
        .filter(answered__lt=MOST_DRAWS_OF_A_PAIR)
    )
    counts = dict(counted.values_list("pk", "times"))
    prompts = [prompt for prompt in prompts_of(round_) if prompt.pk in counts]
    return sorted(prompts, key=lambda prompt: counts[prompt.pk])[: most - waiting]


def _is_answering(round_: Round) -> bool:
    """Return whether the round's own answering goes on, before any update."""
    unfinished = (StepState.WAITING, StepState.RUNNING)
    return served_update(round_) is None and round_.steps.filter(position=0, state__in=unfinished).exists()


def _source(checkpoint: Checkpoint) -> list[int]:
    return [checkpoint.source_id] if checkpoint.source_id is not None else []


def _priority(round_: Round) -> int:
    served = LiveUpdate.objects.filter(round=round_, state__in=(LiveState.SERVED, LiveState.WITHDRAWN))
    return min(PRIORITY + served.count(), _MOST_PRIORITY)


def _note_answer(update: LiveUpdate | None, comparison: Comparison) -> None:
    if update is None or not comparison.open_slots:
        return
    LiveUpdate.objects.filter(pk=update.pk, answered_at__isnull=True).update(answered_at=timezone.now())


def _bring_held_out(round_: Round, priority: int, answered: int) -> None:
    """Bring the round's held-out comparisons forward in proportion: without judgments on them it could not be
    decided."""
    prompts = Prompt.objects.filter(project=round_.project_id)
    held_out = prompts.filter(split=Split.HELD_OUT).count()
    training = max(1, prompts.filter(split=Split.TRAIN).count())
    waiting = Comparison.objects.filter(
        project=round_.project_id,
        round_number=round_.number,
        prompt__split=Split.HELD_OUT,
        open_slots__gt=0,
        question_pairs__isnull=True,
    )
    wanted = round(answered * held_out / training)
    brought = waiting.filter(priority__range=(PRIORITY, _MOST_PRIORITY))
    more = wanted - brought.count()
    chosen = list(brought.values_list("pk", flat=True))
    if more > 0:
        others = waiting.filter(priority__range=(0, PRIORITY - 1)).order_by("-priority", "pk")
        chosen += others.values_list("pk", flat=True)[:more]
    Comparison.objects.filter(pk__in=chosen).update(priority=priority)


def _close_superseded(live: LiveLearning, round_: Round, checkpoint: Checkpoint) -> None:
    """Close what nobody has begun to judge of earlier updates: the newest policy's responses wait instead."""
    earlier = LiveUpdate.objects.filter(round=round_).exclude(run__checkpoint=checkpoint)
    sources = list(earlier.values_list("run__checkpoint__source", flat=True))
    stale = waiting_comparisons(round_, [source for source in sources if source is not None])
    with still_held(live):
        Comparison.objects.filter(pk__in=list(stale.values_list("pk", flat=True)), open_slots__gt=0).update(
            **CLOSED
        )


# ── The guard: a signal asks people whether the policy has become worse, and learning waits for them ──


def _raise_question(live: LiveLearning, update: LiveUpdate, heartbeat: LiveHeartbeat, engine: Engine) -> None:
    """Have people compare the policy with that of some updates ago, if a signal comes to a new height.

    A signal decides nothing. Idempotent: a question that lies in the run's folder stays.
    """
    run, checkpoint, then = update.run, update.checkpoint, _compared_with(update)
    if run is None or checkpoint is None or then is None or read_question(run.path, 1) is not None:
        return
    signals = tuple(_signals(update, checkpoint, heartbeat, engine))
    if not signals:
        return
    number, before = then
    prompts = [prompt for prompt in prompts_of(update.round) if prompt.split == Split.TRAIN]
    drawn = Random(f"guard {update.project_id} {update.number}").sample(  # noqa: S311 - no secret
        prompts, min(len(prompts), PAIRS_OF_A_QUESTION)
    )
    pairs = answer_apart(
        round_=update.round,
        checkpoints=(before, checkpoint),
        prompts=drawn,
        heartbeat=heartbeat,
        engine=engine,
    )
    if len(pairs) < PAIRS_AT_ONCE:
        return
    write_question(
        run.path,
        GuardQuestion(
            number=1,
            step=update.number,
            then_step=number,
            signals=signals,
            sampling=dataclasses.asdict(update.round.parsed_recipe.sampling),
            pairs=tuple(
                GuardedPair(prompt=str(prompt.pk), then=_sampled(earlier), now=_sampled(now))
                for prompt, (earlier, now) in pairs
            ),
        ),
    )
    attend_to_questions(Asker(live, run, update.round))


def _compared_with(update: LiveUpdate) -> tuple[int, Checkpoint] | None:
    """Return number and checkpoint of the policy of some updates ago, 0 for the round's; None too early."""
    served = LiveUpdate.objects.filter(round=update.round, state=LiveState.SERVED)
    earlier = served.filter(
        number__lte=update.number - FEWEST_BETWEEN, run__checkpoint__files_deleted_at__isnull=True
    )
    newest = earlier.select_related("run__checkpoint").order_by("-number").first()
    if newest is not None and newest.checkpoint is not None:
        return newest.number, newest.checkpoint
    since = served.filter(number__lt=update.number).count()
    return (0, update.round.policy) if since >= FEWEST_BETWEEN else None


def _signals(
    update: LiveUpdate, checkpoint: Checkpoint, heartbeat: LiveHeartbeat, engine: Engine
) -> Iterator[GuardSignal]:
    """Yield the signals of an update's responses that are higher than all that asked before in the round."""
    asked = RunQuestion.objects.filter(run__live_update__round=update.round).values_list("signals", flat=True)
    before: dict[str, int] = {}
    for signals in asked:
        for earlier in _heights({signal["name"]: float(signal["value"]) for signal in signals}):
            before[earlier.name] = max(before.get(earlier.name, 0), earlier.height)
    values = {
        "length": _length_ratio(update.round, checkpoint),
        "kl": _divergence(update, checkpoint, heartbeat, engine),
    }
    for height in _heights({name: value for name, value in values.items() if value is not None}):
        if height.height > before.get(height.name, 0):
            yield height.signal


def _heights(values: Mapping[str, float]) -> Iterator[SignalHeight]:
    """Yield the heights of signals, with the bounds of a run's guard."""
    bounds = GuardSettings()
    if "length" in values and bounds.length_drift is not None:
        yield height_of_length(values["length"], bounds.length_drift)
    if "kl" in values and bounds.kl is not None:
        yield height_of_doublings("kl", values["kl"], bounds.kl)


def _length_ratio(round_: Round, checkpoint: Checkpoint) -> float | None:
    """Return the mean length of a checkpoint's responses over that of the round's policy; None if unknown."""
    now, first = (
        Completion.objects.filter(
            prompt__project=round_.project_id,
            prompt__split=Split.TRAIN,
            comparisons__round_number=round_.number,
            source=source,
        ).aggregate(mean=Avg("token_count"))["mean"]
        for source in (checkpoint.source_id, round_.policy.source_id)
    )
    return float(now) / float(first) if now and first else None


def _divergence(
    update: LiveUpdate, checkpoint: Checkpoint, heartbeat: LiveHeartbeat, engine: Engine
) -> float | None:
    """Return the mean KL divergence of some responses from the base, in nats; None where it is unknown."""
    answers = Completion.objects.filter(
        source=checkpoint.source_id, comparisons__round_number=update.round.number
    )
    values = []
    for answer in answers.select_related("prompt").distinct().order_by("pk")[:MEASURED_RESPONSES]:
        measure = partial(
            engine.token_kl,
            model=checkpoint.name,
            messages=chat_of(answer.prompt),
            completion=answer.text,
        )
        try:
            values.append(sum(call_with_heartbeat(measure, heartbeat).kl))
        except EngineError as error:
            logger.info("%s: its divergence is not measured, because %s", update, error)
            return None
    return fmean(values) if values else None


def _sampled(completion: Completion) -> SampledText:
    return SampledText(
        text=completion.text,
        seed=completion.seed or 0,
        finish_reason=completion.finish_reason,
        tokens=completion.token_count or 0,
    )


def _open_question(round_: Round) -> RunQuestion | None:
    questions = RunQuestion.objects.filter(run__live_update__round=round_, outcome__in=_ASKS)
    related = ("run__live_update__round__project", "run__live_update__round__policy")
    return questions.select_related(*related).first()


_ASKS = (QuestionOutcome.OPEN, QuestionOutcome.WITHDRAWN)


def _is_asking(live: LiveLearning, round_: Round) -> bool:
    """Look at the answers to an open question; True while it stays open.

    Where now is worse, or nobody answered in time, learning goes back to the earlier policy and stops.
    """
    question = _open_question(round_)
    if question is None:
        return False
    attend_to_questions(Asker(live, question.run, round_))
    question.refresh_from_db(fields=["outcome"])
    if question.outcome == QuestionOutcome.OPEN:
        if timezone.now() - question.asked_at < timedelta(minutes=GuardSettings().minutes):
            return True
        with still_held(live):
            end_question(question, QuestionOutcome.UNANSWERED)
    if question.outcome in (QuestionOutcome.WORSE, QuestionOutcome.UNANSWERED):
        _go_back(live, round_, question)
    return False


def _go_back(live: LiveLearning, round_: Round, question: RunQuestion) -> None:
    """Withdraw the updates after the earlier policy, and stop learning until a manager switches it on."""
    worse = _(
        "People found the policy of update %(now)d worse than that of update %(then)d, which answers again. "
        "Look at the settings of an update, then switch live learning on."
    )
    unanswered = _(
        "Nobody answered in time whether the policy of update %(now)d is worse than that of update %(then)d, "
        "which answers again. Switch live learning on to go on from there."
    )
    reason = worse if question.outcome == QuestionOutcome.WORSE else unanswered
    values = {"now": question.step, "then": question.then_step}
    withdrawn = LiveUpdate.objects.filter(round=round_, number__gt=question.then_step, state=LiveState.SERVED)
    with still_held(live):
        sources = list(withdrawn.values_list("run__checkpoint__source", flat=True))
        stale = waiting_comparisons(round_, [source for source in sources if source is not None])
        Comparison.objects.filter(pk__in=list(stale.values_list("pk", flat=True))).update(**CLOSED)
        withdrawn.update(state=LiveState.WITHDRAWN)
        LiveLearning.objects.filter(pk=live.pk).update(is_active=False, stopped_because=reason % values)
        audit.record(
            action="project.live_learning",
            subject=live.project,
            project=live.project,
            details={"is_active": False, "reason": reason % values},
        )
        _let_the_round_answer(live.project)


# ── Files ──


def _thin(project: Project) -> None:
    """Delete what superseded updates leave: states of their runs, and checkpoints but each `KEPT_EVERY`-th.

    The rows stay, and with them where every response came from. What anything needs is left.
    """
    done = LiveUpdate.objects.filter(project=project, run__state=RunState.FINISHED).select_related("run")
    for update in done.order_by("-number")[:KEPT_EVERY]:
        if update.run and (state := update.run.path / STATE_FOLDER).exists():
            remove_folder(state)
    for checkpoint in superseded_checkpoints(project):
        try:
            delete_files(checkpoint=checkpoint, deleted_by=None, reason="live learning")
        except Refusal as refusal:
            logger.info("%s stays: %s", checkpoint, refusal)


def superseded_checkpoints(project: Project) -> Sequence[Checkpoint]:
    """Return the checkpoints of a project's updates whose files nothing of live learning needs."""
    updates = LiveUpdate.objects.filter(
        project=project, run__checkpoint__isnull=False, run__checkpoint__files_deleted_at__isnull=True
    )
    rows = list(updates.select_related("run__checkpoint").order_by("-number"))
    serving = next((update.pk for update in rows if update.state == LiveState.SERVED), None)
    return [
        update.checkpoint
        for update in rows
        if update.checkpoint and update.pk != serving and update.number % KEPT_EVERY
    ]
