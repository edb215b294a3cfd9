"""Estimate of a round from the current data: counts, steps, time, memory, launcher, and problems."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Sum
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.agreement.records import Selection
from annotation.choices import Purpose, QuestionSubject, Split, Verdict
from annotation.errors import Refusal
from annotation.models import Comparison, Prompt
from annotation.selectors.access import judgments_current
from annotation.statistics.cached import last_report_of
from annotation.statistics.page import expected_cost_of
from training.choices import CheckpointKind, StepKind
from training.contract.methods import Settings
from training.contract.methods.policy import PolicyGradientSettings, PreferenceSettings
from training.contract.methods.reward import STEPS
from training.figures.win_rates import prompts_needed, win_rate_shown
from training.launchers import LauncherError, Resources
from training.models import Round, RoundStep, Worker
from training.recipe.recipe import ROUND_REWARD_MODEL, ComputeSettings, PromotionSettings
from training.selectors.dashboard import chosen_for, pace_of, steps_of
from training.selectors.projects import checkpoints_of
from training.selectors.rounds import decided_judgments, recipe_to_train
from training.services.chat_templates import untrainable_template
from training.services.evaluation.decision import LEAST_ANSWERS
from training.services.evaluation.evaluating import trains_evaluator
from training.services.rounds.base_choice import base_of_run, unknown_reward_base
from training.services.rounds.recipes import served_groups, unknown_reference, unknown_rubric
from training.services.runs.clusters import (
    LOCAL,
    cluster,
    cluster_resources,
    job_of,
    launcher_of,
    resources_of,
)
from training.services.runs.memory import Memory, ProcessSpread, Shape, memory_of, parameters_in
from training.services.runs.runs import trl_is_gone
from training.services.sampling import questions_of, rival_of

# ── Memory of the machines that would train ──
#
# The workers that take training report their device, precision and memory with their heartbeat. The machine
# that answers web requests is never asked: it need not be one of them.


_BYTES_OF_A_WEIGHT = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run that the round would make."""

    title: str
    base: str
    """Name of the base model."""
    method: str
    examples: int
    """Judgments or prompts that it passes over once."""
    steps: int
    memory: Memory | None
    """Of one process; None where the base model is not there yet, so nothing is known of its size."""
    seconds: float | None
    measured_on: str
    """The earlier run whose pace the time is reckoned with; empty where there is none."""
    tokens_per_second: float | None
    processes: int = 1
    """That train together on a machine, each on a GPU of its own where it has some."""

    def bytes_on(self, machine: WorkerMachine) -> int | None:
        """Return the bytes of the machine's GPU, or of its memory, that the run needs; None if not known."""
        if self.memory is None:
            return None
        return self.memory.total * (1 if machine.on_gpu else self.processes)

    @property
    def time(self) -> timedelta | None:
        """Return the estimated duration."""
        return None if self.seconds is None else timedelta(seconds=round(self.seconds))


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerMachine:
    """Hardware for training, as a worker reported it."""

    name: str
    """The host; empty where no worker has reported."""
    device: str
    """`cuda`, `mps` or `cpu`."""
    dtype: str
    """Precision of a frozen base there."""
    total_bytes: int
    """Of the device; 0 where it is not known."""
    available_bytes: int | None
    """Free at the last report; None where it is not known."""
    held_bytes: int = 0
    """Held by the model server on the same device. A trainer cannot have it."""

    @property
    def is_known(self) -> bool:
        """Return whether a worker has reported its memory."""
        return self.total_bytes > 0

    @property
    def on_gpu(self) -> bool:
        """Return whether it is the memory of a GPU."""
        return self.device == "cuda"

    @property
    def usable_bytes(self) -> int:
        """Return the most that a trainer can use."""
        return max(0, self.total_bytes - self.held_bytes)

    def weight_bytes(self, dtype: str = "auto") -> int:
        """Return the bytes of a weight of a frozen base; dtype: what the recipe asks for."""
        return _BYTES_OF_A_WEIGHT.get(self.dtype if dtype == "auto" else dtype, 4)


UNKNOWN = WorkerMachine(name="", device="cpu", dtype="float32", total_bytes=0, available_bytes=None)
"""No worker that takes training has reported."""


