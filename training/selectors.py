"""What the training pages show. Reads only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.db.models import Prefetch, Q, QuerySet

from annotation.choices import Role
from annotation.models import Candidate, Completion, Judgment, Project, User
from annotation.selectors import judgments_current
from training.chats import chat_of
from training.choices import WRITES_TEXT, CheckpointKind, RoundState, StepState
from training.contract import LOG_FILE, read_metrics, read_samples, read_watch_warnings
from training.curves import Curve, curves
from training.launcher import tail
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.samples import Measure, Samples, shaded
from training.services.snapshots import decided_judgments

DRAWN_METRICS = (
    "reward",
    "kl",
    "length",
    "entropy",
    "unfinished",
    "clip_fraction",
    "explained_variance",
    "loss",
    "accuracy",
    "margin",
    "log_ratio",
    "reference_kl",
    "held_out_accuracy",
    "held_out_log_loss",
)
_LONGEST_LINEAGE = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """A run with what its folder tells."""

    run: Run
    curves: list[Curve]
    log: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundView:
    """Where a round is."""

    round: Round
    steps: list[RoundStep]
    current: RoundStep | None
    """The step that is being done, or else the one that ended the round early."""
    run: RunView | None
    """The run of the current step, or of the last one that had a run."""
    is_going_on: bool
    is_answering: bool
    """Whether prompts are being answered while people label."""
    can_answer_again: bool


def managed_projects(user: User | AnonymousUser) -> QuerySet[Project]:
    """The projects whose training pages `user` may see; all of them for a superuser."""
    if not user.is_authenticated:
        return Project.objects.none()
    if user.is_superuser:
        return Project.objects.order_by("name")
    return Project.objects.filter(memberships__user=user, memberships__role=Role.MANAGER).order_by("name")


def checkpoints_for(user: User | AnonymousUser) -> QuerySet[Checkpoint]:
    """Checkpoints of the projects that `user` manages, and the starter models."""
    projects = managed_projects(user)
    if not projects.exists():
        return Checkpoint.objects.none()
    return Checkpoint.objects.filter(Q(project__isnull=True) | Q(project__in=projects)).order_by("-pk")


def checkpoints_of(project: Project, *, writing: bool) -> QuerySet[Checkpoint]:
    """Checkpoints that can be compared in a project: those that write text, or the reward models."""
    kinds = WRITES_TEXT if writing else (CheckpointKind.REWARD,)
    return Checkpoint.objects.filter(
        Q(project=project) | Q(project__isnull=True, rounds__project=project), kind__in=kinds
    ).distinct()


def round_view(round_: Round) -> RoundView:
    """Where a round is, with the curves and the log of what trains. Two queries and two small files."""
    steps = list(round_.steps.select_related("run__checkpoint").order_by("position"))
    shown = [step for step in steps if step.position > 0] or steps
    ended_early = (StepState.FAILED, StepState.CANCELLED)
    current = next((step for step in steps if step.state == StepState.RUNNING), None) or next(
        (step for step in shown if step.state in ended_early), None
    )
    with_run = [step for step in steps if step.run]
    run = current.run if current and current.run else with_run[-1].run if with_run else None
    opening = next((step for step in steps if step.position == 0), None)
    labelling = round_.state == RoundState.LABELLING
    is_answering = (
        labelling and opening is not None and opening.state in (StepState.WAITING, StepState.RUNNING)
    )
    return RoundView(
        round=round_,
        steps=steps,
        current=current,
        run=run_view(run) if run else None,
        is_going_on=is_answering or round_.state == RoundState.TRAINING,
        is_answering=is_answering,
        can_answer_again=labelling and opening is not None and opening.state in ended_early,
    )


def run_view(run: Run, *, log_lines: int = 8) -> RunView:
    """A run with its curves and the end of its log."""
    metrics = read_metrics(run.path)
    return RunView(
        run=run,
        curves=curves(metrics, _drawn(metrics), total_steps=run.total_steps),
        log=tail(run.path / LOG_FILE, lines=log_lines),
    )


def _drawn(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is drawn of every run, the rewards of this one, and what its heads cost on held-out prompts."""
    named = {name for row in metrics for name in row}
    rewards = sorted(name for name in named if name.startswith(("reward/", "watched/", "held_out_reward")))
    rewards = [name for name in rewards if not name.endswith(("_low", "_high"))]
    heads = sorted(name for name in named if name.startswith("held_out_") and name.endswith("_log_loss"))
    return [*DRAWN_METRICS, *rewards, *(name for name in heads if name not in DRAWN_METRICS)]


def samples_of(run: Run, *, step: int | None, measure: Measure) -> Samples | None:
    """What the policy answered at a step, the last one unless another that was taken is named; None for a
    run that writes no samples."""
    metrics = read_metrics(run.path)
    if not metrics:
        return None
    last = int(metrics[-1]["step"])
    shown = step if step is not None and 1 <= step <= last else last
    answers = read_samples(run.path, shown)
    return shaded(answers, step=shown, last_step=last, measure=measure) if answers else None


def watch_warnings_of(run: Run) -> list[str]:
    """What the reward-hacking watch of a run said."""
    return read_watch_warnings(run.path / LOG_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """From how much a round would learn."""

    judgments: int
    decided: int
    """Judgments on training prompts that prefer some answer."""


def material_of(round_: Round) -> Material:
    """What a round would learn from, if it started now."""
    rounds = range(1, round_.number + 1)
    return Material(
        judgments=judgments_current(round_.project, rounds).count(),
        decided=decided_judgments(round_.project, rounds).count(),
    )


def lineage_of(checkpoint: Checkpoint) -> list[Checkpoint]:
    """The checkpoints from which this one was trained on, nearest first."""
    line: list[Checkpoint] = []
    ancestor = checkpoint.parent
    while ancestor is not None and len(line) < _LONGEST_LINEAGE:
        line.append(ancestor)
        ancestor = ancestor.parent
    return line


def judgments_in(snapshot: Snapshot) -> QuerySet[Judgment]:
    """The judgments of a snapshot with what a list of them shows."""
    candidates = Candidate.objects.select_related("completion__source").order_by("index")
    return (
        snapshot.judgments.select_related("annotator", "comparison__prompt")
        .prefetch_related("ranks", Prefetch("comparison__candidates", queryset=candidates))
        .order_by("pk")
    )


def placed_candidates(judgment: Judgment) -> list[tuple[Completion, int | None]]:
    """The completions of a judgment with their ranks, best first, those without a rank last."""
    ranks = {place.completion_id: place.rank for place in judgment.ranks.all()}
    placed = [
        (candidate.completion, ranks.get(candidate.completion_id))
        for candidate in judgment.comparison.candidates.all()
    ]
    return sorted(placed, key=lambda one: one[1] if one[1] is not None else len(placed) + 1)


def request_of(completion: Completion) -> dict[str, Any] | None:
    """The request to the model server that gives this very completion again; None where it cannot."""
    checkpoint = getattr(completion.source, "checkpoint", None)
    if checkpoint is None or completion.seed is None:
        return None
    return {
        "model": checkpoint.name,
        "messages": chat_of(completion.prompt),
        "seed": completion.seed,
        **completion.sampling,
    }
