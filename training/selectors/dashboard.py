"""The dashboard of a project: annotations by day, time of training, outlook, what needs attention."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import ceil

from django.db.models import Count, Q, Sum
from django.db.models.functions import TruncDate
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from annotation.choices import FOLLOWS_HEAD, AssignmentState, Purpose, Split
from annotation.models import AcquisitionFigures, Assignment, Comparison, Completion, Project, User
from annotation.selectors.access import judgments_current
from annotation.selectors.cached_counts import cached, is_cached
from annotation.selectors.judged import current_in
from annotation.statistics.cached import is_large
from annotation.statistics.plots import Axis, Bar, bars
from training.choices import (
    CAN_DECIDE,
    CAN_START_AGAIN,
    TRAINS,
    CheckpointKind,
    RoundState,
    RunState,
    StepKind,
)
from training.contract.methods import Settings
from training.contract.methods.policy import PolicyGradientSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import read_machine_use
from training.contract.validation import ADAPTER_FROM
from training.files.shared import folder_of
from training.models import Checkpoint, Round, Run
from training.selectors.lists import RoundRow, RunRow, rounds_of_project, run_rows
from training.selectors.round_help import RoundHelp, help_of
from training.selectors.rounds import decided_judgments, recipe_to_train
from training.templatetags.training import duration

# ── Annotations by day ──


DAYS = 30
_RECENT = 7
"""The pace that tells when the target is reached is the mean of so many days."""
_ANNOTATORS = 8
_WIDTH, _HEIGHT = 300, 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """Annotations of a day, with its bar."""

    day: date
    count: int
    bar: Bar


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatorDays:
    """Annotations of a person over the days shown, with their bars."""

    name: str
    address: str
    count: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnUp:
    """Annotations added up day by day, drawn against the number that is wanted."""

    line: str
    """Path of the sum, in a box of 300 × 72."""
    target: float
    """Height of the target in that box, from the top."""
    done: int
    wanted: int
    reached_on: date | None
    """Day on which the target is reached at the pace of the last week; None without pace, or once reached."""

    @property
    def left(self) -> int:
        """Return the annotations that are still wanted."""
        return max(self.wanted - self.done, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationDays:
    """Annotations of the last `DAYS` days."""

    days: tuple[Day, ...]
    annotators: tuple[AnnotatorDays, ...]
    """The people with the most annotations, most first."""
    further_annotators: int

    @property
    def count(self) -> int:
        """Return the annotations of all days together."""
        return sum(day.count for day in self.days)


def annotation_days(project: Project) -> AnnotationDays:
    """Return the annotations of a project by day and by annotator; of a large one as of some minutes ago."""
    first = timezone.localdate() - timedelta(days=DAYS - 1)
    shown = [first + timedelta(days=number) for number in range(DAYS)]
    total, by_annotator = cached(lambda: _counted(project), "annotations by day", project.pk)
    people = User.objects.filter(pk__in=by_annotator, is_machine=False).in_bulk()
    ordered = sorted(people.values(), key=lambda user: (-sum(by_annotator[user.pk].values()), str(user)))
    values = [total.get(day, 0) for day in shown]
    return AnnotationDays(
        days=tuple(
            Day(day=day, count=value, bar=bar)
            for day, value, bar in zip(shown, values, bars(values, width=_WIDTH, height=_HEIGHT), strict=True)
        ),
        annotators=tuple(
            AnnotatorDays(
                name=str(user),
                address=reverse("annotator", args=[project.slug, user.pk]),
                count=sum(by_annotator[user.pk].values()),
                bars=tuple(bars([by_annotator[user.pk].get(day, 0) for day in shown], width=120, height=32)),
            )
            for user in ordered[:_ANNOTATORS]
        ),
        further_annotators=max(len(ordered) - _ANNOTATORS, 0),
    )


def _counted(project: Project) -> tuple[Mapping[date, int], Mapping[int, Mapping[date, int]]]:
    since = timezone.now() - timedelta(days=DAYS)
    rows = (
        current_in(project, None)
        .filter(created_at__gte=since)
        .annotate(day=TruncDate("created_at"))
        .values_list("annotator", "day")
        .annotate(Count("pk"))
        .order_by()
    )
    total: defaultdict[date, int] = defaultdict(int)
    by_annotator: defaultdict[int, dict[date, int]] = defaultdict(dict)
    for annotator, day, count in rows:
        total[day] += count
        by_annotator[annotator][day] = count
    return total, by_annotator


def burn_up(days: Sequence[Day], *, done: int, target: int) -> BurnUp | None:
    """Return the sum of annotations over `days`, which end today at `done`; None without a target."""
    if not target or not days:
        return None
    sums = [done]
    for day in reversed(days[1:]):
        sums.append(max(sums[-1] - day.count, 0))
    sums.reverse()
    highest = max(target, done)
    step = _WIDTH / max(len(sums) - 1, 1)
    places = [
        (round(index * step, 1), round(_HEIGHT * (1 - value / highest), 1))
        for index, value in enumerate(sums)
    ]
    pace = sum(day.count for day in days[-_RECENT:]) / min(_RECENT, len(days))
    left = target - done
    return BurnUp(
        line="M" + "L".join(f"{x:g},{y:g}" for x, y in places),
        target=round(_HEIGHT * (1 - target / highest), 1),
        done=done,
        wanted=target,
        reached_on=days[-1].day + timedelta(days=ceil(left / pace))
        if pace and 0 < left < 3650 * pace
        else None,
    )


# ── Time of training ──


_RUNS_LOOKED_AT = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The measured pace of a run."""

    run: str
    seconds_per_example: float
    tokens_per_second: float | None