def training_machine() -> WorkerMachine:
    """Return the machine with the most memory among live training workers, else `UNKNOWN`."""
    silent_since = Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)
    live = Worker.objects.filter(heartbeat_at__gte=silent_since)
    machines = [
        machine_of(worker.name, worker.machine)
        for worker in live
        if settings.RONDO_TRAINING_QUEUE in worker.queues
    ]
    known = [machine for machine in machines if machine.is_known]
    return max(known, key=lambda machine: (machine.on_gpu, machine.usable_bytes), default=UNKNOWN)


def machine_of(worker: str, report: dict[str, Any]) -> WorkerMachine:
    """Return a worker's machine as reported: its largest GPU, else its memory."""
    host = worker.split(":", 1)[0]
    held = int(report.get("model_server_bytes") or 0)
    gpus = [gpu for gpu in report.get("gpus") or () if gpu.get("memory_total_bytes")]
    if gpus:
        gpu = max(gpus, key=lambda device: float(device["memory_total_bytes"]))
        total, used = int(gpu["memory_total_bytes"]), gpu.get("memory_bytes")
        return WorkerMachine(
            name=host,
            device="cuda",
            dtype=report.get("dtype") or "bfloat16",
            total_bytes=total,
            available_bytes=None if used is None else total - int(used),
            held_bytes=held,
        )
    total = int(report.get("memory_total_bytes") or 0)
    return WorkerMachine(
        name=host,
        device=report.get("device") or "cpu",
        dtype=report.get("dtype") or "float32",
        total_bytes=total,
        available_bytes=total - int(report.get("memory_bytes") or 0) if total else None,
        held_bytes=held,
    )


def too_large(runs: Sequence[PlannedRun], machine: WorkerMachine) -> Iterator[str]:
    """Runs that cannot fit, each with the remedy."""
    for run in runs:
        needed = run.bytes_on(machine)
        if machine.is_known and needed is not None and needed > machine.usable_bytes:
            yield _(
                "The %(run)s needs about %(needed)s GiB of memory, and %(machine)s has %(total)s for "
                "training: lower micro_batch_tokens or max_tokens, set gradient_checkpointing, or train "
                "fewer layers."
            ) % {
                "run": run.title,
                "needed": gib(needed),
                "machine": machine.name,
                "total": gib(machine.usable_bytes),
            }


def tight(runs: Sequence[PlannedRun], machine: WorkerMachine) -> Iterator[str]:
    """Runs of which it is not sure that they fit."""
    if not machine.is_known:
        yield _("No worker that trains has reported yet: whether its memory suffices is not known.")
    for run in runs:
        available, needed = machine.available_bytes, run.bytes_on(machine)
        if needed is None:
            yield _("The base model is not there yet: how much memory the %(run)s needs is not known.") % {
                "run": run.title
            }
        elif available is not None and available < needed <= machine.usable_bytes:
            yield _("The %(run)s needs about %(needed)s GiB of memory, and %(free)s are free now.") % {
                "run": run.title,
                "needed": gib(needed),
                "free": gib(available),
            }


def gib(size: int) -> str:
    """Bytes in GiB with one digit."""
    return f"{size / 2**30:.1f}"


# ── Launcher, resources and the script to be submitted ──


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """Launcher and resources with which a round's runs would train."""

    launcher: str
    resources: Resources
    script: str = ""
    """Script that would be submitted for the reward model; empty for `local`, which submits nothing."""
    problems: Sequence[str] = ()

    @property
    def is_local(self) -> bool:
        """Return whether the worker's machine trains."""
        return self.launcher == LOCAL


def launch_plan(round_: Round) -> LaunchPlan:
    """Return the plan by the round's recipe. Asks no cluster, and never raises."""
    compute = round_.parsed_recipe.compute
    try:
        requested = resources_of(compute)
    except Refusal as refusal:
        nothing = Resources(nodes=compute.nodes, processes=compute.processes)
        return LaunchPlan(launcher=compute.launcher, resources=nothing, problems=[refusal.message])
    resources = cluster_resources(requested, processes=compute.processes)
    name = launcher_of(compute)
    if name == LOCAL:
        return LaunchPlan(launcher=name, resources=resources, problems=[*_too_few_gpus(compute)])
    run = f"{round_.project.slug}-round-{round_.number}-reward"
    try:
        # A reward model samples nothing.
        alone = dataclasses.replace(resources, servers=0)
        script = cluster(name).script(job_of(run, alone, name="rondo-0-1-000000"))
    except (LauncherError, Refusal) as error:
        return LaunchPlan(launcher=name, resources=resources, problems=[str(error)])
    return LaunchPlan(launcher=name, resources=resources, script=script)


