"""Memory of training runs beside the estimate of the dry run: peak RSS above that of an idle trainer.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.memory_estimate --out FILE    # measures, then tells
    python -m tests.benchmarks.memory_estimate --read FILE                     # tells by the formulas of now

A Llama of 5 million random weights, float32, on a processor; each case is a run of two steps in a process, or
two that share the base, forked from one that has imported torch. Linux alone. The estimate is without what a
process needs for itself.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.gpu.sizes import Size
from training.contract.methods import Method, Settings, settings_from_json
from training.contract.run import Sharding, read_spec
from training.services.runs.memory import ProcessSpread, Shape, memory_of

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
SIZE = Size(shape=SHAPE, prompt=128, answer=128, micro_batch_tokens=1280, prompts=2, samples=4)


class Case(NamedTuple):
    """A run that is measured."""

    name: str
    method: Method
    adapter: str = "lora"
    checkpointing: bool = False
    tokens: int = 1280
    processes: int = 1
    sharding: Sharding = "none"
    per_node: int | None = None
    dtype: str = "float32"
    judgments: int = 2


CASES = (
    Case("reward model, LoRA", "reward"),
    Case("SFT, all weights, full", "sft", "none", processes=2, sharding="full", tokens=512, judgments=4),
    Case("reward model, LoRA, half the tokens", "reward", tokens=640, judgments=1),
    Case("SFT, all weights", "sft", "none", tokens=1024, judgments=4),
    Case("reward model, LoRA, full", "reward", processes=2, sharding="full", tokens=640),
    Case("reward model, LoRA, checkpointing", "reward", checkpointing=True),
    Case("SFT, all weights", "sft", "none", processes=2, tokens=512, judgments=4),
    Case("DPO, all weights", "preference", "none", tokens=768),
    Case("reward model, LoRA, base in bfloat16", "reward", dtype="bfloat16"),
    Case("reward model, LoRA", "reward", processes=2, tokens=640),
    Case("DPO, LoRA", "preference", tokens=768),
    Case(
        "SFT, all weights, node",
        "sft",
        "none",
        processes=4,
        sharding="node",
        per_node=2,
        tokens=256,
        judgments=4,
    ),
    Case("DPO, all weights, bfloat16", "preference", "none", dtype="bfloat16", tokens=768),
    Case("GRPO, LoRA", "policy_gradient"),
)
"""Tokens are those of the passes: rankings have 640, pairs 384, demonstrations 256."""


def main() -> None:
    """Measure, or read what was measured, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path)
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)))
    options = parser.parse_args()
    if options.read is not None:
        measured = json.loads(options.read.read_text())
    else:
        measured = measure([CASES[number] for number in options.cases], options.out)
    print("| run | processes | measured, MB | estimate, MB | estimate / measured |\n|---|---|---|---|---|")
    for entry in measured:
        case, estimate = Case(**entry["case"]), estimate_of(entry)
        share = estimate / entry["bytes"]
        print(
            f"| {case.name} | {case.processes} | {entry['bytes'] / 2**20:.0f} | {estimate / 2**20:.0f} "
            f"| {share:.2f} |"
        )


def estimate_of(entry: dict[str, Any]) -> int:
    """Return the estimate for a measured case, without the process itself."""
    case = Case(**entry["case"])
    settings: Settings = settings_from_json(case.method, entry["settings"])
    nodes = 1 if case.per_node is None else case.processes // case.per_node
    spread = ProcessSpread.of(case.sharding, nodes=nodes, per_node=case.processes // nodes)
    base_bytes = 2 if case.dtype == "bfloat16" else 4
    memory = memory_of(settings, SHAPE, base_bytes=base_bytes, spread=spread)
    return memory.total - memory.process


def measure(cases: Sequence[Case], out: Path | None) -> list[dict[str, Any]]:
    """Run the cases one after another; the peak of the process that took most."""
    import dataclasses

    import torch

    from tests.benchmarks.gpu.work import write_base
    from tests.rlhf.loop.trainers import in_processes

    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch, "base")
        write_base(base, SIZE, device="cpu", dtype=torch.float32)
        tiny = dataclasses.replace(
            SHAPE, hidden=32, intermediate=64, layers=2, heads=2, key_heads=1, head_size=16
        )
        first = Path(scratch, "first")
        write_base(first, dataclasses.replace(SIZE, shape=tiny), device="cpu", dtype=torch.float32)
        for number, case in enumerate(cases):
            # What a first run imports and sets up is not counted.
            folders = [make(Path(scratch, f"{number}-{of.name}", "run"), of, case) for of in (first, base)]
            results = in_processes(measure_here, case.processes, *folders, per_node=case.per_node)
            folder = folders[-1]
            peak, sent = (max(column) for column in zip(*results, strict=True))
            settings = dataclasses.asdict(read_spec(folder).settings)
            measured.append({"case": case._asdict(), "settings": settings, "bytes": peak, "sent": sent})
            print(f"{case.name}, {case.processes}: {peak / 2**20:.1f} MB, sent {sent:.0f} bytes", flush=True)
            if out is not None:
                out.write_text(json.dumps(measured))
    return measured


