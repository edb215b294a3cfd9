"""Overview of a project: counts around the loop, annotations over time, next step, and last rounds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.db.models import Count, Q, Sum
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Purpose
from annotation.models import Assignment, Comparison, Completion, Project
from annotation.selectors.access import judgments_current
from annotation.selectors.cached_counts import cached, is_cached
from annotation.statistics.cached import is_large
from training.choices import CAN_DECIDE, CAN_START_AGAIN, TRAINS, CheckpointKind, RoundState, StepKind
from training.models import Checkpoint, Round
from training.selectors.annotation_days import AnnotationDays, BurnUp, annotation_days, burn_up
from training.selectors.lists import RoundRow, RunRow, rounds_of_project, run_rows
from training.selectors.outlook import Outlook, outlook_of
from training.selectors.round_help import RoundHelp, help_of
from training.selectors.training_time import training_outlook
from training.templatetags.training import duration

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
    outlook: Outlook | None


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