def _too_few_gpus(compute: ComputeSettings) -> Iterator[str]:
    """Yield why no live training worker has the GPUs; nothing where none has reported."""
    silent_since = Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)
    live = Worker.objects.filter(heartbeat_at__gte=silent_since)
    counts = [
        len(worker.machine.get("gpus") or ())
        for worker in live
        if settings.RONDO_TRAINING_QUEUE in worker.queues
    ]
    if not counts:
        return
    most = max(counts)
    # On a machine without GPUs any number of processes shares the processor, unless GPUs are asked for.
    needed = compute.gpus if compute.gpus is not None else (compute.processes if most else 0)
    if needed > most:
        yield _(
            "The recipe asks for %(count)d GPUs on one machine, one for each process, and the largest has "
            "%(most)d: lower processes or gpus under compute, or choose a cluster as launcher."
        ) % {"count": needed, "most": most}


# ── Estimate ──


_ROUNDS_LOOKED_AT = 5
FEW_DECIDED = 500
"""With fewer decided annotations a head on frozen features is suggested."""
_USUAL_EFFECT = 0.7
"""Win rate that an evaluation should show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """Estimate of a round, and the problems that prevent it."""

    prompts: int
    held_out_prompts: int
    """Of the project; what an evaluation asks is among them."""
    answers: Mapping[str, int]
    """By the checkpoint that would write them."""
    comparisons: int
    judgments_expected: int
    """That the round's comparisons have places for."""
    annotation_cost: Decimal | None
    """Of those expected, at the project's wage and the median time measured so far."""
    answering_seconds: float | None
    material: Mapping[str, int]
    """Current judgments of this round and those before: `learned` from, and what is left out, by reason."""
    runs: Sequence[PlannedRun]
    evaluated_prompts: int
    prompts_for_decision: int | None
    """Held-out prompts with different responses that show the usual effect in four rounds of five; None where
    the win rate does not decide."""
    machine: WorkerMachine
    launch: LaunchPlan
    problems: Sequence[str] = field(default_factory=tuple)
    """Why training cannot be started so. Each says what to change."""
    warnings: Sequence[str] = field(default_factory=tuple)
    suggestions: Sequence[str] = field(default_factory=tuple)
    """Settings that would serve the data better."""

    @property
    def has_prompts_for_decision(self) -> bool:
        """Return whether enough held-out prompts are evaluated, if the responses to all of them differ."""
        return self.prompts_for_decision is None or self.evaluated_prompts >= self.prompts_for_decision

    @property
    def usual_effect(self) -> int:
        """Return the true win rate, in percent, that `prompts_for_decision` is for."""
        return round(100 * _USUAL_EFFECT)

    @property
    def answering_time(self) -> timedelta | None:
        """Return the estimated duration of sampling."""
        return None if self.answering_seconds is None else timedelta(seconds=round(self.answering_seconds))

    @property
    def training_seconds(self) -> float | None:
        """Return the estimated duration of all runs; None unless each is known."""
        seconds = [run.seconds for run in self.runs if run.seconds is not None]
        return sum(seconds) if len(seconds) == len(self.runs) else None

    @property
    def most_bytes(self) -> int | None:
        """Return the memory of the largest run; None unless each is known."""
        sizes = [size for run in self.runs if (size := run.bytes_on(self.machine)) is not None]
        return max(sizes) if len(sizes) == len(self.runs) else None


