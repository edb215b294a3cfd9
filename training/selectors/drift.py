"""Reads of the drift page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from annotation.agreement.records import outcome_between, unordered_among
from annotation.choices import Purpose, Split, Verdict
from annotation.models import Completion, CompletionScore, Judgment, Project
from annotation.statistics.plots import Dot, Line, Scatter, scatter
from training.choices import CheckpointKind
from training.figures.curves import COUNT, MOST_LINES, SUM, Folded
from training.models import Checkpoint, DriftFigure, DriftMeasurement, Run
from training.selectors.base_models import same_tokenizer
from training.selectors.evaluations import people_say
from training.selectors.runs import folded_of

_KL = ("kl", "reference_kl")
_REWARDS = ("reward", "margin")
_AGREEMENT = "held_out_accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftRow:
    """One reward model in every round."""

    checkpoint: Checkpoint
    round_number: int | None
    """The round that trained it."""
    cells: list[DriftFigure | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    """Reward model of round i against judgments of round j."""

    rounds: list[int]
    rows: list[DriftRow]


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimised:
    """A policy run: its divergence from its reference, its reward, and its agreement with people."""

    run: Run
    kl: float
    reward: float
    reward_name: str
    agreement: float | None
    """Held-out agreement with people at the run's end, as the trainer measured it."""
    agreement_low: float | None
    agreement_high: float | None
    people: Any
    """People's win rate against the parent on held-out prompts (`evaluation.statistics.Figure`), if any."""
    kind: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftPage:
    """Everything on the page."""

    matrix: Matrix
    over_rounds: Scatter | None
    reward_plot: Scatter | None
    people_plot: Scatter | None
    optimised: list[Optimised]
    measurement: DriftMeasurement | None
    is_outdated: bool
    """Return whether anybody judged since the last measurement began."""


def people_judged(project: Project) -> QuerySet[Judgment]:
    """Return people's current judgments of work; agreement of AI annotators is measured elsewhere."""
    return Judgment.objects.current().filter(
        comparison__project=project,
        comparison__purpose=Purpose.WORK,
        assignment__retest_of__isnull=True,
        annotator__is_machine=False,
        blind=True,
    )


def rounds_judged(project: Project) -> list[int]:
    """Return the numbers of the rounds in which people judged."""
    numbers = people_judged(project).values_list("comparison__round_number", flat=True)
    return sorted(numbers.order_by().distinct())


def reward_models_by_age(project: Project) -> list[Checkpoint]:
    """Return a project's reward models, oldest first."""
    related = ("run__snapshot", "run__round_step__round")
    return list(
        Checkpoint.objects.filter(project=project, kind=CheckpointKind.REWARD)
        .select_related(*related)
        .order_by("pk")
    )


def drift_page(project: Project) -> DriftPage:
    """Return the measured matrix and the plots."""
    matrix = matrix_of(project)
    measurement = DriftMeasurement.objects.filter(project=project).order_by("-pk").first()
    newest = people_judged(project).order_by("-pk").values_list("created_at", flat=True).first()
    measured = measurement.started_at if measurement else None
    optimised, reward_plot, people_plot = _optimisation(project)
    return DriftPage(
        matrix=matrix,
        over_rounds=_over_rounds(matrix),
        reward_plot=reward_plot,
        people_plot=people_plot,
        optimised=optimised,
        measurement=measurement,
        is_outdated=bool(newest and measured and newest > measured),
    )


def matrix_of(project: Project) -> Matrix:
    """Return the measurements, a row per reward model; a cell is None without one."""
    models = reward_models_by_age(project)
    figures = {
        (figure.checkpoint_id, figure.round_number): figure
        for figure in DriftFigure.objects.filter(checkpoint__in=models)
    }
    rounds = sorted({number for _, number in figures})
    rows = [
        DriftRow(
            checkpoint=model,
            round_number=_round_of(model),
            cells=[figures.get((model.pk, number)) for number in rounds],
        )
        for model in models
    ]
    return Matrix(rounds=rounds, rows=rows)


def _round_of(model: Checkpoint) -> int | None:
    step = getattr(model.run, "round_step", None) if model.run else None
    return step.round.number if step else None


def _over_rounds(matrix: Matrix) -> Scatter | None:
    """Return the agreement of reward models with people: in their round, on judgments not used in training,
    and in the next round, on new answers."""
    series: list[list[Dot]] = [[], []]
    for row in matrix.rows:
        for number, cell in zip(matrix.rounds, row.cells, strict=True):
            if row.round_number is None or cell is None or cell.share is None:
                continue
            if number - row.round_number in (0, 1):
                later = number - row.round_number
                label = f"{row.checkpoint}, {number}"
                dot = Dot(x=row.round_number, y=cell.share, low=cell.low, high=cell.high, label=label)
                series[later].append(dot)
    lines = [Line(kind=kind, dots=tuple(dots)) for kind, dots in enumerate(series) if dots]
    return scatter(lines, y_range=(0.0, 1.0)) if lines else None


