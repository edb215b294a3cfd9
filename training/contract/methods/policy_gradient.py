"""Policies trained on their own samples: one method of which REINFORCE, PPO, GRPO and RLOO are settings.

| | advantage | scale | whiten | loss |
|---|---|---|---|---|
| REINFORCE (Williams 1992) | running_mean | | | inner_epochs 1 |
| PPO (Schulman et al. 2017) | gae | | yes | clipped, several inner epochs |
| GRPO (Shao et al. 2024) | group_relative | yes | | clipped, aggregate sequence |
| Dr. GRPO (Liu et al. 2025) | group_relative | no | | clipped, aggregate constant |
| RLOO (Ahmadian et al. 2024) | leave_one_out | | | inner_epochs 1, aggregate constant |
| fine-grained RLHF (Wu et al. 2023) | gae | | yes | as PPO, with rewards that speak of segments |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from training.contract.files import require, require_types
from training.contract.methods.common import MethodSettings, OptimiserSettings, require_reference

RewardKind = Literal[
    "exact_match",
    "think_answer",
    "pattern",
    "line_count",
    "length",
    "mathematics",
    "unit_tests",
    "bleu",
    "rouge",
    "chrf",
    "model",
    "judge",
    "function",
]
AdvantageKind = Literal["return", "running_mean", "group_relative", "leave_one_out", "gae"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardPart:
    """One reward in the weighted sum that a policy is trained for."""

    name: str
    """Its name in curves and samples."""
    kind: RewardKind
    """What scores an answer: a rule, a metric, a trained reward model, a judge, or a function by its path."""
    weight: float = 1.0
    """How much it counts; negative to punish."""
    normalise: bool = False
    """Take away its running mean and divide by its running deviation: for learned rewards, whose scale is
    their own."""
    clip: float | None = None
    """Cut its value, before the weight, to this much on either side; null does not cut."""
    required: bool = False
    """An answer that this part cannot score cannot be scored at all; otherwise the others' sum stands."""
    checkpoint: str | None = None
    """Folder of the reward model, for kind 'model'; a relative path starts at the run's folder."""
    checkpoint_digest: str | None = None
    """Digest of that checkpoint's manifest; the run refuses another. Null takes what is there."""
    heads: dict[str, float] | None = None
    """Weight of each of the model's heads; null counts all of them, once each."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the rule, metric, judge or function is told, by name; see `training.rlhf.rewards`."""

    def __post_init__(self) -> None:
        require_types(self, "reward")
        require(bool(self.name), "name", "must not be empty")
        require(self.clip is None or self.clip > 0, "clip", "must be positive or null")
        require(
            (self.checkpoint is not None) == (self.kind == "model"),
            "checkpoint",
            "name the folder of a reward model with kind 'model', and only with it",
        )
        for name in ("checkpoint_digest", "heads"):
            require(getattr(self, name) is None or self.kind == "model", name, "only a reward model has one")
        require(not self.options or self.kind != "model", "options", "a reward model takes none")


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutServerSettings:
    """A server that draws the answers in the trainer's stead. Where it is, its key and the folder that it
    loads adapters from are said by the trainer's environment, never here."""

    kind: Literal["vllm", "rondo"] = "vllm"
    """How it comes to hold the policy: vLLM is told to load each adapter (start it with --enable-lora and
    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True); Rondo's model server finds it among its checkpoints."""
    tells: Literal["model", "sampler"] = "model"
    """Whose log-probabilities it tells: the model's, or those that it drew by, after temperature and filters
    (a vLLM that was started with --logprobs-mode processed_logprobs)."""
    every: int = 1
    """Steps between two adapters. With 1 every answer is the current policy's; with more the answers are of a
    policy that is behind, and update, truncate must weigh them."""
    seconds: float = 600.0
    """How long one prompt's answers may take; asked three times, then the run ends, to be started again."""

    def __post_init__(self) -> None:
        require_types(self, "server")
        require(self.every >= 1, "every", "must be at least 1")
        require(self.seconds > 0, "seconds", "must be positive")
        require(
            self.kind == "vllm" or self.tells == "model",
            "tells",
            "Rondo's model server tells the model's log-probabilities; set it to 'model'",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutSettings:
    """How the policy is sampled."""

    samples: int = 8
    """Answers to each prompt of a step."""
    temperature: float = 1.0
    """Logits are divided by this, in sampling and in learning alike."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens that holds this share of the probability; the policy is that
    filtered distribution in the loss too, so tokens outside it are neither drawn nor learned (the action
    mask of NLPO, Ramamurthy et al. 2023)."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens; 0 sets no limit. Counts in the loss as top_p does."""
    max_tokens: int = 128
    """An answer is cut off after this many tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer."""
    unfinished: Literal["penalty", "missing_eos", "leave_out", "score"] = "penalty"
    """An answer that was cut off has not ended. penalty: its score less unfinished_penalty, so that the
    policy learns to end; a model that never ends can still learn, as all its answers are lowered alike.
    missing_eos: unfinished_value in place of its score. leave_out: no gradient at all. score: like any
    other."""
    unfinished_penalty: float = 1.0
    """Taken off the weighted sum of rewards of an answer that was cut off, with unfinished penalty."""
    unfinished_value: float = -1.0
    """The whole reward of an answer that was cut off, with unfinished missing_eos."""
    cuda_graphs: Literal["off", "auto"] = "off"
    """auto: on an NVIDIA GPU write answers in passes of a few fixed shapes, each recorded once as a CUDA
    graph: less waiting, more memory; elsewhere as off. Not tried on a GPU yet, so off unless asked for."""
    server: RolloutServerSettings | None = None
    """A server that draws the answers; null draws them in the trainer, which always answers held-out prompts
    itself."""

    def __post_init__(self) -> None:
        require_types(self, "rollout")
        require(self.samples >= 1, "samples", "must be at least 1")
        require(0 < self.temperature <= 100, "temperature", "must be above 0 and at most 100")
        require(0 < self.top_p <= 1, "top_p", "must be above 0 and at most 1")
        require(self.top_k >= 0, "top_k", "must be 0 or more")
        require(self.max_tokens >= 1, "max_tokens", "must be at least 1")
        require(self.unfinished_penalty >= 0, "unfinished_penalty", "must not be negative")
        plain = self.temperature == 1 and self.top_p == 1 and self.top_k == 0
        require(
            plain or self.server is None or self.server.tells == "sampler",
            "server, tells",
            "log-probabilities of the model are those of the sampler only with temperature 1, top_p 1 and "
            "top_k 0; set those, or take a vLLM that tells the sampler's",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdvantageSettings:
    """From rewards to how much better than expected each token was."""

    kind: AdvantageKind = "group_relative"
    """What an answer is held against: nothing (return), the mean of earlier rewards (running_mean), the
    answers to the same prompt with itself (group_relative) or without (leave_one_out), or a value head (gae).
    """
    scale: bool = True
    """Divide a group's advantages by their standard deviation; for group_relative alone."""
    whiten: bool = False
    """Bring the advantages of all tokens of a step to mean 0 and deviation 1."""
    gamma: float = 1.0
    """What a reward one token later is worth; for return, running_mean and gae."""
    lam: float = 0.95
    """λ of generalised advantage estimation: 0 trusts the value head, 1 the rewards."""

    def __post_init__(self) -> None:
        require_types(self, "advantage")
        require(0 <= self.gamma <= 1, "gamma", "must lie between 0 and 1")
        require(0 <= self.lam <= 1, "lam", "must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class KlSettings:
    """What holds the policy near its reference."""

    place: Literal["none", "reward", "loss"] = "loss"
    """Taken off each token's reward, added to the loss, or nowhere: then the reference is not even asked."""
    kind: Literal["k1", "k2", "k3", "full"] = "k3"
    """Estimator (Schulman 2020); full sums over the whole vocabulary, in the loss alone. k1 has no gradient
    as a loss and is refused there."""
    beta: float = 0.05
    """How dear a nat is."""
    target: float | None = None
    """Nats per answer that an adaptive β steers for (Ziegler et al. 2019); null keeps β fixed."""
    horizon: float = 1000.0
    """Answers over which an adaptive β may change by a fifth."""

    def __post_init__(self) -> None:
        require_types(self, "kl")
        require(self.beta >= 0, "beta", "must not be negative")
        require(self.target is None or self.target > 0, "target", "must be positive or null")
        require(self.horizon > 0, "horizon", "must be positive")
        require(
            self.place != "loss" or self.kind != "k1",
            "kind",
            "k1 has no gradient as a loss on average; take k2, k3 or full, or put it in the reward",
        )
        require(
            self.place != "reward" or self.kind != "full",
            "kind",
            "full has a place in the loss alone; take k1, k2 or k3 in the reward",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSettings:
    """How often and how far the policy learns from one batch of samples."""

    inner_epochs: int = 1
    """Passes over the samples before new ones are drawn."""
    minibatches: int = 1
    """Optimiser steps in a pass, each on its share of the prompts."""
    clip_low: float = 0.2
    """The ratio of new to old probability is cut at 1 − this."""
    clip_high: float = 0.2
    """… and at 1 + this; larger leaves unlikely tokens room to grow (Yu et al. 2025)."""
    aggregate: Literal["token", "sequence", "constant"] = "token"
    """What counts the same: every token, every answer, or every token of any answer against the longest
    allowed (max_tokens)."""
    stop_at_kl: float | None = None
    """No further pass once the mean divergence per token from the sampling policy exceeds this; null never
    stops."""
    truncate: float | None = None
    """Weigh tokens by how likely the trainer finds them against the sampler, at most this much; for samplers
    that round otherwise or are behind. Null does not weigh."""
    entropy: float = 0.0
    """Reward for the spread of the next-token distribution, per token."""
    value_weight: float = 0.5
    """Weight of the value head's loss beside the policy's."""
    value_clip: float | None = 0.2
    """How far a value may move from its old one in one step; null does not bound it."""
    value_pace: float = 1.0
    """The value adapter's learning rate, as a multiple of the policy's."""
    value_warmup_steps: int = 0
    """First steps of the run in which the value head alone learns, so that the policy is not moved by
    advantages against a value head that knows nothing; for advantage gae alone."""

    def __post_init__(self) -> None:
        require_types(self, "update")
        for name in ("inner_epochs", "minibatches"):
            require(getattr(self, name) >= 1, name, "must be at least 1")
        for name in ("clip_low", "clip_high", "entropy", "value_weight"):
            require(getattr(self, name) >= 0, name, "must not be negative")
        for name in ("stop_at_kl", "truncate", "value_clip"):
            value = getattr(self, name)
            require(value is None or value > 0, name, "must be positive or null")
        require(self.value_pace > 0, "value_pace", "must be positive")
        require(self.value_warmup_steps >= 0, "value_warmup_steps", "must not be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchSettings:
    """When a run says that its reward is being gamed, and what it does then."""

    window: int = 20
    """Steps that are compared with the first ones."""
    length_drift: float | None = 0.5
    """Warn when answers are longer or shorter than the first ones by this share, while the reward rises; null
    does not look."""
    held_out_drop: float | None = 0.5
    """Warn when a held-out reward falls by this many of its first standard deviations, while the reward that
    is trained for rises; null does not look."""
    held_out: tuple[RewardPart, ...] = ()
    """Rewards that are told of, and never trained for."""
    action: Literal["warn", "stop"] = "warn"
    """Go on with a warning, or end the run with the state that it has."""

    def __post_init__(self) -> None:
        require_types(self, "watch")
        require(self.window >= 2, "window", "must be at least 2")
        for name in ("length_drift", "held_out_drop"):
            value = getattr(self, name)
            require(value is None or value > 0, name, "must be positive or null")


def _sampled() -> OptimiserSettings:
    return OptimiserSettings(learning_rate=1e-5, batch_size=16, keep_best=False, evaluate_every=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyGradientSettings(MethodSettings):
    """Reward × advantage × loss; see the table at the head of this file."""

    method: ClassVar[Literal["policy_gradient"]] = "policy_gradient"

    optimiser: OptimiserSettings = field(default_factory=_sampled)
    """Steps and step sizes. A step is one batch of samples; batch_size counts its prompts."""
    rewards: tuple[RewardPart, ...] = ()
    """What is trained for: the weighted sum of these."""
    reward_clip: float | None = None
    """Cut the sum to this much on either side; null does not cut."""
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    """How the policy is sampled."""
    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    """What a reward is held against."""
    kl: KlSettings = field(default_factory=KlSettings)
    """What holds the policy near its reference."""
    reference: str = "parent"
    """The policy that divergence is measured from: parent, the one that training continues; base, the model
    under the adapters, so that rounds do not drift on and on; or a checkpoint, by its name in a recipe and by
    its folder in a run."""
    reference_digest: str | None = None
    """Digest of the manifest of a reference that is a checkpoint; filled in when training starts, so leave it
    empty."""
    update: UpdateSettings = field(default_factory=UpdateSettings)
    """How it learns from one batch of samples."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """When a run says that its reward is being gamed."""
    evaluation_prompts: int = 64
    """How many held-out prompts are answered, greedily, when the run is evaluated."""

    def __post_init__(self) -> None:
        MethodSettings.__post_init__(self)
        require_reference(self.reference, self.reference_digest)
        require(bool(self.rewards), "rewards", "name at least one reward")
        names = [part.name for part in (*self.rewards, *self.watch.held_out)]
        require(len(set(names)) == len(names), "rewards", "names must differ")
        require(self.reward_clip is None or self.reward_clip > 0, "reward_clip", "must be positive or null")
        require(self.evaluation_prompts >= 0, "evaluation_prompts", "must not be negative")
        require(
            self.rollout.samples >= 2 or self.advantage.kind not in ("group_relative", "leave_one_out"),
            "rollout, samples",
            f"{self.advantage.kind} compares the answers to a prompt: draw at least 2 of each",
        )
        require(
            not self.update.value_warmup_steps or self.advantage.kind == "gae",
            "update, value_warmup_steps",
            "only a value head warms up; set it to 0, or advantage, kind to 'gae'",
        )
        require(
            self.update.minibatches <= self.optimiser.batch_size,
            "update, minibatches",
            f"a step has {self.optimiser.batch_size} prompts (optimiser, batch_size), which cannot be cut "
            "into more parts",
        )
        require(
            self.rollout.max_tokens < self.max_tokens,
            "rollout, max_tokens",
            f"must be less than max_tokens ({self.max_tokens}), which counts the prompt too",
        )
        if (server := self.rollout.server) is not None:
            require(
                self.adapter == "lora" or server.kind == "rondo",
                "adapter",
                "vLLM can load an adapter, not all weights; train an adapter, or set rollout, server to null",
            )
            require(
                server.every == 1 or self.update.truncate is not None,
                "update, truncate",
                f"the answers are of a policy up to {server.every - 1} steps behind: set it, 2 is usual, or "
                "set rollout, server, every to 1",
            )
