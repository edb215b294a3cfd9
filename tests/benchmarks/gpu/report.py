"""Figures as a table, goals, and whether figures can be true. Knows no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.benchmarks.gpu.sizes import SIZES, Need, need_of

Figures = Mapping[str, Any]
PEAK_OPERATIONS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bfloat16 operations a second of a GPU, by its data sheet."""
PARTS = ("reward", "dpo", "grpo", "generation")
UNITS = {"reward": "rankings", "dpo": "pairs", "grpo": "completions", "generation": "streams"}
RONDO, FIXED, TRL, VLLM = "Rondo", "Rondo, fixed shapes", "TRL", "vLLM"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    size: str
    part: str
    who: str
    units: float
    """Rankings, pairs, completions or streams a second."""
    tokens: float
    """Tokens a second that go through the model; of generation those that are written."""
    mfu: float
    peak: float | None
    """Bytes; None where it is not known."""
    estimate: float | None = None
    """Bytes by the formulas of the dry run, without the process itself; None where there are none."""
    ratio: float | None = None
    """The median of the rounds' ratios: Rondo's speed over this one's."""
    note: str = ""


@dataclass(kw_only=True)
class Report:
    """All that was measured, and left out."""

    command: str
    date: str
    machine: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reversal: float | None = None
    """Share of names that are reversed without a mistake, greedily."""

    @property
    def on_gpu(self) -> bool:
        """Return whether the figures are of a GPU, which the goals are for."""
        return bool(self.machine.get("driver", "none") != "none")

    def to_json(self) -> dict[str, Any]:
        """Return everything, goals included."""
        return {**asdict(self), "goals": [asdict(goal) for goal in goals_of(self)]}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A goal of issue 18, and the figure."""

    name: str
    wanted: float
    found: float | None

    @property
    def verdict(self) -> str:
        """Return reached, missed, or not measured."""
        if self.found is None:
            return "not measured"
        return "reached" if self.found >= self.wanted else "missed"


def peak_operations(machine: Figures, teraflops: float | None) -> tuple[float, str]:
    """Return operations a second of the device, and where they are from. teraflops: at peak."""
    if teraflops is not None:
        return teraflops * 1e12, "as given"
    if machine["dtype"] == "bfloat16":
        for name, operations in PEAK_OPERATIONS.items():
            if name in machine["device"]:
                return operations, f"data sheet of {name}, dense bfloat16"
    return float(machine["measured_peak"]), "measured, product of two matrices"


def lines_of(size: str, part: str, runs: Mapping[str, Sequence[Figures]], peak: float) -> Iterator[Line]:
    """Yield the rows of a part: medians over the rounds, each with its ratio to Rondo's first row.

    runs: figures of each round by who made them.
    """
    mine = runs[RONDO]
    for who, figures in runs.items():
        if not figures:
            continue
        need = need_of(SIZES[size], part, shared=who != TRL)
        seconds = statistics.median(float(run["seconds"]) for run in figures)
        peaks = [run["peak"] for run in figures if run.get("peak")]
        pairs = zip(figures, mine, strict=True)
        ratio = statistics.median(float(theirs["seconds"]) / float(ours["seconds"]) for theirs, ours in pairs)
        yield Line(
            size=size,
            part=part,
            who=who,
            units=float(mine[0]["units"]) / seconds,
            tokens=need.tokens / seconds,
            mfu=need.operations / seconds / peak,
            peak=statistics.median(peaks) if peaks else None,
            estimate=figures[0].get("estimate"),
            ratio=None if who == RONDO else ratio,
            note=str(figures[0].get("note", "")),
        )


def problems_of(
    size: str, part: str, runs: Mapping[str, Sequence[Figures]], lines: Sequence[Line]
) -> list[str]:
    """Return why figures cannot be true."""
    odd = []
    need = expected_tokens(size, part)
    for who, figures in runs.items():
        for run in figures:
            seconds, tokens = float(run["seconds"]), run.get("tokens", need)
            if not (math.isfinite(seconds) and seconds > 0):
                odd.append(f"{who}: a step took {seconds} seconds")
            if round(float(tokens)) != need:
                odd.append(f"{who}: {tokens} tokens, the work has {need}")
            if not math.isfinite(float(run.get("loss", 0.0))):
                odd.append(f"{who}: the loss is {run['loss']}")
            # Neither has learned anything yet: both answers are equally likely preferred.
            if part == "dpo" and abs(float(run["loss"]) - math.log(2)) > 0.1:
                odd.append(f"{who}: the loss is {run['loss']}, not about log 2")
    odd += [f"{line.who}: MFU of {line.mfu:.3g}" for line in lines if not 0 < line.mfu <= 1]
    weights = SIZES[size].shape.parameters * 2
    odd += [
        f"{line.who}: a peak of {line.peak:.3g} bytes is less than the weights"
        for line in lines
        if line.peak is not None and line.peak < weights
    ]
    return [f"{size}, {part}, {problem}" for problem in odd]


def expected_tokens(size: str, part: str) -> int:
    """Return the tokens that Rondo tells of a step: computed by training, drawn by GRPO and generation."""
    work = SIZES[size]
    if part == "grpo":
        return work.prompts * work.samples * work.answer
    need: Need = need_of(work, part, shared=True)
    return need.tokens


def goals_of(report: Report) -> list[Goal]:
    """Return the goals of issue 18, §5, with the figures of the largest base that was measured."""

    def ratio(part: str, who: str) -> float | None:
        ratios = [line.ratio for line in report.lines if (line.part, line.who) == (part, who)]
        return ratios[-1] if ratios else None

    def best(part: str, size: str) -> float | None:
        shares = [
            line.mfu
            for line in report.lines
            if line.part == part and line.size == size and line.who in (RONDO, FIXED)
        ]
        return max(shares, default=None)

    generation = None
    for vllm in (line for line in report.lines if line.who == VLLM):
        # The faster of Rondo's two ways.
        rates = [line.units for line in report.lines if (line.size, line.part) == (vllm.size, vllm.part)]
        generation = max(rates[:-1]) / vllm.units
    return [
        Goal(name="ranking reward models, times TRL", wanted=3, found=ratio("reward", TRL)),
        Goal(name="DPO, samples a second, times TRL", wanted=1.5, found=ratio("dpo", TRL)),
        Goal(name="DPO at 7 B with LoRA, MFU", wanted=0.4, found=best("dpo", "7b")),
        Goal(name="generation of 64 streams, times vLLM", wanted=0.5, found=generation),
        Goal(name="string reversal on SmolLM2, exact match", wanted=0.926, found=report.reversal),
    ]


def markdown(report: Report) -> str:
    """Return the report as a Markdown text."""
    machine = report.machine
    lines = [
        f"Device: {machine.get('device', 'none')}; driver {machine.get('driver', '')}, "
        f"CUDA {machine.get('cuda', '')}; torch {machine.get('torch', '')}, {machine.get('dtype', '')}; "
        f"{report.date}.",
        "",
        f"Command: `{report.command}`. MFU of {machine.get('peak', 0) / 1e12:.4g} TFLOP/s "
        f"({machine.get('peak_from', '')}).",
        "",
        "| base | part | by | a second | tokens/s | MFU | peak, GB | estimate, GB | Rondo is faster | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in report.lines:
        peak, estimate = ("" if size is None else f"{size / 1e9:.2f}" for size in (line.peak, line.estimate))
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}×"
        lines.append(
            f"| {line.size} | {line.part} | {line.who} | {line.units:.3g} {UNITS[line.part]} "
            f"| {line.tokens:,.0f} | {line.mfu:.1%} | {peak} | {estimate} | {ratio} | {line.note} |"
        )
    lines += ["", "| goal | wanted | found | |", "|---|---|---|---|"]
    for goal in goals_of(report):
        value = "" if goal.found is None else f"{goal.found:.3g}"
        verdict = goal.verdict if report.on_gpu or goal.found is None else "no verdict: not a GPU"
        lines.append(f"| {goal.name} | {goal.wanted:g} | {value} | {verdict} |")
    lines += ["", *(f"- Left out: {reason}" for reason in report.skipped)]
    lines += [f"- **Cannot be true**: {problem}" for problem in report.problems]
    return "\n".join(lines).rstrip() + "\n"
