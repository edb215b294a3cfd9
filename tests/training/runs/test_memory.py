"""Memory of one process of several: worked by hand, and against what was measured."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.memory_estimate import SHAPE as MEASURED_SHAPE
from training.contract.methods import Method, Settings, settings_from_json
from training.contract.run import Sharding
from training.services.runs.memory import ProcessSpread, Shape, memory_of

SHAPE = Shape(
    vocabulary=100,
    hidden=8,
    intermediate=16,
    layers=2,
    heads=2,
    key_heads=1,
    head_size=4,
    tied=True,
    context=64,
)
"""Attention 8×8 + 8×4 + 8×4 + 8×8 = 192, network 3×8×16 = 384, norms 16 a block: 592 parameters; 800
embedding, 8 norm: 1,992 in all."""
TINY = Shape(
    vocabulary=320, hidden=48, intermediate=128, layers=3, heads=4, key_heads=2, head_size=12,
    tied=True, context=2048,
)  # fmt: skip
"""The tiny base of the trainer's tests: its log says 53,568 of 91,728, see rlhf/loop/test_distributed.py."""
LARGE = {
    "1.1b": replace(SHAPE, vocabulary=32_000, hidden=2048, intermediate=5632, layers=22, tied=False),
    "8b": Shape(
        vocabulary=128_256, hidden=4096, intermediate=14_336, layers=32, heads=32, key_heads=8, head_size=128,
        tied=False, context=131_072,
    ),
}  # fmt: skip


def settings_for(method: Method, *, rank: int, tokens: int = 1024) -> Settings:
    """rank: of the adapter on all linear layers; 0 trains all weights."""
    values: dict[str, Any] = {
        "adapter": "lora" if rank else "none",
        "optimiser": {"micro_batch_tokens": tokens, "gradient_checkpointing": False},
    }
    if rank:
        values["lora"] = {"rank": rank, "alpha": 2.0 * rank}
    return settings_from_json(method, values)


def test_of_a_sharded_base_a_process_holds_its_part_and_two_blocks_that_arrived():
    memory = memory_of(
        settings_for("preference", rank=1), SHAPE, base_bytes=2, spread=ProcessSpread(processes=2, shards=2)
    )
    # Two blocks of 592 parameters are cut; 808 of embedding and last norm stay whole.
    assert memory.base == (808 + 1184 // 2) * 2
    # Two blocks, with the buffers that they arrive in.
    assert memory.gathered == 2 * 2 * 592 * 2
    # Rank 1 on all linear layers: Σ (in + out) = 16 + 12 + 12 + 16 + 24 + 24 + 24 = 128 a block, 256 in all.
    assert (memory.trained, memory.summed) == (16 * 256, 4 * 256)


def test_weights_that_are_all_trained_are_summed_whole_where_the_base_is_not_cut():
    memory = memory_of(settings_for("sft", rank=0), SHAPE, base_bytes=2, spread=ProcessSpread(processes=2))
    # 16 bytes of each, 2 more of its rounded copy, and 4 while gradients are summed.
    assert (memory.trained, memory.summed, memory.gathered) == (18 * 1992, 4 * 1992, 0)


def test_processes_of_a_node_share_a_copy_however_many_nodes_there_are():
    settings = settings_for("sft", rank=0)
    memory, more = (
        memory_of(settings, SHAPE, base_bytes=2, spread=ProcessSpread.of("node", nodes=nodes, per_node=2))
        for nodes in (2, 4)
    )
    assert memory == more
    # The base stays beside the weights that are trained.
    assert memory.base == 2 * (808 + 1184 // 2)
    assert memory.trained == 16 * (808 + 1184 // 2)
    # A block's gradients in float32 come to it, with their buffer.
    assert memory.gathered == 2 * 2 * 592 * 2 + 2 * 592 * 4
    assert memory.summed == 4 * 808


@given(
    st.sampled_from(sorted(LARGE)),
    st.sampled_from([1, 2, 4, 8, 16, 64, 512]),
    st.sampled_from(["none", "full", "node"]),
)
def test_memory_falls_with_processes_only_where_the_base_is_sharded(
    base: str, processes: int, sharding: Sharding
):
    settings, shape = settings_for("preference", rank=16, tokens=2048), LARGE[base]
    per_node = min(processes, 8)
    spread = ProcessSpread.of(sharding, nodes=processes // per_node, per_node=per_node)
    memory = memory_of(settings, shape, base_bytes=2, spread=spread)
    alone = memory_of(settings, shape, base_bytes=2)
    shards = {"none": 1, "full": processes, "node": per_node}[sharding]
    # Embedding, LM head and last norm stay whole.
    whole = shape.vocabulary * shape.hidden * 2 + shape.hidden
    cut = 2 * (whole + (shape.parameters - whole) / shards)
    more = 4 * 2 * (shape.parameters - whole) // shape.layers if shards > 1 else 0
    more += 4 * shape.adapter_parameters(settings.lora) if processes > 1 else 0
    assert memory.total == pytest.approx(alone.total - alone.base + cut + more, abs=2)


def test_parts_of_a_base_and_of_trained_weights_are_those_that_a_process_keeps():
    shared = ProcessSpread(processes=2, shards=2)
    for rank in (4, 0):
        settings = settings_for("preference", rank=rank, tokens=256)
        memory = memory_of(settings, TINY, base_bytes=2, spread=shared)
        assert memory.base == 2 * 53_568
    # Weight, gradient and two moments in float32.
    assert memory.trained == 16 * 53_568


class Measured(NamedTuple):
    """Peak bytes of a process above what Python and torch take, in float32 on a CPU."""

    method: Method
    rank: int
    tokens: int
    bytes: int
    spread: ProcessSpread = ProcessSpread()


@pytest.mark.parametrize(
    "run",
    [
        Measured("reward", 16, 1280, 231_432_192),
        Measured("reward", 16, 640, 155_475_968, ProcessSpread(processes=2, shards=2)),
        Measured("sft", 0, 1024, 235_667_456),
        Measured("sft", 0, 512, 161_873_920, ProcessSpread(processes=2)),
        Measured("sft", 0, 512, 175_640_576, ProcessSpread(processes=2, shards=2)),
        Measured("sft", 0, 256, 149_716_992, ProcessSpread(processes=4, shards=2)),
        Measured("preference", 0, 768, 193_654_784),
    ],
)
def test_the_estimate_says_what_tests_benchmarks_memory_estimate_measured(run: Measured):
    settings = replace(settings_for(run.method, rank=run.rank, tokens=run.tokens), max_tokens=256)
    memory = memory_of(settings, MEASURED_SHAPE, base_bytes=4, spread=run.spread)
    assert memory.total - memory.process == pytest.approx(run.bytes, rel=0.25)
