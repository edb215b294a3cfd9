"""The guard of a run: signals raise a question, people answer it, and the run ends, goes back or goes on.

After every step the guard looks at divergence, reward, length and the disagreement of an ensemble, smoothed
over three steps. Where one of them comes to a new height (`GuardSettings`), it raises a question: is the
policy worse than some steps ago? A signal decides nothing. The trainer samples both states' responses to
training prompts and writes them into the run's folder (`training.contract.guard`), where the web application
takes them up. The run goes on meanwhile for `spacing` steps; then, and before its end, it waits.

    fine, undecided    the run goes on
    worse              the run ends; its result is the earlier state
    no verdict in time the same, as nobody contradicts the signal
    pairs are spent    the same at the next signal, without a question

The earlier state is the kept one nearest to half of the steps, but little more than `_FARTHEST` spacings ago:
far enough to differ, near enough to lose little. A question follows from the run's steps alone,
and its file is never written twice: a run that is killed asks nothing again. Processes of one run agree on
everything.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypedDict

import numpy as np
from scipy.special import ndtr, stdtrit

from training.contract.guard import (
    PAIRS_AT_ONCE,
    GuardedPair,
    GuardQuestion,
    GuardSignal,
    GuardVerdict,
    SampledText,
    SignalHeight,
    SignalName,
    height_of_doublings,
    height_of_length,
    read_question,
    read_verdict,
    write_question,
)
from training.contract.methods.policy import GuardSettings, WatchSettings
from training.rlhf.loop.state import KeptWeights, adapter_tensors, under
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.sampling import RolloutPrompt, seeds_of_step
from training.rlhf.rollout.samples import Sample
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import RunFolder, log

SPREAD = "reward_spread"
"""Figure of a step: mean deviation among the heads of an ensemble, over the answers."""

_SMOOTHED = 3
"""Steps whose mean is looked at, and first steps that it is compared with."""
_SLOPE_STEPS = 5
_LEAST_SPACING = 5
_MOST_KEPT = 20
"""States of a run that are kept at most, about."""
_FARTHEST = 3
_SEEDS_TRIED = 4
_PAIR_STREAM = 6
"""Keeps the prompts of questions apart from all else that is drawn from the run's seed."""
_POLL_SECONDS = 0.5
_TELL_SECONDS = 5.0


def spacing_of(total_steps: int) -> int:
    """Return the steps between kept states, and at least between questions."""
    return max(_LEAST_SPACING, math.ceil(total_steps / _MOST_KEPT))


class Raised(NamedTuple):
    """A question that waits for its verdict."""

    number: int
    step: int
    then_step: int
    signals: tuple[GuardSignal, ...]

    @property
    def is_asked(self) -> bool:
        """Return whether people are asked; else the run ends without."""
        return self.number > 0


