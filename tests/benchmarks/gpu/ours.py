"""Rondo's measurements: real runs of the trainer, and rollouts. Prints one line of JSON, figures by part.

`python -m tests.benchmarks.gpu` starts it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.benchmarks.gpu.sizes import CHAT, SIZES, Size
from tests.benchmarks.gpu.work import Texts, as_pairs, write_base
from tests.benchmarks.training.ours import peak_memory, timed_steps
from tests.rlhf.runs import make_run
from training.contract.run import EXIT_FINISHED, LOG_FILE, read_spec
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import StaticShapes, as_it_is, rollout, shapes_for
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.sampling import SamplingParameters
from training.rlhf.train import train_run
from training.services.runs.memory import memory_of

Figures = dict[str, Any]
METHODS = {"reward": "reward", "dpo": "preference", "grpo": "policy_gradient"}
NO_GRAPHS = "CUDA graphs need an NVIDIA GPU; the passes of fixed shapes ran without them"


def main() -> None:
    """Measure the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--base", type=Path, required=True, help="is written where it is not there")
    parser.add_argument("--parts", nargs="*", default=[])
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--micro-batch-tokens", type=int, required=True)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--rank", type=int, default=16)
    options = parser.parse_args()
    size = SIZES[options.size]
    if not (options.base / "work.json").is_file():
        write_work(options.base, size, options)
    measured: dict[str, Figures] = {"machine": machine(options)}
    for part in options.parts:
        measured[part] = generation(size, options) if part == "generation" else training(part, size, options)
    print(json.dumps(measured))


def write_work(folder: Path, size: Size, options: argparse.Namespace) -> None:
    """Write the base, and beside it what the others are to do."""
    folder.mkdir(parents=True, exist_ok=True)
    write_base(folder, size, device=options.device, dtype=getattr(torch, options.dtype))
    work = {
        "reward": as_pairs(Texts(size).rankings()),
        "dpo": as_pairs(Texts(size).rankings(2)),
        "grpo": [
            [{"role": "user", "content": prompt.messages[0].content}]
            for prompt in Texts(size).prompts(size.prompts)
        ],
        "generation": prompt_ids(size),
    }
    (folder / "work.json").write_text(json.dumps(work))


def prompt_ids(size: Size) -> list[list[int]]:
    """Return the prompts of the streams."""
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randint(CHAT, size.shape.vocabulary, (size.streams, size.prompt), generator=generator)
    ids: list[list[int]] = drawn.tolist()
    return ids


# ── Training ──────────────────────────────────────────────────────────────────────────


def training(part: str, size: Size, options: argparse.Namespace) -> Figures:
    """Return the figures of a step: the mean over the steps of a run that count."""
    steps = timed_steps()
    with (
        tempfile.TemporaryDirectory() as scratch,
        patch(
            # No completion ends before the others.
            "training.rlhf.rollout.generate.end_tokens",
            return_value=frozenset(),
        ),
    ):
        run = _run(Path(scratch, "run"), part, size, options)
        settings = read_spec(run).settings
        with _forgetting_the_first(size.warm, options.device):
            if train_run(run, stop=StopRequest(run), lock_wait_seconds=0) != EXIT_FINISHED:
                raise SystemExit((run / LOG_FILE).read_text()[-3000:])
    counted = steps[size.warm :]
    names = ("seconds", "tokens", "loss", "seconds_rollout")
    means = {
        name: sum(float(step[name]) for step in counted) / len(counted)
        for name in names
        if name in counted[0]
    }
    if any(step["skipped"] for step in counted):
        means["loss"] = float("nan")
    memory = memory_of(settings, size.shape, base_bytes=4 if options.dtype == "float32" else 2)
    means["estimate"] = memory.total - memory.process
    units = size.prompts * size.samples if part == "grpo" else size.judgments
    return {**means, "units": units, "peak": _peak(options.device)}


