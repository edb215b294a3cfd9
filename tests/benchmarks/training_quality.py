"""Reward models on the published qa-feedback: whole rankings against all their pairs, at equal time.

python -m tests.benchmarks.training_quality var/models/SmolLM2-135M-Instruct \\
    $RONDO_TEST_DATA/qa_feedback/feedback.json --seconds 600 --seeds 0 1 2 3 4

Every arm learns from the first `--train` questions and is tested on the last `--test`, never chosen by them:
the last state counts. An answer's rank is 1 plus the number of answers that were said to be better. All arms
take the same number of steps of the same rankings, one packed row each, as many as the first arm makes in
`--seconds`; the seconds of each are printed. Log-loss and accuracy are of the decided pairs of the test
rankings, a ranking counting as one; intervals are 95 % by bootstrap over questions, of the mean over seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from training.contract import read_metrics
from training.contract.methods import settings_from_json
from training.contract.run import EXIT_FINISHED, RunSpec, write_spec
from training.contract.snapshot import SnapshotRow, read_snapshot_header, write_snapshot
from training.rlhf.data import build_examples
from training.rlhf.losses import plackett_luce
from training.rlhf.methods.reward import read_rewards
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.run_folder import resolve_dtype
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack
from training.rlhf.train import train_run

ARMS: dict[str, dict[str, Any]] = {
    "bradley-terry": {"loss": "bradley_terry"},
    "davidson": {"loss": "davidson"},
    "plackett-luce": {"loss": "plackett_luce", "ties": "exact"},
    "plackett-luce-efron": {"loss": "plackett_luce", "ties": "efron"},
    "plackett-luce-breslow": {"loss": "plackett_luce", "ties": "breslow"},
    "davidson-luce": {"loss": "plackett_luce", "ties": "davidson"},
}
TIMED = 3
"""Steps that are taken to find out how long one is."""
RESAMPLES = 2000


class Tested(NamedTuple):
    """One trained model on the test rankings, (questions,) each."""

    log_loss: np.ndarray[Any, np.dtype[np.float64]]
    accuracy: np.ndarray[Any, np.dtype[np.float64]]
    ranking: np.ndarray[Any, np.dtype[np.float64]]
    """−log p of the whole ranking under exact Plackett-Luce."""
    seconds: float


def rows(file: Path) -> list[SnapshotRow]:
    """All questions as rankings of four answers. All are of the training split: which of them a run gets to
    see is decided here, and a run without held-out judgments spends its seconds on training alone."""
    return [_row(f"qa{index}", item) for index, item in enumerate(json.loads(file.read_text()))]


def _row(name: str, item: dict[str, Any]) -> SnapshotRow:
    ranks = [1, 1, 1, 1]
    for (first, second), preference in zip(
        itertools.combinations(range(4), 2), item["preference"], strict=True
    ):
        if preference:
            ranks[second if preference == 1 else first] += 1
    ids = [f"{name}.{number}" for number in range(1, 5)]
    texts = [item[f"prediction {number}"] for number in range(1, 5)]
    return SnapshotRow.from_json(
        {
            "judgment": name,
            "comparison": name,
            "annotator": "qa-feedback",
            "round": 1,
            "prompt": name,
            "split": "train",
            "messages": [{"role": "user", "content": item["question"]}],
            "context": [{"title": title, "sentences": rest} for title, *rest in item["passages"]],
            "completions": [
                {"id": id_, "text": text, "source": "qa-feedback"}
                for id_, text in zip(ids, texts, strict=True)
            ],
            "verdict": "equal" if len(set(ranks)) == 1 else "ranked",
            "ranks": dict(zip(ids, ranks, strict=True)),
        }
    )


def make_run(folder: Path, options: argparse.Namespace, arm: str, *, seed: int, steps: int) -> Path:
    """A run folder with its snapshot."""
    snapshot = folder / "snapshot"
    write_snapshot(snapshot, rows(options.data)[: options.train], project="qa-feedback", rounds=(1,))
    settings = settings_from_json(
        "reward",
        {
            **ARMS[arm],
            "centring": options.centring,
            "context": options.context,
            "max_tokens": 1536 if options.context else 512,
            "lora": {"rank": options.rank, "layers": options.layers},
            "optimiser": {
                "learning_rate": options.learning_rate,
                "epochs": 1000,
                "max_steps": steps,
                "batch_size": options.batch,
                "micro_batch_tokens": options.micro_batch_tokens,
                "evaluate_every": 0,
                "save_every": 10_000,
                "keep_best": False,
            },
        },
    )
    write_spec(
        folder,
        RunSpec(
            method="reward",
            base_model=str(options.model.resolve()),
            snapshot="snapshot",
            snapshot_digest=read_snapshot_header(snapshot).digest,
            settings=settings,
            seed=seed,
            name=arm,
            device=options.device,
            dtype=options.dtype,
        ),
    )
    return folder


def trained(folder: Path) -> float:
    """Train a run to its end; the seconds that its steps took."""
    if train_run(folder, stop=StopRequest(folder), lock_wait_seconds=0) != EXIT_FINISHED:
        raise SystemExit(f"{folder}: the run failed; see its log.txt")
    return math.fsum(line["seconds"] for line in read_metrics(folder))


def steps_in(seconds: float, options: argparse.Namespace, work: Path) -> int:
    """Return the number of steps that fit into the time."""
    folder = make_run(work / "timed", options, options.arms[0], seed=0, steps=TIMED)
    per_step = trained(folder) / TIMED
    print(f"one step takes {per_step:.1f} s")
    return max(2, round(seconds / per_step))


@torch.no_grad()
def tested(backbone: Backbone, folder: Path, examples: Sequence[Example], seconds: float) -> Tested:
    """The checkpoint of a run on the test rankings."""
    backbone.load_adapter("tested", folder / "checkpoint")
    log_loss, accuracy, ranking = [], [], []
    for example in examples:
        batch = pack([example], device=backbone.device)
        scores = read_rewards(backbone, "tested", batch).double()
        margins = scores[batch.winners] - scores[batch.losers]
        log_loss.append(torch.nn.functional.softplus(-margins).mean().item())
        accuracy.append(((margins.sign() + 1) / 2).mean().item())
        ranking.append(plackett_luce(scores[None], batch.ranks).item())
    backbone.drop_adapter("tested")
    return Tested(np.array(log_loss), np.array(accuracy), np.array(ranking), seconds)


def interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """The mean over questions with its 95 % interval."""
    random = np.random.default_rng(20131)
    means = values[random.integers(len(values), size=(RESAMPLES, len(values)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"


def report(by_arm: dict[str, list[Tested]]) -> None:
    """One line per arm, then each arm against the first by the same questions."""
    print("| arm | log-loss of pairs | accuracy | −log p of the ranking | log-loss by seed | seconds |")
    print("|---|---|---|---|---|---|")
    for arm, runs in by_arm.items():
        over_seeds = [np.mean([getattr(run, name) for run in runs], axis=0) for name in Tested._fields[:3]]
        by_seed = ", ".join(f"{run.log_loss.mean():.3f}" for run in runs)
        seconds = ", ".join(f"{run.seconds:.0f}" for run in runs)
        print(f"| {arm} | {' | '.join(map(interval, over_seeds))} | {by_seed} | {seconds} |")
    base, *others = by_arm
    for arm in others:
        gained = np.mean([run.log_loss for run in by_arm[base]], axis=0) - np.mean(
            [run.log_loss for run in by_arm[arm]], axis=0
        )
        print(f"log-loss, {base} less {arm}, question by question: {interval(gained)}")


def main() -> None:
    """Train every arm with every seed and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["bradley-terry", "plackett-luce"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--seconds", type=float, default=120, help="of training for one arm and seed")
    parser.add_argument("--steps", type=int, help="instead of --seconds")
    parser.add_argument("--train", type=int, default=300, help="questions to train on")
    parser.add_argument("--test", type=int, default=50, help="questions to test on")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--layers", type=int, help="adapt only the last blocks")
    parser.add_argument("--centring", type=float, default=0.01)
    parser.add_argument("--context", action="store_true", help="the passages in the prompt")
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{torch.get_num_threads()} threads; load average before: {load}", flush=True)
    with tempfile.TemporaryDirectory(prefix="rondo-quality-") as work:
        compare(options, Path(work))


def compare(options: argparse.Namespace, work: Path) -> None:
    """All arms, all seeds."""
    begun = time.monotonic()
    steps = options.steps or steps_in(options.seconds, options, work)
    print(f"{steps} steps of {options.batch} rankings for each arm and seed", flush=True)
    folders = []
    for seed, arm in itertools.product(options.seeds, options.arms):
        folder = make_run(work / f"{arm}-{seed}", options, arm, seed=seed, steps=steps)
        folders.append((arm, folder, trained(folder)))
    device = torch.device(options.device if options.device != "auto" else "cpu")
    if options.device == "auto" and torch.cuda.is_available():
        device = torch.device("cuda")
    backbone = Backbone.load(options.model, device=device, dtype=resolve_dtype(options.dtype, device))
    examples = build_examples(
        rows(options.data)[-options.test :],
        backbone.tokenizer,
        max_tokens=1536 if options.context else 512,
        context=options.context,
    ).train
    by_arm: dict[str, list[Tested]] = {arm: [] for arm in options.arms}
    for arm, folder, seconds in folders:
        by_arm[arm].append(tested(backbone, folder, examples, seconds))
        print(f"{arm}: log-loss {by_arm[arm][-1].log_loss.mean():.4f}", flush=True)
    print(f"{len(examples)} test rankings; {time.monotonic() - begun:.0f} s in all\n")
    report(by_arm)


if __name__ == "__main__":
    main()