def dry_run(*, round_: Round) -> DryRun:
    """Reckon what a round would do by its recipe, with what is in the database now. Writes nothing."""
    round_ = _as_trained(round_)
    problems: list[str] = []
    draws: Counter[str] = Counter()
    comparisons = 0
    try:
        for question in questions_of(round_, rival_of(round_)):
            draws.update(draw.checkpoint.name for draw in question.draws)
            comparisons += 1
    except Refusal as refusal:
        problems.append(refusal.message)
    prompts = Counter(Prompt.objects.filter(project=round_.project_id).values_list("split", flat=True))
    if not prompts:
        problems.append(_("The project has no prompts: import some."))
    material = _material(round_)
    expected = _judgments_expected(round_, comparisons)
    launch = launch_plan(round_)
    # The nodes of a cluster report no memory.
    machine = training_machine() if launch.is_local else UNKNOWN
    runs = [*_planned(round_, material["learned"], prompts[Split.TRAIN], machine)]
    problems += [*_cannot_be_trained(round_), *_unknown_reward_models(round_), *launch.problems]
    problems += [*too_large(runs, machine), *_too_long(round_)]
    return DryRun(
        prompts=sum(prompts.values()),
        held_out_prompts=prompts[Split.HELD_OUT],
        # A Counter would give a template 0 for `items`.
        answers=dict(draws),
        comparisons=comparisons,
        judgments_expected=expected,
        annotation_cost=expected_cost_of(
            round_.project, last_report_of(round_.project, Selection()), expected
        ),
        answering_seconds=_answering_seconds(round_, sum(draws.values())),
        material=material,
        runs=runs,
        evaluated_prompts=min(round_.parsed_recipe.evaluation.prompts, prompts[Split.HELD_OUT]),
        prompts_for_decision=_prompts_for_decision(round_.parsed_recipe.promotion),
        machine=machine,
        launch=launch,
        problems=problems,
        warnings=[
            *(tight(runs, machine) if launch.is_local else ()),
            *_idle_settings(round_, prompts[Split.HELD_OUT]),
        ],
        suggestions=[
            *_better_settings(round_, material["learned"]),
            *_more_held_out(round_, prompts[Split.HELD_OUT]),
        ],
    )


def _prompts_for_decision(promotion: PromotionSettings) -> int | None:
    if not promotion.not_worse:
        return None
    if promotion.judged_by == "people_and_model" and promotion.claim == "these_prompts":
        # Once all of them are answered, nothing about them is left to chance.
        return LEAST_ANSWERS
    return prompts_needed(_USUAL_EFFECT)


def refuse_unless_fits(round_: Round, *, despite_memory: bool = False) -> list[str]:
    """Refuse a round whose training cannot be: for want of weights to begin with, of memory, or of a reward
    model that it names.

    Looks at the recipe as it is stored. With `despite_memory` a want of memory is returned instead.
    """
    stored = _as_trained(Round.objects.select_related("project", "policy").get(pk=round_.pk))
    lacking = memory_problems(stored)
    problems = [*_cannot_be_trained(stored), *_unknown_reward_models(stored), *launch_plan(stored).problems]
    for problem in problems if despite_memory else [*problems, *lacking]:
        raise Refusal("recipe_invalid", problem, field="recipe")
    return lacking


def memory_problems(round_: Round) -> list[str]:
    """Return why the round's runs fit into the memory of no training worker."""
    round_ = _as_trained(round_)
    machine = training_machine() if launch_plan(round_).is_local else UNKNOWN
    return [*too_large([*_planned(round_, 0, 0, machine)], machine)]


def _as_trained(round_: Round) -> Round:
    """Return the round with the recipe by which it would train now; the given one stays as it is."""
    trained = copy.copy(round_)
    recipe = recipe_to_train(round_)
    if recipe != round_.parsed_recipe:
        # With the trainer that a round of 1.0 names, which is refused.
        trained.recipe = {**round_.recipe, **recipe.to_json()}
    return trained


def _material(round_: Round) -> dict[str, int]:
    """Current judgments by what a reward model could make of them; each counts once."""
    rounds = range(1, round_.number + 1)
    ai_feedback, first_passes = round_.parsed_recipe.ai_feedback, round_.parsed_recipe.first_passes
    current = judgments_current(
        round_.project, rounds, machines=True, first_passes=first_passes
    ).prefetch_related(None)
    total = current.count()
    learned = decided_judgments(round_.project, rounds, ai_feedback=ai_feedback, first_passes=first_passes)
    training = current.filter(comparison__prompt__split=Split.TRAIN)
    machines = 0
    if not ai_feedback:
        machines = training.filter(annotator__is_machine=True).count()
        training = training.filter(annotator__is_machine=False)
    taught = learned.count()
    cannot = training.filter(verdict=Verdict.CANNOT_JUDGE).count()
    return {
        "total": total,
        "learned": taught,
        "held_out": current.filter(comparison__prompt__split=Split.HELD_OUT).count(),
        "machines": machines,
        "cannot_judge": cannot,
        "no_preference": max(0, training.count() - taught - cannot),
    }


def _judgments_expected(round_: Round, comparisons: int) -> int:
    """Places of the comparisons that are there, and of those that are still to come."""
    there = Comparison.objects.filter(
        project=round_.project_id, round_number=round_.number, purpose=Purpose.WORK
    )
    places = there.aggregate(places=Sum("overlap"))["places"] or 0
    project = round_.project
    each = project.overlap + project.extra_overlap * project.extra_overlap_share
    return round(places + max(0, comparisons - there.count()) * each)