class Guard:
    """Raises questions from a run's figures, and keeps what became of them. Knows no model and no files."""

    def __init__(self, settings: GuardSettings, *, spacing: int) -> None:
        self._settings = settings
        self._spacing = spacing
        self._rewards: list[float] = []
        """Rewards of single answers in the first steps."""
        self._first: dict[str, list[float]] = {}
        self._latest: dict[str, deque[float]] = {}
        self._heights: dict[SignalName, int] = {}
        self._last_step = 0
        self.asked = 0
        """Pairs that people were asked so far, as their last verdict says."""
        self.questions = 0
        self.raised: Raised | None = None
        self.result_step: int | None = None
        """The state that is the run's result, once the guard has ended it."""

    def then_of(self, step: int) -> int:
        """Return the steps of the state that a question at `step` compares with."""
        halfway = max(step / 2, step - _FARTHEST * self._spacing)
        nearest = math.floor(halfway / self._spacing + 0.5) * self._spacing
        return nearest if step - nearest >= _SMOOTHED else max(nearest - self._spacing, 0)

    @property
    def pairs_left(self) -> int:
        """Return how many pairs people may still be asked."""
        return self._settings.most_pairs - self.asked

    def observe(self, step: int, figures: Mapping[str, float], rewards: Sequence[float]) -> None:
        """Take in the figures of the step that led to `step`, and the rewards of its answers."""
        values = {
            "kl": figures.get("kl", figures.get("kl_base", math.nan)),
            "length": figures.get("length", math.nan),
            "reward": figures.get("reward", math.nan),
            "heads": figures.get(SPREAD, math.nan),
        }
        if len(self._first.get("length", ())) < _SMOOTHED:
            self._rewards += rewards
        for name, value in values.items():
            if math.isfinite(value):
                first = self._first.setdefault(name, [])
                if len(first) < _SMOOTHED:
                    first.append(value)
                self._latest.setdefault(name, deque(maxlen=_SLOPE_STEPS)).append(value)
        signals = list(self._signals())
        if step <= _SMOOTHED:
            # A run that begins far from its reference begins no better or worse for it.
            self._heights = {one.name: one.height for one in signals}
            return
        higher = [one for one in signals if one.height > self._heights.get(one.name, 0)]
        if not higher or self.raised or step < max(self._last_step + self._spacing, self._spacing):
            return
        self._heights |= {one.name: one.height for one in signals if one.height > 0}
        self._last_step = step
        asks = self.pairs_left >= PAIRS_AT_ONCE
        self.questions += asks
        self.raised = Raised(
            self.questions if asks else 0,
            step,
            self.then_of(step),
            tuple(one.signal for one in higher),
        )

    def _signals(self) -> Iterator[SignalHeight]:
        """Yield the height of each signal that is looked at."""
        settings = self._settings
        if settings.kl is not None and (kl := self._smoothed("kl")) is not None:
            yield height_of_doublings("kl", kl, settings.kl)
        length = self._ratio("length")
        if settings.length_drift is not None and length is not None:
            yield height_of_length(length, settings.length_drift)
        spread = self._ratio("heads")
        if settings.head_disagreement is not None and spread is not None:
            yield height_of_doublings("heads", spread, settings.head_disagreement)
        rise = self._rise()
        if settings.reward_slope is not None and rise is not None:
            height = max(math.floor(rise / settings.reward_slope), 0)
            yield SignalHeight("reward", height, rise, height * settings.reward_slope)

    def _smoothed(self, name: str) -> float | None:
        latest = list(self._latest.get(name, ()))[-_SMOOTHED:]
        return fmean(latest) if latest else None

    def _ratio(self, name: str) -> float | None:
        first, now = self._first.get(name), self._smoothed(name)
        if not first or now is None:
            return None
        before = fmean(first)
        return now / before if before > 0 and now > 0 else None

    def _rise(self) -> float | None:
        """Return the rise of the reward over the latest steps by least squares, in deviations of the first
        rewards."""
        latest = self._latest.get("reward", ())
        if len(latest) < _SLOPE_STEPS or len(self._rewards) < 2:
            return None
        deviation = stdev(self._rewards)
        slope = float(np.polyfit(np.arange(len(latest)), np.array(latest), 1)[0])
        return slope * (len(latest) - 1) / deviation if deviation > 0 else None

    def settle(self, verdict: GuardVerdict | None) -> None:
        """Take the verdict on the question that was raised; None, where there is none, ends the run."""
        assert self.raised is not None  # noqa: S101 - what is settled was raised
        if verdict is not None:
            self.asked = verdict.asked
        if verdict is None or verdict.outcome == "worse":
            self.result_step = self.raised.then_step
        self.raised = None

    def state_dict(self) -> dict[str, Any]:
        """Return all that it has seen and asked, as JSON values."""
        raised = self.raised
        return {
            "rewards": list(self._rewards),
            "first": {name: list(values) for name, values in self._first.items()},
            "latest": {name: list(values) for name, values in self._latest.items()},
            "heights": dict(self._heights),
            "asked": self.asked,
            "questions": self.questions,
            "last_step": self._last_step,
            "raised": None
            if raised is None
            else [
                *raised[:3],
                [[signal.name, signal.value, signal.bound] for signal in raised.signals],
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._rewards = list(state["rewards"])
        self._first = {name: list(values) for name, values in state["first"].items()}
        self._latest = {name: deque(values, maxlen=_SLOPE_STEPS) for name, values in state["latest"].items()}
        self._heights = dict(state["heights"])
        self.asked, self.questions = state["asked"], state["questions"]
        self._last_step = state["last_step"]
        self.raised = None
        if state["raised"] is not None:
            number, step, then_step, signals = state["raised"]
            self.raised = Raised(
                number,
                step,
                then_step,
                tuple(GuardSignal(name=name, value=value, bound=bound) for name, value, bound in signals),
            )


Sampling = Callable[[Sequence[RolloutPrompt], Sequence[int]], Sequence[Sample]]
"""Samples one answer to each prompt, each with its seed, by the adapter as it is."""


@dataclass(kw_only=True)
class GuardedRun:
    """Asks a guard's questions and waits for their verdicts, between two steps of a run."""

    guard: Guard
    minutes: float
    spacing: int
    prompts: Sequence[RolloutPrompt]
    """Those that are trained on."""
    seed: int
    sampling: Mapping[str, Any]
    """Sampling parameters, for the record."""
    sample: Sampling
    backbone: Backbone
    adapter: str
    folder: RunFolder
    processes: Processes
    check: Callable[[], None]
    """Raises in all processes where the run is asked to stop."""
    save: Callable[[int], None]
    """Saves the run after that many steps."""

    def __post_init__(self) -> None:
        self._kept = KeptWeights(self.folder.path, self.processes, name="kept")

    def look(self, step: int, *, is_last: bool) -> None:
        """Keep the state if it is time, ask what was raised, and take its verdict, waiting where need be."""
        if self.guard.result_step is not None:
            return
        self._keep(step)
        raised = self.guard.raised
        if raised is None:
            return
        question = self._question(raised, step)
        if question is None:
            # The two states say the same to every prompt: neither is worse.
            self.guard.settle(GuardVerdict(outcome="fine", asked=self.guard.asked))
        elif not raised.is_asked:
            self._end(raised, "the pairs of this run are spent")
        else:
            self._take_verdict(raised, waits=is_last or step >= raised.step + self.spacing)

    def put_back(self) -> int | None:
        """Make the run's result the adapter's state, where the guard has ended the run; its steps."""
        step = self.guard.result_step
        if step is not None:
            self._kept.put_back(step, self.backbone, self.adapter)
        return step

    def _keep(self, step: int) -> None:
        if step % self.spacing == 0 and step not in self._agreed(self._kept.steps):
            self._kept.write(step, adapter_tensors(self.backbone, self.adapter))
        oldest = self.guard.then_of(step)
        if self.guard.raised is not None:
            oldest = min(oldest, self.guard.raised.then_step)
        if self.processes.first:
            self._kept.forget_others(but=[kept for kept in self._kept.steps if kept >= oldest])
        self.processes.wait()

    def _question(self, raised: Raised, step: int) -> GuardQuestion | None:
        """Return the question as it stands in the run's folder, where it is written once."""
        number = raised.number or self.guard.questions + 1
        question: GuardQuestion | None = self._agreed(read_question(self.folder.path, number))
        if question is None and raised.step == step:
            pairs = self._pairs(raised) if raised.is_asked else []
            if raised.is_asked and not pairs:
                return None
            # What people are asked about must not be lost: the state first, then the question.
            self.save(step)
            question = GuardQuestion(
                number=number,
                step=step,
                then_step=raised.then_step,
                signals=raised.signals,
                sampling=self.sampling,
                pairs=tuple(pairs),
            )
            if self.folder.writes:
                write_question(self.folder.path, question)
            log.info("Step %d: %s", step, self._in_words(raised))
        return question

    def _pairs(self, raised: Raised) -> list[GuardedPair]:
        """Return responses of both states that differ, to as many prompts as people may still be asked."""
        order = np.random.default_rng([self.seed, _PAIR_STREAM, raised.step]).permutation(len(self.prompts))
        prompts = [self.prompts[place] for place in order[: self.guard.pairs_left].tolist()]
        first = seeds_of_step(prompts, raised.step, seed=self.seed ^ _PAIR_STREAM)
        pairs: dict[str, GuardedPair] = {}
        for offset in range(_SEEDS_TRIED):
            left = [place for place, prompt in enumerate(prompts) if prompt.id not in pairs]
            if not left:
                break
            some, seeds = [prompts[place] for place in left], [first[place] + offset for place in left]
            now = self.sample(some, seeds)
            with self._weights_of(raised.then_step):
                then = self.sample(some, seeds)
            for prompt, old, new in zip(some, then, now, strict=True):
                if old.text.strip() != new.text.strip():
                    pairs[prompt.id] = GuardedPair(prompt=prompt.id, then=_text(old), now=_text(new))
        return [pairs[prompt.id] for prompt in prompts if prompt.id in pairs]

    @contextmanager
    def _weights_of(self, step: int) -> Iterator[None]:
        """Let the adapter have the weights that it had after `step` steps."""
        tensors = adapter_tensors(self.backbone, self.adapter)
        present = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._kept.put_back(step, self.backbone, self.adapter)
        try:
            yield
        finally:
            self.backbone.overwrite(self.adapter, under(present, "adapter."), under(present, "head."))

    def _take_verdict(self, raised: Raised, *, waits: bool) -> None:
        begun = told = time.monotonic()
        while (verdict := self._agreed(read_verdict(self.folder.path, raised.number))) is None:
            if not waits:
                return
            if self._agreed(time.monotonic() - begun > 60 * self.minutes):
                self._end(raised, f"nobody answered in {self.minutes:g} minutes")
                return
            self.check()
            if time.monotonic() >= told:
                self.folder.tell("running", "waiting for annotators: is the policy worse than before?")
                told = time.monotonic() + _TELL_SECONDS
            time.sleep(_POLL_SECONDS)
        if verdict.outcome == "worse":
            self._end(raised, "people find it worse", verdict)
            return
        log.info("Step %d against step %d: %s by people", raised.step, raised.then_step, verdict.outcome)
        self.guard.settle(verdict)

    def _end(self, raised: Raised, reason: str, verdict: GuardVerdict | None = None) -> None:
        log.warning(
            "The run ends: %s. Asked about was step %d against step %d, which becomes the checkpoint",
            reason,
            raised.step,
            raised.then_step,
        )
        self.guard.settle(verdict)

    def _agreed(self, mine: Any) -> Any:
        """Return what the first process has read."""
        return self.processes.gather_objects(mine)[0]

    @staticmethod
    def _in_words(raised: Raised) -> str:
        signals = ", ".join(f"{signal.name} {signal.value:.3g}" for signal in raised.signals)
        return f"{signals}: is the policy worse than after step {raised.then_step}?"


def _text(sample: Sample) -> SampledText:
    return SampledText(
        text=sample.text,
        seed=sample.seed,
        finish_reason=sample.finish_reason,
        tokens=len(sample.tokens),
    )


# ── Reward hacking: warnings when the reward rises and what it stands for does not ──
#
# A policy that is trained for a proxy finds what the proxy overlooks: answers grow longer, or please one
# judge and no other (Gao, Schulman & Hilton 2023, "over-optimisation"). Either shows as two curves that part.


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
class WindowChange:
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

    def change(self) -> WindowChange | None:
        """None before both windows are full."""
        if len(self.latest) < self._window:
            return None
        before, after = fmean(self.first), fmean(self.latest)
        spread = _variance(self.first, before)
        error = math.sqrt((spread + _variance(self.latest, after)) / self._window)
        return WindowChange(
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
