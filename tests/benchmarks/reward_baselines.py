"""Baselines of reward models on published judgments, held out by prompt, over several seeds.

python -m tests.benchmarks.reward_baselines --set qa-feedback [--starter var/models/SmolLM2-135M-Instruct]
python -m tests.benchmarks.reward_baselines --set qa-feedback --adapter random frozen --folds-run 1

Every seed deals the prompts to five folds; each fold is predicted by what was fitted to the other four, place
and ridge by cross-validation within them. Figures are means over judgments and seeds, intervals 95 % by
bootstrap over prompts. Frozen features are kept in `--cache`, so that an interrupted run goes on.

`--adapter` trains adapter-based reward models instead: with a random head, or one that begins as the head on
frozen features; of the first `--folds-run` folds of each seed. Each is compared with its run's baselines.

On pairs with ties (Auto-J) a further table compares models of all three outcomes: ties as an outcome
(Davidson 1970), and pairs without ties with a constant share of ties.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from tests.benchmarks.learning_rates import hh_rlhf_rows
from tests.benchmarks.training_quality import rows as qa_feedback_rows
from tests.data_sets import data_folder
from training.contract.methods import settings_from_json
from training.contract.run import EXIT_FINISHED, RunSpec, read_evaluation, write_spec
from training.contract.snapshot import SnapshotRow, read_snapshot_header, write_snapshot
from training.contract.validation import Interval, baselines_from_details
from training.rlhf.data import build_examples
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.features import FeatureCache
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.methods.baselines import (
    Pairs,
    comparable,
    fit_frozen_head,
    score_by_frozen,
    score_by_length,
    score_by_position,
    score_by_surface,
    surface_tables,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import packed_tokens
from training.rlhf.train import train_run

FOLDS = 5
_RANKS = {"a": (1, 2), "b": (2, 1), "tie": (1, 1)}
_STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)


def pair_rows(file: Path, name: str) -> list[SnapshotRow]:
    """Pairs of Auto-J and AlpacaEval; those of one instruction share a prompt."""
    rows = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            values = json.loads(line)
            ids = (f"{name}{index}.1", f"{name}{index}.2")
            ranks = _RANKS[values["label"]]
            texts = (values["response_a"], values["response_b"])
            rows.append(
                SnapshotRow.from_json(
                    {
                        "judgment": f"{name}{index}",
                        "comparison": f"{name}{index}",
                        "annotator": name,
                        "round": 1,
                        "prompt": _digest(values["prompt"])[:16],
                        "split": "train",
                        "messages": [{"role": "user", "content": values["prompt"] or " "}],
                        "completions": [
                            {"id": id_, "text": text, "source": name}
                            for id_, text in zip(ids, texts, strict=True)
                        ],
                        "verdict": "equal" if ranks == (1, 1) else "ranked",
                        "ranks": dict(zip(ids, ranks, strict=True)),
                    }
                )
            )
    return rows


def shuffled(rows: Sequence[SnapshotRow]) -> list[SnapshotRow]:
    """The pairs in an order that hashes decide: the file has the chosen one first."""
    return [
        replace(row, completions=row.completions[::-1]) if int(_digest(row.judgment), 16) % 2 else row
        for row in rows
    ]


SETS: dict[str, Callable[[], list[SnapshotRow]]] = {
    "qa-feedback": lambda: qa_feedback_rows(data_folder() / "qa_feedback" / "feedback.json"),
    "hh-harmless": lambda: shuffled(hh_rlhf_rows(data_folder() / "hh_rlhf" / "harmless.jsonl.gz")),
    "autoj": lambda: pair_rows(data_folder() / "auto_j" / "pairs.jsonl.gz", "aj"),
    "alpacaeval": lambda: pair_rows(data_folder() / "alpaca_eval" / "pairs.jsonl.gz", "al"),
}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fold_of(prompt: str, seed: int) -> int:
    """The fold that a prompt is dealt to."""
    return int(_digest(f"{seed} {prompt}"), 16) % FOLDS


def examples_of(
    rows: Sequence[SnapshotRow], backbone: Backbone, options: argparse.Namespace
) -> list[Example]:
    """Judgments, ties among them, of at most so many tokens; the first so many by their prompts' hashes."""
    examples = build_examples(
        rows, backbone.tokenizer, max_tokens=1024, context=False, labels=UsedLabels(ranks="tied")
    ).train
    short = [example for example in examples if packed_tokens(example) <= options.longest]
    return sorted(short, key=lambda example: _digest(example.prompt))[: options.judgments]


