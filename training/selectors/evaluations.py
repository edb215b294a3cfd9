"""Evaluations of a round's new policy: prompts, figures, the report and its sentences."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.template.loader import render_to_string
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.agreement.records import Selection
from annotation.choices import Purpose, Split, WithholdingState
from annotation.models import Comparison, Prompt, Withholding
from annotation.selectors.tables.metadata import MetadataText, value_of
from annotation.statistics.cached import last_report_of
from annotation.statistics.plots import Axis, Bar, PlottedInterval, bars
from annotation.text.edits import DiffPiece, sides
from training.choices import CAN_DECIDE, CheckpointKind, Method, RoundState, RoundVerdict, StepKind
from training.contract.files import canonical_json
from training.contract.run import EvaluationReport
from training.contract.validation import BASELINES_KEY, RewardModelValidation, validation_from_figures
from training.figures.evaluation_statistics import (
    LOSS,
    TIE,
    WIN,
    EvaluationFigure,
    PromptMeasurements,
    prompt_outcomes,
    win_rate,
)
from training.figures.held_out import (
    Baselines,
    PeopleFigures,
    RewardModelChoice,
    baselines_of,
    choice_of,
    people_of,
)
from training.models import Checkpoint, EvaluatedPrompt, Evaluation, Round, Run
from training.models.evaluations import is_narrow
from training.models.rounds import reason_text
from training.selectors.votes import judged, judgments_by_people

# ── Slices: win rates and the accuracy of the reward model by the values of metadata ──


MOST_SLICES = 20
"""Values with most prompts; the others are one slice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataSlice:
    """The held-out prompts with one value of metadata."""

    value: str | None
    """None for the prompts without one."""
    is_rest: bool = False
    """True for all values that are too many to list."""
    prompts: int
    win_rate: EvaluationFigure | None
    """By the reward model; ties count half."""
    people: EvaluationFigure | None
    """By people, for the prompts that they annotated."""
    accuracy: EvaluationFigure | None
    """Share of prompts on which the reward model prefers the response that people prefer."""


def slices_of(evaluation: Evaluation, people: PeopleSay, name: str) -> list[MetadataSlice]:
    """Return the slices of a finished evaluation by a name of metadata, the largest first.

    Intervals of win rates are those of the decision, valid under repeated looks; those of the accuracy are
    Wilson's. A tie by the reward model counts half for its accuracy; ties by people do not count for it.
    """
    tolerance = tolerance_in(evaluation.figures)
    outcomes = {
        row.prompt_id: measurements_of(row).outcome(tolerance)
        for row in evaluation.rows.select_related("old", "new").order_by("pk")
    }
    values = dict(
        Prompt.objects.filter(pk__in=outcomes)
        .annotate(slice_value=value_of(Prompt, MetadataText, name))
        .values_list("pk", "slice_value")
    )
    by_value: dict[str | None, list[int]] = defaultdict(list)
    for prompt in outcomes:
        by_value[values.get(prompt)].append(prompt)
    # Prompts without a value come last.
    listed = sorted(by_value, key=lambda value: (value is None, -len(by_value[value]), value or ""))
    shown, rest = listed[:MOST_SLICES], listed[MOST_SLICES:]
    slices = [_slice(value, by_value[value], outcomes, people) for value in shown]
    if rest:
        prompts = [prompt for value in rest for prompt in by_value[value]]
        slices.append(_slice(None, prompts, outcomes, people, is_rest=True))
    return slices


def _slice(
    value: str | None,
    prompts: Sequence[int],
    outcomes: Mapping[int, float | None],
    people: PeopleSay,
    *,
    is_rest: bool = False,
) -> MetadataSlice:
    by_model = [outcome for prompt in prompts if (outcome := outcomes[prompt]) is not None]
    by_people = [people.by_prompt[prompt] for prompt in prompts if prompt in people.by_prompt]
    hits = [
        TIE if outcome == TIE else float(outcome == people.by_prompt[prompt])
        for prompt in prompts
        if (outcome := outcomes[prompt]) is not None and people.by_prompt.get(prompt, TIE) != TIE
    ]
    return MetadataSlice(
        value=value,
        is_rest=is_rest,
        prompts=len(prompts),
        win_rate=win_rate(by_model),
        people=win_rate(by_people),
        accuracy=_accuracy(hits),
    )


