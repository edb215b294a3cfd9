"""The recipe of a round: its parts, checked when built, its default and its presets."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field

from annotation.record.base import (
    AS_WRITTEN,
    ContractError,
    NotNegative,
    Number,
    Positive,
    UnitInterval,
    decode,
    record,
    require,
)
from training.contract.checkpoint import CHECKPOINT_NAME
from training.contract.methods import settings_from_json
from training.contract.methods.common import LoraSettings, OptimiserSettings
from training.contract.methods.policy import (
    AdvantageSettings,
    GuardSettings,
    KlSettings,
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    RolloutSettings,
    RuleKind,
    SftSettings,
    UpdateSettings,
)
from training.contract.methods.reward import RewardSettings
from training.contract.run import Quantization, Sharding

# ── Parts ──


POLICY = "policy"
"""As a sampler's checkpoint: the round's policy."""
RIVAL = "rival"
"""As a sampler's checkpoint: the policy of the round before; in a first round, the policy."""

RULES_WITHOUT_TORCH: tuple[str, ...] = get_args(RuleKind)
"""Kinds of rewards that are computed from texts alone."""


@record
class SamplingSettings:
    """Sampling of a checkpoint's answers."""

    temperature: Annotated[float, Field(ge=0, le=2), AS_WRITTEN] = 0.8
    """Sampling temperature; 0 always takes the likeliest token."""
    top_p: Annotated[float, Field(ge=0.01, le=1), AS_WRITTEN] = 0.95
    """Sample from the smallest set of tokens that holds this share of the probability."""
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Sample from this many of the likeliest tokens; 0 sets no limit."""
    max_tokens: Annotated[int, Field(ge=1, le=8192)] = 200
    """Maximum tokens of a response; longer ones are truncated."""


@record
class Sampler:
    """One of several samplers that answer every prompt of a round."""

    checkpoint: str = POLICY
    """Model: "policy", the round's own; "rival", that of the round before; or a checkpoint's name."""
    completions: Annotated[int, Field(ge=1, le=9)] = 1
    """Responses of it to each prompt."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """Sampling of its responses."""

    def __post_init__(self) -> None:
        require(
            CHECKPOINT_NAME.fullmatch(self.checkpoint) is not None,
            "checkpoint",
            f"{self.checkpoint!r} is no checkpoint's name; take one, or {POLICY!r}, or {RIVAL!r}",
        )


@record
class StartSettings:
    """Conditions that start a round's training; without any, a manager starts it."""

    judgments: Annotated[int, Field(ge=1, le=100_000_000)] | None = None
    """Start once this many current annotations of the round are in; null ignores the number."""
    at: str | None = None
    """Start at this time, as ISO 8601 with a time zone (2026-01-31T22:00+01:00); null sets none."""

    def __post_init__(self) -> None:
        if self.at is not None:
            require(
                self.time is not None,
                "at",
                f"{self.at!r} is no time with a zone; write it as 2026-01-31T22:00+01:00",
            )

    @property
    def time(self) -> datetime.datetime | None:
        """Return `at` as a datetime; None without one."""
        try:
            moment = datetime.datetime.fromisoformat(self.at) if self.at else None
        except ValueError:
            return None
        return moment if moment and moment.tzinfo else None


@record
class FeedbackUse:
    """Feedback of applications' end users in the training data. Only that on training prompts enters."""

    weight: Annotated[float, Field(gt=0, le=10), AS_WRITTEN] = 0.25
    """Weight of one piece of feedback; an annotation weighs 1."""
    kinds: Annotated[
        tuple[Literal["thumb", "rating", "rewrite", "alternative"], ...], Field(min_length=1)
    ] = ("thumb", "rating", "rewrite", "alternative")
    """Thumbs and ratings are for KTO and heads on ratings (criterion: feedback); rewrites and chosen
    alternatives are preferences between two responses."""
    sources: tuple[str, ...] = ()
    """Names of the tokens and keys whose feedback enters; empty takes all."""
    since: str | None = None
    """First day of the feedback, as 2026-01-31; null sets none."""
    until: str | None = None
    """Last day of the feedback; null sets none."""
    least_trust: UnitInterval = 0.5
    """Least trust in an end user: (good + 1) / (all + 2) of their feedback, good being what no incident
    excludes. Of someone new it is one half."""
    most_per_user: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """An end user weighs as much as this many pieces of feedback at most: who gave more weighs less for
    each."""

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            value = getattr(self, name)
            require(
                value is None or _day(value) is not None, name, f"{value!r} is no day; write it as 2026-01-31"
            )

    @property
    def days(self) -> tuple[datetime.date | None, datetime.date | None]:
        """Return the first and the last day; None where none is set."""
        return _day(self.since), _day(self.until)