def held_out_scores(
    train: list[Example],
    held_out: list[Example],
    rows: Sequence[SnapshotRow],
    features: FeatureCache,
    *,
    whole: bool,
) -> dict[str, tuple[Floats, Mapping[str, Any]]]:
    """Scores of held-out completions by each baseline."""
    texts = surface_tables(rows, (train, held_out))
    return {
        "position": score_by_position(train, held_out, whole=whole),
        "length": score_by_length(train, held_out),
        "surface": score_by_surface(train, texts, whole=whole),
        "frozen": score_by_frozen(train, held_out, features, whole=whole, check=lambda: None),
    }


def cross_validated(
    examples: list[Example], rows: Sequence[SnapshotRow], features: FeatureCache, options: argparse.Namespace
) -> None:
    """Print the table of baselines: every judgment predicted once for each seed."""
    decided = comparable(examples)
    whole = options.set == "qa-feedback"
    margins: dict[str, list[Floats]] = {}
    places: list[str] = []
    for seed in options.seeds:
        scores: dict[str, list[Floats]] = {}
        order: list[Example] = []
        for fold in range(FOLDS):
            held_out = [example for example in decided if fold_of(example.prompt, seed) == fold]
            train = [example for example in decided if fold_of(example.prompt, seed) != fold]
            order += held_out
            by_name = held_out_scores(train, held_out, rows, features, whole=whole)
            for name, (values, fit) in by_name.items():
                scores.setdefault(name, []).append(values)
                if name == "frozen":
                    places.append(f"{'mean' if fit['mean'] else 'last'} {fit['layer']} ({fit['strength']:g})")
        pairs = Pairs.of(order)
        for name, parts in scores.items():
            margins.setdefault(name, []).append(pairs.margins(np.concatenate(parts)))
    # Of every seed the pairs lie in the order of their prompts' hashes, and of judgments as they were dealt.
    _print_table(margins, _pairs_by_seed(decided, options.seeds))
    chosen = [f"{count} × {place}" for place, count in Counter(places).most_common()]
    print(f"\nplaces of the head: {', '.join(chosen)}", flush=True)


def _pairs_by_seed(decided: list[Example], seeds: Sequence[int]) -> list[Pairs]:
    return [
        Pairs.of(
            [example for fold in range(FOLDS) for example in decided if fold_of(example.prompt, seed) == fold]
        )
        for seed in seeds
    ]


def _print_table(margins: Mapping[str, Sequence[Floats]], pairs: Sequence[Pairs]) -> None:
    """One row for each predictor: figures of all seeds' pairs together, which share their prompts."""
    every = Pairs(
        np.concatenate([of_seed.winners for of_seed in pairs]),
        np.concatenate([of_seed.losers for of_seed in pairs]),
        np.concatenate([of_seed.share for of_seed in pairs]) / len(pairs),
        [prompt for of_seed in pairs for prompt in of_seed.prompts],
    )
    together = {name: np.concatenate(parts) for name, parts in margins.items()}
    surprise = {name: np.logaddexp(0, -values) for name, values in together.items()}
    print("| predictor | accuracy | log-loss | log-loss less that of length |")
    print("|---|---|---|---|")
    for name, values in together.items():
        right = every.interval((np.sign(values) + 1) / 2)
        less = every.interval(surprise[name] - surprise["length"])
        print(f"| {name} | {cell(right)} | {cell(every.interval(surprise[name]))} | {cell(less)} |")


def cell(interval: Interval) -> str:
    """A figure with its interval."""
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


# ── Ties ──────────────────────────────────────────────────────────────────────────────


def compare_ties(examples: list[Example], features: FeatureCache, options: argparse.Namespace) -> None:
    """Print held-out log-loss over all three outcomes: ties modelled, and ties dropped."""
    judged = [example for example in examples if len(example.answers) == 2 and example.completions]
    costs: dict[str, list[Floats]] = {}
    prompts: list[str] = []
    for seed in options.seeds:
        for fold in range(FOLDS):
            held_out = [example for example in judged if fold_of(example.prompt, seed) == fold]
            train = [example for example in judged if fold_of(example.prompt, seed) != fold]
            prompts += [example.prompt for example in held_out]
            for name, values in _three_outcomes(train, held_out, features).items():
                costs.setdefault(name, []).append(values)
    ones = np.ones(len(prompts))
    pairs = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), ones, prompts)
    together = {name: np.concatenate(parts) for name, parts in costs.items()}
    print("\n| model of all three outcomes | log-loss | less that of ties dropped |")
    print("|---|---|---|")
    for name, values in together.items():
        less = pairs.interval(values - together["ties dropped"])
        print(f"| {name} | {cell(pairs.interval(values))} | {cell(less)} |")


