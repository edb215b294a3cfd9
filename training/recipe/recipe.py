"""A round's whole recipe, from JSON and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from annotation.record.base import ContractError, decode, record, require
from training.contract import (
    CHECKPOINT_NAME,
    KtoSettings,
    LoraSettings,
    OptimiserSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardSettings,
    SftSettings,
    settings_from_json,
)
from training.recipe.parts import (
    BudgetSettings,
    ComputeSettings,
    EvaluationSettings,
    FeedbackUse,
    PromotionSettings,
    Sampler,
    SamplingSettings,
    StartSettings,
)

PolicySettings = PreferenceSettings | KtoSettings | SftSettings | PolicyGradientSettings
_POLICY_METHODS = ("preference", "kto", "sft", "policy_gradient")

REMOVED_FIELDS = ("trainer", "trl")
"""Fields of 1.0 that recipes in use still have."""

ROUND_REWARD_MODEL = "round"
"""In a recipe, the checkpoint of a reward part: the reward model that the same round trains."""

_LORA = LoraSettings(layers=8)
"""Eight of the starter's thirty blocks: the backward pass stops there, which halves a step on a CPU."""


def _few_steps() -> OptimiserSettings:
    """Return settings for one pass over sixty judgments: some minutes on two cores."""
    return OptimiserSettings(
        warmup_steps=2,
        batch_size=4,
        epochs=3,
        max_steps=16,
        save_every=2,
        evaluate_every=0,
    )


def _reward_settings(values: Any) -> Any:
    return settings_from_json("reward", values) if isinstance(values, Mapping) else values


def _policy_settings(values: Any) -> Any:
    """Decode settings of the method that they name."""
    if isinstance(values, PolicySettings):
        return values
    if not isinstance(values, Mapping):
        raise ContractError(f"must be an object, not {values!r}")
    method = values.get("method", "preference")
    require(method in _POLICY_METHODS, "method", f"{method!r} must be one of {', '.join(_POLICY_METHODS)}")
    decoded = {name: value for name, value in values.items() if name != "method"}
    if method == "policy_gradient":
        people = {"name": "people", "kind": "model", "checkpoint": ROUND_REWARD_MODEL}
        decoded = {"rewards": [people], **decoded}
    return settings_from_json(method, decoded)