def _accuracy(hits: Sequence[float]) -> EvaluationFigure | None:
    # NumPy is imported on use.
    from annotation.agreement.intervals import wilson_interval

    if not hits:
        return None
    low, high = wilson_interval(sum(hits), len(hits))
    return EvaluationFigure(value=sum(hits) / len(hits), low=low, high=high, prompts=len(hits))


# ── Evaluations ──


_OUTCOMES = {1: WIN, 0: TIE, -1: LOSS}


@dataclass(frozen=True, kw_only=True, slots=True)
class PeopleSay:
    """People's judgments of a checkpoint against its parent."""

    by_prompt: Mapping[int, float]
    """The outcome of each held-out prompt with judgments, in the order of the first judgment."""
    held_out: EvaluationFigure | None
    """Win rate on held-out prompts; ties count half."""
    held_out_judgments: int
    held_out_arena_votes: int
    """Those of them that members gave in an arena."""
    everywhere: EvaluationFigure | None
    """The same on all prompts, those of training among them."""
    judgments: int

    @property
    def outcomes(self) -> tuple[float, ...]:
        """Return the outcomes of held-out prompts alone."""
        return tuple(self.by_prompt.values())


NOBODY = PeopleSay(
    by_prompt={}, held_out=None, held_out_judgments=0, held_out_arena_votes=0, everywhere=None, judgments=0
)
"""No judgment by anybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgmentProgress:
    """Progress of people's judgments on an evaluation's comparisons."""

    comparisons: int
    judgments: int
    """Current ones, by people."""
    possible: int
    """Most judgments that these comparisons can get; quarantined ones get none."""


def trained_by(round_: Round, kind: CheckpointKind, step: StepKind) -> Checkpoint | None:
    """Return the checkpoint of a kind trained by a round's step; None before it is registered."""
    return Checkpoint.objects.filter(
        kind=kind, run__round_step__round=round_, run__round_step__kind=step
    ).first()


def evaluator_of(round_: Round) -> Checkpoint | None:
    """Return the reward model that evaluates a round's new policy: its second one, else its only one."""
    kinds = (StepKind.TRAIN_EVALUATOR, StepKind.TRAIN_REWARD_MODEL)
    checkpoints = Checkpoint.objects.filter(
        kind=CheckpointKind.REWARD, run__round_step__round=round_, run__round_step__kind__in=kinds
    ).select_related("run__round_step")
    by_kind = {
        StepKind(checkpoint.run.round_step.kind): checkpoint for checkpoint in checkpoints if checkpoint.run
    }
    return next((by_kind[kind] for kind in kinds if kind in by_kind), None)


def evaluation_settings(round_: Round, reward_model: Checkpoint | None) -> dict[str, Any]:
    """Return the settings of a round's evaluation: its sampling and its judges."""
    recipe = round_.parsed_recipe
    return {
        "prompts": recipe.evaluation.prompts,
        "sampling": asdict(recipe.evaluation.sampling),
        "rules": [asdict(rule) for rule in recipe.evaluation.rules],
        "seed": recipe.seed,
        "reward_model": reward_model.name if reward_model else None,
    }


def digest_of(settings: Mapping[str, Any]) -> str:
    """Return the digest that identifies evaluation settings."""
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def evaluation_of(round_: Round) -> Evaluation | None:
    """Return the evaluation for a round's recipe, finished or not; None before it has begun."""
    checkpoint = trained_by(round_, CheckpointKind.POLICY, StepKind.TRAIN_POLICY)
    if checkpoint is None:
        return None
    reward_model = evaluator_of(round_)
    return (
        Evaluation.objects.filter(
            checkpoint=checkpoint,
            parent=round_.policy_id,
            digest=digest_of(evaluation_settings(round_, reward_model)),
        )
        .select_related("checkpoint", "parent", "round__project", "reward_model")
        .first()
    )


def measurements_of(row: EvaluatedPrompt) -> PromptMeasurements:
    """Return the measurements in an evaluation's row, which should have `old` and `new`."""
    figures = row.figures
    return PromptMeasurements(
        texts=(row.old.text, row.new.text),
        reward=_pair(figures.get("reward")),
        heads={name: (both[0], both[1]) for name, both in figures.get("heads", {}).items()},
        kl=figures.get("kl"),
        rules={name: (both[0], both[1]) for name, both in figures.get("rules", {}).items()},
    )


