"""Scaling on paper: what a run needs on 1 to 512 GPUs, from the formulas of the dry run. Knows no torch.

    memory         the dry run's parts (memory.py), sharded over all GPUs (`full`) or those of a node (`node`)
    computation    2 floating-point operations per parameter and token for a forward pass, 2 for the gradient
                   of its inputs, 2 per trained parameter for the gradient of weights; 2 more with gradient
                   checkpointing and for a reference policy
    sampling       each token of a completion reads the base once: bytes of the base / memory bandwidth
    gradients      ring all-reduce of trained parameters, float32: 2 (N − 1) / N × bytes, once a step. Of
                   blocks that are cut reduce-scatter, (N − 1) / N × bytes, in every micro-batch; with
                   `node` the parts are then summed over the nodes
    gathering      sharding: (N − 1) / N × bytes of the blocks, for every pass of every micro-batch, and for
                   every token that is sampled; N is all GPUs, or with `node` those of a node
    efficiency     seconds of computation and sampling / the same with communication, where none of it
                   overlaps (low) and where all that can does (high)

Bytes cross the slower of the two links where those that exchange them are on several nodes. Sources:
Narayanan et al. 2021 (arXiv 2104.04473) for the operations, Rajbhandari et al. 2020 (arXiv 1910.02054) for
sharded communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from training.contract import (
    PolicyGradientSettings,
    RewardSettings,
    Settings,
    SftSettings,
    Sharding,
    settings_from_json,
)
from training.services.runs.memory import Memory, Shape, Spread, memory_of, trained_parameters

_HALF = 2
_FLOAT = 4
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """Figures of a GPU, by its data sheet: bytes, dense bf16 operations a second, bytes a second."""

    name: str
    memory: int
    operations: float
    memory_rate: float
    link_rate: float
    """Between GPUs of one node, in one direction."""
    network_rate: float
    """Between nodes, for each GPU."""
    per_node: int = 8

    def rate(self, gpus: int) -> float:
        """Return the bytes a second between so many GPUs."""
        return self.link_rate if gpus <= self.per_node else min(self.link_rate, self.network_rate)


GIB = 1024**3
GPUS = {
    "h100": Gpu(
        name="H100 80 GB",
        memory=80 * GIB,
        operations=989e12,
        memory_rate=3.35e12,
        link_rate=450e9,
        network_rate=50e9,
    ),
    "h200": Gpu(
        name="H200 141 GB",
        memory=141 * 10**9,
        operations=989e12,
        memory_rate=4.8e12,
        link_rate=450e9,
        network_rate=50e9,
    ),
    "a100": Gpu(
        name="A100 80 GB",
        memory=80 * GIB,
        operations=312e12,
        memory_rate=2.0e12,
        link_rate=300e9,
        network_rate=25e9,
    ),
    "l40s": Gpu(
        name="L40S 48 GB",
        memory=48 * GIB,
        operations=362e12,
        memory_rate=0.86e12,
        link_rate=32e9,
        network_rate=12.5e9,
    ),
    "rtx4090": Gpu(
        name="RTX 4090 24 GB",
        memory=24 * GIB,
        operations=165e12,
        memory_rate=1.0e12,
        link_rate=16e9,
        network_rate=3e9,
    ),
}


def _shape(
    vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, keys: int, *, tied: bool
) -> Shape:
    return Shape(
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        key_heads=keys,
        head_size=64 if hidden <= 2048 else 128,
        tied=tied,
        context=131_072,
    )


BASES = {
    "0.5b": ("Qwen2.5 0.5 B", _shape(151_936, 896, 4864, 24, 14, 2, tied=True)),
    "1.1b": ("TinyLlama 1.1 B", _shape(32_000, 2048, 5632, 22, 32, 4, tied=False)),
    "3b": ("Llama 3.2 3 B", _shape(128_256, 3072, 8192, 28, 24, 8, tied=True)),
    "8b": ("Llama 3.1 8 B", _shape(128_256, 4096, 14_336, 32, 32, 8, tied=False)),
    "14b": ("Qwen2.5 14 B", _shape(152_064, 5120, 13_824, 48, 40, 8, tied=False)),
    "32b": ("Qwen2.5 32 B", _shape(152_064, 5120, 27_648, 64, 40, 8, tied=False)),
    "70b": ("Llama 3.1 70 B", _shape(128_256, 8192, 28_672, 80, 64, 8, tied=False)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run on paper."""

    settings: Settings
    shape: Shape
    gpu: Gpu
    sharding: Sharding = "none"
    micro_batches: int = 1
    """Of each GPU in a step, each of `micro_batch_tokens`."""
    share_of_peak: float = 0.4
    """Part of the data sheet's operations that training reaches."""
    base_bytes: int = _HALF
    """Of a parameter of the base; 4 on a processor."""

    def spread(self, gpus: int) -> Spread:
        """Return the processes, one for each GPU, and those that share a copy of the base."""
        per_node = min(gpus, self.gpu.per_node)
        return Spread.of(self.sharding, nodes=-(-gpus // per_node), per_node=per_node)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """A plan on a number of GPUs; seconds and bytes are those of one step and one GPU."""

    gpus: int
    memory: Memory
    compute_seconds: float
    sampling_seconds: float
    gradient_bytes: float
    gather_bytes: float
    communication_seconds: float
    tokens_per_second: float
    """Of all GPUs, without overlap."""
    efficiency_low: float
    efficiency_high: float
    fits: bool

    @property
    def step_seconds(self) -> float:
        """Return the duration of a step without overlap."""
        return self.compute_seconds + self.sampling_seconds + self.communication_seconds

    @property
    def communication_bytes(self) -> float:
        """Return the bytes that one GPU sends in a step."""
        return self.gradient_bytes + self.gather_bytes


def scaling_of(plan: Plan, gpus: int) -> Scaling:
    """Return memory, communication and efficiency of a plan on a number of GPUs."""
    settings, shape, gpu = plan.settings, plan.shape, plan.gpu
    memory = memory_of(settings, shape, base_bytes=plan.base_bytes, spread=plan.spread(gpus))
    tokens = settings.optimiser.micro_batch_tokens * plan.micro_batches
    compute = tokens * operations_per_token(settings, shape) / (gpu.operations * plan.share_of_peak)
    sampled = settings.rollout.max_tokens if isinstance(settings, PolicyGradientSettings) else 0
    work = compute + sampled * shape.parameters * plan.base_bytes / gpu.memory_rate
    gradients = _gradients(plan, gpus)
    gathers = _gathers(plan, gpus, sampled)
    communication = gradients.seconds + gathers.seconds
    # A gather is hidden behind the block before it, the gradients' sum behind nothing.
    hidden = min(gathers.seconds, work)
    return Scaling(
        gpus=gpus,
        memory=memory,
        compute_seconds=compute,
        sampling_seconds=work - compute,
        gradient_bytes=gradients.bytes,
        gather_bytes=gathers.bytes,
        communication_seconds=communication,
        tokens_per_second=gpus * tokens / (work + communication),
        efficiency_low=work / (work + communication),
        efficiency_high=work / (work + communication - hidden),
        fits=memory.total <= gpu.memory,
    )


class _Sent(NamedTuple):
    """Bytes that a GPU sends in a step, and the seconds that they take."""

    bytes: float
    seconds: float


def _gradients(plan: Plan, gpus: int) -> _Sent:
    """Return the exchange of gradients."""
    settings, shape, gpu = plan.settings, plan.shape, plan.gpu
    shards = plan.spread(gpus).shards
    trained = trained_parameters(settings, shape) * _FLOAT
    if settings.trained is not None or shards == 1:
        sent = _around(gpus) * 2 * trained
        return _Sent(sent, sent / gpu.rate(gpus))
    cut = (shape.parameters - shape.whole) * _FLOAT
    copies = gpus // shards
    scattered = plan.micro_batches * _around(shards) * cut
    summed = plan.micro_batches * _around(copies) * 2 * cut / shards
    whole = _around(gpus) * 2 * shape.whole * _FLOAT
    seconds = scattered / gpu.rate(shards) + (summed + whole) / gpu.rate(gpus)
    return _Sent(scattered + summed + whole, seconds)


def _gathers(plan: Plan, gpus: int, sampled: int) -> _Sent:
    """Return the gathering of blocks that are cut. sampled: tokens of a completion."""
    shards = plan.spread(gpus).shards
    passes = passes_per_token(plan.settings) * plan.micro_batches + sampled
    cut = (plan.shape.parameters - plan.shape.whole) * plan.base_bytes
    sent = passes * _around(shards) * cut
    return _Sent(sent, sent / plan.gpu.rate(shards))


def _around(count: int) -> float:
    """Return the share of its bytes that each of so many sends around a ring."""
    return (count - 1) / count


def fewest_gpus(plan: Plan) -> int | None:
    """Return the smallest of `GPU_COUNTS` on which a plan fits; None where it fits on none."""
    return next((gpus for gpus in GPU_COUNTS if scaling_of(plan, gpus).fits), None)


def passes_per_token(settings: Settings) -> int:
    """Return how often a training token goes through the base: forward, backward, reference, once more."""
    policy = not isinstance(settings, RewardSettings | SftSettings)
    return 2 + int(policy) + int(settings.optimiser.gradient_checkpointing)


def operations_per_token(settings: Settings, shape: Shape) -> float:
    """Return the floating-point operations that training on one token takes."""
    passes = passes_per_token(settings)
    trained = trained_parameters(settings, shape)
    return 2.0 * shape.parameters * passes + 2.0 * trained


def settings_for(
    method: str,
    *,
    rank: int,
    micro_batch_tokens: int,
    gradient_checkpointing: bool,
    completion_tokens: int = 256,
) -> Settings:
    """Return the settings of a run on paper. rank: of the adapter on all linear layers; 0 trains all weights.

    completion_tokens: of a sampled completion, for a policy gradient.
    """
    values: dict[str, Any] = {
        "adapter": "lora" if rank else "none",
        "optimiser": {
            "micro_batch_tokens": micro_batch_tokens,
            "gradient_checkpointing": gradient_checkpointing,
        },
    }
    if rank:
        values["lora"] = {"rank": rank, "alpha": 2.0 * rank}
    if method == "policy_gradient":
        values["rewards"] = [{"name": "reward", "kind": "length", "options": {"most": 1000, "slack": 1000}}]
        values["rollout"] = {"max_tokens": completion_tokens}
    return settings_from_json(method, values)