def _day(text: str | None) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if text else None
    except ValueError:
        return None


@record
class EvaluationSettings:
    """Evaluation of a new policy against its parent."""

    prompts: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Held-out prompts of the project that both policies respond to; all if there are fewer. About 94
    detect a true win rate of 70 % with a power of 80 %."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """Sampling of both, with the same seeds."""
    people: bool = False
    """Show the responses of both to annotators, blind, and wait for their annotations before deciding."""
    people_judgments: Annotated[int, Field(ge=1, le=1_000_000)] = 30
    """Number of those annotations that the decision waits for; all possible ones if there are fewer."""
    evaluator: Literal["auto", "second", "same"] = "auto"
    """The reward model that scores the responses. second: a separate one, with another seed, trained
    on the annotations of one half of the training prompts; policy and reward model are trained on
    the other half. same: the reward model of the round. auto: second from 200 decided training
    annotations on, else same."""
    rules: tuple[RewardPart, ...] = ()
    """Rules and metrics that score both texts: exact match, mathematics, unit tests, BLEU, length and so on.
    Those that need a reference leave out prompts without one."""

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        require(len(set(names)) == len(names), "rules", "names must differ")
        for rule in self.rules:
            require(
                rule.kind in RULES_WITHOUT_TORCH,
                "rules",
                f"{rule.name!r} is of kind {rule.kind!r}; take one of {', '.join(RULES_WITHOUT_TORCH)}",
            )


@record
class PromotionSettings:
    """Conditions for promoting a new policy; every condition that is set must hold."""

    by_hand: bool = False
    """A manager promotes or rejects; the conditions are only reported."""
    judged_by: Literal["people_and_model", "reward_model", "people"] = "people_and_model"
    """Source of the preferences behind the win rate: people's annotations, which the round's reward model
    makes go further; the reward model alone, where it is validated; or people alone."""
    claim: Literal["new_prompts", "these_prompts"] = "new_prompts"
    """What people and the reward model decide about. new_prompts: prompts like the held-out ones, for which a
    small sample of prompts is never enough. these_prompts: the held-out prompts of the round alone, which
    takes fewer answers and fewer prompts, and says nothing of others."""
    planned_answers: Annotated[int, Field(ge=10, le=100_000)] | None = None
    """Answers by people after which an exact test decides beside the evidence that is looked at after every
    answer: about as many as people will give. It shows more with so many answers, and the evidence less
    before and after. null: the evidence alone."""
    worth_having: Annotated[float, Field(gt=0.5, lt=1)] = 0.6
    """A difference below this win rate is none worth having: once people and the reward model show that it
    lies below, the parent stays and nobody is asked further."""
    not_worse: bool = True
    """Decide by the win rate: promote where its 95 % interval lies above one half, reject where it lies
    below, and leave the decision to people where it includes one half. False decides by the other conditions
    alone."""
    least_differing_prompts: Annotated[int, Field(ge=1, le=100_000)] = 20
    """On fewer held-out prompts with different responses the win rate decides nothing."""
    least_reward_model_judgments: Annotated[int, Field(ge=1, le=1_000_000)] = 30
    """A reward model decides only if its accuracy was measured on at least this many held-out
    annotations and the interval of the accuracy lies above one half."""
    least_win_rate: UnitInterval | None = None
    """The lower end of the interval of the win rate must reach this share; null does not ask."""
    least_reward_gain: Number | None = None
    """The mean reward must rise by this much at least; null does not ask."""
    most_kl: NotNegative | None = None
    """Maximum mean KL divergence from the base, in nats per response; null sets no limit."""
    most_length_ratio: Positive | None = None
    """Maximum length of responses relative to the parent's, in characters; null sets no limit."""
    rules: dict[str, Number] = field(default_factory=dict)
    """Least mean score by name of a rule of the evaluation."""


Launcher = Literal["default", "local", "ray", "command"]
_QUEUE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.,:/@-]{0,99})?")