def _three_outcomes(
    train: list[Example], held_out: list[Example], features: FeatureCache
) -> dict[str, Floats]:
    """−log p of what happened to each held-out pair, by model. One place, chosen from the decided pairs."""
    decided = comparable(train)
    head = fit_frozen_head(features.features(decided), choices_of(decided, whole=False), features.places)
    tables = [features.features(some)[:, head.column].astype(np.float64) for some in (train, held_out)]
    mean, spread = tables[0].mean(0), tables[0].std(0) + 1e-12
    differences = [((table - mean) / spread)[::2] - ((table - mean) / spread)[1::2] for table in tables]
    outcomes = [_outcomes(some) for some in (train, held_out)]
    tied = (np.sum(outcomes[0] == 0) + 0.5) / (len(train) + 1)
    scores = head.scores(features.features(held_out))
    margin = scores[::2] - scores[1::2]
    dropped = np.where(
        outcomes[1] == 0, -np.log(tied), np.logaddexp(0, -outcomes[1] * margin) - np.log1p(-tied)
    )
    constant = np.where(outcomes[1] == 0, -np.log(tied), np.log(2) - np.log1p(-tied))
    theta = _fit_davidson(differences[0], outcomes[0], [example.prompt for example in train])
    davidson = _davidson_costs(theta, differences[1], outcomes[1])
    return {"constants": constant, "ties dropped": dropped, "ties modelled (Davidson)": davidson}


def _outcomes(examples: Sequence[Example]) -> Floats:
    """1 where the first is better, −1 where the second is, 0 for a tie."""
    return np.array([np.sign(example.ranks[1] - example.ranks[0]) for example in examples], dtype=np.float64)


def _davidson_costs(theta: Floats, differences: Floats, outcomes: Floats) -> Floats:
    """p(first) ∝ e^(m/2), p(second) ∝ e^(−m/2), p(tie) ∝ ν; the last of theta is log ν."""
    margin = differences @ theta[:-1]
    logits = np.stack([margin / 2, -margin / 2, np.full(len(margin), theta[-1])])
    chosen_logit = np.select([outcomes > 0, outcomes < 0], [logits[0], logits[1]], logits[2])
    return np.asarray(np.logaddexp.reduce(logits, axis=0) - chosen_logit)


def _fit_davidson(differences: Floats, outcomes: Floats, prompts: Sequence[str]) -> Floats:
    """The scores and log ν at the ridge with the lowest cost over folds of prompts."""
    folds = np.array([fold_of(prompt, -1) for prompt in prompts])
    losses = {}
    for strength in _STRENGTHS:
        costs = []
        for fold in range(FOLDS):
            here = folds == fold
            theta = _davidson_at(differences[~here], outcomes[~here], strength)
            costs += _davidson_costs(theta, differences[here], outcomes[here]).tolist()
        losses[strength] = np.mean(costs)
    return _davidson_at(differences, outcomes, min(losses, key=lambda strength: losses[strength]))


def _davidson_at(differences: Floats, outcomes: Floats, strength: float) -> Floats:
    first, second, tie = outcomes > 0, outcomes < 0, outcomes == 0

    def cost(theta: Floats) -> tuple[float, Floats]:
        value = _davidson_costs(theta, differences, outcomes).mean()
        margin = differences @ theta[:-1]
        logits = np.stack([margin / 2, -margin / 2, np.full(len(margin), theta[-1])])
        shares = np.exp(logits - np.logaddexp.reduce(logits, axis=0))
        slope = ((shares[0] - shares[1]) - (first.astype(float) - second)) / 2 / len(margin)
        gradient = np.append(differences.T @ slope + strength * theta[:-1], (shares[2] - tie).mean())
        return float(value + strength / 2 * theta[:-1] @ theta[:-1]), gradient

    start = np.zeros(differences.shape[1] + 1)
    return np.asarray(minimize(cost, start, jac=True, method="L-BFGS-B").x)


