"""Fine-grained reward models on the published qa-feedback: do their heads know more than the class prior?

python -m tests.benchmarks.fine_grained var/models/SmolLM2-135M-Instruct \\
    $RONDO_TEST_DATA/qa_feedback/feedback.json

Heads for every category of which there are more than 100 flags, and for the groups of Wu et al. 2023:
sub-sentences for irrelevant, redundant and incoherent, sentences for unverifiable and wrong grounding, the
whole response for completeness. The first 300 questions train, the last 50 test. `--context` puts passages
into the prompt. With `--folder` a run that `--seconds` stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from training.contract import read_metrics
from training.contract.methods import settings_from_json
from training.contract.methods.reward import RewardSettings, SegmentHead
from training.contract.run import EXIT_FINISHED, RunSpec, write_spec
from training.contract.snapshot import SnapshotRow, read_snapshot_header, write_snapshot
from training.rlhf.data import build_examples
from training.rlhf.measures.calibration import (
    average_precision,
    cohen_kappa,
    f1_at,
    precision_recall_curve,
)
from training.rlhf.methods.objectives.segments import cut, segment_rewards
from training.rlhf.methods.reward import encode
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.run_folder import resolve_dtype
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.spans import segment_labels, trim_spans
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import pack, passes
from training.rlhf.train import train_run

TRAIN, TEST = 300, 50
HEADS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "irrelevant": ("sub-sentence", ("irrelevant",)),
    "relevance": ("sub-sentence", ("irrelevant", "redundant", "incoherent")),
    "unverifiable": ("sentence", ("unverifiable",)),
    "wrong-grounding": ("sentence", ("wrong-grounding",)),
    "factuality": ("sentence", ("unverifiable", "wrong-grounding")),
}
RESAMPLES = 2000


class Deadline(StopRequest):
    """Somebody who asks to stop after some time."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(folder)
        self._end = time.monotonic() + seconds

    @property
    def reason(self) -> str:
        return "out of time" if time.monotonic() > self._end else ""


class Scored(NamedTuple):
    """All segments of some answers under one head."""

    faults: torch.Tensor
    """(S,) log-odds of a fault."""
    faulty: torch.Tensor
    """(S,) 1 where people marked one."""
    answer: torch.Tensor
    """(S,) which answer each belongs to."""


