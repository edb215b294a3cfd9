"""An evaluation for display: win rates on one axis, means of both, prompts with the largest regressions
first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from annotation.statistics.plots import Axis, Bar, Interval, bars
from annotation.text.edits import Piece, sides
from training.figures.evaluation_statistics import Figure, PromptMeasurements
from training.models import Checkpoint, EvaluatedPrompt, Evaluation
from training.models.evaluations import is_narrow
from training.selectors.evaluation_words import paragraph_on
from training.selectors.evaluations import PeopleSay, measurements_of, people_say, tolerance_in

_SHARES = Axis(start=0.0, end=1.0, length=300.0)
_ROW_HEIGHT = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A win rate as drawn: a dot with its interval on an axis from 0 to 1."""

    label: str
    figure: Figure
    y: float
    by_people: bool = False

    @property
    def place(self) -> Interval | None:
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
    gain: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A prompt with both answers, their differing words, and their scores."""

    prompt: Any
    measurements: PromptMeasurements
    left: Sequence[Piece]
    right: Sequence[Piece]
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
class Report:
    """The report on a checkpoint against its parent."""

    evaluation: Evaluation
    people: PeopleSay
    summary: str
    """One paragraph: subject, judges, meaning and limits of the comparison."""
    shares: Sequence[Share]
    means: Sequence[Means]
    bars: Sequence[Bar]
    """Gains by prompt, the smallest first; none without a reward model."""
    kl: Figure | None
    length_ratio: Figure | None
    notes: Sequence[str]
    rows: Sequence[Row]
    """Largest regressions first."""

    @property
    def height(self) -> int:
        """Return the height of the picture of win rates."""
        return height_of(self.shares)


def height_of(shares: Sequence[Share]) -> int:
    """Return the height of a picture of win rates."""
    return len(shares) * _ROW_HEIGHT


def deciding_shares(evaluation: Evaluation, people: PeopleSay) -> list[Share]:
    """Return the win rates that decide a round: by people on held-out prompts, and by the reward model."""
    by_model = Figure.from_json(evaluation.figures["win_rate"])
    return _drawn([(_("people, held-out prompts"), people.held_out), (_("reward model"), by_model)], people)


def report_of(checkpoint: Checkpoint) -> Report | None:
    """Return the report of a checkpoint's newest finished evaluation; None without one."""
    evaluation = (
        Evaluation.objects.filter(checkpoint=checkpoint, finished_at__isnull=False)
        .select_related("checkpoint", "parent", "round__project", "reward_model")
        .first()
    )
    return None if evaluation is None else report_on(evaluation)


def report_on(evaluation: Evaluation) -> Report:
    """Return the report of a finished evaluation, with people's current judgments."""
    figures = evaluation.figures
    people = people_say(evaluation.checkpoint, evaluation.parent)
    tolerance = tolerance_in(figures)
    rows = [_row(row, tolerance) for row in evaluation.rows.select_related("prompt", "old", "new")]
    gains = sorted(row.gain for row in rows if row.gain is not None)
    return Report(
        evaluation=evaluation,
        people=people,
        summary=paragraph_on(evaluation, people),
        shares=_shares(figures, people),
        means=[*_means(figures)],
        bars=bars(gains, width=300.0, height=80.0, is_signed=True),
        kl=Figure.from_json(figures["kl"]),
        length_ratio=Figure.from_json(figures["length_ratio"]),
        notes=[note for note in figures["notes"].values() if note],
        rows=sorted(rows, key=_worse_first),
    )


def _row(row: EvaluatedPrompt, tolerance: float) -> Row:
    left, right = sides(row.old.text, row.new.text)
    return Row(
        prompt=row.prompt, measurements=measurements_of(row), left=left, right=right, tolerance=tolerance
    )


def _worse_first(row: Row) -> tuple[bool, float]:
    """Sort by the reward model, else by the mean of the rules; unscored rows come last."""
    if row.gain is not None:
        return False, row.gain
    gains = [new - old for old, new in row.measurements.rules.values() if old is not None and new is not None]
    return not gains, sum(gains) / len(gains) if gains else 0.0


def _shares(figures: Mapping[str, Any], people: PeopleSay) -> list[Share]:
    named: list[tuple[str, Figure | None]] = [
        (_("people, held-out prompts"), people.held_out),
        (
            _("people, all prompts"),
            people.everywhere if people.judgments > people.held_out_judgments else None,
        ),
        (_("reward model"), Figure.from_json(figures["win_rate"])),
        (_("reward model, at equal length"), Figure.from_json(figures.get("length_controlled"))),
    ]
    named += [(name, Figure.from_json((scores or {}).get("win_rate"))) for name, scores in _scored(figures)]
    return _drawn(named, people)


def _drawn(named: Sequence[tuple[str, Figure | None]], people: PeopleSay) -> list[Share]:
    known = [(label, figure) for label, figure in named if figure is not None]
    # Those that say something come first.
    known.sort(key=lambda entry: not is_narrow(entry[1].low, entry[1].high))
    people_figures = (people.held_out, people.everywhere)
    return [
        Share(
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
                gain=Figure(**scores["gain"]),
            )


def report_file(report: Report) -> str:
    """Return a report as one HTML file that can be mailed: every prompt, style and pictures within."""
    return render_to_string("training/evaluation_file.html", {"report": report, "rows": report.rows})