def _run(folder: Path, part: str, size: Size, options: argparse.Namespace) -> Path:
    settings: dict[str, Any] = {"max_tokens": size.prompt + size.answer}
    count = size.judgments
    if part == "grpo":
        count = size.prompts
        length = {"most": 0, "slack": 10_000, "unit": "characters"}
        settings |= {
            "rewards": [{"name": "length", "kind": "length", "options": length}],
            "rollout": {"samples": size.samples, "max_tokens": size.answer},
            "kl": {"place": "none"},
            "evaluation_prompts": 0,
        }
    return make_run(
        folder,
        options.base.resolve(),
        [] if part == "grpo" else Texts(size).rankings(*([2] if part == "dpo" else [])),
        prompts=Texts(size).prompts(size.prompts) if part == "grpo" else (),
        method=METHODS[part],  # type: ignore[arg-type]
        settings=settings,
        lora={"rank": options.rank, "alpha": 2.0 * options.rank},
        optimiser={
            "batch_size": count,
            "micro_batch_tokens": options.micro_batch_tokens,
            "gradient_checkpointing": options.checkpointing,
            "epochs": size.warm + size.steps,
            "learning_rate": 1e-5,
            "save_every": 1000,
            "evaluate_every": 0,
            "keep_best": False,
        },
        device=options.device,
        dtype=options.dtype,
    )


def _forgetting_the_first(warm: int, device: str) -> Any:
    """Reset the peak of GPU memory after the first steps of this block."""
    from training.rlhf.runtime.run_folder import RunFolder

    record, seen = RunFolder.record, [0]

    def recorded(self: RunFolder, line: Any) -> None:
        record(self, line)
        seen[0] += 1
        if seen[0] == warm and device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    return patch.object(RunFolder, "record", recorded)


# ── Generation ────────────────────────────────────────────────────────────────────────


def generation(size: Size, options: argparse.Namespace) -> Figures:
    """Return seconds and tokens of all streams, without CUDA graphs and with them."""
    dtype = getattr(torch, options.dtype)
    backbone = Backbone.load(options.base.resolve(), device=options.device, dtype=dtype)
    prompts = json.loads((options.base / "work.json").read_text())["generation"]
    width = size.prompt + size.generated
    graphs = shapes_for(backbone, rows=size.streams, width=width)
    fixed = graphs or StaticShapes(backbone, rows=size.streams, width=width, record=as_it_is)
    plain = _drawn(backbone, prompts, size, options.device, None)
    figures = {**plain, "units": size.streams, "recorded": graphs is not None}
    figures["fixed"] = _drawn(backbone, prompts, size, options.device, fixed)
    return figures


def _drawn(
    backbone: Backbone, prompts: list[list[int]], size: Size, device: str, shapes: StaticShapes | None
) -> Figures:
    parameters = SamplingParameters(max_tokens=size.generated, seed=3)
    with patch("training.rlhf.rollout.generate.end_tokens", return_value=frozenset()):
        # The first time compiles, and records.
        rollout(backbone, prompts, parameters, shapes=shapes)
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        groups = rollout(backbone, prompts, parameters, shapes=shapes)
        seconds = time.perf_counter() - begun
    tokens = sum(len(sample.tokens) for group in groups for sample in group)
    return {"seconds": seconds, "tokens": tokens, "peak": _peak(device)}


# ── The machine ───────────────────────────────────────────────────────────────────────


def machine(options: argparse.Namespace) -> Figures:
    """Return device, driver, versions and, of a device without a data sheet here, its speed in products."""
    on_gpu = options.device == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else _processor()
    return {
        "device": name,
        "driver": _driver() if on_gpu else "none",
        "cuda": torch.version.cuda or "none",
        "torch": torch.__version__,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "measured_peak": _products_per_second(options.device, getattr(torch, options.dtype)),
    }


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "CPU"


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    ask = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _products_per_second(device: str, dtype: torch.dtype) -> float:
    """Operations a second in a product of two matrices, the best of three."""
    side = 8192 if device == "cuda" else 768
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        # Reading a number waits for the device.
        float((left @ right)[0, 0])
        best = min(best, time.perf_counter() - begun)
    return 2 * side**3 / best


def _peak(device: str) -> int:
    """The most bytes since the count began on a GPU; those of the process, from its start, on a processor."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else peak_memory() * 2**20


if __name__ == "__main__":
    main()
