"""Policies trained without sampling: on demonstrations, preferences or thumbs."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from annotation.record.base import (
    AS_WRITTEN,
    Count,
    CountOrZero,
    NotNegative,
    Number,
    Positive,
    Text,
    UnitInterval,
    record,
    require,
)
from training.contract.methods.common import (
    PARENT,
    JudgedSettings,
    MethodSettings,
    OptimiserSettings,
    require_reference,
)
from training.contract.methods.reward import Smoothing, Ties
from training.contract.validation import Population

SftSource = Literal["demonstrations", "corrections", "preferred"]
ThumbSource = Literal["thumbs", "ratings", "verdicts", "ranks"]


@record
class SftSettings(JudgedSettings):
    """Supervised fine-tuning: loss −log π on the answer's tokens, none on the prompt's (Ouyang et al.
    2022)."""

    method: ClassVar[Literal["sft"]] = "sft"
    default_rates: ClassVar = {"lora": 1e-3, "none": 2e-5}

    sources: Annotated[tuple[SftSource, ...], Field(min_length=1)] = ("demonstrations", "corrections")
    """Training texts: responses that annotators wrote, responses that they corrected, and responses
    that they ranked first."""
    normalise: Literal["token", "sequence"] = "token"
    """token: every token of a step has the same weight; sequence: every response has."""


@record
class ReferenceSettings(JudgedSettings):
    """A method that measures how far the policy diverges from a reference."""

    beta: Positive = 0.1
    """KL penalty coefficient (β); smaller moves further."""
    reference: str = "parent"
    """The policy that divergence is measured from: parent, the one that training continues; base, the model
    under the adapters, so that rounds do not drift on and on; or a checkpoint, by its name in a recipe and by
    its folder in a run."""
    reference_digest: str | None = None
    """Digest of the manifest of a reference that is a checkpoint; filled in when training starts, so leave it
    empty."""

    def __post_init__(self) -> None:
        require_reference(self.reference, self.reference_digest)


@record
class PreferenceSettings(ReferenceSettings):
    """Direct preference optimisation of a policy (Rafailov et al. 2023, equation 7)."""

    method: ClassVar[Literal["preference"]] = "preference"
    default_rates: ClassVar = {"lora": 2e-4, "none": 2e-5}

    loss: Literal["sigmoid", "ipo", "hinge", "robust", "plackett_luce", "simpo", "orpo"] = "sigmoid"
    """Shape of the loss on the margin of a pair; plackett_luce takes the whole ranking (appendix A.3). Two
    need no reference: simpo compares log-probabilities per token (Meng et al. 2024; beta about 2), orpo adds
    beta times the loss on their log odds to −log π per token of the better response (Hong et al. 2024)."""
    target_margin: NotNegative = 0.0
    """What the better response must lead by in simpo (γ; Meng et al. 2024 take about half of beta)."""
    ties: Ties = "exact"
    """Treatment of ties in plackett_luce; the pairwise losses leave ties out."""
    label_smoothing: Smoothing = 0.0
    """Probability that a stated preference is taken to be the other way round. Not for plackett_luce."""
    length_normalised: bool = False
    """Divide the log-probability of a response by its number of tokens, so that length alone has no
    effect (Meng et al. 2024); use a larger beta, about 1 to 3."""
    sft_weight: NotNegative = 0.0
    """Weight of −log π per token of the best response (Pang et al. 2024), which keeps it likely."""
    use_corrections: bool = False
    """Add a pair for every corrected response: the corrected text is preferred to the original.
    Held-out metrics use human preferences only. Off by default in a run."""
    correction_tokens: Literal["all", "changed"] = "all"
    """Tokens of such a pair whose log-probabilities the loss sums: all; or changed, those that the
    correction wrote or removed. What follows a change is then context and teaches nothing."""

    def __post_init__(self) -> None:
        ReferenceSettings.__post_init__(self)
        require(
            self.correction_tokens == "all" or self.use_corrections,
            "correction_tokens",
            "'changed' is about corrections; set use_corrections to true, or leave it at 'all'",
        )
        require(
            self.loss != "plackett_luce" or not self.label_smoothing,
            "label_smoothing",
            "is not defined for whole rankings; set it to 0",
        )
        require(
            self.loss == "plackett_luce" or self.ties == "exact",
            "ties",
            f"{self.ties!r} serves loss 'plackett_luce' alone; leave it at 'exact'",
        )
        require(
            self.loss == "simpo" or not self.target_margin,
            "target_margin",
            "serves loss 'simpo' alone; set it to 0",
        )
        if not self.has_reference:
            self._check_without_reference()

    def _check_without_reference(self) -> None:
        """Raise for settings that mean nothing where the policy alone compares responses, per token."""
        require(
            self.reference == "parent",
            "reference",
            f"loss {self.loss!r} has none; leave it at 'parent'",
        )
        require(
            not self.length_normalised,
            "length_normalised",
            f"loss {self.loss!r} compares log-probabilities per token in any case; set it to false",
        )
        require(
            self.loss == "simpo" or not (self.label_smoothing or self.sft_weight),
            "loss",
            "orpo imitates the better response in any case and knows no smoothing; set sft_weight and "
            "label_smoothing to 0",
        )

    @property
    def has_reference(self) -> bool:
        """Return whether the loss compares the policy with a reference."""
        return self.loss not in ("simpo", "orpo")


@record
class KtoSettings(ReferenceSettings):
    """KTO: each answer is good or bad by itself (Ethayarajh et al. 2024)."""

    method: ClassVar[Literal["kto"]] = "kto"
    default_rates: ClassVar = {"lora": 1e-3, "none": 2e-5}

    sources: Annotated[tuple[ThumbSource, ...], Field(min_length=1)] = ("thumbs", "ratings", "verdicts")
    """Source of desirable and undesirable responses: thumbs; ratings above or below the middle of
    their scale; the preferences 'both good' and 'both bad'; first and last place of a ranking."""
    criteria: tuple[str, ...] = ()
    """Criteria whose thumbs and ratings count; none counts all."""
    weight_desirable: Positive | None = None
    """Weight of desirable responses; null balances both kinds."""
    weight_undesirable: Positive | None = None
    """Weight of undesirable responses; null as above."""


# Policies trained on their samples; REINFORCE, PPO, GRPO and RLOO are settings of one method. Which paper is
# which settings is a table of the guide, reference/objectives.md.

RuleKind = Literal[
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
]
"""Kinds of rewards that are computed from texts alone, without a model."""
RewardKind = Literal[RuleKind, "model", "served", "judge", "rubric", "function"]
AdvantageKind = Literal[
    "return", "running_mean", "group_relative", "leave_one_out", "best_and_worst", "best", "gae"
]

_COMPARED = ("group_relative", "leave_one_out", "best_and_worst", "best")
"""Advantages for which the responses to a prompt are compared with each other."""


@record
class RewardPart:
    """A term of the weighted sum of rewards that a policy is trained for."""

    name: Text
    """Its name in curves and samples."""
    kind: RewardKind
    """Scorer of a response: a rule, a metric, a trained reward model (model: as an adapter on the base of the
    policy; served: on a base of its own, by a model server), a judge, a judge that scores by a rubric, or a
    function by its path."""
    weight: Number = 1.0
    """Weight in the sum; negative to punish."""
    normalise: bool = False
    """Take away its running mean and divide by its running deviation: for learned rewards, whose scale is
    their own."""
    clip: Positive | None = None
    """Cut its value, before the weight, to this much on either side; null does not cut."""
    required: bool = False
    """A response that this part cannot score gets no reward at all; otherwise the sum of the others
    counts."""
    checkpoint: str | None = None
    """Folder of the reward model, for kind 'model'; a relative path starts at the run's folder. For kind
    'served', its name on the model server."""
    checkpoint_digest: str | None = None
    """Digest of that checkpoint's manifest; the run refuses another. Null takes what is there."""
    heads: dict[str, Number] | None = None
    """Weight of each of the model's heads; null counts all of them, once each."""
    population: Population = field(default_factory=Population)
    """Whose reward the model's head score gives: that of all annotators, of groups or of the worst-off
    group."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the rule, metric, judge, rubric or function, by name; see `training.rlhf.rewards`."""

    def __post_init__(self) -> None:
        learned = self.kind in ("model", "served")
        require(
            (self.checkpoint is not None) == learned,
            "checkpoint",
            "name a reward model with kind 'model' or 'served', and only with them",
        )
        for name in ("checkpoint_digest", "heads"):
            require(getattr(self, name) is None or learned, name, "only a reward model has one")
        require(
            self.population.reward == "common" or self.kind == "model",
            "population",
            "only a reward model on the policy's own base has heads of groups",
        )
        require(not self.options or not learned, "options", "a reward model takes none")

    @property
    def is_adapter(self) -> bool:
        """Return whether it is a reward model that the trainer loads onto the policy's base."""
        return self.kind == "model"