def train_size(questions: int) -> int:
    """Return how many of so many questions train: 300 of 350 or more, six sevenths of a smaller set."""
    return min(TRAIN, questions * TRAIN // (TRAIN + TEST))


def rows(file: Path) -> list[SnapshotRow]:
    """The questions with the answer that was read: its flags, what it lacks, its correction."""
    questions = []
    items = json.loads(file.read_text())
    for number, item in enumerate(items):
        feedback, text, name = item["feedback"], item["prediction 1"], f"qa{number}"
        answer = {"completion": name}
        questions.append(
            SnapshotRow.from_json(
                {
                    "judgment": name,
                    "comparison": name,
                    "annotator": "qa-feedback",
                    "round": 1,
                    "prompt": name,
                    "split": "train" if number < train_size(len(items)) else "held-out",
                    "messages": [{"role": "user", "content": item["question"]}],
                    "context": [{"title": title, "sentences": rest} for title, *rest in item["passages"]],
                    "completions": [{"id": name, "text": text, "source": "qa-feedback"}],
                    "verdict": "not_asked",
                    "ranks": {},
                    "spans": [
                        {
                            **answer,
                            "category": flag["error type"].lower(),
                            "start": flag["start"],
                            "end": flag["end"],
                            "quote": text[flag["start"] : flag["end"]],
                        }
                        for flag in feedback["errors"]
                    ],
                    "missing": [
                        {**answer, "category": gap["error type"].lower()} for gap in feedback["missing-info"]
                    ],
                    "corrections": [{**answer, "text": feedback["corrected-prediction"]}],
                    "read_for_spans": [name],
                    "read_for_missing": [name],
                }
            )
        )
    return questions[: TRAIN + TEST]


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the run."""
    return {
        "loss": "none",
        "segments": [
            {"name": name, "granularity": granularity, "categories": list(categories)}
            for name, (granularity, categories) in HEADS.items()
            if name in options.heads
        ],
        "completeness": {"name": "completeness"} if "completeness" in options.heads else None,
        "context": options.context,
        "max_tokens": 1536 if options.context else 512,
        "lora": {"rank": options.rank, "layers": options.layers},
        "optimiser": {
            "learning_rate": options.learning_rate,
            "epochs": options.epochs,
            "max_steps": options.max_steps,
            "batch_size": options.batch,
            "micro_batch_tokens": options.micro_batch_tokens,
            "evaluate_every": options.evaluate_every,
            "save_every": 10,
        },
    }


def trained(options: argparse.Namespace, judged: Sequence[SnapshotRow], folder: Path) -> RunSpec:
    """Run the trainer; its spec."""
    run = folder / "run"
    write_snapshot(folder / "snapshot", judged, project="qa-feedback", rounds=(1,))
    spec = RunSpec(
        method="reward",
        base_model=str(options.model),
        snapshot="../snapshot",
        snapshot_digest=read_snapshot_header(folder / "snapshot").digest,
        settings=settings_from_json("reward", settings_of(options)),
        name="fine-grained",
        device=options.device,
        dtype=options.dtype,
        seed=options.seed,
        commit="0" * 40,
    )
    write_spec(run, spec)
    if train_run(run, stop=Deadline(run, options.seconds), lock_wait_seconds=0) != EXIT_FINISHED:
        raise SystemExit("the run did not end; start it again with the same folder")
    seconds = sum(line["seconds"] for line in read_metrics(run))
    tokens = sum(line["tokens"] for line in read_metrics(run))
    print(f"{len(read_metrics(run))} steps in {seconds:.0f} s, {tokens / seconds:.0f} tokens a second")
    return spec


def labels_of(head: SegmentHead, example: Example, segments: Sequence[tuple[int, int]]) -> list[int]:
    """1 for each segment of an answer that a flag of the head's categories touches."""
    flags = [(flag.start, flag.end, flag.category) for _, flag in example.labels.flags]
    counted = [flag for flag in trim_spans(example.labels.texts[0], flags) if flag[2] in head.categories]
    labels: list[int] = segment_labels(segments, [(start, end) for start, end, _ in counted]).tolist()
    return labels


def prior_of(head: SegmentHead, examples: Sequence[Example]) -> float:
    """The share of segments with a fault among the training answers, all of them."""
    labels = [
        label
        for example in examples
        for label in labels_of(
            head, example, cut(example.labels.texts[0], head.granularity, example.answers[0])
        )
    ]
    return sum(labels) / len(labels)


@torch.no_grad()
def score(
    backbone: Backbone, heads: Sequence[SegmentHead], examples: Sequence[Example], *, tokens: int
) -> dict[str, Scored]:
    """Every segment of the answers under every head."""
    parts: dict[str, list[tuple[float, float, int]]] = {head.name: [] for head in heads}
    number = itertools.count()
    for group in passes(examples, tokens=tokens):
        batch = pack(group, device=backbone.device)
        rewards = segment_rewards(
            backbone,
            "reward",
            heads,
            encode(backbone, "reward", batch),
            batch,
            answers=[example.answers[0] for example in group],
            texts=[example.labels.texts[0] for example in group],
        )
        for example, of_heads in zip(group, rewards, strict=True):
            answer = next(number)
            for head in heads:
                segments = of_heads[head.name]
                labels = labels_of(head, example, [(segment.start, segment.end) for segment in segments])
                parts[head.name] += [
                    (-segment.reward, float(label), answer)
                    for segment, label in zip(segments, labels, strict=True)
                ]
    columns = {name: torch.tensor(values, dtype=torch.float64).unbind(1) for name, values in parts.items()}
    return {name: Scored(faults, faulty, answer.long()) for name, (faults, faulty, answer) in columns.items()}


def gain(test: Scored, prior: float) -> tuple[float, float, float]:
    """Return the gain in log-loss over the prior, by segment, with a 95 % interval over questions."""
    costs = torch.nn.functional.binary_cross_entropy_with_logits(test.faults, test.faulty, reduction="none")
    plain = torch.nn.functional.binary_cross_entropy(
        torch.full_like(test.faulty, prior), test.faulty, reduction="none"
    )
    answers = int(test.answer.max()) + 1
    saved = torch.zeros(answers, dtype=torch.float64).index_add(0, test.answer, plain - costs).numpy()
    count = torch.bincount(test.answer, minlength=answers).numpy()
    drawn = np.random.default_rng(0).integers(answers, size=(RESAMPLES, answers))
    shares = saved[drawn].sum(1) / count[drawn].sum(1)
    low, high = np.quantile(shares, (0.025, 0.975))
    return float(saved.sum() / count.sum()), float(low), float(high)


def table(
    heads: Sequence[SegmentHead],
    train: dict[str, Scored],
    test: dict[str, Scored],
    priors: dict[str, float],
) -> None:
    """One line per head. The threshold has the highest F1 on training answers."""
    print(
        "| head | test segments, faulty | log-loss, prior's | lower by (95 %) | AP, share | "
        "F1, precision, recall, all marked | kappa |\n|---|---|---|---|---|---|---|"
    )
    for head in heads:
        seen, new = train[head.name], test[head.name]
        lost = float(torch.nn.functional.binary_cross_entropy_with_logits(new.faults, new.faulty))
        better, low, high = gain(new, priors[head.name])
        share = float(new.faulty.mean())
        threshold = max(
            precision_recall_curve(seen.faults, seen.faulty).thresholds,
            key=lambda at: (f1_at(seen.faults, seen.faulty, at), at),
        )
        marked = new.faults >= threshold
        hits = float(new.faulty[marked].sum())
        precision = hits / max(1, int(marked.sum()))
        kappa = cohen_kappa(marked.long(), new.faulty.long())
        print(
            f"| {head.name} | {len(new.faulty)}, {int(new.faulty.sum())} | {lost:.3f}, {lost + better:.3f} | "
            f"{better:+.3f} ({low:+.3f} to {high:+.3f}) | "
            f"{average_precision(new.faults, new.faulty):.2f}, {share:.2f} | "
            f"{f1_at(new.faults, new.faulty, threshold):.2f}, {precision:.2f}, "
            f"{hits / float(new.faulty.sum()):.2f}, {2 * share / (1 + share):.2f} | "
            f"{math.nan if kappa is None else kappa:.2f} |"
        )


def main() -> None:
    """Train, score, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("feedback", type=Path)
    parser.add_argument("--heads", nargs="+", default=[*HEADS, "completeness"])
    parser.add_argument("--context", action="store_true")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro-batch-tokens", type=int, default=2048)
    parser.add_argument("--evaluate-every", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--threshold-on", type=int, default=100, help="training answers that choose it")
    options = parser.parse_args()
    options.model = options.model.resolve()
    print(f"{torch.get_num_threads()} threads; load average before: {os.getloadavg()}")
    judged = rows(options.feedback)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        spec = trained(options, judged, folder)
        last = read_metrics(folder / "run")[-1]
        print(json.dumps({name: value for name, value in last.items() if name.startswith("held_out")}))
        device = torch.device(options.device)
        backbone = Backbone.load(options.model, device=device, dtype=resolve_dtype(options.dtype, device))
        backbone.load_adapter("reward", folder / "run" / "checkpoint")
    settings = spec.settings
    if not isinstance(settings, RewardSettings):
        raise TypeError(settings)
    examples = build_examples(
        judged,
        backbone.tokenizer,
        max_tokens=settings.max_tokens,
        context=settings.context,
        labels=UsedLabels(ranks="none", categories=None),
    )
    if settings.segments:
        train, test = (
            score(backbone, settings.segments, some, tokens=options.micro_batch_tokens)
            for some in (examples.train[: options.threshold_on], examples.held_out)
        )
        priors = {head.name: prior_of(head, examples.train) for head in settings.segments}
        table(settings.segments, train, test, priors)


if __name__ == "__main__":
    main()
