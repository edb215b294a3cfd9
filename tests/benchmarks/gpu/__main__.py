"""Rondo on one GPU beside TRL and vLLM: tokens a second, MFU, peak memory, CUDA graphs, string reversal.

    python -m tests.benchmarks.gpu                      # all, on a GPU; an hour or two
    python -m tests.benchmarks.gpu --sizes 7b --parts dpo
    python -m tests.benchmarks.gpu --smoke              # the same code on a processor, tiny shapes, a minute

Reward (rankings of four), DPO and GRPO train LoRA of rank 16 on a Llama-shaped base of random weights.
TRL does the same work by turns, on FlashAttention where its environment has flash-attn. Generation draws
64 completions at a time, beside vLLM where that is installed, without CUDA graphs and with them. String
reversal is `training.rlhf.examples.reverse` on SmolLM2. Every measurement is a process of its own. A pass
that runs out of memory is tried again with half the tokens.

Tells every measurement as it ends, and writes them to SIZE.json in --out, then report.json and report.md.
Ends with 0 only where every figure can be true.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu.report import (
    FIXED,
    PARTS,
    RONDO,
    TRL,
    VLLM,
    Figures,
    Report,
    lines_of,
    markdown,
    peak_operations,
    problems_of,
)
from tests.benchmarks.gpu.sizes import SIZES, Size

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
}
_TRIES = 4


class OutOfMemoryError(Exception):
    """A measurement needed more memory than there is."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; --smoke sets device, sizes and rounds."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--smoke", action="store_true", help="tiny shapes on the processor")
    parser.add_argument("--sizes", nargs="+", choices=["1.1b", "7b"], default=["1.1b", "7b"])
    parser.add_argument("--parts", nargs="*", choices=[*PARTS, "reversal"], default=[*PARTS, "reversal"])
    parser.add_argument("--rounds", type=int, default=2, help="by turns; medians are told")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter")
    parser.add_argument("--micro-batch-tokens", type=int, help="of a pass; else by size")
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again, in both")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device, else by its data sheet")
    parser.add_argument("--trl", default=sys.executable, metavar="PYTHON", help="of TRL's environment")
    parser.add_argument("--vllm", default=sys.executable, metavar="PYTHON", help="of vLLM's environment")
    parser.add_argument("--model", type=Path, default=ROOT / "var/models/SmolLM2-135M-Instruct")
    parser.add_argument("--names", type=Path, help="names.json of string reversal, else in shared data")
    parser.add_argument("--work", type=Path, help="where the random bases lie; else a temporary folder")
    parser.add_argument("--out", type=Path, default=ROOT / "var/gpu", metavar="FOLDER")
    options = parser.parse_args(argv)
    options.device, options.dtype = "cuda", "bfloat16"
    if options.smoke:
        options.device, options.dtype = "cpu", "float32"
        options.sizes, options.rounds = ["smoke"], 1
        # Tiny products are done before a second thread has woken up.
        ENVIRONMENT["OMP_NUM_THREADS"] = "1"
    return options


def main() -> int:
    """Measure, write, print; 1 where a figure cannot be true."""
    options = arguments()
    command = shlex.join(["python", "-m", "tests.benchmarks.gpu", *sys.argv[1:]])
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    report = Report(command=command, date=now)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = options.work or Path(scratch)
        for size in options.sizes:
            Bench(options, report, size, work / size).measure()
            write(report, options.out)
        if "reversal" in options.parts:
            reversal(options, report, Path(scratch))
    write(report, options.out)
    print(f"\n{markdown(report)}\n{options.out / 'report.json'}")
    return 1 if report.problems else 0


def write(report: Report, folder: Path) -> None:
    """Write what was measured so far."""
    (folder / "report.json").write_text(json.dumps(report.to_json(), indent=2))
    (folder / "report.md").write_text(markdown(report))


