"""Runs for the trainer's tests: a snapshot of plain judgments, a spec, and the trainer as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import torch

from annotation.record.judgment import Verdict
from training.contract import read_metrics
from training.contract.methods import Method, settings_from_json
from training.contract.run import RunSpec, RunStatus, read_status, write_spec
from training.contract.snapshot import (
    SnapshotPrompt,
    SnapshotRow,
    Split,
    read_snapshot_header,
    write_snapshot,
)
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.train import train_run

ROOT = Path(__file__).resolve().parents[2]
TRAINER = (sys.executable, "-m", "training.rlhf")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}


def row(
    name: str,
    texts: Sequence[str],
    ranks: Sequence[int],
    *,
    split: Split = "train",
    prompt: str = "What is the colour of the sky?",
    verdict: Verdict = "ranked",
    **more: Any,
) -> SnapshotRow:
    """One judgment. Completion i has the id `name.i`; rank 0 leaves it out of the ranking."""
    ids = [f"{name}.{index}" for index in range(len(texts))]
    return SnapshotRow.from_json(
        {
            "judgment": name,
            "comparison": f"comparison-{name}",
            "annotator": "annotator-1",
            "round": 1,
            "prompt": f"prompt-{name}",
            "split": split,
            "messages": [{"role": "user", "content": prompt}],
            "completions": [
                {"id": id_, "text": text, "source": "starter"} for id_, text in zip(ids, texts, strict=True)
            ],
            "verdict": verdict,
            "ranks": {id_: rank for id_, rank in zip(ids, ranks, strict=True) if rank},
            **more,
        }
    )


def judgments() -> list[SnapshotRow]:
    """Fourteen judgments, two held out: pairs and 4-way rankings with ties, answers of many lengths."""
    rows = []
    for index in range(14):
        good = "the sun rises in the east " * (1 + index % 3)
        bad = "no no " * (1 + index % 4)
        prompt = f"question {index}: " + "why? " * (index % 5)
        split: Split = "held-out" if index in (4, 9) else "train"
        if index % 3 == 0:
            texts = [good, bad, f"{good} and sets in the west", f"{bad} {index}"]
            rows.append(row(f"j{index}", texts, [2, 3, 1, 3], split=split, prompt=prompt))
        else:
            rows.append(row(f"j{index}", [bad, good], [2, 1], split=split, prompt=prompt, strength=2))
    return rows


def contradicted() -> list[SnapshotRow]:
    """The same judgments, with the held-out ones turned round: what is learned is wrong there."""
    rows = []
    for judgment in judgments():
        worst = max(judgment.ranks.values())
        turned = {name: worst + 1 - rank for name, rank in judgment.ranks.items()}
        rows.append(replace(judgment, ranks=turned) if judgment.split == "held-out" else judgment)
    return rows


def qa_feedback_rows(data: Path, count: int) -> list[SnapshotRow]:
    """The first `count` of qa-feedback with a preference, as 4-way rankings, one in ten held out."""
    rows: list[SnapshotRow] = []
    for name, item, ranks in islice(qa_feedback_rankings(data), count):
        texts = [item[f"prediction {number}"] for number in range(1, 5)]
        split: Split = "held-out" if len(rows) % 10 == 9 else "train"
        rows.append(row(name, texts, ranks, split=split, prompt=item["question"]))
    return rows


def qa_feedback_rankings(data: Path) -> Iterator[tuple[str, dict[str, Any], list[int]]]:
    """Name, question and ranks of the four answers, of every question with a preference.

    The set states six pair preferences in the order (1,2) (1,3) (1,4) (2,3) (2,4) (3,4): 1 the first
    is better, 2 the second, 0 equal. An answer's rank is 1 plus the number of answers that beat it.
    """
    for index, item in enumerate(json.loads((data / "qa_feedback" / "feedback.json").read_text())):
        ranks = [1, 1, 1, 1]
        for (first, second), preference in zip(combinations(range(4), 2), item["preference"], strict=True):
            if preference:
                ranks[second if preference == 1 else first] += 1
        if len(set(ranks)) > 1:
            yield f"qa{index}", item, ranks


def make_run(
    folder: Path,
    base: Path,
    rows: Sequence[SnapshotRow] | None = None,
    *,
    method: Method = "reward",
    settings: dict[str, Any] | None = None,
    optimiser: dict[str, Any] | None = None,
    lora: dict[str, Any] | None = None,
    prompts: Sequence[SnapshotPrompt] = (),
    **spec: Any,
) -> Path:
    """A run folder beside the snapshot it names, ready to be started; small and quick by default."""
    snapshot = folder.parent / f"{folder.name}-snapshot"
    rows = judgments() if rows is None else rows
    write_snapshot(snapshot, rows, project="test", rounds=(1,), prompts=prompts)
    resolved = settings_from_json(
        method,
        {
            "lora": {"rank": 4, **(lora or {})},
            "optimiser": {
                "batch_size": 4,
                "micro_batch_tokens": 256,
                "epochs": 4,
                "warmup_steps": 2,
                "learning_rate": 1e-3,
                "save_every": 2,
                "evaluate_every": 5,
                **(optimiser or {}),
            },
            "max_tokens": 128,
            **(settings or {}),
        },
    )
    write_spec(
        folder,
        RunSpec(
            **{
                "method": method,
                "base_model": str(base),
                "snapshot": os.path.relpath(snapshot, folder),
                "snapshot_digest": read_snapshot_header(snapshot).digest,
                "settings": resolved,
                "name": "tested",
                "commit": "0" * 40,
                "device": "cpu",
                **spec,
            }
        ),
    )
    return folder


def start(folder: Path, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    """Start the trainer on a folder as a process of its own."""
    return subprocess.Popen(
        [*TRAINER, str(folder), *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **more,
    )


def finish(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the trainer to its end: exit status and what it said."""
    process = start(folder, *arguments)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output.decode()


def train(folder: Path, stop: StopRequest | None = None) -> int:
    """Train in this process, which saves the seconds of starting one; the exit status."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    # As many as the trainer's own process gets in these tests: sums depend on it in the last bit.
    torch.set_num_threads(1)
    try:
        return train_run(folder, stop=stop or StopRequest(folder), lock_wait_seconds=0)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


class StopAfter(StopRequest):
    """Somebody who asks to stop once so many steps are written down."""

    def __init__(self, folder: Path, steps: int) -> None:
        super().__init__(folder)
        self._folder, self._steps = folder, steps

    @property
    def reason(self) -> str:
        return f"stopped after {self._steps}" if len(read_metrics(self._folder)) >= self._steps else ""


def status_of(folder: Path) -> RunStatus:
    """Return the status that the trainer has written."""
    status = read_status(folder)
    assert status is not None
    return status


def files_of(folder: Path) -> dict[str, bytes]:
    """Name to content of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