@record
class RolloutServerSettings:
    """A server that samples the answers instead of the trainer. Its address, its key and the folder that it
    loads adapters from come from the trainer's environment."""

    kind: Literal["vllm", "rondo"] = "vllm"
    """Kind of server, by which it gets the policy: vLLM is asked to load each adapter (start it with
    --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True); Rondo's model server finds it among its
    checkpoints."""
    tells: Literal["model", "sampler"] = "model"
    """Whose log-probabilities it tells: the model's, or those that it drew by, after temperature and filters
    (a vLLM that was started with --logprobs-mode processed_logprobs)."""
    every: Count = 1
    """Steps between two adapters. With 1 every response is sampled from the current policy; with more,
    responses come from an older policy and update, truncate must reweight them."""
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 0
    """Steps by which the policy that samples may be behind the one that learns. 0: sampling and learning take
    turns. Above 0: servers sample the batches of that many later steps while the trainer learns, always with
    the newest adapter, and update, truncate must reweight them. Which adapter that is depends on time, so two
    runs may differ."""
    seconds: Positive = 600.0
    """Timeout for the responses to one prompt; after three attempts the run ends and can be restarted."""

    def __post_init__(self) -> None:
        require(
            self.kind == "vllm" or self.tells == "model",
            "tells",
            "Rondo's model server tells the model's log-probabilities; set it to 'model'",
        )
        require(
            self.every == 1 or not self.max_staleness,
            "every",
            "servers that sample ahead get every adapter; set it to 1, or max_staleness to 0",
        )


