"""The benchmark of one GPU: operations worked by hand, its command line, and the smoke test of all of it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.benchmarks.gpu import exactness
from tests.benchmarks.gpu.__main__ import ROOT, arguments
from tests.benchmarks.gpu.report import (
    FIXED,
    RONDO,
    TRL,
    VLLM,
    Report,
    goals_of,
    lines_of,
    markdown,
    peak_operations,
    problems_of,
)
from tests.benchmarks.gpu.sizes import SIZES, need_of


def test_operations_are_those_worked_by_hand():
    # A block of the smoke test's base: 2 · 64 · 64 + 2 · 64 · 32 of attention, 3 · 64 · 128 of the network:
    # 36,864 weights, two blocks 73,728. Two products over what a token sees: 2 · 2 · 64 · 2 blocks = 512.
    weights, attention, head = 73_728, 512, 512 * 64
    # A prompt of 24 tokens with four answers of 8: a prompt's token sees 1 to 24, an answer's 25 to 32.
    seen, tokens = 300, 24 + 4 * 8
    seen += 4 * (8 * 24 + 36)
    reward = need_of(SIZES["smoke"], "reward", shared=True)
    assert reward.tokens == 8 * tokens == 448
    assert reward.operations == 8 * (4 * weights * tokens + 3 * attention * seen)
    # TRL computes six pairs of two rows of 32 tokens, which see 1 to 32.
    pairs = need_of(SIZES["smoke"], "reward", shared=False)
    assert pairs.tokens == 8 * 6 * 2 * 32
    assert pairs.operations == 8 * 6 * (4 * weights * 64 + 3 * attention * 2 * 528)
    # DPO: two answers, and the head at their 16 tokens.
    dpo = need_of(SIZES["smoke"], "dpo", shared=True)
    seen = 300 + 2 * 228
    assert dpo.operations == 8 * (4 * weights * 40 + 4 * head * 16 + 3 * attention * seen)
    # Eight streams of 24 + 8 tokens, forward alone, the head at 8 of each.
    drawn = need_of(SIZES["smoke"], "generation", shared=True)
    assert drawn.tokens == 64
    assert drawn.operations == 8 * (2 * weights * 32 + 2 * head * 8 + attention * 528)
    # GRPO: two prompts of four samples are drawn, then learned from.
    grpo = need_of(SIZES["smoke"], "grpo", shared=True)
    forward = 2 * weights * tokens + 2 * head * 32 + attention * (300 + 4 * 228)
    assert grpo.operations == 2 * (3 * forward + attention * (300 + 4 * 228))


def test_bases_have_the_parameters_of_their_names():
    # TinyLlama 1.1 B and Llama 2 7 B, as published.
    assert SIZES["1.1b"].shape.parameters == 1_100_048_384
    assert SIZES["7b"].shape.parameters == 6_738_415_616


def test_the_smoke_test_takes_the_processor_and_one_round():
    smoke = arguments(["--smoke"])
    assert (smoke.device, smoke.sizes, smoke.rounds) == ("cpu", ["smoke"], 1)
    whole = arguments(["--sizes", "7b", "--parts", "dpo", "--rank", "8"])
    assert (whole.device, whole.dtype, whole.sizes, whole.parts) == ("cuda", "bfloat16", ["7b"], ["dpo"])
    with pytest.raises(SystemExit):
        arguments(["--sizes", "13b"])


def test_goals_are_told_beside_the_figures_and_figures_that_cannot_be_are_found():
    h100 = {"device": "NVIDIA H100 80GB HBM3", "driver": "570", "dtype": "bfloat16", "measured_peak": 7e14}
    peak, source = peak_operations(h100, None)
    assert (peak, "H100" in source) == (989e12, True)
    assert peak_operations({**h100, "device": "another"}, None)[0] == 7e14
    assert peak_operations(h100, 500)[0] == 500e12
    dpo = need_of(SIZES["7b"], "dpo", shared=True)
    figures = {"units": 64, "tokens": dpo.tokens, "loss": 0.693, "peak": 40e9}
    # Just the seconds that an MFU of a half means; TRL takes twice as long.
    seconds = dpo.operations / peak / 0.5
    runs = {RONDO: [{**figures, "seconds": seconds}], TRL: [{"seconds": 2 * seconds, "loss": 0.693}]}
    lines = list(lines_of("7b", "dpo", runs, peak))
    assert lines[0].mfu == pytest.approx(0.5)
    assert lines[0].ratio is None
    assert lines[1].ratio == pytest.approx(2.0)
    assert problems_of("7b", "dpo", runs, lines) == []
    drawn = {"units": 64, "tokens": 64 * 256, "peak": 40e9}
    generated = {
        RONDO: [{**drawn, "seconds": 8.0}],
        FIXED: [{**drawn, "seconds": 4.0}],
        VLLM: [{"tokens": 64 * 256, "seconds": 1.0}],
    }
    more = list(lines_of("7b", "generation", generated, peak))
    report = Report(command="it", date="today", machine={**h100, "peak": peak}, lines=[*lines, *more])
    verdicts = {goal.name: goal.verdict for goal in goals_of(report)}
    assert verdicts["DPO, samples a second, times TRL"] == "reached"
    assert verdicts["DPO at 7 B with LoRA, MFU"] == "reached"
    assert verdicts["ranking reward models, times TRL"] == "not measured"
    # A quarter of vLLM's speed by the faster of two ways.
    assert verdicts["generation of 64 streams, times vLLM"] == "missed"
    assert "| generation of 64 streams, times vLLM | 0.5 | 0.25 | missed |" in markdown(report)
    on_cpu = replace(report, machine={**report.machine, "driver": "none"})
    assert "no verdict: not a GPU" in markdown(on_cpu)
    # More than the device can, another number of tokens, and a loss that has learned before it began.
    wrong = {RONDO: [{**figures, "seconds": seconds / 4, "tokens": 1, "loss": 0.2}]}
    problems = problems_of("7b", "dpo", wrong, list(lines_of("7b", "dpo", wrong, peak)))
    assert [problem.split(", ", 2)[2].split(":")[0] for problem in problems] == [RONDO] * 3


@pytest.mark.long
@pytest.mark.slow
def test_all_of_it_runs_on_a_processor_with_figures_that_can_be_true(tmp_path: Path):
    # String reversal has tests of its own.
    parts = ["--parts", "reward", "dpo", "grpo", "generation"]
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--smoke", *parts, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert {line["part"] for line in report["lines"]} == {"reward", "dpo", "grpo", "generation"}
    assert report["problems"] == []
    assert "Device:" in (tmp_path / "report.md").read_text()


def test_exactness_compares_rows_on_the_device_with_those_on_a_processor(capsys, monkeypatch):
    # `python -m tests.benchmarks.gpu.exactness`, in its smallest form.
    kinds = ["short row, 8 heads a key", "window and cap, short"]
    monkeypatch.setattr(sys, "argv", ["exactness", "--device", "cpu", "--only", *kinds])
    assert exactness.main() == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{kind}, {dtype}" for kind in kinds for dtype in ("float32", "bfloat16")
    ]
    # Attention that is not the same is found.
    monkeypatch.setattr(exactness, "flex_attend", lambda *_: torch.ones(1, 49, 32, 64))
    assert exactness.main() == 1
