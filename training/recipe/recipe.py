"""A round's recipe as a whole, from JSON and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from training.contract import (
    ContractError,
    KtoSettings,
    LoraSettings,
    OptimiserSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    RewardSettings,
    SftSettings,
    settings_from_json,
)
from training.contract.files import known_fields, require, require_types
from training.recipe.parts import (
    BudgetSettings,
    EvaluationSettings,
    PromotionSettings,
    Sampler,
    SamplingSettings,
    StartSettings,
    require_integer,
)

PolicySettings = PreferenceSettings | KtoSettings | SftSettings | PolicyGradientSettings
_POLICY_METHODS = ("preference", "kto", "sft", "policy_gradient")

ROUND_REWARD_MODEL = "round"
"""In a recipe, the checkpoint of a reward part: the reward model that the same round trains."""

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
    """How many prompts are answered before people are told to label; the rest is answered while they do."""
    reliability_weights: bool = False
    """Weigh each judgment in the snapshot by how reliable its annotator is, as estimated from all
    judgments of its rounds; false counts everyone alike. Wants an overlap of annotators."""
    seed: int = 0
    """Seeds training and, with prompt and checkpoint, every sampled answer."""
    samplers: tuple[Sampler, ...] = ()
    """Who answers each prompt, and how often: all their answers stand in one comparison, two to nine of
    them. None lets the policy and the one before it share the places, in pairs and rankings by turns."""
    start: StartSettings = field(default_factory=StartSettings)
    """When training starts by itself."""
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    """How the new policy is held against its parent."""
    promotion: PromotionSettings = field(default_factory=PromotionSettings)
    """What must hold for it to be promoted."""
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    """What training may cost."""
    ai_feedback: bool = False
    """Learn from the judgments of AI annotators too; false keeps them out of the snapshot."""

    def __post_init__(self) -> None:
        for name in ("reliability_weights", "ai_feedback"):
            require(isinstance(getattr(self, name), bool), name, "must be true or false")
        require_types(self, "recipe")
        require_integer(self.ready_prompts, "ready_prompts", 1, 10_000_000)
        require_integer(self.ranking_size, "ranking_size", 3, 9)
        require_integer(self.seed, "seed", 0, 2**31 - 1)
        if self.prompts is not None:
            require_integer(self.prompts, "prompts", 1, 10_000_000)
        if isinstance(self.policy, PolicyGradientSettings):
            self._check_rewards(self.policy)
        answers = sum(sampler.completions for sampler in self.samplers)
        require(
            not self.samplers or 2 <= answers <= 9,
            "samplers",
            f"they give {answers} answers to a prompt; a comparison has 2 to 9",
        )
        self._check_promotion()

    def _check_promotion(self) -> None:
        """Refuse conditions that no evidence of this recipe's could meet."""
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
        """Refuse what would end the run only after hours of training the reward model."""
        for part in (*policy.rewards, *policy.watch.held_out):
            if part.checkpoint == ROUND_REWARD_MODEL and policy.context != self.reward.context:
                raise ContractError(
                    f"policy, context: the reward {part.name!r} is the round's reward model, trained "
                    f"with context {str(self.reward.context).lower()}; set both alike"
                )
            odd = sorted(set(part.heads or ()) - set(self.reward.head_names))
            if part.checkpoint == ROUND_REWARD_MODEL and odd:
                raise ContractError(
                    f"policy, rewards: the reward {part.name!r} weighs the head {odd[0]!r}, which the "
                    f"round's reward model will not have; it has {', '.join(self.reward.head_names)}"
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
        for name, kind in _PARTS.items():
            if name in known:
                known[name] = _part(kind, known[name], name)
        if "samplers" in known:
            known["samplers"] = tuple(
                _part(Sampler, one, f"samplers, {place}")
                for place, one in enumerate(_listed(known["samplers"], "samplers"), 1)
            )
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """The recipe with every default written out."""
        values = dataclasses.asdict(self)
        return {**values, "policy": {"method": self.policy.method, **values["policy"]}}


_PARTS = {
    "sampling": SamplingSettings,
    "start": StartSettings,
    "evaluation": EvaluationSettings,
    "promotion": PromotionSettings,
    "budget": BudgetSettings,
}


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


def _part(cls: Any, values: Any, where: str) -> Any:
    """One part of a recipe from decoded JSON, its own parts among it."""
    known = _known(cls, values, where)
    if "sampling" in known:
        known["sampling"] = SamplingSettings(
            **_known(SamplingSettings, known["sampling"], f"{where}, sampling")
        )
    if "rules" in known and cls is EvaluationSettings:
        known["rules"] = tuple(
            RewardPart(**known_fields(RewardPart, one, f"{where}, rules, {place}"))
            for place, one in enumerate(_listed(known["rules"], f"{where}, rules"), 1)
        )
    return cls(**known)


def _listed(values: Any, where: str) -> Sequence[Any]:
    require(isinstance(values, list | tuple), where, f"a list is expected, not {type(values).__name__}")
    items: Sequence[Any] = values
    return items


def _known(cls: type, values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise ContractError(f"{where}: an object is expected, not {type(values).__name__}")
    unknown = sorted(set(values) - {f.name for f in dataclasses.fields(cls)})
    if unknown:
        raise ContractError(f"{where}: unknown field {', '.join(map(repr, unknown))}")
    return dict(values)