@record
class RolloutSettings:
    """Sampling of the policy."""

    samples: Count = 8
    """Responses to each prompt of a step."""
    temperature: Annotated[float, Field(gt=0, le=100), AS_WRITTEN] = 1.0
    """Logits are divided by this, in sampling and in learning alike."""
    top_p: Annotated[float, Field(gt=0, le=1), AS_WRITTEN] = 1.0
    """Sample from the smallest set of tokens that holds this share of the probability; the policy is that
    filtered distribution in the loss too, so tokens outside it are neither drawn nor learned (the action
    mask of NLPO, Ramamurthy et al. 2023)."""
    top_k: CountOrZero = 0
    """Sample from this many of the likeliest tokens; 0 sets no limit. Counts in the loss as top_p does."""
    max_tokens: Count = 128
    """Maximum tokens of a response; longer ones are truncated."""
    redraws: Annotated[int, Field(ge=0, le=20)] = 0
    """Times at most that other prompts are drawn in a step in place of those whose responses all have the
    same reward, which teach nothing (dynamic sampling of DAPO, Yu et al. 2025)."""
    stop: tuple[str, ...] = ()
    """Texts that end a response."""
    unfinished: Literal["penalty", "missing_eos", "leave_out", "score"] = "penalty"
    """A truncated response has no end. penalty: its score less unfinished_penalty, so that the policy
    learns to end; a model that never ends can still learn, as all its responses are lowered
    equally. missing_eos: unfinished_value in place of its score. leave_out: no gradient at all.
    score: like any other."""
    unfinished_penalty: NotNegative = 1.0
    """Subtracted from the weighted sum of rewards of a truncated response, with unfinished penalty; with
    overlong_buffer, of one of max_tokens."""
    overlong_buffer: CountOrZero = 0
    """Last tokens before max_tokens over which a response's reward falls in a straight line, by
    unfinished_penalty in all (soft overlong punishment of DAPO, Yu et al. 2025); with unfinished score."""
    unfinished_value: Number = -1.0
    """The whole reward of a truncated response, with unfinished missing_eos."""
    cuda_graphs: Literal["off", "auto"] = "off"
    """auto: on an NVIDIA GPU, sample in passes of a few fixed shapes, each recorded once as a CUDA
    graph: less overhead, more memory; elsewhere as off."""
    server: RolloutServerSettings | None = None
    """A server that samples the responses; null samples them in the trainer, which always samples
    those to held-out prompts."""

    def __post_init__(self) -> None:
        require(
            not self.overlong_buffer or self.unfinished == "score",
            "overlong_buffer",
            f"unfinished {self.unfinished!r} says already what a truncated response is worth; set it to "
            "'score', or overlong_buffer to 0",
        )
        require(
            self.overlong_buffer <= self.max_tokens,
            "overlong_buffer",
            f"must be at most max_tokens ({self.max_tokens})",
        )
        plain = self.temperature == 1 and self.top_p == 1 and self.top_k == 0
        require(
            plain or self.server is None or self.server.tells == "sampler",
            "server, tells",
            "log-probabilities of the model are those of the sampler only with temperature 1, top_p 1 and "
            "top_k 0; set those, or take a vLLM that tells the sampler's",
        )


