"""Learning rates by method and adapter: held-out log-loss after the same number of steps, cross-validated.

python -m tests.benchmarks.learning_rates var/models/SmolLM2-135M-Instruct $RONDO_TEST_DATA \\
    --method reward --data qa_feedback --rates 1e-4 3e-4 1e-3 3e-3 --folds 3 --seeds 0 1 --out var/rates.jsonl

Prompts are dealt to folds by hash, so no prompt is on both sides; the last state of a run counts, never the
best. Every finished run appends one line to `--out`; a sweep that was interrupted goes on where it stopped.
The table gives the mean over folds and seeds, with the standard error over runs.

Method policy_gradient samples answers to the prompts of the training folds and is rewarded for short ones;
its measure is the mean reward of the last three steps, beside that of the first.

`--blocks 8` sweeps over the first eight blocks of the base, at a quarter of the cost: the best rate depends
on the width of the model far more than on its depth (Yang et al. 2022).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import math
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.benchmarks.training_quality import rows as qa_feedback_rows
from training.contract import read_metrics
from training.contract.methods import settings_from_json
from training.contract.run import EXIT_FINISHED, RunSpec, read_evaluation, write_spec
from training.contract.snapshot import SnapshotRow, read_snapshot_header, write_snapshot
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.train import train_run

MEASURES = {
    "reward": ("held_out_log_loss", "held_out_accuracy", "held_out_loss"),
    "preference": ("held_out_accuracy", "held_out_loss"),
    "kto": ("held_out_loss",),
    "sft": ("held_out_loss",),
    "policy_gradient": ("first_reward", "last_reward", "last_kl"),
}
SOURCES = {"kto": "ranks", "sft": "preferred"}
"""Judgments that stand in for thumbs and demonstrations, which the shared data do not hold."""
LAST_STEPS = 3
SHORT_WORDS = 6
_TURN = re.compile(r"\n\n(Human|Assistant): ")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def hh_rlhf_rows(file: Path) -> list[SnapshotRow]:
    """The dialogues of HH-RLHF as pairs: the last turn is judged, the turns before it are the prompt."""
    rows = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            pair = json.loads(line)
            chosen, rejected = (_turns(pair[side]) for side in ("chosen", "rejected"))
            if chosen[:-1] != rejected[:-1] or chosen[-1] == rejected[-1]:
                continue
            rows.append(_pair(f"hh{index}", chosen[:-1], chosen[-1]["content"], rejected[-1]["content"]))
    return rows


def _turns(transcript: str) -> list[dict[str, str]]:
    _, *parts = _TURN.split(transcript)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [{"role": _ROLES[role], "content": text.strip()} for role, text in pairs]


def _pair(name: str, messages: list[dict[str, str]], chosen: str, rejected: str) -> SnapshotRow:
    ids = (f"{name}.1", f"{name}.2")
    return SnapshotRow.from_json(
        {
            "judgment": name,
            "comparison": name,
            "annotator": "hh-rlhf",
            "round": 1,
            "prompt": name,
            "split": "train",
            "messages": messages,
            "context": [],
            "completions": [
                {"id": id_, "text": text, "source": "hh-rlhf"}
                for id_, text in zip(ids, (chosen, rejected), strict=True)
            ],
            "verdict": "ranked",
            "ranks": {ids[0]: 1, ids[1]: 2},
        }
    )


READERS = {
    "qa_feedback": lambda data: qa_feedback_rows(data / "qa_feedback" / "feedback.json"),
    "hh_rlhf": lambda data: hh_rlhf_rows(data / "hh_rlhf" / "harmless.jsonl.gz"),
}


def order_of(row: SnapshotRow) -> str:
    """A place for a prompt that depends on nothing but its name."""
    return hashlib.sha256(str(row.prompt).encode()).hexdigest()


def make_run(folder: Path, options: argparse.Namespace, rate: float, fold: int, seed: int) -> Path:
    """Write a run folder whose held-out prompts are those of one fold."""
    rows = [row for row in READERS[options.data](options.folder) if _characters(row) <= options.longest]
    chosen = sorted(rows, key=order_of)[: options.prompts]
    split = [
        replace(row, split="held-out" if place % options.folds == fold else "train")
        for place, row in enumerate(chosen)
    ]
    snapshot = folder / "snapshot"
    write_snapshot(snapshot, split, project=options.data, rounds=(1,))
    spec = RunSpec(
        method=options.method,
        base_model=str(_base(options)),
        snapshot="snapshot",
        snapshot_digest=read_snapshot_header(snapshot).digest,
        settings=settings_from_json(options.method, _settings(options, rate)),
        seed=seed,
        name="rates",
        device=options.device,
        dtype=options.dtype,
    )
    write_spec(folder, spec)
    return folder


def _characters(row: SnapshotRow) -> int:
    longest_completion = max(len(completion.text) for completion in row.completions)
    return sum(len(message.content) for message in row.messages) + longest_completion


def _base(options: argparse.Namespace) -> Path:
    """Return the base model, cut to its first blocks where the sweep asks for it."""
    if options.blocks is None:
        return Path(options.model).resolve()
    short: Path = options.out.resolve().parent / f"{options.model.name}-{options.blocks}-blocks"
    if not (short / "config.json").is_file():
        model = AutoModelForCausalLM.from_pretrained(options.model, num_hidden_layers=options.blocks)
        model.save_pretrained(short)
        AutoTokenizer.from_pretrained(options.model).save_pretrained(short)
    return short


def _settings(options: argparse.Namespace, rate: float) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "adapter": options.adapter,
        "lora": {"rank": 16, "layers": options.layers},
        "max_tokens": 768,
        "optimiser": {
            "learning_rate": rate,
            "warmup_steps": 2,
            "epochs": 1000,
            "max_steps": options.steps,
            "batch_size": options.batch,
            "evaluate_every": 0,
            "save_every": 10_000,
            "keep_best": False,
        },
    }
    if options.method in SOURCES:
        settings["sources"] = [SOURCES[options.method]]
    if options.method == "policy_gradient":
        short = {"unit": "words", "most": SHORT_WORDS, "slack": 2 * SHORT_WORDS}
        settings |= {
            "rewards": [{"name": "short", "kind": "length", "options": short}],
            "rollout": {"samples": 4, "max_tokens": 4 * SHORT_WORDS, "unfinished": "score"},
            "advantage": {"kind": "group_relative"},
            "evaluation_prompts": 0,
        }
    return settings


def measured(options: argparse.Namespace, rate: float, fold: int, seed: int) -> dict[str, Any]:
    """Train and evaluate one run; its held-out figures."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rondo-rates-") as work:
        folder = make_run(Path(work), options, rate, fold, seed)
        if train_run(folder, stop=StopRequest(folder), lock_wait_seconds=0) != EXIT_FINISHED:
            raise SystemExit((folder / "log.txt").read_text()[-2000:])
        figures = _sampled(folder) if options.method == "policy_gradient" else _held_out(folder)
    measures = {name: figures.get(name) for name in MEASURES[options.method]}
    return measures | {"seconds": round(time.monotonic() - begun)}


