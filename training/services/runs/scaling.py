"""Scaling on paper: what a run needs on 1 to 512 GPUs, from the formulas of the dry run. Knows no torch.

    memory         the dry run's parts (memory.py); with full sharding the blocks of the base, and where all
                   weights are trained their gradients and moments, are divided by the number of GPUs;
                   embedding and LM head stay whole, and the largest block or matrix for a moment
    computation    2 floating-point operations per parameter and token for a forward pass, 2 for the gradient
                   of its inputs, 2 per trained parameter for the gradient of weights; 2 more with gradient
                   checkpointing and for a reference policy
    sampling       each token of a completion reads the base once: bytes of the base / memory bandwidth
    gradients      ring all-reduce of trained parameters, float32: 2 (N − 1) / N × bytes, once a step
    gathering      full sharding: (N − 1) / N × bytes of the base, for every pass of every micro-batch,
                   and for every token that is sampled
    efficiency     seconds of computation and sampling / the same with communication, where none of it
                   overlaps (low) and where all that can does (high)

Bytes cross the slower of the two links where a run has more GPUs than a node. Sources: Narayanan et al. 2021
(arXiv 2104.04473) for the operations, Rajbhandari et al. 2020 (arXiv 1910.02054) for sharded communication.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from training.contract import (
    PolicyGradientSettings,
    RewardSettings,
    Settings,
    SftSettings,
    settings_from_json,
)
from training.services.runs.memory import Memory, Shape, memory_of, trained_parameters

_HALF = 2
_FLOAT = 4
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """What a GPU does, by its data sheet: bytes, dense bf16 operations a second, bytes a second."""

    name: str
    memory: int
    operations: float
    memory_rate: float
    link_rate: float
    """Between GPUs of one node, in one direction."""
    network_rate: float
    """Between nodes, for each GPU."""
    per_node: int = 8


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
    is_sharded: bool
    micro_batches: int = 1
    """Of each GPU in a step, each of `micro_batch_tokens`."""
    share_of_peak: float = 0.4
    """Part of the data sheet's operations that training reaches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """A plan on a number of GPUs; seconds and bytes are those of one step and one GPU."""

    gpus: int
    memory: Memory
    gathered: int
    """Bytes of the weights that are whole for a moment."""
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
    def total_memory(self) -> int:
        """Return the bytes that one GPU needs."""
        return self.memory.total + self.gathered

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
    memory, gathered = _memory(plan, gpus)
    tokens = settings.optimiser.micro_batch_tokens * plan.micro_batches
    compute = tokens * operations_per_token(settings, shape) / (gpu.operations * plan.share_of_peak)
    sampled = settings.rollout.max_tokens if isinstance(settings, PolicyGradientSettings) else 0
    base = shape.parameters * _HALF
    sampling = sampled * base / gpu.memory_rate
    apart = (gpus - 1) / gpus
    gradients = 2 * apart * trained_parameters(settings, shape) * _FLOAT
    passes = passes_per_token(settings) * plan.micro_batches + sampled
    gathers = apart * base * passes if plan.is_sharded else 0.0
    rate = gpu.link_rate if gpus <= gpu.per_node else min(gpu.link_rate, gpu.network_rate)
    communication = (gradients + gathers) / rate
    work = compute + sampling
    # A gather is hidden behind the block before it, the gradients' sum behind nothing.
    hidden = min(gathers / rate, work)
    return Scaling(
        gpus=gpus,
        memory=memory,
        gathered=gathered,
        compute_seconds=compute,
        sampling_seconds=sampling,
        gradient_bytes=gradients,
        gather_bytes=gathers,
        communication_seconds=communication,
        tokens_per_second=gpus * tokens / (work + communication),
        efficiency_low=work / (work + communication),
        efficiency_high=work / (work + communication - hidden),
        fits=memory.total + gathered <= gpu.memory,
    )


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


def _memory(plan: Plan, gpus: int) -> tuple[Memory, int]:
    """Return the parts on one GPU, and the bytes of weights gathered for a moment."""
    settings, shape = plan.settings, plan.shape
    memory = memory_of(settings, shape, base_bytes=_HALF)
    if not plan.is_sharded or gpus == 1:
        return memory, 0
    block = sum(inside * outside for inside, outside in shape.linear.values())
    whole = shape.vocabulary * shape.hidden * (1 if shape.tied else 2) + shape.hidden

    def part(size: int) -> int:
        """Return the bytes on one GPU of what has so many for all parameters."""
        return int(size * (whole + (shape.parameters - whole) / gpus) / shape.parameters)

    shared = replace(memory, base=part(memory.base))
    if settings.trained is None:
        shared = replace(shared, trained=part(memory.trained))
    return shared, max(block, shape.vocabulary * shape.hidden) * _HALF


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
