"""Reward hacking: warnings when the reward rises and what it stands for does not.

A policy that is trained for a proxy finds what the proxy overlooks: answers grow longer, or please one judge
and no other (Gao, Schulman & Hilton 2023, "over-optimisation"). Either shows as two curves that part ways.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TypedDict

from scipy.special import ndtr, stdtrit

from training.contract import WatchSettings

REWARD = "reward"
"""Figure of a step: the mean reward that is trained for."""
LENGTH = "length"
"""Figure of a step: mean tokens of an answer."""
KL = "kl"
"""Figure of a step: mean divergence of an answer from the reference, in nats."""

_CERTAIN = 4.0
"""Standard errors of a change that counts as one, for windows so long that their deviations are known. A run
is looked at after every step, and the first steps are the same in every look: at 2 or 3 a long run without
any change would be warned of sooner or later."""


def part_figure(name: str) -> str:
    """Figure of a step: the mean score of one part of the reward, before normalising, clip and weight."""
    return f"reward/{name}"


def held_out_figure(name: str) -> str:
    """Figure of a step: the mean score of a watched reward, which is never trained for."""
    return f"watched/{name}"


class SeriesState(TypedDict):
    """One figure's first and latest values."""

    first: list[float]
    latest: list[float]


class WatchState(TypedDict):
    """State of a watch: plain numbers for a run's state file."""

    series: dict[str, SeriesState]
    warned: list[str]


@dataclass(frozen=True, slots=True)
class Change:
    """A figure's latest window against its first one."""

    before: float
    after: float
    chance: float
    """Largest difference of the two means by chance alone, steps taken as independent."""
    deviation: float
    """Standard deviation between the first steps."""

    @property
    def rose(self) -> bool:
        """Return whether it is higher than chance explains."""
        return self.after - self.before > self.chance

    @property
    def fell(self) -> bool:
        """Return whether it is lower than chance explains."""
        return self.before - self.after > self.chance


def _variance(values: Collection[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


class _Series:
    """The first `window` values of a figure and, of those after them, the latest `window`."""

    def __init__(self, window: int) -> None:
        self._window = window
        self.first: list[float] = []
        self.latest: deque[float] = deque(maxlen=window)

    def add(self, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            return
        (self.first if len(self.first) < self._window else self.latest).append(value)

    def change(self) -> Change | None:
        """None before both windows are full."""
        if len(self.latest) < self._window:
            return None
        before, after = fmean(self.first), fmean(self.latest)
        spread = _variance(self.first, before)
        error = math.sqrt((spread + _variance(self.latest, after)) / self._window)
        return Change(
            before=before,
            after=after,
            chance=-float(stdtrit(2 * self._window - 2, ndtr(-_CERTAIN))) * error,
            deviation=math.sqrt(spread),
        )


class Watch:
    """Compares the latest `window` steps with the first ones, after every step. Warns once of each cause.

    It is silent unless the reward that is trained for rose by more than chance explains; then it warns of
    answers whose length drifted by `length_drift`, and of held-out rewards that fell by `held_out_drop`
    standard deviations, each by more than chance explains too. So it says nothing before 2 · window steps.
    """

    def __init__(
        self,
        settings: WatchSettings,
        *,
        weights: Mapping[str, float] | None = None,
        kl_budget: float | None = None,
    ) -> None:
        """weights: of the reward's parts. With them what is trained for is the weighted sum of the figures
        of its parts: the figure of the whole cannot rise where a part is normalised by its running mean.
        kl_budget: the divergence beyond which the run ends; None sets no end."""
        self._settings = settings
        self._kl_budget = kl_budget
        self._weights = dict(weights or {})
        held_out = [held_out_figure(part.name) for part in settings.held_out]
        self._series = {name: _Series(settings.window) for name in (REWARD, LENGTH, *held_out)}
        self._warned: list[str] = []

    @property
    def stop(self) -> bool:
        """Return whether to end the run: its divergence is spent, or the settings stop on a warning, and one
        occurred."""
        return self.is_spent or (self._settings.action == "stop" and bool(self._warned))

    @property
    def is_spent(self) -> bool:
        """Return whether the run has gone further from its reference than its budget allows."""
        return KL in self._warned

    def observe(self, step: int, figures: Mapping[str, float]) -> list[str]:
        """Take in a step's figures (see `REWARD` and those after it); warnings in words, mostly none.

        A figure that is missing or not finite leaves its window as it is.
        """
        for name, series in self._series.items():
            series.add(self._reward(figures) if name == REWARD else figures.get(name))
        if self._kl_budget is not None and figures.get(KL, 0.0) > self._kl_budget and not self.stop:
            self._warned.append(KL)
        reward = self._series[REWARD].change()
        if reward is None or not reward.rose:
            return []
        warnings = []
        for name, finding in self._findings().items():
            if name not in self._warned:
                self._warned.append(name)
                warnings.append(
                    f"step {step}: {finding} while the reward rose from {reward.before:.3g} to "
                    f"{reward.after:.3g} (means of the first and the last {self._settings.window} steps): it "
                    "may be gamed; read the samples"
                )
        return warnings

    def _reward(self, figures: Mapping[str, float]) -> float | None:
        if not self._weights:
            return figures.get(REWARD)
        parts = [weight * figures.get(part_figure(name), math.nan) for name, weight in self._weights.items()]
        # A part that could score nothing in a step is not 0.
        return math.fsum(parts) if all(map(math.isfinite, parts)) else None

    def _findings(self) -> dict[str, str]:
        """Return a warning for each unusual figure."""
        findings = {}
        length, most = self._series[LENGTH].change(), self._settings.length_drift
        if length is not None and most is not None and length.before > 0:
            drift = length.after / length.before - 1
            if abs(drift) > most and (length.rose or length.fell):
                longer = "longer" if drift > 0 else "shorter"
                findings[LENGTH] = (
                    f"answers became {abs(drift):.0%} {longer} "
                    f"({length.before:.3g} to {length.after:.3g} tokens)"
                )
        for part in self._settings.held_out:
            name = held_out_figure(part.name)
            change, least = self._series[name].change(), self._settings.held_out_drop
            if change is None or least is None or not change.fell:
                continue
            if change.before - change.after > least * change.deviation:
                findings[name] = (
                    f"the held-out reward {part.name!r} fell from {change.before:.3g} to {change.after:.3g}"
                )
        return findings

    def state_dict(self) -> WatchState:
        """First and latest values of each figure, and what was warned of."""
        return {
            "series": {
                name: {"first": list(series.first), "latest": list(series.latest)}
                for name, series in self._series.items()
            },
            "warned": list(self._warned),
        }

    def load_state_dict(self, state: WatchState) -> None:
        """Go on where `state_dict` was taken. Raises `ValueError` for other figures than these."""
        if set(state["series"]) != set(self._series):
            raise ValueError(f"the state is of {sorted(state['series'])}, not of {sorted(self._series)}")
        for name, values in state["series"].items():
            self._series[name].first = list(values["first"])
            self._series[name].latest = deque(values["latest"], maxlen=self._settings.window)
        self._warned = list(state["warned"])