def _held_out(folder: Path) -> dict[str, Any]:
    report = read_evaluation(folder)
    if report is None:
        raise SystemExit("The run was not evaluated: no prompt is held out.")
    return dict(report.figures)


def _sampled(folder: Path) -> dict[str, Any]:
    steps = read_metrics(folder)
    return {
        "first_reward": steps[0]["reward/short"],
        "last_reward": statistics.fmean(step["reward/short"] for step in steps[-LAST_STEPS:]),
        "last_kl": steps[-1].get("kl"),
    }


def runs_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what differs between runs of the sweep. Rates vary fastest: a sweep cut short compares them."""
    for seed, fold, rate in itertools.product(options.seeds, range(options.folds), options.rates):
        yield {
            "method": options.method,
            "adapter": options.adapter,
            "layers": options.layers,
            "data": options.data,
            "blocks": options.blocks,
            "longest": options.longest,
            "prompts": options.prompts,
            "folds": options.folds,
            "steps": options.steps,
            "batch": options.batch,
            "seed": seed,
            "fold": fold,
            "rate": rate,
        }


def table_of(lines: list[dict[str, Any]], measures: tuple[str, ...]) -> str:
    """The sweep as a table in Markdown, one row per learning rate."""
    by_rate: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_rate[line["rate"]].append(line)
    shown = ["| learning rate | runs | " + " | ".join(measures) + " |", "|---" * (2 + len(measures)) + "|"]
    for rate, runs in sorted(by_rate.items()):
        cells = [_mean([run[name] for run in runs if run[name] is not None]) for name in measures]
        shown.append(f"| {rate:g} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(shown)


def _mean(values: list[float]) -> str:
    if not values:
        return "–"
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.4f} ± {error:.4f}"


def main() -> None:
    """Run what is left of the sweep and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="the folder of the shared data")
    parser.add_argument("--method", default="reward", choices=MEASURES)
    parser.add_argument("--data", default="qa_feedback", choices=READERS)
    parser.add_argument("--adapter", default="lora", choices=["lora", "none"])
    parser.add_argument("--layers", type=int, help="adapt only the last blocks")
    parser.add_argument("--blocks", type=int, help="sweep over the first blocks of the base alone")
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4, 3e-4, 1e-3, 3e-3])
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--prompts", type=int, default=180, help="of the data, by hash")
    parser.add_argument(
        "--longest",
        type=int,
        default=100_000,
        help="characters of prompt and completion; longer rows stay out",
    )
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = (
        [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.is_file() else []
    )
    lines = []
    for run in runs_of(options):
        finished = [line for line in done if run.items() <= line.items()]
        if not finished:
            finished = [run | measured(options, run["rate"], run["fold"], run["seed"])]
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(finished[0]) + "\n")
            print(finished[0], flush=True)
        lines += finished
    print(f"\n{table_of(lines, MEASURES[options.method])}")


if __name__ == "__main__":
    main()