@record
class EnvironmentSettings:
    """An environment in which the policy acts over several turns, instead of answering prompts."""

    name: Text
    """One of the examples (guess_number, calculator, service_bot, shop), a folder with environment.py, which
    runs in a child process without network, or http, a server whose address the trainer's environment has."""
    turns: Annotated[int, Field(ge=1, le=64)] = 8
    """Turns of the policy in an episode at most. rollout, max_tokens bounds each turn, and max_tokens the
    whole episode with what the environment says."""
    starts: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Different beginnings of training episodes, the environment's seeds from 0 on; evaluation_prompts others
    are held out."""


@record
class AdvantageSettings:
    """Advantage estimation: from rewards to the advantage of each token."""

    kind: AdvantageKind = "group_relative"
    """Baseline of a response: none (return), the mean of earlier rewards (running_mean), the responses
    to the same prompt including itself (group_relative) or without it (leave_one_out), or a value
    head (gae). best_and_worst: 1 for the best response to a prompt, −1 for the worst, 0 for the others;
    best: 1 for the best alone, which is then imitated (RAFT, Dong et al. 2023)."""
    scale: bool = True
    """Divide a group's advantages by their standard deviation; for group_relative alone."""
    deviation_floor: NotNegative = 1e-4
    """Minimum of that standard deviation, so that noise in nearly equal rewards is not scaled to full size.
    Raise it for noisy rewards, lower it for rewards on a finer scale."""
    whiten: bool = False
    """Bring the advantages of all tokens of a step to mean 0 and deviation 1."""
    gamma: UnitInterval = 1.0
    """Discount factor of a reward one token later; for return, running_mean and gae."""
    unit: Literal["token", "turn"] = "token"
    """Unit of credit in an environment. turn: the rewards of a turn are paid to the whole of it, gamma counts
    turns, the value head is read where a turn begins, and the (discounted) rewards from each turn on are
    compared with those from the same turn of the other episodes."""
    lam: UnitInterval = 0.95
    """λ of generalised advantage estimation: 0 trusts the value head, 1 the rewards."""


@record
class KlSettings:
    """The KL penalty that keeps the policy near its reference."""

    place: Literal["none", "reward", "loss"] = "loss"
    """Taken off each token's reward, added to the loss, or nowhere: then the reference is not even asked."""
    kind: Literal["k1", "k2", "k3", "full"] = "k3"
    """Estimator (Schulman 2020); full sums over the whole vocabulary, in the loss alone. k1 has no gradient
    as a loss and is refused there."""
    beta: NotNegative = 0.05
    """KL penalty coefficient (β)."""
    target: Positive | None = None
    """Target KL divergence of an adaptive β, in nats per response (Ziegler et al. 2019); null keeps β
    fixed."""
    horizon: Positive = 1000.0
    """Responses over which an adaptive β may change by a fifth."""
    budget: Positive | None = None
    """KL divergence from the reference, in nats per response and as a mean over a step, beyond which the run
    ends with the state that it has; null sets no end. A reward model is trusted near the responses that
    people judged alone (Gao et al. 2023)."""

    def __post_init__(self) -> None:
        require(
            self.budget is None or self.place != "none",
            "budget",
            "place none measures no divergence; set place to 'loss' or 'reward', or budget to null",
        )
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