@record
class Recipe:
    """All settings of a round."""

    reward: Annotated[RewardSettings, BeforeValidator(_reward_settings)] = field(
        default_factory=lambda: RewardSettings(
            lora=_LORA,
            optimiser=_few_steps(),
            context=True,
            use_corrections=True,
            discount_drift="auto",
        )
    )
    """Settings of the reward model."""
    reward_base: str = ""
    """Base model that the reward models are trained on, by name; empty takes the policy's. With another one
    the model server scores texts while the policy trains."""
    policy: Annotated[PolicySettings, BeforeValidator(_policy_settings)] = field(
        default_factory=lambda: PreferenceSettings(
            lora=_LORA, optimiser=_few_steps(), context=True, use_corrections=True
        )
    )
    """Settings of the policy. In JSON its `method` says which they are: preference, kto, sft or
    policy_gradient; without one they are those of direct preference optimisation. The `checkpoint` of a
    reward that policy_gradient is trained for is "round", the reward model of this round, or the name of an
    earlier one; without `rewards` it is trained for the former."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """Sampling of the responses."""
    ranking_size: Annotated[int, Field(ge=3, le=9)] = 4
    """Responses in a ranking; the other prompts get pairs."""
    prompts: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Number of the project's prompts that a round asks; null asks all."""
    ready_prompts: Annotated[int, Field(ge=1, le=10_000_000)] = 8
    """Prompts with responses before labelling is announced; the rest follow during labelling."""
    reliability_weights: bool = False
    """Weight each annotation in the snapshot by the reliability of its annotator, estimated from all
    annotations of its rounds; false weights all equally. Needs overlap between annotators."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of training and, with prompt and checkpoint, of every sampled response."""
    samplers: tuple[Sampler, ...] = ()
    """Models that respond to each prompt, and the number of responses of each: all form one comparison
    of two to nine. If empty, the policy and its predecessor share the positions, in pairs and
    rankings by turns."""
    start: StartSettings = field(default_factory=StartSettings)
    """Condition for training to start automatically."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    """Comparison of the new policy with its parent."""
    promotion: PromotionSettings = field(default_factory=PromotionSettings)
    """Conditions for promoting the new policy."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    """Limit on the cost of training."""
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    """Launcher and hardware of the training."""
    ai_feedback: bool = False
    """Include the annotations of AI annotators; false keeps them out of the snapshot."""
    feedback: FeedbackUse | None = None
    """Include feedback of applications' end users, as a source of its own; null keeps it out of the
    snapshot."""
    first_passes: bool = False
    """Learn from what annotators judged before they saw suggestions, instead of their final pass."""

    def __post_init__(self) -> None:
        require(
            not self.reward_base or CHECKPOINT_NAME.fullmatch(self.reward_base) is not None,
            "reward_base",
            f"{self.reward_base!r} is no base model's name; leave it empty for that of the policy",
        )
        if isinstance(self.policy, PolicyGradientSettings):
            self._check_rewards(self.policy)
        answers = sum(sampler.completions for sampler in self.samplers)
        require(
            not self.samplers or 2 <= answers <= 9,
            "samplers",
            f"they give {answers} answers to a prompt; a comparison has 2 to 9",
        )
        self._check_promotion()
        require(
            self.policy.samples_on_server or not self.compute.rollout_servers,
            "compute, rollout_servers",
            "the policy does not sample on a server; set it to 0, or policy, rollout, server",
        )
        full = [name for name in ("reward", "policy") if getattr(self, name).adapter != "lora"]
        require(
            self.compute.quantization == "none" or not full,
            "compute, quantization",
            "only a frozen base can be quantised; set it to 'none', or "
            f"{' and '.join(full)}, adapter to 'lora'",
        )

    def _check_promotion(self) -> None:
        """Raise for conditions that no evidence of this recipe could meet."""
        require(
            self.promotion.judged_by != "people" or self.evaluation.people,
            "promotion, judged_by",
            "people must be asked for that: set people of the evaluation to true",
        )
        unknown = sorted(set(self.promotion.rules) - {rule.name for rule in self.evaluation.rules})
        require(
            not unknown,
            "promotion, rules",
            f"{', '.join(map(repr, unknown))} is no rule of the evaluation: add it there",
        )

    def _check_rewards(self, policy: PolicyGradientSettings) -> None:
        """Raise for settings that would fail the run only after hours of training the reward model."""
        for part in policy.rewards_of_all:
            served = bool(self.reward_base) and part.checkpoint == ROUND_REWARD_MODEL
            require(
                part.population.reward == "common" or not served,
                "policy, rewards",
                f"the reward {part.name!r} is one of groups, which the model server does not score by; set "
                "its population, reward to 'common', or leave reward_base empty",
            )
            if part.checkpoint != ROUND_REWARD_MODEL:
                continue
            require(
                policy.context == self.reward.context,
                "policy, context",
                f"the reward {part.name!r} is the round's reward model, trained with context "
                f"{str(self.reward.context).lower()}; set both alike",
            )
            require(
                part.population.reward == "common" or self.reward.group_heads,
                "policy, rewards",
                f"the reward {part.name!r} is one of groups, which the round's reward model will not have; "
                "set reward, group_heads to true",
            )
            odd = sorted(set(part.heads or ()) - set(self.reward.head_names))
            require(
                not odd,
                "policy, rewards",
                f"the reward {part.name!r} weighs the head {''.join(odd[:1])!r}, which the round's reward "
                f"model will not have; it has {', '.join(self.reward.head_names)}",
            )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the recipe in decoded JSON, with defaults for missing values.

        Raises `ContractError` that names the field. A recipe of 1.0 also names its trainer, Rondo's or TRL.
        """
        if not isinstance(values, Mapping):
            # What reads it refuses it, in the words of every record.
            return decode(cls, values)
        require(
            values.get("trainer", "rondo") == "rondo",
            "trainer",
            "Rondo no longer starts TRL; take the field out, and name a trainer of your own by "
            "RONDO_TRAINER_COMMAND",
        )
        return decode(cls, {name: value for name, value in values.items() if name not in REMOVED_FIELDS})

    def to_json(self) -> dict[str, Any]:
        """Return the recipe with every default written out."""
        values = dataclasses.asdict(self)
        return {**values, "policy": {"method": self.policy.method, **values["policy"]}}


def default_recipe() -> dict[str, Any]:
    """Return the recipe of a new round: small enough for two cores, every setting written out."""
    return Recipe().to_json()