@record
class ComputeSettings:
    """Launcher, processes, precision and memory of a round's training."""

    launcher: Launcher = "default"
    """Launcher of the training: local, on the worker's machine; or as a job of a cluster. default is the
    first launcher of this installation."""
    nodes: Annotated[int, Field(ge=1, le=64)] = 1
    """Machines that train together; more than one needs a cluster."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that train together on each machine, one for each GPU."""
    gpus: Annotated[int, Field(ge=0, le=64)] | None = None
    """GPUs of each machine; null takes one for each process, and none where local has none. 0 trains on the
    CPU."""
    memory_gb: Annotated[float, Field(gt=0, le=65536), AS_WRITTEN] | None = None
    """Memory of each machine that a cluster reserves, in GiB; null leaves it to the cluster."""
    time_limit_hours: Annotated[float, Field(gt=0, le=8760), AS_WRITTEN] | None = None
    """Hours after which a cluster ends a job; the next one continues from the last saved step. null sets
    none."""
    queue: str = ""
    """Queue or partition of the cluster; empty takes its default."""
    rollout_servers: Annotated[int, Field(ge=0, le=64)] = 0
    """Servers that a job on Ray starts beside the trainers, to sample the responses of a policy gradient with
    a rollout server. They end with the job. 0 takes those of RONDO_ROLLOUT_URL."""
    gpus_per_server: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each of these servers; 0 samples on the CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the frozen base, and of products where all weights are trained, which stay float32; auto
    is bfloat16 on a GPU and float32 on a CPU."""
    sharding: Sharding = "none"
    """full: all processes share one copy of the base, for one that a GPU cannot hold. node: those of each
    machine share a copy, which is faster where the network between machines is slow."""
    quantization: Quantization = "none"
    """int8 or nf4: the frozen base's linear layers in 8 or 4 bits (QLoRA), for one that memory cannot hold.
    Needs LoRA, no sharding, and the package torchao or bitsandbytes where it trains."""

    def __post_init__(self) -> None:
        require(
            self.launcher != "local" or self.nodes == 1,
            "nodes",
            "local has one machine; set nodes to 1, or launcher to a cluster",
        )
        require(
            not self.rollout_servers or self.launcher in ("ray", "default"),
            "rollout_servers",
            "they are started on Ray alone; set launcher to 'ray', or rollout_servers to 0",
        )
        require(
            self.quantization == "none" or self.sharding == "none",
            "quantization",
            "a quantised base cannot be cut; set it or sharding to 'none'",
        )
        require(
            not self.gpus or self.processes <= self.gpus,
            "processes",
            f"{self.processes} processes cannot share {self.gpus} GPUs; lower processes, or raise gpus",
        )
        require(
            _QUEUE.fullmatch(self.queue) is not None,
            "queue",
            f"{self.queue!r} is no queue's name: use letters, digits and _ . , : / @ -",
        )


@record
class BudgetSettings:
    """Limits on the cost of a round's training."""

    hours: Positive | None = None
    """Hours after which the training of a round is stopped; null sets no end."""


# ── Recipe ──


PolicySettings = PreferenceSettings | KtoSettings | SftSettings | PolicyGradientSettings
_POLICY_METHODS = ("preference", "kto", "sft", "policy_gradient")

REMOVED_FIELDS = ("trainer", "trl")
"""Fields of 1.0 that recipes in use still have."""

ROUND_REWARD_MODEL = "round"
"""In a recipe, the checkpoint of a reward part: the reward model that the same round trains."""

PEOPLE = (RewardPart(name="people", kind="model", checkpoint=ROUND_REWARD_MODEL),)
"""The reward of a policy that is trained for the round's reward model."""

FEW_LAYERS = LoraSettings(layers=8)
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
    if method == "policy_gradient" and not decoded.get("environment"):
        people = {"name": "people", "kind": "model", "checkpoint": ROUND_REWARD_MODEL}
        decoded = {"rewards": [people], **decoded}
    return settings_from_json(method, decoded)