@record
class UpdateSettings:
    """Updates of the policy from one batch of samples."""

    loss: Literal["clipped", "cispo", "dpo", "distil"] = "clipped"
    """clipped: the policy gradient with its ratio cut. cispo: the cut ratio is a weight of −log π, so that
    tokens beyond the cut still teach (Chen et al. 2025); usual with clip_low 1 and clip_high 4. dpo: direct
    preference optimisation of the best response to each prompt against the worst (Guo et al. 2024), with kl,
    beta as its β; with advantage kind best_and_worst. distil: the divergence alone, from the reference or
    from teacher, on the policy's own samples (Agarwal et al. 2024); rewards are then only reported. It is
    that of the whole vocabulary with kl, place loss and kind full, and with place reward and kind k1 that of
    the drawn tokens: each earns beta (log p_teacher − log π)."""
    inner_epochs: Count = 1
    """Passes over the samples before new ones are drawn."""
    minibatches: Count = 1
    """Optimiser steps in a pass, each on its share of the prompts."""
    clip_low: NotNegative = 0.2
    """The ratio of new to old probability is cut at 1 − this."""
    clip_high: NotNegative = 0.2
    """… and at 1 + this; larger leaves unlikely tokens room to grow (Yu et al. 2025)."""
    ratio: Literal["token", "sequence"] = "token"
    """Ratio of new to old probability: of every token, or one for a response, the geometric mean of its
    tokens' (GSPO, Zheng et al. 2025; usual with aggregate sequence and cuts of about 0.0003 and 0.0004)."""
    aggregate: Literal["token", "sequence", "constant"] = "token"
    """Unit of equal weight: every token, every response, or every token divided by the maximum length
    (max_tokens)."""
    stop_at_kl: Positive | None = None
    """No further pass once the mean divergence per token from the sampling policy exceeds this; null never
    stops."""
    truncate: Positive | None = None
    """Weigh tokens by how likely the trainer finds them against the sampler, at most this much; for samplers
    that round otherwise or are behind. Null does not weigh."""
    truncate_level: Literal["token", "sequence"] = "token"
    """Unit of such a weight: every token has its own (Yao et al. 2025), or a response has one, that of all
    its tokens together, which has no bias and more spread (Liu, Li et al. 2025)."""
    entropy: NotNegative = 0.0
    """Reward for the spread of the next-token distribution, per token."""
    value_weight: NotNegative = 0.5
    """Weight of the value head's loss beside the policy's."""
    value_clip: Positive | None = 0.2
    """Maximum change of a value in one step; null sets no limit."""
    value_pace: Positive = 1.0
    """The value adapter's learning rate, as a multiple of the policy's."""
    value_warmup_steps: CountOrZero = 0
    """First steps of the run in which the value head alone learns, so that the policy is not moved by
    advantages against a value head that knows nothing; for advantage gae alone."""


@record
class TeacherSettings:
    """A teacher on a server, with the policy's tokenizer, that tells how likely it finds the tokens which the
    policy drew. Its address and its key come from the trainer's environment."""

    model: Text
    """Its name on the server."""
    seconds: Positive = 600.0
    """Timeout for the log-probabilities of one response; after six attempts the run ends and can be
    restarted."""


@record
class WatchSettings:
    """Detection of reward hacking, and the response to it."""

    window: Annotated[int, Field(ge=2)] = 20
    """Steps that are compared with the first ones."""
    length_drift: Positive | None = 0.5
    """Warn if responses become longer or shorter than the first ones by this share while the reward
    rises; null disables it."""
    held_out_drop: Positive | None = 0.5
    """Warn when a held-out reward falls by this many of its first standard deviations, while the reward that
    is trained for rises; null does not look."""
    held_out: tuple[RewardPart, ...] = ()
    """Rewards that are reported and never trained for."""
    action: Literal["warn", "stop"] = "warn"
    """Go on with a warning, or end the run with the state that it has."""


