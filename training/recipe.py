"""How a round samples and trains: one dataclass, checked when built, kept with the round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from training.contract import (
    ContractError,
    KtoSettings,
    LoraSettings,
    OptimiserSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardSettings,
    SftSettings,
    settings_from_json,
)

PolicySettings = PreferenceSettings | KtoSettings | SftSettings | PolicyGradientSettings
_POLICY_METHODS = ("preference", "kto", "sft", "policy_gradient")

ROUND_REWARD_MODEL = "round"
"""In a recipe, the checkpoint of a reward part: the reward model that the same round trains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingSettings:
    """How a checkpoint answers prompts."""

    temperature: float = 0.8
    """Spread of the answers; 0 always takes the likeliest token."""
    top_p: float = 0.95
    """Sample from the smallest set of tokens that holds this share of the probability."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens; 0 sets no limit."""
    max_tokens: int = 200
    """An answer is cut off after this many tokens."""

    def __post_init__(self) -> None:
        _require_number(self.temperature, "sampling, temperature", 0, 2)
        _require_number(self.top_p, "sampling, top_p", 0.01, 1)
        _require_integer(self.top_k, "sampling, top_k", 0, 1_000_000)
        _require_integer(self.max_tokens, "sampling, max_tokens", 1, 8192)


_LORA = LoraSettings(layers=8)
"""Eight of the starter's thirty blocks: the backward pass stops there, which halves a step on a CPU."""


def _few_steps(learning_rate: float) -> OptimiserSettings:
    """Once over sixty judgments: some minutes on two cores."""
    return OptimiserSettings(
        learning_rate=learning_rate,
        warmup_steps=2,
        batch_size=4,
        epochs=3,
        max_steps=16,
        save_every=2,
        evaluate_every=0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that decides how a round goes, apart from the judgments."""

    reward: RewardSettings = field(
        default_factory=lambda: RewardSettings(
            lora=_LORA, optimiser=_few_steps(3e-4), context=True, use_corrections=True
        )
    )
    """Settings of the reward model."""
    policy: PolicySettings = field(
        default_factory=lambda: PreferenceSettings(
            lora=_LORA, optimiser=_few_steps(1e-4), context=True, use_corrections=True
        )
    )
    """Settings of the policy. In JSON its `method` says which they are: preference, kto, sft or
    policy_gradient; without one they are those of direct preference optimisation. The `checkpoint` of a
    reward that policy_gradient is trained for is "round", the reward model of this round, or the name of an
    earlier one; without `rewards` it is trained for the former."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """How prompts are answered."""
    ranking_size: int = 4
    """Answers in a ranking; the prompts between get pairs."""
    prompts: int | None = None
    """How many of the project's prompts are asked in a round; null asks all."""
    ready_prompts: int = 8
    """How many prompts the new checkpoint answers before a round is finished. It answers the rest
    while people already label the next round."""
    reliability_weights: bool = False
    """Weigh each judgment in the snapshot by how reliable its annotator is, as estimated from all
    judgments of its rounds; false counts everyone alike. Wants an overlap of annotators."""
    seed: int = 0
    """Seeds training and, with prompt and checkpoint, every sampled answer."""

    def __post_init__(self) -> None:
        _require_integer(self.ready_prompts, "ready_prompts", 1, 10_000_000)
        _require_integer(self.ranking_size, "ranking_size", 3, 9)
        _require_integer(self.seed, "seed", 0, 2**31 - 1)
        if not isinstance(self.reliability_weights, bool):
            raise ContractError("reliability_weights: must be true or false")
        if self.prompts is not None:
            _require_integer(self.prompts, "prompts", 1, 10_000_000)
        if isinstance(self.policy, PolicyGradientSettings):
            self._check_rewards(self.policy)

    def _check_rewards(self, policy: PolicyGradientSettings) -> None:
        """Refuse what would end the run only after hours of training the reward model."""
        for part in (*policy.rewards, *policy.watch.held_out):
            if part.checkpoint == ROUND_REWARD_MODEL and policy.context != self.reward.context:
                raise ContractError(
                    f"policy, context: the reward {part.name!r} is the round's reward model, trained "
                    f"with context {str(self.reward.context).lower()}; set both alike"
                )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """The recipe that decoded JSON describes; what it leaves out keeps its default.

        Raises `ContractError` that names the field.
        """
        known = _known(cls, values, "recipe")
        if "reward" in known:
            known["reward"] = settings_from_json("reward", known["reward"])
        if "policy" in known:
            known["policy"] = _policy_from_json(known["policy"])
        if "sampling" in known:
            known["sampling"] = SamplingSettings(**_known(SamplingSettings, known["sampling"], "sampling"))
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """The recipe with every default written out."""
        values = dataclasses.asdict(self)
        return {**values, "policy": {"method": self.policy.method, **values["policy"]}}


def default_recipe() -> dict[str, Any]:
    """The recipe of a new round: small enough for two cores, every setting written out."""
    return Recipe().to_json()


def _policy_from_json(values: Any) -> PolicySettings:
    if not isinstance(values, Mapping):
        raise ContractError(f"policy: an object is expected, not {type(values).__name__}")
    method = values.get("method", "preference")
    given = {name: value for name, value in values.items() if name != "method"}
    if method == "policy_gradient":
        own = {"name": "people", "kind": "model", "checkpoint": ROUND_REWARD_MODEL}
        given = {"rewards": [own], **given}
    settings = settings_from_json(method, given) if method in _POLICY_METHODS else None
    if not isinstance(settings, PolicySettings):
        raise ContractError(f"policy, method: {method!r} must be one of {', '.join(_POLICY_METHODS)}")
    return settings


def _known(cls: type, values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ContractError(f"{where}: an object is expected, not {type(values).__name__}")
    unknown = sorted(set(values) - {f.name for f in dataclasses.fields(cls)})
    if unknown:
        raise ContractError(f"{where}: unknown field {', '.join(map(repr, unknown))}")
    return dict(values)


def _require_number(value: Any, where: str, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ContractError(f"{where}: must be a number from {low} to {high}, not {value!r}")


def _require_integer(value: Any, where: str, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ContractError(f"{where}: must be a whole number from {low} to {high}, not {value!r}")
