"""The parts of a recipe that no trainer reads: sampling, start of training, evaluation, promotion and
budget."""

from __future__ import annotations

import datetime
import re
from dataclasses import field
from typing import Annotated, Literal, get_args

from pydantic import Field

from annotation.record.base import AS_WRITTEN, NotNegative, Number, Positive, UnitInterval, record, require
from training.contract import CHECKPOINT_NAME, Quantization, RewardPart, Sharding
from training.contract.methods.policy_gradient import RuleKind

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
    judged_by: Literal["reward_model", "people"] = "reward_model"
    """Source of the preferences behind the win rate: the round's reward model, or people."""
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