def pace_of(round_: Round, method: Settings) -> Pace | None:
    """Return the pace of the latest finished run of the same method on the same base; None without one.

    Fits to frozen features have none: their time is that of features, which are kept.
    """
    if _is_fitted_at_once(method):
        return None
    finished = Run.objects.filter(
        method=method.method, state=RunState.FINISHED, checkpoint__base_model=round_.policy.base_model
    )
    for run in finished.order_by("-pk")[:_RUNS_LOOKED_AT]:
        uses = read_machine_use(folder_of(run))
        paces = [
            (later.time - earlier.time) / (later.step - earlier.step)
            for earlier, later in itertools.pairwise(uses)
            if later.step > earlier.step
        ]
        batch = run.spec.get("settings", {}).get("optimiser", {}).get("batch_size")
        if paces and batch:
            tokens = [use.tokens_per_second for use in uses if use.tokens_per_second]
            return Pace(
                run=run.name,
                # A run that was paused has long gaps; the median does not mind them.
                seconds_per_example=statistics.median(paces) / batch,
                tokens_per_second=statistics.median(tokens) if tokens else None,
            )
    return None


def chosen_for(settings: RewardSettings, judgments: int) -> RewardSettings:
    """Return the settings with those in place of auto that so many decided judgments lead to."""
    return settings.chosen(adapted=judgments >= ADAPTER_FROM) if settings.features == "auto" else settings


def _is_fitted_at_once(method: Settings) -> bool:
    return isinstance(method, RewardSettings) and method.is_fitted_at_once


def steps_of(method: Settings, examples: int) -> int:
    """Optimiser steps of a run over so many examples: whole passes, or as many as are allowed.

    A head fitted to frozen features takes one.
    """
    if _is_fitted_at_once(method):
        return 1
    steps = math.ceil(examples / method.optimiser.batch_size) * method.optimiser.epochs
    most = method.optimiser.max_steps
    return steps if most is None else min(steps, most)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutlook:
    """Judgments that a round could be trained on now, and how long its reward model and policy would take."""

    judgments: int
    seconds: float | None
    """None before a run of each method has finished on the base. A second reward model is not counted."""


def training_outlook(round_: Round) -> TrainingOutlook:
    """Return what the training of a round would have to learn from, and how long it would take."""
    recipe = recipe_to_train(round_)
    rounds = range(1, round_.number + 1)
    learned = decided_judgments(
        round_.project, rounds, ai_feedback=recipe.ai_feedback, first_passes=recipe.first_passes
    ).count()
    if not learned:
        return TrainingOutlook(judgments=0, seconds=None)
    seconds = 0.0
    for method in (chosen_for(recipe.reward, learned), recipe.policy):
        pace = pace_of(round_, method)
        if pace is None:
            return TrainingOutlook(judgments=learned, seconds=None)
        samples = isinstance(method, PolicyGradientSettings)
        examples = round_.project.prompts.filter(split=Split.TRAIN).count() if samples else learned
        seconds += pace.seconds_per_example * steps_of(method, examples) * method.optimiser.batch_size
    return TrainingOutlook(judgments=learned, seconds=seconds)


# ── Outlook ──


HARDLY = 0.005
"""Accuracy gain: if even the upper end of the interval is below this, stopping is suggested."""
_OUTLOOK_WIDTH, _OUTLOOK_HEIGHT = 300.0, 72.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectOutlook:
    """A project's learning curve in words and as a line."""

    rankings: int
    now: float
    next_100: tuple[float, float, float]
    """Accuracy that a hundred more annotations add, with a 95 % interval; in percentage points."""
    line: str
    """Path of the curve in a box of 300 by 72."""
    low: float
    high: float
    """Accuracy at the lower and the upper edge of that box."""
    hardly: bool
    """True if another hundred would hardly help."""
    asked: int | None
    """Annotations that the strategy asked for in the newest round; None where none is followed."""
    worth: int | None
    """Number of random annotations that hold as much information."""