# ── Adapters ──────────────────────────────────────────────────────────────────────────


def adapter_run(
    rows: Sequence[SnapshotRow], options: argparse.Namespace, work: Path, head: str, seed: int, fold: int
) -> None:
    """Train one adapter-based reward model and print it beside the baselines of its run."""
    folder = work / f"{head}-{seed}-{fold}"
    split = [replace(row, split="held-out" if fold_of(row.prompt, seed) == fold else "train") for row in rows]
    write_snapshot(folder / "snapshot", split, project=options.set, rounds=(1,))
    settings = {
        "loss": "plackett_luce" if options.set == "qa-feedback" else "bradley_terry",
        "head_from": head,
        "lora": {"rank": 16, "layers": options.layers},
        "optimiser": {
            "learning_rate": options.learning_rate,
            "epochs": options.epochs,
            "evaluate_every": options.evaluate_every,
            "save_every": 10_000,
            "micro_batch_tokens": 1024,
        },
    }
    spec = RunSpec(
        method="reward",
        base_model=str(options.starter.resolve()),
        snapshot="snapshot",
        snapshot_digest=read_snapshot_header(folder / "snapshot").digest,
        settings=settings_from_json("reward", settings),
        seed=seed,
        name="measured",
        device="cpu",
        dtype="float32",
        cache=str(options.cache.resolve()),
    )
    write_spec(folder, spec)
    begun = time.monotonic()
    if train_run(folder, stop=StopRequest(folder), lock_wait_seconds=0) != EXIT_FINISHED:
        raise SystemExit((folder / "log.txt").read_text()[-2000:])
    evaluation = read_evaluation(folder)
    report = None if evaluation is None else baselines_from_details(evaluation.details)
    if evaluation is None or report is None:
        raise SystemExit("The run was not compared: no decided judgment is held out.")
    seconds = time.monotonic() - begun
    print(f"\nhead from {head}, seed {seed}, fold {fold}: best after step {evaluation.step}, {seconds:.0f} s")
    print("| predictor | accuracy | log-loss | log-loss saved by the adapter |\n|---|---|---|---|")
    print(f"| adapter | {cell(report.accuracy)} | {cell(report.log_loss)} | |")
    for row in report.baselines:
        print(f"| {row.name} | {cell(row.accuracy)} | {cell(row.log_loss)} | {cell(row.log_loss_gain)} |")
    print(
        f"length-controlled accuracy {report.length_controlled_accuracy}; {report.correlations}", flush=True
    )


def main() -> None:
    """Print the tables of one set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=SETS, required=True)
    parser.add_argument("--starter", type=Path, default=Path("var/models/SmolLM2-135M-Instruct"))
    parser.add_argument("--cache", type=Path, default=Path("var/cache/reward-baselines"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--longest", type=int, default=1024, help="tokens of a judgment; longer ones stay out"
    )
    parser.add_argument("--judgments", type=int, help="of the set, by the hash of the prompt")
    parser.add_argument("--adapter", nargs="+", choices=["random", "frozen"], help="train these instead")
    parser.add_argument("--folds-run", type=int, default=1, help="folds of each seed that are trained")
    parser.add_argument("--layers", type=int, help="adapt only the last blocks")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--evaluate-every", type=int, default=10)
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{torch.get_num_threads()} threads; load average before: {load}", flush=True)
    begun = time.monotonic()
    backbone = Backbone.load(options.starter, device="cpu", dtype=torch.float32)
    rows = SETS[options.set]()
    examples = examples_of(rows, backbone, options)
    features = FeatureCache(options.cache, backbone)
    for start in range(0, len(examples), 100):
        features.features(examples[start : start + 100])
        features.save()
    print(f"{len(examples)} judgments of {options.set}, {len(comparable(examples))} decided", flush=True)
    if options.adapter:
        chosen = {example.judgment for example in examples}
        work = Path(tempfile.mkdtemp(prefix="rondo-baselines-"))
        run = partial(adapter_run, [row for row in rows if row.judgment in chosen], options, work)
        for seed in options.seeds:
            for fold in range(options.folds_run):
                for head in options.adapter:
                    run(head, seed, fold)
    else:
        cross_validated(examples, rows, features, options)
        if options.set == "autoj":
            compare_ties(examples, features, options)
    print(f"\n{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
