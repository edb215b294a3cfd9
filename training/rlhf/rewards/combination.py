"""Several rewards as one: a weighted sum, each part normalised and clipped if wished."""

from __future__ import annotations

import importlib
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from annotation.record.base import require
from training.contract import ContractError, read_manifest
from training.contract.checkpoint import manifest_digest
from training.contract.methods.policy import RewardPart
from training.contract.methods.reward import RewardSettings
from training.contract.run import REWARD_KEY_VARIABLE, REWARD_URL_VARIABLE, RunSpec
from training.contract.validation import Population
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.judge import JudgeReward, RubricReward
from training.rlhf.rewards.protocol import Chat, Guarded, Reference, Reward, Score, ScoredSegment
from training.rlhf.rewards.reward_model import LearnedReward, ServedReward
from training.rlhf.rewards.text_rewards import KINDS_OF_TEXTS, construct, reward_of_texts

_LEAST_DEVIATION = 1e-8


class StatisticsState(TypedDict):
    """State of running statistics: plain numbers for a run's state file."""

    count: int
    mean: float
    squares: float


class PartState(TypedDict):
    """Running statistics of one part."""

    values: StatisticsState
    segments: StatisticsState


class RunningStatistics:
    """Mean and standard deviation of all numbers seen, batch by batch. Chan et al. 1979, equation 1.5."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, numbers: Sequence[float]) -> None:
        """Take a batch in."""
        if not numbers:
            return
        mean = math.fsum(numbers) / len(numbers)
        squares = math.fsum((number - mean) ** 2 for number in numbers)
        both = self.count + len(numbers)
        apart = mean - self.mean
        self._squares += squares + apart**2 * self.count * len(numbers) / both
        self.mean += apart * len(numbers) / both
        self.count = both

    @property
    def deviation(self) -> float:
        """Standard deviation of the sample; 0 before the second number."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else 0.0

    def standardised(self, number: float) -> float:
        """(number − mean) / deviation; 0 where nothing has varied yet."""
        deviation = self.deviation
        return (number - self.mean) / deviation if deviation > _LEAST_DEVIATION else 0.0

    def state_dict(self) -> StatisticsState:
        """Count, mean and sum of squares about it."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def load_state_dict(self, state: StatisticsState) -> None:
        """Go on where `state_dict` was taken."""
        self.count, self.mean, self._squares = int(state["count"]), state["mean"], state["squares"]


@dataclass(frozen=True, kw_only=True)
class WeightedReward:
    """One reward in a sum."""

    name: str
    reward: Reward
    weight: float = 1.0
    normalise: bool = False
    """Less the running mean, divided by the running standard deviation, of all its scores so far,
    this batch's included. For parts on scales of their own, such as learned reward models."""
    clip: float | None = None
    """Cut to ± this, after normalising and before weighting."""
    required: bool = False
    """A completion that this part cannot score cannot be scored at all. Otherwise the part is left
    out of its sum: for parts that serve only some of the prompts."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ValueError(f"weight {self.weight} of {self.name!r} must be finite")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip {self.clip} of {self.name!r} must be positive, or None")


@dataclass(frozen=True, slots=True)
class Combined:
    """A batch's rewards, and what they are made of."""

    totals: list[Score]
    parts: dict[str, list[Score]]
    """As each part gave them: before normalising, clipping and weighting."""

    def joined(self, rows: Sequence[int], others: Combined) -> Combined:
        """Return the rewards of these rows, and those of the others after them."""

        def of(mine: list[Score], theirs: list[Score]) -> list[Score]:
            return [*(mine[row] for row in rows), *theirs]

        parts = {name: of(scores, others.parts[name]) for name, scores in self.parts.items()}
        return Combined(of(self.totals, others.totals), parts)