def tolerance_in(figures: Mapping[str, Any]) -> float:
    """Return the tolerance of a finished evaluation; 0 for one from before tolerances were measured."""
    return float((figures.get("tolerance") or {}).get("value", 0.0))


def _pair(values: Any) -> tuple[float, float] | None:
    return (values[0], values[1]) if values else None


def people_say(checkpoint: Checkpoint, parent: Checkpoint) -> PeopleSay:
    """Return the win rate of a checkpoint against its parent by all current judgments of people with an
    account, their votes in arenas included.

    A prompt counts once, for the policy that most of its judgments prefer. Judgments by AI annotators and by
    guests, and unblinded ones, do not count.
    """
    pair = {checkpoint.source_id, parent.source_id}
    prompts: dict[int, tuple[int, str, str]] = {
        pk: (prompt, split, purpose)
        for pk, prompt, split, purpose in judgments_by_people()
        .filter(comparison__in=_comparisons_of(checkpoint, parent))
        .order_by("pk")
        .values_list("pk", "comparison__prompt_id", "comparison__prompt__split", "comparison__purpose")
    }
    arena_votes = 0
    by_split: dict[str, dict[int, list[float]]] = {split: defaultdict(list) for split in Split.values}
    for pk, judgment in judged(list(prompts)).items():
        outcomes = [
            _OUTCOMES[vote.outcome if vote.left == checkpoint.source_id else -vote.outcome]
            for vote in judgment.votes
            if {vote.left, vote.right} == pair
        ]
        if outcomes:
            prompt, split, purpose = prompts[pk]
            arena_votes += split == Split.HELD_OUT and purpose == Purpose.ARENA
            by_split[split][prompt].append(sum(outcomes) / len(outcomes))
    held_out = by_split[Split.HELD_OUT]
    everything = [votes for by_prompt in by_split.values() for votes in by_prompt.values()]
    outcomes = prompt_outcomes(list(held_out.values()))
    return PeopleSay(
        by_prompt=dict(zip(held_out, outcomes, strict=True)),
        held_out=win_rate(outcomes),
        held_out_judgments=sum(map(len, held_out.values())),
        held_out_arena_votes=arena_votes,
        everywhere=win_rate(prompt_outcomes(everything)),
        judgments=sum(map(len, everything)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutAnswers:
    """What people and the evaluator say of the held-out prompts with different responses.

    Identical responses tie whatever anybody says, so a win rate above one half on the others is one on all.
    """

    answers: tuple[tuple[int, float], ...]
    """(position in `scores`, outcome by people), in the order of the first judgment."""
    scores: tuple[float | None, ...]
    """Probability that the new response wins by the evaluator, by prompt; None where it has none."""

    @property
    def are_scored(self) -> bool:
        """Return whether the evaluator scored any of them."""
        return any(score is not None for score in self.scores)


def held_out_answers(evaluation: Evaluation, people: PeopleSay) -> HeldOutAnswers:
    """Return people's outcomes and the evaluator's on an evaluation's prompts with different responses."""
    tolerance = tolerance_in(evaluation.figures)
    positions: dict[int, int] = {}
    scores: list[float | None] = []
    for row in evaluation.rows.select_related("old", "new").order_by("pk"):
        measurements = measurements_of(row)
        if not measurements.same:
            positions[row.prompt_id] = len(scores)
            scores.append(measurements.win_chance(tolerance))
    answers = [
        (positions[prompt], outcome) for prompt, outcome in people.by_prompt.items() if prompt in positions
    ]
    return HeldOutAnswers(answers=tuple(answers), scores=tuple(scores))


def judgment_progress(evaluation: Evaluation) -> JudgmentProgress:
    """Return how many of an evaluation's pairs annotators got, and how many judgments they submitted."""
    pairs = evaluation.rows.values_list("old_id", "new_id")
    measured_pairs = {frozenset(pair) for pair in pairs}
    comparisons = (
        _comparisons_of(evaluation.checkpoint, evaluation.parent)
        .filter(purpose=Purpose.WORK, size=2)
        .filter(candidates__completion__in=[new for _, new in pairs])
        .prefetch_related("candidates")
        .distinct()
    )
    paired = [
        comparison
        for comparison in comparisons
        if frozenset(candidate.completion_id for candidate in comparison.candidates.all()) in measured_pairs
    ]
    withheld = set(
        Withholding.objects.filter(comparison__in=paired)
        .exclude(state=WithholdingState.RELEASED)
        .values_list("comparison_id", flat=True)
    )
    judgments = judgments_by_people().filter(comparison__in=paired).count()
    return JudgmentProgress(
        comparisons=len(paired),
        judgments=judgments,
        possible=sum(comparison.overlap for comparison in paired if comparison.pk not in withheld),
    )


def in_words(evaluation: Evaluation) -> str:
    """Return the evaluation in one line, for the step's message."""
    figures = evaluation.figures
    if not figures.get("prompts"):
        return "no held-out prompts: nothing could be measured"
    parts = [f"{figures['prompts']} held-out prompts"]
    rate = EvaluationFigure.from_json(figures["win_rate"])
    if rate is not None:
        parts.append(f"win rate {percent(rate)} by the reward model")
    return ", ".join(parts)


def percent(figure: EvaluationFigure) -> str:
    """Return a share with its interval, in whole percents."""
    if figure.low is None or figure.high is None:
        return f"{figure.value:.0%}"
    return f"{figure.value:.0%} ({figure.low:.0%} to {figure.high:.0%})"


def _comparisons_of(checkpoint: Checkpoint, parent: Checkpoint) -> Any:
    """Return the comparisons of work and arenas that contain both."""
    return (
        Comparison.objects.filter(purpose__in=(Purpose.WORK, Purpose.ARENA))
        .filter(candidates__completion__source=checkpoint.source_id)
        .filter(candidates__completion__source=parent.source_id)
        .distinct()
    )


# ── Sentences ──


def summary_of(evaluation: Evaluation | None) -> str:
    """Return the paragraph on an evaluation with the current judgments; empty before it is finished."""
    if evaluation is None or evaluation.finished_at is None:
        return ""
    if not evaluation.figures["prompts"]:
        return paragraph_on(evaluation, NOBODY)
    return paragraph_on(evaluation, people_say(evaluation.checkpoint, evaluation.parent))


def paragraph_on(evaluation: Evaluation, people: PeopleSay) -> str:
    """Return the outcome of a finished evaluation as a paragraph in the active language."""
    sentences = [_compared(evaluation), _judged(evaluation, people), _arena_votes(people)]
    # Rounds decided before there were verdicts used other rules, so their evidence is unknown.
    if evaluation.round.verdict:
        sentences += [_result(evaluation.round), _what_changes(evaluation)]
    return " ".join(sentence for sentence in sentences if sentence)


def _compared(evaluation: Evaluation) -> str:
    figures = evaluation.figures
    names = {"checkpoint": evaluation.checkpoint.name, "parent": evaluation.parent.name}
    if not figures["prompts"]:
        return (
            _(
                "%(checkpoint)s was not compared with its parent %(parent)s: the project has no held-out "
                "prompts."
            )
            % names
        )
    return _(
        "%(checkpoint)s was compared with its parent %(parent)s. Held-out prompts: %(prompts)s; identical "
        "responses on %(same)s of them; too close to call on %(tied)s."
    ) % {**names, **{name: figures.get(name, 0) for name in ("prompts", "same", "tied")}}


def _judged(evaluation: Evaluation, people: PeopleSay) -> str:
    if not evaluation.figures["prompts"]:
        return ""
    judgments = {"judgments": people.held_out_judgments, "prompts": len(people.outcomes)}
    if evaluation.reward_model is None or evaluation.figures["win_rate"] is None:
        return (
            _(
                "Evaluated by people: %(judgments)s annotations on %(prompts)s of these prompts; no"
                " reward model."
            )
            % judgments
        )
    return _(
        "The reward model %(model)s scored all of them, and people submitted %(judgments)s "
        "annotations on %(prompts)s of them."
    ) % {"model": evaluation.reward_model.name, **judgments}


def _arena_votes(people: PeopleSay) -> str:
    if not people.held_out_arena_votes:
        return ""
    return ngettext(
        "%(count)s of these annotations is a vote of a member in an arena; votes of guests do not count.",
        "%(count)s of these annotations are votes of members in an arena; votes of guests do not count.",
        people.held_out_arena_votes,
    ) % {"count": people.held_out_arena_votes}


def _result(round_: Round) -> str:
    if round_.verdict == RoundVerdict.PROMOTE:
        return _("The evidence is for the new policy: every condition of the recipe holds.")
    if round_.verdict == RoundVerdict.REJECT:
        return _("The evidence is against the new policy: a condition of the recipe does not hold.")
    return _(
        "There is not enough evidence: the figures do not show that the new policy is better or worse than "
        "its parent."
    )


def _what_changes(evaluation: Evaluation) -> str:
    round_ = evaluation.round
    if round_.state not in CAN_DECIDE:
        return _("The round is decided. To undo that, roll the next round back before it trains.")
    if round_.verdict != RoundVerdict.NOT_ENOUGH_EVIDENCE or round_.parsed_recipe.promotion.by_hand:
        return _("A manager promotes or rejects it.")
    promotion = round_.parsed_recipe.promotion
    if promotion.judged_by == "people_and_model" and (outlook := _outlook_in(round_)):
        follows = outlook
    else:
        follows = _what_follows(evaluation, promotion.least_differing_prompts)
    if round_.state != RoundState.NOT_ENOUGH_EVIDENCE:
        return follows
    goes_on = _(
        "Until then the next round continues from the parent, and both checkpoints respond to its prompts."
    )
    return f"{follows} {goes_on}"


_OUTLOOK = ("answers_expected", "answers_cannot_decide", "larger_pool")


def _outlook_in(round_: Round) -> str:
    """Return what the decision of a round by people and model still takes; empty before the first answer."""
    reasons = [reason for reason in round_.reasons if isinstance(reason, dict)]
    return " ".join(reason_text(reason) for reason in reasons if reason["code"] in _OUTLOOK)


def _what_follows(evaluation: Evaluation, minimum: int) -> str:
    """Return how people may still decide, or that there are too few prompts for that."""
    differing = evaluation.figures["prompts"] - evaluation.figures["same"]
    if differing < minimum:
        return ngettext(
            "%(count)s prompt has different responses; a decision by people needs %(minimum)s. Evaluate "
            "on more held-out prompts in the next round, or promote or reject it now, with a reason.",
            "%(count)s prompts have different responses; a decision by people needs %(minimum)s. Evaluate "
            "on more held-out prompts in the next round, or promote or reject it now, with a reason.",
            differing,
        ) % {"count": differing, "minimum": minimum}
    return _(
        "Annotations by people on held-out prompts would change this: the pairs are in the "
        "labelling queue, and the decision follows once at least %(minimum)s prompts with "
        "different responses are annotated and the interval of the win rate excludes one half. "
        "A manager may promote or reject it now, with a reason."
    ) % {"minimum": minimum}


# ── Report ──


_SHARES = Axis(start=0.0, end=1.0, length=300.0)
_ROW_HEIGHT = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnWinRate:
    """A win rate as drawn: a dot with its interval on an axis from 0 to 1."""

    label: str
    figure: EvaluationFigure
    y: float
    by_people: bool = False

    @property
    def place(self) -> PlottedInterval | None:
        """Return its dot and interval on the axis."""
        return _SHARES.interval(self.figure.value, self.figure.low, self.figure.high)

    @property
    def is_rated(self) -> bool:
        """Return whether there is enough evidence for a win rate: its interval is narrow enough."""
        return is_narrow(self.figure.low, self.figure.high)

    @property
    def verdict(self) -> str:
        """Return `better` or `worse` if the interval decides, else `open`."""
        if self.figure.low is not None and self.figure.low > 0.5:
            return "better"
        return "worse" if self.figure.high is not None and self.figure.high < 0.5 else "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """A score's means for both, and the gain with its interval."""

    label: str
    parent: float
    checkpoint: float
    gain: EvaluationFigure


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRow:
    """A prompt with both answers, their differing words, and their scores."""

    prompt: Any
    measurements: PromptMeasurements
    left: Sequence[DiffPiece]
    right: Sequence[DiffPiece]
    tolerance: float
    """Scores this close are a tie."""

    @property
    def gain(self) -> float | None:
        """Return the reward gain of the new response; 0 for a tie."""
        return None if self.measurements.reward is None else self.measurements.gain(self.tolerance)

    @property
    def outcome(self) -> str:
        """Return `identical`, or by the reward model `better`, `worse` or `equal`; empty without it."""
        if self.measurements.same:
            return "identical"
        outcome = self.measurements.outcome(self.tolerance)
        return "" if outcome is None else {1.0: "better", 0.5: "equal", 0.0: "worse"}[outcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSummary:
    """The report on a checkpoint against its parent."""

    evaluation: Evaluation
    people: PeopleSay
    summary: str
    """One paragraph: subject, judges, meaning and limits of the comparison."""
    shares: Sequence[DrawnWinRate]
    means: Sequence[Means]
    bars: Sequence[Bar]
    """Gains by prompt, the smallest first; none without a reward model."""
    kl: EvaluationFigure | None
    length_ratio: EvaluationFigure | None
    notes: Sequence[str]
    rows: Sequence[ReportRow]
    """Largest regressions first."""

    @property
    def height(self) -> int:
        """Return the height of the picture of win rates."""
        return height_of(self.shares)


def height_of(shares: Sequence[DrawnWinRate]) -> int:
    """Return the height of a picture of win rates."""
    return len(shares) * _ROW_HEIGHT


def deciding_shares(evaluation: Evaluation, people: PeopleSay) -> list[DrawnWinRate]:
    """Return the win rates that decide a round: by people on held-out prompts, and by the reward model."""
    by_model = EvaluationFigure.from_json(evaluation.figures["win_rate"])
    named = [
        (_("people and reward model"), _together_in(evaluation.round, len(people.by_prompt))),
        (_("people, held-out prompts"), people.held_out),
        (_("reward model"), by_model),
    ]
    return _drawn(named, people)


def _together_in(round_: Round, prompts: int) -> EvaluationFigure | None:
    """Return the win rate by people and model as the decision on a round holds it; None where it has none."""
    for reason in round_.reasons:
        if isinstance(reason, dict) and reason.get("by") == "people_and_model":
            return EvaluationFigure(prompts=prompts, **reason["value"])
    return None


def report_of(checkpoint: Checkpoint) -> EvaluationSummary | None:
    """Return the report of a checkpoint's newest finished evaluation; None without one."""
    evaluation = (
        Evaluation.objects.filter(checkpoint=checkpoint, finished_at__isnull=False)
        .select_related("checkpoint", "parent", "round__project", "reward_model")
        .first()
    )
    return None if evaluation is None else report_on(evaluation)


def report_on(evaluation: Evaluation) -> EvaluationSummary:
    """Return the report of a finished evaluation, with people's current judgments."""
    figures = evaluation.figures
    people = people_say(evaluation.checkpoint, evaluation.parent)
    tolerance = tolerance_in(figures)
    rows = [_row(row, tolerance) for row in evaluation.rows.select_related("prompt", "old", "new")]
    gains = sorted(row.gain for row in rows if row.gain is not None)
    return EvaluationSummary(
        evaluation=evaluation,
        people=people,
        summary=paragraph_on(evaluation, people),
        shares=_shares(figures, people),
        means=[*_means(figures)],
        bars=bars(gains, width=300.0, height=80.0, is_signed=True),
        kl=EvaluationFigure.from_json(figures["kl"]),
        length_ratio=EvaluationFigure.from_json(figures["length_ratio"]),
        notes=[note for note in figures["notes"].values() if note],
        rows=sorted(rows, key=_worse_first),
    )


def _row(row: EvaluatedPrompt, tolerance: float) -> ReportRow:
    left, right = sides(row.old.text, row.new.text)
    return ReportRow(
        prompt=row.prompt, measurements=measurements_of(row), left=left, right=right, tolerance=tolerance
    )


def _worse_first(row: ReportRow) -> tuple[bool, float]:
    """Sort by the reward model, else by the mean of the rules; unscored rows come last."""
    if row.gain is not None:
        return False, row.gain
    gains = [new - old for old, new in row.measurements.rules.values() if old is not None and new is not None]
    return not gains, sum(gains) / len(gains) if gains else 0.0


def _shares(figures: Mapping[str, Any], people: PeopleSay) -> list[DrawnWinRate]:
    named: list[tuple[str, EvaluationFigure | None]] = [
        (_("people, held-out prompts"), people.held_out),
        (
            _("people, all prompts"),
            people.everywhere if people.judgments > people.held_out_judgments else None,
        ),
        (_("reward model"), EvaluationFigure.from_json(figures["win_rate"])),
        (_("reward model, at equal length"), EvaluationFigure.from_json(figures.get("length_controlled"))),
    ]
    named += [
        (name, EvaluationFigure.from_json((scores or {}).get("win_rate")))
        for name, scores in _scored(figures)
    ]
    return _drawn(named, people)


def _drawn(named: Sequence[tuple[str, EvaluationFigure | None]], people: PeopleSay) -> list[DrawnWinRate]:
    known = [(label, figure) for label, figure in named if figure is not None]
    # Those that say something come first.
    known.sort(key=lambda entry: not is_narrow(entry[1].low, entry[1].high))
    people_figures = (people.held_out, people.everywhere)
    return [
        DrawnWinRate(
            label=label,
            figure=figure,
            y=place * _ROW_HEIGHT + _ROW_HEIGHT / 2,
            by_people=any(figure is people_figure for people_figure in people_figures),
        )
        for place, (label, figure) in enumerate(known)
    ]


def _scored(figures: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
    """Yield heads and rules by display name; the head `score` is the reward itself."""
    for name, scores in figures["heads"].items():
        if name != "score":
            yield _("head %(name)s") % {"name": name}, scores
    for name, scores in figures["rules"].items():
        yield _("rule %(name)s") % {"name": name}, scores


def _means(figures: Mapping[str, Any]) -> Iterable[Means]:
    for label, scores in ((_("reward"), figures["reward"]), *_scored(figures)):
        if scores is not None:
            yield Means(
                label=label,
                parent=scores["parent"]["value"],
                checkpoint=scores["checkpoint"]["value"],
                gain=EvaluationFigure(**scores["gain"]),
            )


def report_file(report: EvaluationSummary) -> str:
    """Return a report as one HTML file that can be mailed: every prompt, style and pictures within."""
    return render_to_string("training/evaluation_file.html", {"report": report, "rows": report.rows})


# ── Validation of reward models ──


def reward_model_validation(checkpoint: Checkpoint) -> RewardModelValidation | None:
    """Return the held-out figures of a reward model; None for a policy and without held-out pairs."""
    if checkpoint.kind != CheckpointKind.REWARD:
        return None
    return validation_from_figures(checkpoint.manifest.get("metrics") or {})


def run_validation(run: Run, report: EvaluationReport | None) -> RewardModelValidation | None:
    """Return the validation in the last evaluation of a reward model's run; None for another method."""
    if run.method != Method.REWARD or report is None:
        return None
    return validation_from_figures(report.figures)


def run_baselines(run: Run, report: EvaluationReport | None) -> Baselines | None:
    """Return the baselines of a reward model's run, beside the agreement of people as computed last."""
    if run.method != Method.REWARD or report is None or BASELINES_KEY not in report.details:
        return None
    return baselines_of(report, last_report_of(run.snapshot.project, Selection()))


def run_choice(run: Run, report: EvaluationReport | None) -> RewardModelChoice | None:
    """Return the choice of a reward model's run; None where its settings left none."""
    return choice_of(report) if run.method == Method.REWARD else None


def run_people(run: Run, report: EvaluationReport | None) -> PeopleFigures | None:
    """Return groups, drift and reliability of a reward model's run; None for another method."""
    return people_of(report) if run.method == Method.REWARD else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """The reward model that evaluates a round's new policy."""

    checkpoint: Checkpoint
    is_second: bool
    """True if it was trained on separate judgments, unseen by the policy."""
    validation: RewardModelValidation | None


def round_evaluator(round_: Round) -> Evaluator | None:
    """Return the reward model that evaluates a round; None before it is registered."""
    checkpoint = evaluator_of(round_)
    if checkpoint is None:
        return None
    step = checkpoint.run.round_step if checkpoint.run else None
    return Evaluator(
        checkpoint=checkpoint,
        is_second=step is not None and step.kind == StepKind.TRAIN_EVALUATOR,
        validation=reward_model_validation(checkpoint),
    )
