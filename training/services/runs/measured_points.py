"""Points that were measured, beside the formulas of scaling: a small model in one to four processes on a CPU.

Memory is the peak of a process above what Python and torch take; bytes are those that it sends in a step.
`tests/benchmarks/memory_estimate.py` measures them: 5 million random weights, float32, gloo, 2026-11-25.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from django.utils.translation import gettext_lazy as _

from training.contract import Sharding
from training.services.runs.memory import Shape
from training.services.runs.scaling import GPUS, Plan, scaling_of, settings_for

SHAPE = Shape(
    vocabulary=2048,
    hidden=256,
    intermediate=704,
    layers=6,
    heads=4,
    key_heads=2,
    head_size=64,
    tied=True,
    context=4096,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A run that was measured."""

    method: str
    rank: int
    """Of the adapter; 0 trained all weights."""
    processes: int
    per_node: int = 8
    tokens: int
    """Of a micro-batch, of which a step has one in each process."""
    sharding: Sharding = "none"
    memory: int
    """Bytes measured."""
    sent: int
    """Bytes measured; 0 in one process."""

    @property
    def plan(self) -> Plan:
        """Return the same run on paper."""
        settings = settings_for(
            self.method, rank=self.rank, micro_batch_tokens=self.tokens, gradient_checkpointing=False
        )
        return Plan(
            settings=replace(settings, max_tokens=256),
            shape=SHAPE,
            gpu=replace(GPUS["h100"], per_node=self.per_node),
            sharding=self.sharding,
            base_bytes=4,
        )


METHODS = {
    "reward": _("reward model"),
    "preference": _("policy by DPO"),
    "policy_gradient": _("policy by reinforcement learning"),
    "sft": _("supervised fine-tuning"),
}
POINTS = (
    Point(method="reward", rank=16, processes=1, tokens=1280, sharding="none", memory=231_432_192, sent=0),
    Point(
        method="reward",
        rank=16,
        processes=2,
        tokens=640,
        sharding="full",
        memory=155_475_968,
        sent=19_502_496,
    ),
    Point(method="sft", rank=0, processes=1, tokens=1024, sharding="none", memory=235_667_456, sent=0),
    Point(
        method="sft", rank=0, processes=2, tokens=512, sharding="none", memory=161_873_920, sent=19_805_436
    ),
    Point(
        method="sft", rank=0, processes=2, tokens=512, sharding="full", memory=175_640_576, sent=28_658_776
    ),
    Point(
        method="sft",
        rank=0,
        processes=4,
        per_node=2,
        tokens=256,
        sharding="node",
        memory=149_716_992,
        sent=38_561_386,
    ),
    Point(method="preference", rank=0, processes=1, tokens=768, sharding="none", memory=193_654_784, sent=0),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A measured run with the formulas' values."""

    point: Point
    memory: int
    sent: float

    @property
    def method(self) -> str:
        """Return the method's name for people."""
        return str(METHODS[self.point.method])


def compared_points() -> Iterator[Compared]:
    """Yield each point with what the formulas of scaling say of the same run."""
    for point in POINTS:
        scaling = scaling_of(point.plan, point.processes)
        yield Compared(
            point=point,
            memory=scaling.memory.total - scaling.memory.process,
            sent=scaling.communication_bytes,
        )