def make(folder: Path, base: Path, case: Case) -> Path:
    """Write the run of a case."""
    from tests.benchmarks.gpu.work import Texts
    from tests.rlhf.runs import make_run

    folder.parent.mkdir()
    samples = case.method == "policy_gradient"
    settings: dict[str, Any] = {"adapter": case.adapter, "max_tokens": 256}
    if samples:
        length = {"most": 0, "slack": 10_000, "unit": "characters"}
        settings |= {
            "rewards": [{"name": "length", "kind": "length", "options": length}],
            "rollout": {"samples": SIZE.samples, "max_tokens": SIZE.answer},
            "evaluation_prompts": 0,
        }
    elif case.method == "sft":
        settings["sources"] = ["preferred"]
    answers = 2 if case.method == "preference" else 4
    return make_run(
        folder,
        base,
        [] if samples else Texts(replace(SIZE, judgments=case.judgments)).rankings(answers),
        prompts=Texts(SIZE).prompts(SIZE.prompts) if samples else (),
        method=case.method,
        settings=settings,
        lora={"rank": 16},
        optimiser={
            "batch_size": SIZE.prompts if samples else case.judgments,
            "micro_batch_tokens": case.tokens,
            "gradient_checkpointing": case.checkpointing,
            "epochs": 2,
            "save_every": 1000,
            "evaluate_every": 0,
            "keep_best": False,
        },
        sharding=case.sharding,
        dtype=case.dtype,
    )


def measure_here(processes: Any, first: Path, folder: Path) -> tuple[int, float]:
    """Train in this process; the most bytes that it held beyond those that it began with, and the bytes that
    it sent in the second step."""
    from unittest.mock import patch

    from training.contract.run import EXIT_FINISHED, LOG_FILE
    from training.rlhf import train
    from training.rlhf.__main__ import keep_freed_memory
    from training.rlhf.runtime.run_folder import RunFolder
    from training.rlhf.runtime.stopping import StopRequest

    keep_freed_memory()
    sent, at_steps = [0.0], []
    record = RunFolder.record

    def recorded(self: RunFolder, line: Any) -> None:
        at_steps.append(sent[0])
        record(self, line)

    with ExitStack() as patches:
        # The group is joined already.
        patches.enter_context(patch.object(train, "join_processes", lambda: nullcontext(processes)))
        patches.enter_context(patch.object(RunFolder, "record", recorded))
        _count_sent(patches, sent)
        train.train_run(first, stop=StopRequest(first), lock_wait_seconds=0)
        # The peak begins anew.
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        at_steps.clear()
        code = train.train_run(folder, stop=StopRequest(folder), lock_wait_seconds=0)
    if code != EXIT_FINISHED:
        raise RuntimeError((folder / LOG_FILE).read_text()[-3000:])
    return _status("VmHWM") - before, at_steps[1] - at_steps[0]


def _count_sent(patches: ExitStack, sent: list[float]) -> None:
    """Add to `sent` the bytes that a ring sends for each exchange of this process."""
    import functools
    from unittest.mock import patch

    import torch.distributed as dist

    def counted(function: Any, times: int, place: int) -> Any:
        @functools.wraps(function)
        def call(*tensors: Any, **more: Any) -> Any:
            whole = tensors[place] if len(tensors) > place else more[_WHOLE[function.__name__]]
            count = dist.get_world_size(more.get("group"))
            sent[0] += times * (count - 1) / count * whole.nbytes
            return function(*tensors, **more)

        return call

    for name, times, place in (
        ("all_reduce", 2, 0),
        ("all_gather_single", 1, 0),
        ("reduce_scatter_single", 1, 1),
    ):
        patches.enter_context(patch.object(dist, name, counted(getattr(dist, name), times, place)))


_WHOLE = {
    "all_reduce": "tensor",
    "all_gather_single": "output",
    "reduce_scatter_single": "input",
}
"""Name of the argument that is of all processes."""


def _status(name: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1024


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
