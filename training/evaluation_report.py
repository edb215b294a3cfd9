"""An evaluation ready to be shown: shares on one axis, means side by side, where it got worse first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from annotation.corrections import Piece, sides
from training.evaluation import Figure, Found
from training.evaluation_words import paragraph_on
from training.models import Checkpoint, EvaluatedPrompt, Evaluation
from training.selectors_evaluation import PeopleSay, found_of, people_say, tolerance_in

WIDTH = 300
"""Of the axis of shares, and of the picture of gains."""
_ROW_HEIGHT = 24
GAIN_HEIGHT = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A win rate as it is drawn: a dot with its interval on an axis from 0 to 1."""

    label: str
    figure: Figure
    y: float

    @property
    def x(self) -> float:
        """Where the dot is."""
        return round(self.figure.value * WIDTH, 1)

    @property
    def x_low(self) -> float:
        """Where the interval begins; at the dot where there is none."""
        return round((self.figure.value if self.figure.low is None else self.figure.low) * WIDTH, 1)

    @property
    def x_high(self) -> float:
        """Where it ends."""
        return round((self.figure.value if self.figure.high is None else self.figure.high) * WIDTH, 1)

    @property
    def dot(self) -> tuple[float, float]:
        """The corner of its dot, six wide and eight high."""
        return round(self.x - 3, 1), self.y - 4

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the interval says so, else `open`."""
        if self.figure.low is not None and self.figure.low > 0.5:
            return "better"
        return "worse" if self.figure.high is not None and self.figure.high < 0.5 else "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """One score of both: their means, and the gain with its interval."""

    label: str
    parent: float
    checkpoint: float
    gain: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """The gain of one prompt, drawn from the line of no gain."""

    x: float
    y: float
    height: float
    width: float
    look: str
    """`better`, `worse` or `tie`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One prompt with both answers, the words in which they differ, and the scores of both."""

    prompt: Any
    found: Found
    left: Sequence[Piece]
    right: Sequence[Piece]
    tolerance: float
    """Scores this close are a tie."""

    @property
    def gain(self) -> float | None:
        """How much more the reward model gives to the new response; 0 for a tie."""
        return None if self.found.reward is None else self.found.gain(self.tolerance)

    @property
    def outcome(self) -> str:
        """`identical` responses; else by the reward model `better`, `worse` or `equal`; empty without it."""
        if self.found.same:
            return "identical"
        outcome = self.found.outcome(self.tolerance)
        return "" if outcome is None else {1.0: "better", 0.5: "equal", 0.0: "worse"}[outcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that is told of a checkpoint against its parent."""

    evaluation: Evaluation
    people: PeopleSay
    summary: str
    """One paragraph: what was compared, by whom, what it means, what would change it."""
    shares: Sequence[Share]
    means: Sequence[Means]
    bars: Sequence[Bar]
    """Gains by prompt, the smallest first; none without a reward model."""
    kl: Figure | None
    length_ratio: Figure | None
    notes: Sequence[str]
    rows: Sequence[Row]
    """Where it got worse first."""

    @property
    def height(self) -> int:
        """Of the picture of shares."""
        return len(self.shares) * _ROW_HEIGHT


def report_of(checkpoint: Checkpoint) -> Report | None:
    """The newest finished evaluation of a checkpoint, with all texts; None before there is one."""
    evaluation = (
        Evaluation.objects.filter(checkpoint=checkpoint, finished_at__isnull=False)
        .select_related("checkpoint", "parent", "round__project", "reward_model")
        .first()
    )
    return None if evaluation is None else report_on(evaluation)


def report_on(evaluation: Evaluation) -> Report:
    """All that is told of a finished evaluation, with what people say of the two by now."""
    figures = evaluation.figures
    people = people_say(evaluation.checkpoint, evaluation.parent)
    tolerance = tolerance_in(figures)
    rows = [_row(row, tolerance) for row in evaluation.rows.select_related("prompt", "old", "new")]
    return Report(
        evaluation=evaluation,
        people=people,
        summary=paragraph_on(evaluation, people),
        shares=_shares(figures, people),
        means=[*_means(figures)],
        bars=_bars([row.gain for row in rows if row.gain is not None]),
        kl=Figure.from_json(figures["kl"]),
        length_ratio=Figure.from_json(figures["length_ratio"]),
        notes=[note for note in figures["notes"].values() if note],
        rows=sorted(rows, key=_worse_first),
    )


def _row(row: EvaluatedPrompt, tolerance: float) -> Row:
    left, right = sides(row.old.text, row.new.text)
    return Row(prompt=row.prompt, found=found_of(row), left=left, right=right, tolerance=tolerance)


def _worse_first(row: Row) -> tuple[bool, float]:
    """By the reward model; by the mean of the rules where it has no score; what nothing scored comes last."""
    if row.gain is not None:
        return False, row.gain
    gains = [new - old for old, new in row.found.rules.values() if old is not None and new is not None]
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
    named += [(name, Figure.from_json((one or {}).get("win_rate"))) for name, one in _scored(figures)]
    known = [(label, figure) for label, figure in named if figure is not None]
    return [
        Share(label=label, figure=figure, y=place * _ROW_HEIGHT + _ROW_HEIGHT / 2)
        for place, (label, figure) in enumerate(known)
    ]


def _scored(figures: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any] | None]]:
    """Heads and rules by the name under which they are shown; the head `score` is the reward itself."""
    for name, one in figures["heads"].items():
        if name != "score":
            yield _("head %(name)s") % {"name": name}, one
    for name, one in figures["rules"].items():
        yield _("rule %(name)s") % {"name": name}, one


def _means(figures: Mapping[str, Any]) -> Iterable[Means]:
    for label, one in ((_("reward"), figures["reward"]), *_scored(figures)):
        if one is not None:
            yield Means(
                label=label,
                parent=one["parent"]["value"],
                checkpoint=one["checkpoint"]["value"],
                gain=Figure(**one["gain"]),
            )


def _bars(gains: Sequence[float]) -> list[Bar]:
    if not gains:
        return []
    top = max(abs(gain) for gain in gains) or 1.0
    width = WIDTH / len(gains)
    middle = GAIN_HEIGHT / 2
    bars = []
    for place, gain in enumerate(sorted(gains)):
        height = abs(gain) / top * middle
        bars.append(
            Bar(
                x=round(place * width, 2),
                y=round(middle - height if gain > 0 else middle, 2),
                height=round(height, 2),
                width=round(width * 0.8, 2),
                look="better" if gain > 0 else "worse" if gain < 0 else "tie",
            )
        )
    return bars