@record
class GuardSettings:
    """Signals at which a run asks people whether it has become worse, and how long it waits for them.

    A signal only raises a question: people compare responses to training prompts by the policy now and by
    that of some steps ago, blind. Their answers let the run go on, or end it with the earlier step as its
    result. For adapters, where trainer and web application share the run's folder.
    """

    kl: Positive | None = 6.0
    """Ask once the KL divergence from the reference exceeds this, in nats per response, and again each time
    it has doubled; null does not look."""
    reward_slope: Positive | None = 2.0
    """Ask once the reward rises by this many standard deviations of the first responses' rewards within five
    steps, and again at each multiple; null does not look."""
    length_drift: Positive | None = 0.5
    """Ask once responses are longer or shorter than the first ones by this share, and again each time they
    have changed by as much; null does not look."""
    head_disagreement: Positive | None = 2.0
    """Ask once the heads of an ensemble (reward, ensemble) disagree by this multiple of their first
    deviation, and again each time it has doubled; null does not look."""
    most_pairs: Annotated[int, Field(ge=8, le=40)] = 40
    """Pairs that people are asked in a run at most, eight at a time. At a signal after that the run ends, and
    its result is an earlier step, as where nobody answers."""
    minutes: Positive = 60.0
    """Minutes that a run waits for answers. Then it ends, and its result is the step before the question that
    people would have compared it with."""


def _sampled() -> OptimiserSettings:
    return OptimiserSettings(batch_size=16, keep_best=False, evaluate_every=0)