def _planned(round_: Round, learned: int, prompts: int, machine: WorkerMachine) -> Iterator[PlannedRun]:
    recipe = round_.parsed_recipe
    compute = recipe.compute
    spread = ProcessSpread.of(compute.sharding, nodes=compute.nodes, per_node=compute.processes)
    continues = round_.policy.kind == CheckpointKind.POLICY
    reward = chosen_for(recipe.reward, learned)
    planned: list[tuple[str, StepKind, Settings]] = [
        (_("reward model"), StepKind.TRAIN_REWARD_MODEL, reward),
        (_("policy"), StepKind.TRAIN_POLICY, recipe.policy),
    ]
    if trains_evaluator(round_):
        planned.insert(1, (_("second reward model"), StepKind.TRAIN_EVALUATOR, reward))
        # Each learns from the judgments of about half of the prompts.
        learned = math.ceil(learned / 2)
    for title, kind, method in planned:
        base = base_of_run(round_, kind)
        folder = Path(settings.RONDO_MODELS) / base
        shape = Shape.read(folder)
        examples = prompts if isinstance(method, PolicyGradientSettings) else learned
        steps = steps_of(method, examples)
        pace = pace_of(round_, method)
        yield PlannedRun(
            title=title,
            base=base,
            method=method.method,
            examples=examples,
            steps=steps,
            memory=memory_of(
                method,
                shape,
                parameters=parameters_in(folder),
                base_bytes=machine.weight_bytes(compute.dtype),
                continues=continues,
                quantization=compute.quantization,
                spread=spread,
            )
            if shape
            else None,
            seconds=pace.seconds_per_example * steps * method.optimiser.batch_size if pace else None,
            measured_on=pace.run if pace else "",
            tokens_per_second=pace.tokens_per_second if pace else None,
            processes=compute.processes,
        )


def _answering_seconds(round_: Round, answers: int) -> float | None:
    """Estimate from the newest round with responses, also while it is sampling; None before there are any."""
    steps = RoundStep.objects.filter(
        round__project=round_.project_id, kind=StepKind.ANSWER_PROMPTS, seconds_worked__gt=0
    ).select_related("round")
    for step in steps.order_by("-pk")[:_ROUNDS_LOOKED_AT]:
        there = Comparison.objects.filter(
            project=round_.project_id, round_number=step.round.number, purpose=Purpose.WORK
        )
        written: int | None = there.aggregate(answers=Sum("size"))["answers"]
        if written:
            return step.seconds_worked / written * answers
    return None


def _cannot_be_trained(round_: Round) -> Iterator[str]:
    """Yield why training cannot begin: for want of weights, of a fitting chat template, or of its trainer."""
    if round_.names_trl:
        yield trl_is_gone(round_)
    if round_.policy.server_url:
        yield _(
            "%(name)s is served elsewhere and its weights are not here: it can respond and "
            "annotate, but nothing can be trained from it. Begin a round from a checkpoint of "
            "this server."
        ) % {"name": round_.policy}
    elif round_.policy.files_deleted_at:
        yield _(
            "The files of %(name)s were deleted: nothing can be trained from it. Begin a round from another "
            "checkpoint."
        ) % {"name": round_.policy}
    yield from untrainable_template(round_.policy)
    yield from _longer_than_context(round_)


def _unknown_reward_models(round_: Round) -> Iterator[str]:
    policy = round_.parsed_recipe.policy
    yield from unknown_reference(round_, policy)
    yield from unknown_reward_base(round_)
    yield from served_groups(round_, policy)
    if not isinstance(policy, PolicyGradientSettings):
        return
    known = set(checkpoints_of(round_.project, writing=False).values_list("name", flat=True))
    for part in policy.rewards_of_all:
        yield from unknown_rubric(round_.project, part)
        if part.checkpoint not in (None, ROUND_REWARD_MODEL) and part.checkpoint not in known:
            yield _(
                "The reward %(part)s names %(name)s, which is no reward model of the project: name another "
                "in the recipe."
            ) % {"part": part.name, "name": part.checkpoint}