@record
class Recipe:
    """All settings of a round."""

    reward: Annotated[RewardSettings, BeforeValidator(_reward_settings)] = field(
        default_factory=lambda: RewardSettings(
            lora=FEW_LAYERS,
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
    policy_method: Literal["auto", "fixed"] = "fixed"
    """auto: method, steps, learning rate, samples and β of the policy follow from the number of decided
    annotations when training starts, and replace what stands under policy. fixed: as set under policy."""
    policy: Annotated[PolicySettings, BeforeValidator(_policy_settings)] = field(
        default_factory=lambda: PreferenceSettings(
            lora=FEW_LAYERS, optimiser=_few_steps(), context=True, use_corrections=True
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
    """Return the recipe of a new round: small enough for two cores, every setting written out.

    The reward model is chosen by cross-validation, the policy's settings by the number of annotations.
    """
    plain = Recipe()
    auto = dataclasses.replace(plain.reward, features="auto")
    return dataclasses.replace(plain, reward=auto, policy_method="auto").to_json()


# ── Presets ──


def _ppo() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=PEOPLE,
        context=True,
        guard=GuardSettings(),
        advantage=AdvantageSettings(kind="gae", whiten=True),
        kl=KlSettings(place="reward", kind="k1"),
        update=UpdateSettings(inner_epochs=4, minibatches=2),
    )


def _grpo() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=PEOPLE,
        context=True,
        guard=GuardSettings(),
        advantage=AdvantageSettings(kind="group_relative", scale=True),
        update=UpdateSettings(aggregate="sequence"),
    )


def _best_of_k() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=PEOPLE,
        context=True,
        advantage=AdvantageSettings(kind="best_and_worst"),
        kl=KlSettings(place="loss", kind="k3", beta=0.1),
        update=UpdateSettings(loss="dpo"),
    )


def _in_groups(*, scale: bool = True, **more: Any) -> PolicySettings:
    """Return a variant of GRPO without a penalty for divergence."""
    return PolicyGradientSettings(
        rewards=PEOPLE,
        context=True,
        guard=GuardSettings(),
        advantage=AdvantageSettings(kind="group_relative", scale=scale),
        kl=KlSettings(place="none"),
        **more,
    )


def _dr_grpo() -> PolicySettings:
    return _in_groups(scale=False, update=UpdateSettings(aggregate="constant"))


def _dapo() -> PolicySettings:
    rollout = RolloutSettings(redraws=5, unfinished="score", overlong_buffer=25)
    return _in_groups(rollout=rollout, update=UpdateSettings(clip_high=0.28))


def _gspo() -> PolicySettings:
    update = UpdateSettings(ratio="sequence", aggregate="sequence", clip_low=3e-4, clip_high=4e-4)
    return _in_groups(update=update)


def _cispo() -> PolicySettings:
    return _in_groups(update=UpdateSettings(loss="cispo", clip_low=1.0, clip_high=4.0))


def _rloo() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=PEOPLE,
        context=True,
        guard=GuardSettings(),
        advantage=AdvantageSettings(kind="leave_one_out"),
        kl=KlSettings(place="reward", kind="k1"),
        update=UpdateSettings(aggregate="constant"),
    )


def _reinforce() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=PEOPLE,
        context=True,
        guard=GuardSettings(),
        advantage=AdvantageSettings(kind="running_mean"),
        kl=KlSettings(place="reward", kind="k1"),
    )


PRESETS: dict[str, tuple[str, Callable[[], PolicySettings]]] = {
    "preference": (
        "DPO: direct preference optimisation",
        lambda: PreferenceSettings(context=True, use_corrections=True),
    ),
    "kto": ("KTO: good and bad answers one by one", lambda: KtoSettings(context=True)),
    "sft": ("SFT: supervised fine-tuning", lambda: SftSettings(context=True)),
    "best_of_k": ("Best of k: DPO on the best and the worst sample", _best_of_k),
    "ppo": ("PPO: clipped policy gradient with a value head", _ppo),
    "grpo": ("GRPO: policy gradient within groups of answers", _grpo),
    "dr_grpo": ("Dr. GRPO: GRPO without its biases", _dr_grpo),
    "dapo": ("DAPO: GRPO that clips higher and samples dynamically", _dapo),
    "gspo": ("GSPO: GRPO with one ratio for a response", _gspo),
    "cispo": ("CISPO: GRPO whose cut ratios still teach", _cispo),
    "rloo": ("RLOO: leave-one-out baseline", _rloo),
    "reinforce": ("REINFORCE: running-mean baseline", _reinforce),
}
"""Title and settings by name; see the table in `contract.methods.policy`."""