@record
class PolicyGradientSettings(MethodSettings):
    """Reward × advantage × loss; see the table at the head of this file."""

    method: ClassVar[Literal["policy_gradient"]] = "policy_gradient"
    default_rates: ClassVar = {"lora": 3e-4, "none": 1e-5}

    optimiser: OptimiserSettings = field(default_factory=_sampled)
    """Steps and step sizes. A step is one batch of samples; batch_size counts its prompts."""
    environment: EnvironmentSettings | None = None
    """Environment that the policy acts in; it pays the reward. Null answers the snapshot's prompts."""
    rewards: tuple[RewardPart, ...] = ()
    """Parts of the reward, which is their weighted sum."""
    reward_clip: Positive | None = None
    """Cut the sum to this much on either side; null does not cut."""
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    """Sampling of the policy."""
    advantage: AdvantageSettings = field(default_factory=AdvantageSettings)
    """Baseline of a reward."""
    kl: KlSettings = field(default_factory=KlSettings)
    """Penalty that keeps the policy near its reference."""
    reference: str = "parent"
    """The policy that divergence is measured from: parent, the one that training continues; base, the model
    under the adapters, so that rounds do not drift on and on; or a checkpoint, by its name in a recipe and by
    its folder in a run."""
    reference_digest: str | None = None
    """Digest of the manifest of a reference that is a checkpoint; filled in when training starts, so leave it
    empty."""
    update: UpdateSettings = field(default_factory=UpdateSettings)
    """Update on one batch of samples."""
    teacher: TeacherSettings | None = None
    """A teacher on a server, for update, loss distil; null learns from the reference."""
    watch: WatchSettings = field(default_factory=WatchSettings)
    """Conditions under which a run warns of reward hacking."""
    guard: GuardSettings | None = None
    """Questions to people while the run trains; null asks none."""
    evaluation_prompts: CountOrZero = 64
    """Held-out prompts that the run is evaluated on, with greedy responses."""

    def _check_pairs(self) -> None:
        """Raise for settings that mean nothing where pairs of responses are compared."""
        require(
            self.advantage.kind == "best_and_worst" and not self.advantage.whiten,
            "advantage, kind",
            "update, loss 'dpo' compares pairs; set it to 'best_and_worst', and whiten to false",
        )
        require(
            self.kl.place == "loss" and self.kl.kind != "full" and self.kl.beta > 0,
            "kl",
            "update, loss 'dpo' takes β and reference from here; set place to 'loss', kind to 'k3' and beta "
            "above 0",
        )
        for name in ("entropy", "truncate"):
            require(
                not getattr(self.update, name),
                f"update, {name}",
                "serves loss 'clipped' and 'cispo' alone; unset it",
            )

    def _check_distillation(self) -> None:
        """Raise for settings that mean nothing where a teacher's distribution is all that is learned from."""
        kl, is_served = self.kl, self.teacher is not None
        of_tokens = kl.place == "reward" and kl.kind == "k1"
        of_vocabulary = kl.place == "loss" and kl.kind == "full"
        require(
            kl.beta > 0 and (of_tokens or (of_vocabulary and not is_served)),
            "kl",
            "a teacher on a server tells the log-probabilities of drawn tokens alone; set place to 'reward', "
            "kind to 'k1' and beta above 0"
            if is_served
            else "update, loss 'distil' is the divergence from the teacher; set place to 'loss' and kind to "
            "'full' (over the whole vocabulary), or 'reward' and 'k1' (of drawn tokens), and beta above 0",
        )
        require(
            self.advantage.kind == "return",
            "advantage, kind",
            "update, loss 'distil' learns from no reward; set it to 'return'",
        )

    def _check_teacher(self) -> None:
        """Raise for settings that mean nothing where a teacher is asked on a server."""
        require(
            self.update.loss == "distil",
            "teacher",
            f"serves update, loss 'distil', not {self.update.loss!r}; set teacher to null, or that loss",
        )
        require(
            self.reference == PARENT,
            "reference",
            "the teacher on the server takes its place; leave it at 'parent', or set teacher to null",
        )
        require(
            self.rollout.temperature == 1,
            "rollout, temperature",
            "a server tells log-probabilities at temperature 1; set it to 1",
        )

    def _check_environment(self) -> None:
        """Raise for settings that mean nothing where an environment pays."""
        for name, value in (
            ("rewards", self.rewards),
            ("watch, held_out", self.watch.held_out),
            ("guard", self.guard),
            ("rollout, server", self.rollout.server),
            ("rollout, overlong_buffer", self.rollout.overlong_buffer),
            ("rollout, stop", self.rollout.stop),
        ):
            require(not value, name, "does not serve an environment; unset it, or environment")
        require(
            self.rollout.cuda_graphs == "off",
            "rollout, cuda_graphs",
            "does not serve an environment; set it to 'off'",
        )
        require(
            self.update.loss in ("clipped", "cispo"),
            "update, loss",
            f"{self.update.loss!r} does not serve an environment; set it to 'clipped' or 'cispo'",
        )
        require(
            self.advantage.unit == "token" or self.advantage.kind not in ("best_and_worst", "best"),
            "advantage, unit",
            f"{self.advantage.kind} compares whole episodes; set it to 'token'",
        )

    @property
    def samples_on_server(self) -> bool:
        """Return whether a rollout server samples for the trainer."""
        return self.rollout.server is not None

    @property
    def rewards_of_all(self) -> tuple[RewardPart, ...]:
        """Return the rewards that are trained for, and those that are only watched."""
        return (*self.rewards, *self.watch.held_out)

    def __post_init__(self) -> None:
        require_reference(self.reference, self.reference_digest)
        if self.environment is None:
            require(bool(self.rewards), "rewards", "name at least one reward")
            require(
                self.advantage.unit == "token",
                "advantage, unit",
                "only episodes of an environment have turns; set it to 'token'",
            )
        else:
            self._check_environment()
        names = [part.name for part in self.rewards_of_all]
        require(len(set(names)) == len(names), "rewards", "names must differ")
        require(
            self.rollout.samples >= 2 or self.advantage.kind not in _COMPARED,
            "rollout, samples",
            f"{self.advantage.kind} compares the answers to a prompt: draw at least 2 of each",
        )
        if self.update.loss == "dpo":
            self._check_pairs()
        if self.update.loss == "distil":
            self._check_distillation()
        if self.teacher is not None:
            self._check_teacher()
        require(
            self.update.ratio == "token" or self.update.loss == "clipped",
            "update, ratio",
            f"'sequence' serves loss 'clipped', not {self.update.loss!r}; set it to 'token'",
        )
        require(
            not self.rollout.redraws or self.advantage.kind in _COMPARED,
            "rollout, redraws",
            f"{self.advantage.kind} compares no answers to a prompt, so that none is useless; set it to 0",
        )
        require(
            not self.rollout.redraws or self.rollout.server is None,
            "rollout, redraws",
            "a rollout server draws each step once; set it to 0, or rollout, server to null",
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
            behind = max(server.every - 1, server.max_staleness)
            require(
                not behind or self.update.truncate is not None,
                "update, truncate",
                f"the answers are of a policy up to {behind} steps behind: set it, 2 is usual, or "
                "set rollout, server, every to 1 and max_staleness to 0",
            )