def outlook_of(project: Project) -> ProjectOutlook | None:
    """Return the outlook as a worker kept it; None before there are enough annotations for a curve."""
    row = AcquisitionFigures.objects.filter(project=project).first()
    outlook = row.figures.get("outlook") if row else None
    if row is None or not outlook:
        return None
    value, low, high = outlook["next_100"]
    accuracies = [accuracy for _, accuracy in outlook["points"]]
    bottom, top = min(0.5, *accuracies), max(accuracies) + 0.02
    gain = row.figures.get("gain") if project.acquisition in FOLLOWS_HEAD else None
    return ProjectOutlook(
        rankings=outlook["rankings"],
        now=outlook["now"][0],
        next_100=(100 * value, 100 * low, 100 * high),
        line=_line(outlook["points"], bottom, top),
        low=bottom,
        high=top,
        hardly=high < HARDLY,
        asked=gain["asked"] if gain else None,
        worth=round(gain["worth"]) if gain else None,
    )


def _line(points: list[list[float]], bottom: float, top: float) -> str:
    across = Axis(start=0.0, end=float(points[-1][0]), length=_OUTLOOK_WIDTH)
    up = Axis(start=bottom, end=top, length=_OUTLOOK_HEIGHT)
    placed = [f"{across.place(size):.1f},{_HEIGHT - up.place(accuracy):.1f}" for size, accuracy in points]
    return "M" + "L".join(placed)


# ── Dashboard ──


