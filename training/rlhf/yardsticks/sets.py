"""The yardsticks: reader, figures, chance, and what others published, each with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from training.rlhf.yardsticks import reading
from training.rlhf.yardsticks.figures import (
    Figure,
    Scored,
    accuracy_figures,
    reward_bench_figures,
    rm_bench_figures,
)
from training.rlhf.yardsticks.items import Item


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A figure of others."""

    model: str
    figure: str
    """Name of the figure here."""
    value: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Yardstick:
    """A test set."""

    title: str
    reader: Callable[[reading.Row, str], Item | None]
    figures: Callable[[Sequence[Scored]], dict[str, Figure]]
    chance: Mapping[str, float]
    """Values that random scores reach, by figure; for figures that are not named, `all`."""
    published: Sequence[Published] = field(default_factory=tuple)


YARDSTICKS = {
    "reward-bench-2": Yardstick(
        title="RewardBench 2",
        reader=reading.reward_bench_2,
        figures=reward_bench_figures,
        chance={"all": 0.25},
    ),
    "rm-bench": Yardstick(
        title="RM-Bench",
        reader=reading.rm_bench,
        figures=rm_bench_figures,
        chance={"all": 0.5},
        published=(
            Published(
                model="DeepSeek-R1 as a judge",
                figure="all",
                value=0.8528,
                source="github.com/THU-KEG/RM-Bench, README",
            ),
            Published(
                model="DeepSeek-R1 as a judge",
                figure="hard",
                value=0.8024,
                source="github.com/THU-KEG/RM-Bench, README",
            ),
            Published(
                model="best of nearly 40 reward models, October 2024",
                figure="hard",
                value=0.466,
                source="arXiv 2410.16184, abstract",
            ),
        ),
    ),
    "ppe-preference": Yardstick(
        title="PPE human preference",
        reader=reading.ppe_preference,
        figures=accuracy_figures,
        chance={"all": 0.5},
    ),
    "alpaca-pairs": Yardstick(
        title="AlpacaEval pairs",
        reader=reading.alpaca_pairs,
        figures=accuracy_figures,
        chance={"all": 0.5},
    ),
}