class Bench:
    """The measurements on one base."""

    def __init__(self, options: argparse.Namespace, report: Report, name: str, base: Path) -> None:
        self._options, self._report = options, report
        self._name, self._base = name, base
        self._size: Size = SIZES[name]
        self._parts = [part for part in options.parts if part in PARTS]

    def measure(self) -> None:
        """Measure all parts by turns and add their rows to the report."""
        options, report = self._options, self._report
        if not self._parts:
            return
        has_trl, has_vllm = self._has("TRL", "trl", options.trl), self._has("vLLM", "vllm", options.vllm)
        # One process for all is enough where nothing depends on it.
        groups = [self._parts] if options.smoke else [[part] for part in self._parts]
        runs: dict[str, dict[str, list[Figures]]] = {
            part: {RONDO: [], FIXED: [], TRL: [], VLLM: []} for part in self._parts
        }
        for group in groups * options.rounds:
            self._measure_ours(group, runs)
            trained = [part for part in group if part != "generation"]
            for part, figures in (self._trl(trained) if has_trl and trained else {}).items():
                runs[part][TRL].append(figures)
            if has_vllm and "generation" in group:
                runs["generation"][VLLM].append(self._vllm())
            self._keep(runs)
        peak, source = peak_operations(report.machine, options.peak)
        report.machine |= {"peak": peak, "peak_from": source}
        for part, figures_of in runs.items():
            self._tell(part, figures_of, peak)

    def _measure_ours(self, group: list[str], runs: dict[str, dict[str, list[Figures]]]) -> None:
        for part, figures in self._ours(group).items():
            if part == "machine":
                self._report.machine |= figures
                continue
            runs[part][RONDO].append(figures)
            if "fixed" in figures:
                note = "CUDA graphs" if figures["recorded"] else "no CUDA graphs"
                runs[part][FIXED].append({**figures["fixed"], "note": note})

    def _keep(self, runs: dict[str, dict[str, list[Figures]]]) -> None:
        """Write all figures of this base so far: a machine that is lent may go before the last one."""
        kept = {"machine": self._report.machine, "runs": runs}
        (self._options.out / f"{self._name}.json").write_text(json.dumps(kept, indent=2))

    def _tell(self, part: str, runs: dict[str, list[Figures]], peak: float) -> None:
        lines = list(lines_of(self._name, part, runs, peak))
        self._report.lines += lines
        self._report.problems += problems_of(self._name, part, runs, lines)
        if any(not figures["recorded"] for figures in runs[RONDO] if "recorded" in figures):
            self._skip("CUDA graphs on: they need an NVIDIA GPU; the fixed shapes ran without recording")

    def _has(self, title: str, package: str, python: str) -> bool:
        is_needed = any((part == "generation") == (title == "vLLM") for part in self._parts)
        code = f"import importlib.util as u, sys; sys.exit(not u.find_spec({package!r}))"
        is_installed = subprocess.run([python, "-c", code], cwd="/", check=False).returncode == 0
        if is_needed and not is_installed:
            option = package
            self._skip(f"{title} is not installed in {python}; name another Python by --{option}")
        return is_needed and is_installed

    def _skip(self, reason: str) -> None:
        if reason not in self._report.skipped:
            self._report.skipped.append(reason)
            print(f"Left out: {reason}", flush=True)

    def _ours(self, parts: list[str]) -> dict[str, Figures]:
        module = [sys.executable, "-m", "tests.benchmarks.gpu.ours", "--size", self._name]
        return self._tried([*module, "--parts", *parts], RONDO, parts)

    def _trl(self, parts: list[str]) -> dict[str, Figures]:
        size = self._size
        script = [self._options.trl, str(HERE / "peer.py"), "--parts", *parts, "--answer", str(size.answer)]
        script += ["--row", str(size.prompt + size.answer), "--samples", str(size.samples)]
        script += ["--steps", str(size.steps), "--warm", str(size.warm)]
        results = self._tried(script, TRL, parts)
        for part, figures in results.items():
            results[part] = {**figures, "note": f"TRL {figures['version']}, {figures['attention']}"}
            if self._options.device == "cuda" and figures["attention"] == "sdpa":
                self._skip(f"TRL on FlashAttention: flash-attn is not installed in {self._options.trl}")
        return results

    def _vllm(self) -> Figures:
        size = self._size
        script = [self._options.vllm, str(HERE / "vllm_peer.py"), "--base", str(self._base)]
        script += ["--dtype", self._options.dtype, "--generated", str(size.generated)]
        figures = run([*script, "--width", str(size.prompt + size.generated)])
        return {**figures, "note": f"vLLM {figures['version']}"}

    def _tried(self, command: list[str], who: str, parts: list[str]) -> dict[str, Figures]:
        options = self._options
        tokens = options.micro_batch_tokens or self._size.micro_batch_tokens
        common = ["--base", str(self._base), "--device", options.device, "--dtype", options.dtype]
        common += ["--rank", str(options.rank), *(["--checkpointing"] if options.checkpointing else [])]
        for _ in range(_TRIES):
            print(f"{self._name}: {', '.join(parts)} by {who}, {tokens} tokens a pass", flush=True)
            begun = time.perf_counter()
            try:
                results = run([*command, *common, "--micro-batch-tokens", str(tokens)])
            except OutOfMemoryError:
                tokens //= 2
                continue
            if tokens < (options.micro_batch_tokens or self._size.micro_batch_tokens):
                self._skip(
                    f"{who}, {self._name}, {', '.join(parts)}: memory sufficed for {tokens} tokens a pass"
                )
            print(f"{time.perf_counter() - begun:.0f} s: {json.dumps(results)}", flush=True)
            return results
        raise SystemExit(f"{who} runs out of memory on {self._name} with {tokens} tokens a pass")


def run(command: list[str]) -> dict[str, Any]:
    """Return the last line of a measurement. Raises `OutOfMemoryError`; ends the program where it failed."""
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        if "out of memory" in done.stderr.lower() or "outofmemory" in done.stderr.lower():
            raise OutOfMemoryError
        raise SystemExit(f"{shlex.join(command)}\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def reversal(options: argparse.Namespace, report: Report, scratch: Path) -> None:
    """Run string reversal, on SmolLM2 or, as a smoke test, a model of characters and a few steps."""
    command = [sys.executable, "-m", "training.rlhf.examples.reverse", "--seeds", "0"]
    out = scratch / "reverse"
    if options.smoke:
        names = scratch / "names.json"
        drawn = [f"{first}{second}a" for first in "bcdfglmn" for second in ("ar", "el", "on", "ib")]
        names.write_text(json.dumps({"train": drawn[:24], "dev": drawn[24:]}))
        command += ["--data", str(names), "--sft-steps", "2", "--rl-steps", "2", "--prompts", "4"]
    elif not (options.model / "config.json").is_file():
        report.skipped.append(
            f"string reversal: {options.model} is no model; name SmolLM2's folder by --model"
        )
        return
    else:
        command += ["--model", str(options.model)] + (["--data", str(options.names)] if options.names else [])
    print("string reversal", flush=True)
    command += ["--device", options.device, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        report.problems.append(f"string reversal failed: {(done.stderr or done.stdout)[-500:]}")
        return
    [seed] = json.loads((out / "results.json").read_text())["seeds"]
    share = float(seed["reinforcement"]["greedy"])
    if not 0 <= share <= 1:
        report.problems.append(f"string reversal: a share of {share}")
    if options.smoke:
        report.skipped.append("string reversal on SmolLM2: the smoke test runs a few steps of a tiny model")
        return
    report.reversal = share


if __name__ == "__main__":
    sys.exit(main())