def _optimisation(project: Project) -> tuple[list[Optimised], Scatter | None, Scatter | None]:
    """Return reward and held-out agreement against the divergence from the reference: they part under
    over-optimisation (Gao et al. 2023). Of runs with the newest one's tokenizer alone."""
    runs = Run.objects.filter(snapshot__project=project, checkpoint__kind=CheckpointKind.POLICY)
    related = ("checkpoint__source", "checkpoint__parent__source", "checkpoint__base")
    optimised: list[Optimised] = []
    rewards, agreements = [], []
    for run in runs.select_related(*related).order_by("-pk"):
        folded = folded_of(run)
        kl, reward = _first(folded, _KL), _first(folded, _REWARDS)
        if kl is None or reward is None:
            continue
        if optimised and not same_tokenizer(optimised[0].run.checkpoint.base, run.checkpoint.base):
            # Divergences of other tokens stand on another scale.
            continue
        kind = len(optimised)
        point = _optimised(run, folded, kl, reward, kind)
        optimised.append(point)
        rewards.append(Line(kind=kind, dots=_along(folded, kl, reward)))
        agreements.append(Line(kind=kind, dots=_agreement_dots(point, folded, kl)))
        if len(optimised) == MOST_LINES:
            break
    agreements = [line for line in agreements if line.dots]
    reach = [dot.x for line in rewards for dot in line.dots]
    x_range = (min(reach), max(reach)) if reach else None
    return (
        optimised,
        scatter(rewards, x_range=x_range) if rewards else None,
        scatter(agreements, x_range=x_range, y_range=(0.0, 1.0)) if agreements else None,
    )


def _optimised(run: Run, folded: Folded, kl: str, reward: str, kind: int) -> Optimised:
    checkpoint: Checkpoint = run.checkpoint
    parent = checkpoint.parent
    verdicts = people_say(checkpoint, parent) if parent and parent.source_id else None
    return Optimised(
        run=run,
        kl=folded.latest[kl],
        reward=folded.latest[reward],
        reward_name=reward,
        agreement=folded.latest.get(_AGREEMENT),
        agreement_low=folded.latest.get(f"{_AGREEMENT}_low"),
        agreement_high=folded.latest.get(f"{_AGREEMENT}_high"),
        people=verdicts.held_out if verdicts else None,
        kind=kind,
    )


def _first(folded: Folded, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in folded.latest), None)


def _along(folded: Folded, x_name: str, y_name: str) -> tuple[Dot, ...]:
    """Return the means of two metrics, bucket by bucket."""
    xs, ys = folded.cells[x_name], folded.cells[y_name]
    both = [b for b in sorted(xs) if b in ys and xs[b][COUNT] and ys[b][COUNT]]
    return tuple(
        Dot(x=xs[b][SUM] / xs[b][COUNT], y=ys[b][SUM] / ys[b][COUNT], label=str(b * folded.width))
        for b in both
    )


def _agreement_dots(point: Optimised, folded: Folded, kl: str) -> tuple[Dot, ...]:
    """Return people's win rate at the run's end, else the trainer's figures along the run."""
    if point.people is not None:
        people = point.people
        return (Dot(x=point.kl, y=people.value, low=people.low, high=people.high, label=point.run.name),)
    return _along(folded, kl, _AGREEMENT) if _AGREEMENT in folded.cells else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A judgment behind a cell."""

    judgment: Judgment
    answers: list[tuple[Completion, int | None, float | None]]
    """Completion, rank by people (None where a partial ranking gives none), score by the reward model; the
    best rank first."""
    agreeing: int
    pairs: int


def items_behind(model: Checkpoint, round_number: int) -> QuerySet[Judgment]:
    """Return the judgments of a round that prefer something and that a reward model was not trained on."""
    assert model.project is not None  # noqa: S101 - reward models belong to a project
    judgments = people_judged(model.project).filter(
        comparison__round_number=round_number, verdict=Verdict.RANKED
    )
    if model.run:
        learned = model.run.snapshot.judgments.values("comparison_id")
        judgments = judgments.exclude(comparison__prompt__split=Split.TRAIN, comparison__in=learned)
    return judgments.select_related("comparison__prompt", "annotator", "assignment").order_by("pk")


def items_of(model: Checkpoint, judgments: Sequence[Judgment]) -> list[Item]:
    """Return judgments with people's ranks and a reward model's scores. Three queries."""
    ids = [judgment.pk for judgment in judgments]
    ranks: dict[int, dict[int, int]] = {pk: {} for pk in ids}
    rows = Completion.objects.filter(comparisons__judgments__in=ids).distinct()
    texts = {completion.pk: completion for completion in rows}
    placed = Judgment.objects.filter(pk__in=ids).order_by("ranks__rank", "ranks__pk")
    for pk, completion, rank in placed.values_list("pk", "ranks__completion_id", "ranks__rank"):
        if completion is not None:
            ranks[pk][completion] = rank
    scores = dict(
        CompletionScore.objects.filter(scorer=model.name, completion__in=texts).values_list(
            "completion_id", "value"
        )
    )
    items = []
    for judgment in judgments:
        of_judgment = ranks[judgment.pk]
        listed = [*of_judgment, *unordered_among(of_judgment, judgment.assignment.display_order)]
        answers = [(texts[pk], of_judgment.get(pk), scores.get(pk)) for pk in listed]
        pairs = [
            (won, lost)
            for better, _, won in answers
            for worse, _, lost in answers
            if won is not None and lost is not None and outcome_between(of_judgment, better.pk, worse.pk) == 1
        ]
        agreeing = sum(1 for won, lost in pairs if won > lost)
        items.append(Item(judgment=judgment, answers=answers, agreeing=agreeing, pairs=len(pairs)))
    return items