_ROUNDS = 6
_COUNTS = "counts of the loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """A station of the loop: how much is there, and the page behind it."""

    label: str | Promise
    count: int
    address: str
    icon: str
    name: str = ""
    """Stands in place of the count where it says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """The next step of a manager."""

    title: str
    text: str
    action: str
    address: str
    tone: str = "accent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    """A round with the held-out figure of its reward model."""

    row: RoundRow
    reward_run: RunRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """All that the overview of a project shows to a manager but agreement and bias."""

    stations: tuple[Station, ...]
    annotations: AnnotationDays
    burn_up: BurnUp | None
    next_step: NextStep
    rounds: tuple[RoundFigures, ...]
    help: RoundHelp | None
    """Of the newest round whose new policy was evaluated."""
    outlook: ProjectOutlook | None


def dashboard_of(project: Project) -> Dashboard:
    """Return the overview of a project; counts of a large one may be some minutes old."""
    rounds = rounds_of_project(project)[:_ROUNDS]
    counts = _counts(project)
    annotations = annotation_days(project)
    return Dashboard(
        stations=tuple(_stations(project, rounds[0].round if rounds else None)),
        annotations=annotations,
        burn_up=burn_up(annotations.days, done=counts["done"], target=counts["wanted"]),
        next_step=next_step_of(project, rounds[0].round if rounds else None),
        rounds=tuple(_with_reward_models(rounds)),
        help=next(filter(None, (help_of(row.round) for row in rounds if row.round.verdict)), None),
        outlook=outlook_of(project),
    )


def is_quick(project: Project) -> bool:
    """Return True where nobody waits for `dashboard_of`: the project is small, or was counted lately."""
    return not is_large(project) or is_cached(_COUNTS, project.pk)


def _counts(project: Project) -> dict[str, int]:
    return cached(lambda: _count(project), _COUNTS, project.pk)


def _count(project: Project) -> dict[str, int]:
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK)
    kinds = Checkpoint.objects.filter(project=project).aggregate(
        reward=Count("pk", filter=Q(kind=CheckpointKind.REWARD)),
        policy=Count("pk", filter=Q(kind=CheckpointKind.POLICY)),
    )
    progress = _progress(project).values()
    return {
        "prompts": project.prompts.count(),
        "completions": Completion.objects.filter(prompt__project=project).count(),
        "comparisons": work.count(),
        "wanted": sum(wanted for _done, wanted in progress),
        "done": sum(done for done, _wanted in progress),
        "annotations": judgments_current(project).count(),
        "snapshots": project.snapshots.count(),
        **kinds,
    }


def _progress(project: Project) -> dict[int, tuple[int, int]]:
    """Return by round how many annotations that it asked for are done, and how many it asked for."""
    return cached(lambda: _measure_progress(project), "progress by round", project.pk)


def _measure_progress(project: Project) -> dict[int, tuple[int, int]]:
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK).order_by()
    slots = (
        Assignment.objects.filter(comparison__in=work, slot__isnull=False)
        .order_by()
        .values_list("comparison__round_number")
        .annotate(
            done=Count("pk", filter=Q(state=AssignmentState.SUBMITTED)),
            held=Count("pk", filter=Q(state__in=[AssignmentState.SUBMITTED, AssignmentState.LEASED])),
        )
    )
    places = {number: (done, held) for number, done, held in slots}
    # What is quarantined or closed is asked of nobody.
    remaining = dict(work.values_list("round_number").annotate(open=Sum("open_slots")))
    return {
        number: (places.get(number, (0, 0))[0], places.get(number, (0, 0))[1] + open_slots)
        for number, open_slots in remaining.items()
    }


def _stations(project: Project, newest: Round | None) -> Iterator[Station]:
    counts = _counts(project)
    names = ("data-prompts", "data-responses", "data-comparisons", "data-annotations", "rounds")
    prompts, responses, comparisons, annotations, rounds = (
        reverse(name, args=[project.slug]) for name in names
    )
    checkpoints = f"{reverse('checkpoints')}?project={project.slug}"
    yield Station(label=_("Prompts"), count=counts["prompts"], address=prompts, icon="message-square")
    yield Station(label=_("Responses"), count=counts["completions"], address=responses, icon="file-text")
    yield Station(label=_("Comparisons"), count=counts["comparisons"], address=comparisons, icon="columns-2")
    yield Station(
        label=_("Annotations"),
        count=counts["annotations"],
        address=f"{annotations}?kind=work",
        icon="pencil-line",
    )
    yield Station(
        label=_("Snapshots"),
        count=counts["snapshots"],
        address=newest.get_absolute_url() if newest else rounds,
        icon="archive",
    )
    reward = f"{checkpoints}&kind={CheckpointKind.REWARD}"
    yield Station(label=_("Reward models"), count=counts["reward"], address=reward, icon="scale")
    policies = f"{checkpoints}&kind={CheckpointKind.POLICY}"
    yield Station(label=_("Policies"), count=counts["policy"], address=policies, icon="box")
    yield Station(
        label=_("Served"),
        count=int(newest is not None),
        name=newest.policy.name if newest else "",
        address=newest.policy.get_absolute_url() if newest else policies,
        icon="server",
    )


def next_step_of(project: Project, newest: Round | None) -> NextStep:
    """Return the next step of a project's manager, by the state of its newest round."""
    if newest is None:
        return NextStep(
            title=_("Draft the first round"),
            text=_("A round samples responses to the prompts, collects annotations and trains a checkpoint."),
            action=_("Draft the first round"),
            address=reverse("round-draft", args=[project.slug]),
        )
    name = _("Round %(number)s") % {"number": newest.number}
    address = newest.get_absolute_url()
    state = RoundState(newest.state)
    done, wanted = _progress(project).get(newest.number, (0, 0))
    figures = {"done": done, "wanted": wanted}
    if state in (RoundState.SAMPLING, RoundState.LABELLING):
        text = _outlook_text(newest, figures)
        return NextStep(
            title=f"{name}: {state.label}", text=text, action=_("Open the round"), address=address
        )
    if state in TRAINS and state not in CAN_DECIDE:
        text = _("Training continues automatically; the round's page shows its progress.")
        return NextStep(
            title=f"{name}: {state.label}", text=text, action=_("Watch progress"), address=address
        )
    if state in CAN_DECIDE:
        text = _("Its evaluation is done. Promote or reject the new checkpoint.")
        return NextStep(
            title=f"{name}: {state.label}", text=text, action=_("Decide"), address=address, tone="warn"
        )
    if state in CAN_START_AGAIN:
        text = _("It stopped early. The round's page says why and starts it again.")
        return NextStep(
            title=f"{name}: {state.label}", text=text, action=_("Open the round"), address=address, tone="bad"
        )
    text = _("Compare the new checkpoint with its parent, or open the next round.")
    return NextStep(title=f"{name}: {state.label}", text=text, action=_("Open the round"), address=address)


def _outlook_text(round_: Round, figures: Mapping[str, int]) -> str:
    """Say how far labelling is, and how long training would take now."""
    outlook = cached(lambda: training_outlook(round_), "training outlook", round_.pk)
    if not outlook.judgments:
        text = _("%(done)s of %(wanted)s annotations of this round. Start training when there are enough.")
    elif outlook.seconds is None:
        text = _("%(done)s of %(wanted)s annotations of this round. Training is possible.")
    else:
        text = _(
            "%(done)s of %(wanted)s annotations of this round. Training is possible and takes about %(time)s."
        )
    return text % {**figures, "time": duration(outlook.seconds)}


def _with_reward_models(rows: list[RoundRow]) -> Iterator[RoundFigures]:
    for row in rows:
        step = row.round.steps.filter(kind=StepKind.TRAIN_REWARD_MODEL, run__isnull=False).first()
        yield RoundFigures(row=row, reward_run=run_rows([step.run])[0] if step and step.run else None)