class Combination:
    """Σ_k w_k R_k over the parts, itself a reward.

    A segment's reward is weighted, and normalised and clipped on its own, like the whole's. What
    a part cannot score is left out, never called 0, and counted in `unscored`; so is what a part
    raises for (see `Guarded`). A completion that no part can score cannot be scored.
    """

    def __init__(self, parts: Iterable[WeightedReward], *, clip: float | None = None) -> None:
        """`clip` cuts the sum of a completion's values to ± this; segments are cut by their parts alone."""
        self.parts = tuple(parts)
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a combination needs parts with names of their own; got {names}")
        if clip is not None and clip <= 0:
            raise ValueError(f"clip {clip} must be positive, or None")
        self._clip = clip
        self._rewards = {part.name: Guarded(part.reward) for part in self.parts}
        self._values = {name: RunningStatistics() for name in names}
        self._segments = {name: RunningStatistics() for name in names}
        self.learning = True
        """True if scores enter the running statistics; turn it off to score held-out prompts."""
        self.unscored: Counter[str] = Counter()
        """Number of completions that each part could not score, since the start."""

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return self.combine(prompts, completions, references).totals

    def combine(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> Combined:
        """Return the totals, with the scores of each part."""
        return self.combined(self.scores(prompts, completions, references))

    def scores(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> dict[str, list[Score]]:
        """Return the scores of each part, before normalising, clipping and weighting."""
        if not completions:
            return {name: [] for name in self._rewards}
        return {name: reward(prompts, completions, references) for name, reward in self._rewards.items()}

    def combined(self, parts: dict[str, list[Score]]) -> Combined:
        """Return the totals of what `scores` gave, which joins the running statistics."""
        for name, scores in parts.items():
            self.unscored[name] += sum(not score.scored for score in scores)
            if self.learning:
                self._values[name].add([score.value for score in scores if score.scored])
                self._segments[name].add(
                    [segment.value for score in scores if score.scored for segment in score.segments]
                )
        rows = [
            {name: scores[index] for name, scores in parts.items()}
            for index in range(len(parts[self.parts[0].name]))
        ]
        return Combined([self._total(row) for row in rows], parts)

    @property
    def failures(self) -> dict[str, Counter[str]]:
        """Return each part's errors and their counts since the start."""
        return {name: reward.failures for name, reward in self._rewards.items()}

    def close(self) -> None:
        """End what parts keep open: a process, connections."""
        for part in self.parts:
            if callable(close := getattr(part.reward, "close", None)):
                close()

    def _total(self, scores: dict[str, Score]) -> Score:
        missing = [part.name for part in self.parts if not scores[part.name].scored]
        lacking = [part.name for part in self.parts if part.required and part.name in missing]
        if lacking or len(missing) == len(self.parts):
            reasons = {
                name: scores[name].reason or "the score is not a number" for name in lacking or missing
            }
            return Score.cannot("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
        total = 0.0
        segments: list[ScoredSegment] = []
        for part in self.parts:
            score = scores[part.name]
            if score.scored:
                total += part.weight * _shaped(part, score.value, self._values[part.name])
                segments += [
                    ScoredSegment(
                        segment.end, part.weight * _shaped(part, segment.value, self._segments[part.name])
                    )
                    for segment in score.segments
                ]
        segments.sort(key=lambda segment: segment.end)
        return Score(_clipped(total, self._clip), tuple(segments))

    def state_dict(self) -> dict[str, PartState]:
        """Running statistics by part."""
        return {
            name: {"values": self._values[name].state_dict(), "segments": self._segments[name].state_dict()}
            for name in self._values
        }

    def load_state_dict(self, state: dict[str, PartState]) -> None:
        """Go on where `state_dict` was taken. Raises `ValueError` for other parts than these."""
        if set(state) != set(self._values):
            raise ValueError(f"the state is of the parts {sorted(state)}, not of {sorted(self._values)}")
        for name, part in state.items():
            self._values[name].load_state_dict(part["values"])
            self._segments[name].load_state_dict(part["segments"])


def _shaped(part: WeightedReward, value: float, statistics: RunningStatistics) -> float:
    return _clipped(statistics.standardised(value) if part.normalise else value, part.clip)


def _clipped(value: float, most: float | None) -> float:
    return value if most is None else min(max(value, -most), most)


# ── Rewards that somebody else wrote: a Python function by its dotted path, if the path is allowed ──

UserFunction = Callable[[Sequence[Chat], Sequence[str], Sequence[Reference]], Sequence[Any]]
"""Takes prompts, completions and references; gives a number, None (cannot score) or `Score` for each."""


class FunctionReward:
    """The function at a dotted path, such as `acme.rewards.politeness`, as a reward.

    `allowed` holds the paths that whoever runs this installation vouches for, each in full:
    importing a module runs its code, so a run's settings alone must not choose one. Raises
    `PermissionError` for a path that is not among them, before anything is imported, and
    `ValueError` for one that leads to no function.
    """

    def __init__(self, path: str, *, allowed: Collection[str]) -> None:
        if path not in allowed:
            raise PermissionError(
                f"{path!r} is not on the allow-list of reward functions; whoever runs this installation "
                "can put it there"
            )
        self._path = path
        self._function = _function_at(path)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [_score(value) for value in self._function(prompts, completions, references)]


def _function_at(path: str) -> UserFunction:
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{path!r} is no dotted path; write package.module.function")
    try:
        function: UserFunction = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"the reward function {path!r} does not exist: {error}") from error
    if not callable(function):
        raise ValueError(f"{path!r} is no function")
    return function


def _score(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    if value is None or math.isnan(value):
        return Score.cannot("the function gave no score")
    return Score(float(value))


FUNCTIONS_VARIABLE = "RONDO_REWARD_FUNCTIONS"
"""Environment variable: dotted paths of the reward functions that runs may name, with commas between."""
JUDGE_URL_VARIABLE = "RONDO_JUDGE_URL"
"""Environment variable: the judge that runs ask unless they name another; the only one that gets the key."""
JUDGE_KEY_VARIABLE = "RONDO_JUDGE_KEY"
"""Environment variable: the key of that judge."""


def build_rewards(
    parts: Sequence[RewardPart],
    *,
    backbone: Backbone,
    folder: Path,
    clip: float | None = None,
    context: bool | None = None,
    environment: Mapping[str, str] = os.environ,
    cancelled: Callable[[], bool] = lambda: False,
) -> Combination:
    """Return the weighted sum of `parts`, at least one. Close it after use.

    Reward models become frozen adapters on `backbone`, one for each checkpoint however many parts and calls
    name it, and the model server is asked once about a batch for each. Their weights must stay those of the
    base, so a policy that trains the base itself needs another `Backbone` here. `folder` is the run's: where
    relative paths begin. `context` says whether prompts come with their passages in them: a reward model that
    was trained otherwise is refused; None does not look.
    cancelled: whether the run was asked to stop, so that nothing is waited for any more.

    Raises `RewardServerError` where a model server does not score, and `ContractError`, which names the part,
    for an option that its kind does not have, a function that is not on the allow-list, and a checkpoint that
    is no reward model of this base or head.
    """
    served_rewards: dict[tuple[str | None, str | None], ServedReward] = {}
    built = [
        WeightedReward(
            name=part.name,
            reward=_served(part, context, environment, cancelled, served_rewards)
            if part.kind == "served"
            else _reward(part, backbone, folder, context, environment),
            weight=part.weight,
            normalise=part.normalise,
            clip=part.clip,
            required=part.required,
        )
        for part in parts
    ]
    return Combination(built, clip=clip)


def _reward(
    part: RewardPart, backbone: Backbone, folder: Path, context: bool | None, environment: Mapping[str, str]
) -> Reward:
    where = f"reward {part.name!r}"
    if part.checkpoint is not None:
        return _model(part, folder / part.checkpoint, backbone, context, where)
    if part.kind in KINDS_OF_TEXTS:
        return reward_of_texts(part)
    where = f"{where}, options"
    if part.kind == "judge":
        return _judge(JudgeReward, part.options, where, environment)
    if part.kind == "rubric":
        return _judge(RubricReward, part.options, where, environment)
    return _function(part.options, where, environment)


def _served(
    part: RewardPart,
    context: bool | None,
    environment: Mapping[str, str],
    cancelled: Callable[[], bool],
    served_rewards: dict[tuple[str | None, str | None], ServedReward],
) -> ServedReward:
    """Address and key are the machine owner's to say: a spec that named them could have any server asked.

    served_rewards: the reward models of the parts before.
    """
    where = f"reward {part.name!r}"
    url = environment.get(REWARD_URL_VARIABLE, "").strip()
    require(
        bool(url),
        where,
        f"{REWARD_URL_VARIABLE} is not set in the trainer's environment; set it to the model server that has "
        f"{part.checkpoint}, without /v1, and {REWARD_KEY_VARIABLE} to its key",
    )
    key = environment.get(REWARD_KEY_VARIABLE, "")
    known = served_rewards.get((part.checkpoint, part.checkpoint_digest))
    try:
        if known is not None:
            return known.weighed(part.heads)
        made = served_rewards[part.checkpoint, part.checkpoint_digest] = ServedReward(
            str(part.checkpoint),
            url=url,
            key=key,
            digest=part.checkpoint_digest,
            weights=part.heads,
            context=context,
            cancelled=cancelled,
        )
    except ContractError as error:
        raise ContractError(f"{where}: {error}") from None
    return made


def _judge(
    kind: type[JudgeReward | RubricReward],
    options: Mapping[str, Any],
    where: str,
    environment: Mapping[str, str],
) -> Reward:
    """The key goes to the server that the environment names and to no other: a spec could name anyone's."""
    judge_url = environment.get(JUDGE_URL_VARIABLE, "")
    url = options.get("url", judge_url)
    require(
        bool(url), where, f"option 'url' is missing; name the judge's server here or in {JUDGE_URL_VARIABLE}"
    )
    key = environment.get(JUDGE_KEY_VARIABLE, "") if url == judge_url else ""
    made: Reward = construct(kind, {**options, "url": url}, where, hidden=("transport",), key=key)
    return made


def _function(options: Mapping[str, Any], where: str, environment: Mapping[str, str]) -> Reward:
    allowed = {path.strip() for path in environment.get(FUNCTIONS_VARIABLE, "").split(",")} - {""}
    try:
        made: Reward = construct(FunctionReward, options, where, allowed=allowed)
    except PermissionError as error:
        raise ContractError(f"{where}: {error}, in {FUNCTIONS_VARIABLE}") from None
    return made


def _model(part: RewardPart, folder: Path, backbone: Backbone, context: bool | None, where: str) -> Reward:
    settings = reward_settings(folder, where)
    digest = manifest_digest(folder)
    require(
        part.checkpoint_digest in (None, digest),
        where,
        f"the digest of {folder} is {digest[:12]}, the spec asks for {(part.checkpoint_digest or '')[:12]}; "
        "name the reward model that the run was made for",
    )
    if context is not None and context != settings.context:
        with_or_without = "with" if settings.context else "without"
        raise ContractError(
            f"{where}: {folder} was trained on prompts {with_or_without} their context passages; "
            f"set context to {str(settings.context).lower()}, or take another reward model"
        )
    try:
        return learned_reward(folder, backbone, settings, weights=part.heads, population=part.population)
    except ContractError as error:
        raise ContractError(f"{where}: {error}") from None


def reward_settings(folder: Path, where: str) -> RewardSettings:
    """Return the settings that a reward model was trained with. Raises `ContractError` for another kind."""
    manifest = read_manifest(folder)
    require(
        manifest.kind == "reward",
        where,
        f"{folder} is a checkpoint of kind {manifest.kind!r}; name one of kind 'reward'",
    )
    settings = RunSpec.from_json(manifest.spec).settings
    if not isinstance(settings, RewardSettings):
        raise ContractError(f"{where}: {folder} was trained with settings of {settings.method!r}")
    return settings


def learned_reward(
    folder: Path,
    backbone: Backbone,
    settings: RewardSettings,
    *,
    weights: Mapping[str, float] | None = None,
    population: Population | None = None,
) -> LearnedReward:
    """Return a checkpoint as a reward, its adapter loaded into the backbone where it is not there yet."""
    adapter = f"reward {manifest_digest(folder)}"
    if adapter not in backbone.adapters:
        backbone.load_adapter(adapter, folder)
    return LearnedReward(backbone, adapter, settings, weights=weights, population=population or Population())