def _too_long(round_: Round) -> Iterator[str]:
    shape = Shape.read(Path(settings.RONDO_MODELS) / round_.policy.base_model)
    recipe = round_.parsed_recipe
    samplings = {
        "sampling": recipe.sampling,
        "evaluation, sampling": recipe.evaluation.sampling,
        **{f"samplers, {place}": sampler.sampling for place, sampler in enumerate(recipe.samplers, 1)},
    }
    for name, sampling in samplings.items():
        if shape is not None and sampling.max_tokens >= shape.context:
            yield _(
                "%(name)s asks for %(tokens)s tokens, and the model’s context holds %(context)s with the "
                "prompt: lower max_tokens."
            ) % {"name": name, "tokens": sampling.max_tokens, "context": shape.context}


def _longer_than_context(round_: Round) -> Iterator[str]:
    """Yield methods whose rows are longer than the base has positions for, which the trainer refuses."""
    recipe = round_.parsed_recipe
    methods: tuple[tuple[str, StepKind, Settings], ...] = (
        ("reward", StepKind.TRAIN_REWARD_MODEL, recipe.reward),
        ("policy", StepKind.TRAIN_POLICY, recipe.policy),
    )
    for name, kind, method in methods:
        base = base_of_run(round_, kind)
        shape = Shape.read(Path(settings.RONDO_MODELS) / base)
        if shape is not None and method.max_tokens > shape.context:
            yield _(
                "%(name)s trains on rows of %(tokens)s tokens, and %(base)s reads %(context)s: set its "
                "max_tokens to that or less."
            ) % {
                "name": name,
                "tokens": method.max_tokens,
                "base": base,
                "context": shape.context,
            }


def _better_settings(round_: Round, learned: int) -> Iterator[str]:
    if 0 < learned < FEW_DECIDED and round_.parsed_recipe.reward.may_be_frozen:
        yield _(
            "Few annotations decide a preference so far: %(count)s. Below %(few)s consider a head on "
            "frozen features, which is fitted in seconds: set the reward model’s adapter to none and its "
            "features to frozen."
        ) % {"count": learned, "few": FEW_DECIDED}


def _more_held_out(round_: Round, held_out: int) -> Iterator[str]:
    """Say how large an effect must be to be shown by the evaluation, where that is larger than usual."""
    recipe = round_.parsed_recipe
    evaluated = min(recipe.evaluation.prompts, held_out)
    needed = _prompts_for_decision(recipe.promotion)
    least = None if needed is None else win_rate_shown(evaluated)
    if needed is not None and least is not None and evaluated < needed:
        yield _(
            "%(count)s held-out prompts show a win rate of %(least)s %% or more in four rounds of five. "
            "For %(usual)s %% it takes %(needed)s: import more prompts, or raise the prompts of the "
            "evaluation."
        ) % {
            "count": evaluated,
            "least": math.ceil(100 * least),
            "usual": round(100 * _USUAL_EFFECT),
            "needed": needed,
        }


def _idle_settings(round_: Round, held_out: int) -> Iterator[str]:
    """Settings that would do nothing as things are."""
    recipe = round_.parsed_recipe
    if not held_out:
        yield _("The project has no held-out prompts: the new policy cannot be compared with its parent.")
    evaluated, minimum = min(recipe.evaluation.prompts, held_out), recipe.promotion.least_differing_prompts
    if 0 < evaluated < minimum and recipe.promotion.not_worse:
        yield _(
            "The new policy will be compared with its parent on %(count)s held-out prompts, and a decision "
            "needs at least %(minimum)s with different responses. Expect “not enough evidence”: import more "
            "prompts, or raise the prompts of the evaluation."
        ) % {"count": evaluated, "minimum": minimum}
    learns_from_order = isinstance(recipe.policy, PreferenceSettings) or recipe.reward.loss != "none"
    if learns_from_order and not round_.project.ask_verdict:
        yield _("The project does not ask for a preference: there will be no preferences to train on.")
    heads = {head.granularity == STEPS for head in recipe.reward.segments}
    if False in heads and not round_.project.ask_span_flags:
        yield _("The reward model learns from spans, and the project does not ask for any.")
    if True in heads and not round_.project.ask_step_labels:
        yield _("The reward model learns from step labels, and the project does not ask for any.")
    if recipe.reward.questions:
        asked = round_.project.questions.filter(subject=QuestionSubject.COMPLETION, is_archived=False)
        lacking = sorted(set(recipe.reward.questions) - set(asked.values_list("key", flat=True)))
        for key in lacking:
            yield _(
                "The reward model learns from answers to the question “%(key)s”, which the project does not "
                "ask of each response."
            ) % {"key": key}
