"""Stacks of frozen features, surface features and position, beside each alone, on published judgments.

python -m tests.benchmarks.reward_stacks features --set hh-harmless --longest 220 --judgments 600 FILE.npz
python -m tests.benchmarks.reward_stacks compare FILE.npz --stacks surface mean-18 mean-18+surface
python -m tests.benchmarks.reward_stacks curve FILE.npz --stacks length surface mean-18

`features` reads a base in bfloat16 up to layer 18 and keeps the mean state of each completion after some
layers, surface features and positions. `compare` needs no torch: every judgment is predicted from the other
four fifths of the prompts, by a logistic model of differences (Bradley & Terry 1952) whose ridge and whose
weight of states against other features are cross-validated within these, for each seed of the deal. States
are reduced to the 160 directions of most variance in the training part. Figures are means over judgments and
seeds, intervals 95 % by bootstrap over prompts; differences are by the same pairs. `curve` trains on
a part of the prompts: a learning curve.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from training.contract.snapshot import SnapshotRow
    from training.rlhf.tokens.example import Example

LAYERS = (6, 9, 12, 15, 18)
FOLDS = 5
STRENGTHS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
WEIGHTS = (0.04, 0.1, 0.25)
"""Of standardised states against other standardised features."""
_DIRECTIONS = 160
_RESAMPLES = 2000
ALONE = ("position", "length", "surface", "mean-18")

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def fold_of(prompt: str, seed: int) -> int:
    """Return the fold that a prompt is dealt to, as in `reward_baselines`."""
    return int(hashlib.sha256(f"{seed} {prompt}".encode()).hexdigest(), 16) % FOLDS


@dataclass(frozen=True)
class Pairs:
    """The decided pairs of judgments whose completions are rows, and what may predict them."""

    winners: NDArray[np.int64]
    losers: NDArray[np.int64]
    weight: Floats
    """Share of each pair in its judgment."""
    prompts: NDArray[np.str_]
    """(P,)"""
    judged: NDArray[np.str_]
    """(rows,) the prompt of each row."""
    blocks: dict[str, Floats]
    """(rows, features) by name; those that begin with `mean-` are states."""

    @classmethod
    def read(cls, file: Path) -> Pairs:
        """Return what `features` wrote."""
        arrays = np.load(file)
        ends = np.concatenate([[0], np.cumsum(arrays["count"])])
        pairs = [
            (row, other, index)
            for index, (start, end) in enumerate(pairwise(ends))
            for row in range(start, end)
            for other in range(start, end)
            if 0 < arrays["ranks"][row] < arrays["ranks"][other]
        ]
        winners, losers, judgments = (np.array(values) for values in zip(*pairs, strict=True))
        places = np.concatenate([np.arange(count) for count in arrays["count"]])
        means = arrays["means"].astype(np.float64)
        return cls(
            winners,
            losers,
            1 / np.bincount(judgments)[judgments],
            arrays["prompt"][judgments],
            np.repeat(arrays["prompt"], arrays["count"]),
            {
                "position": np.eye(max(arrays["count"]))[places],
                "length": np.log(arrays["n"])[:, None].astype(np.float64),
                "surface": arrays["surface"].astype(np.float64),
                **{f"mean-{layer}": means[:, index] for index, layer in enumerate(LAYERS)},
            },
        )

    def interval_text(self, values: Floats) -> str:
        """Return the mean over judgments with its interval over prompts."""
        names, of_pair = np.unique(self.prompts, return_inverse=True)
        sums, weights = np.bincount(of_pair, self.weight * values), np.bincount(of_pair, self.weight)
        random = np.random.default_rng(0)
        times = random.multinomial(len(names), np.full(len(names), 1 / len(names)), _RESAMPLES)
        means = (times @ sums) / (times @ weights)
        low, high = np.quantile(means, [0.025, 0.975])
        return f"{sums.sum() / weights.sum():.3f} [{low:.3f}, {high:.3f}]"


def fit(differences: Floats, weight: Floats, strength: float, start: Floats) -> Floats:
    """Return the θ that minimises the mean of log(1 + e^(−dθ)) + ½ · strength · ‖θ‖², by Newton's method."""
    share, theta = weight / weight.sum(), start
    for _ in range(12):
        wrong = 1 / (1 + np.exp(differences @ theta))
        gradient = -differences.T @ (share * wrong) + strength * theta
        if np.abs(gradient).max() < 1e-6:
            break
        hessian = (differences * (share * wrong * (1 - wrong))[:, None]).T @ differences
        hessian[np.diag_indices_from(hessian)] += strength
        theta = theta - np.linalg.solve(hessian, gradient)
    return theta


def standardised(block: Floats, train: Mask, *, states: bool) -> Floats:
    """Return features with deviation 1 over the training rows; of states the leading directions alone."""
    centred = block[train] - block[train].mean(0)
    spread = np.sqrt(np.square(centred).mean(0))
    spread = np.where(spread < 1e-9, 1.0, spread)
    if not states or block.shape[1] <= _DIRECTIONS:
        return np.asarray(block / spread)
    scaled = centred / spread
    _, directions = np.linalg.eigh(scaled.T @ scaled)
    return np.asarray(block / spread @ directions[:, -_DIRECTIONS:])


def predicted(pairs: Pairs, stack: str, train: Mask) -> Floats:
    """Return the margins of all pairs, (P,), by a stack fitted to those that are in `train`, (P,)."""
    names = stack.split("+")
    rows = np.isin(pairs.judged, pairs.prompts[train])
    parts = [standardised(pairs.blocks[name], rows, states=name.startswith("mean-")) for name in names]
    mixed = len({name.startswith("mean-") for name in names}) == 2
    best: tuple[float, Floats, float] | None = None
    for scale in WEIGHTS if mixed else (1.0,):
        table = np.concatenate(
            [
                part * (scale if name.startswith("mean-") else 1.0)
                for name, part in zip(names, parts, strict=True)
            ],
            axis=1,
        )
        differences = table[pairs.winners] - table[pairs.losers]
        cost, strength = _best_strength(
            differences[train], pairs.weight[train], [fold_of(prompt, -1) for prompt in pairs.prompts[train]]
        )
        if best is None or cost < best[0]:
            best = (cost, differences, strength)
    assert best is not None
    _, differences, strength = best
    start = np.zeros(differences.shape[1])
    return np.asarray(differences @ fit(differences[train], pairs.weight[train], strength, start))


def _best_strength(differences: Floats, weight: Floats, folds: Sequence[int]) -> tuple[float, float]:
    """Return the lowest cross-validated cost and its ridge; two worse ones in a row end the search."""
    dealt = np.array(folds)
    thetas = [np.zeros(differences.shape[1])] * FOLDS
    best, worse = (np.inf, STRENGTHS[0]), 0
    for strength in STRENGTHS:
        costs = np.zeros(len(weight))
        for fold in range(FOLDS):
            here = dealt == fold
            thetas[fold] = fit(differences[~here], weight[~here], strength, thetas[fold])
            costs[here] = np.logaddexp(0, -differences[here] @ thetas[fold])
        cost = float(weight @ costs / weight.sum())
        worse = 0 if cost < best[0] else worse + 1
        best = min(best, (cost, strength))
        if worse == 2:
            break
    return best


def compare(options: argparse.Namespace) -> None:
    """Print accuracy and log-loss of every stack, and what it saves over each predictor alone."""
    pairs = Pairs.read(options.file)
    margins: dict[str, Floats] = {}
    print("| predictor | accuracy | log-loss |\n|---|---|---|")
    for stack in options.stacks:
        margins[stack] = np.stack([_held_out_margins(pairs, stack, seed) for seed in options.seeds])
        right, cost = _figures(margins[stack])
        print(f"| {stack} | {pairs.interval_text(right)} | {pairs.interval_text(cost)} |", flush=True)
    alone = [name for name in ALONE if name in margins]
    print(f"\n| log-loss saved by | {' | '.join(f'over {name}' for name in alone)} |")
    print(f"|---|{'---|' * len(alone)}")
    for stack in (name for name in margins if "+" in name):
        cost = _figures(margins[stack])[1]
        print(
            f"| {stack} | {' | '.join(pairs.interval_text(_figures(margins[n])[1] - cost) for n in alone)} |"
        )
    print(f"\n{time.process_time():.0f} s of processor time")


def curve(options: argparse.Namespace) -> None:
    """Print accuracy and log-loss of every stack by the share of the training prompts that it saw."""
    pairs = Pairs.read(options.file)
    print("| predictor | share | accuracy | log-loss |\n|---|---|---|---|")
    for stack in options.stacks:
        for share in options.shares:
            margins = np.stack([_held_out_margins(pairs, stack, seed, share) for seed in options.seeds])
            right, cost = _figures(margins)
            print(
                f"| {stack} | {share:.0%} | {pairs.interval_text(right)} | {pairs.interval_text(cost)} |",
                flush=True,
            )
    print(f"\n{time.process_time():.0f} s of processor time")


def _held_out_margins(pairs: Pairs, stack: str, seed: int, share: float = 1.0) -> Floats:
    """Return margins, (P,), each predicted from so large a part of the other folds' prompts."""
    folds = np.array([fold_of(prompt, seed) for prompt in pairs.prompts])
    chosen = np.array([_place_of(prompt, seed) < share for prompt in pairs.prompts])
    margins = np.zeros(len(folds))
    for fold in range(FOLDS):
        margins[folds == fold] = predicted(pairs, stack, (folds != fold) & chosen)[folds == fold]
    return margins


def _place_of(prompt: str, seed: int) -> float:
    """Return a prompt's place in [0, 1) in an order by chance, another one for each seed."""
    return int(hashlib.sha256(f"part {seed} {prompt}".encode()).hexdigest()[:12], 16) / 16**12


def _figures(margins: Floats) -> tuple[Floats, Floats]:
    """Return the shares of seeds that order each pair right, and the mean costs: (seeds, P) to (P,) each."""
    return ((np.sign(margins) + 1) / 2).mean(0), np.logaddexp(0, -margins).mean(0)


def read_features(options: argparse.Namespace) -> None:
    """Compute the features of a set and write them."""
    import torch

    from tests.benchmarks.reward_baselines import SETS, examples_of
    from training.rlhf.measures.features import pooled, surface_features
    from training.rlhf.model.backbone import Backbone
    from training.rlhf.tokens.packing import pack

    backbone = Backbone.load(options.starter, device="cpu", dtype=torch.bfloat16)
    rows = SETS[options.set]()
    by_name = {row.judgment: row for row in rows}
    examples = [
        example for example in examples_of(rows, backbone, options) if example.pairs and example.completions
    ]
    means: list[NDArray[np.float32]] = []
    tokens: list[NDArray[np.int64]] = []
    for start in range(0, len(examples), 4):
        batch = pack(examples[start : start + 4], device=torch.device("cpu"))
        with torch.no_grad(), backbone.using(None):
            states = backbone.packed_layers(batch.input_ids, batch.position_ids, batch.layout, LAYERS)
        means.append(torch.stack([pooled(states[layer], batch, mean=True) for layer in LAYERS], 1).numpy())
        tokens.append(batch.answer_tokens.numpy())
    prompts, texts = _texts([by_name[example.judgment] for example in examples], examples)
    np.savez(
        options.file,
        asked=prompts,
        text=texts,
        means=np.concatenate(means),
        n=np.concatenate(tokens),
        surface=np.concatenate(
            [surface_features(by_name[example.judgment], example.completions) for example in examples]
        ),
        count=np.array([len(example.answers) for example in examples]),
        ranks=np.concatenate([example.ranks for example in examples]),
        prompt=np.array([example.prompt for example in examples]),
    )
    print(
        f"{len(examples)} judgments of {len(texts)} completions in {options.file}; "
        f"{time.process_time():.0f} s of processor time"
    )


def _texts(
    rows: Sequence[SnapshotRow], examples: Sequence[Example]
) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Return the last message before each completion, and the completions."""
    prompts, texts = [], []
    for row, example in zip(rows, examples, strict=True):
        by_id = {completion.id: completion.text for completion in row.completions}
        prompts += [row.messages[-1].content] * len(example.completions)
        texts += [by_id[name] for name in example.completions]
    return np.array(prompts), np.array(texts)


def main() -> None:
    """Compute features, or compare stacks of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    reading = commands.add_parser("features")
    reading.add_argument("file", type=Path)
    reading.add_argument("--set", required=True)
    reading.add_argument("--starter", type=Path, default=Path("var/models/SmolLM2-135M-Instruct"))
    reading.add_argument("--longest", type=int, default=1024, help="tokens of a judgment")
    reading.add_argument("--judgments", type=int)
    reading.set_defaults(does=read_features)
    comparing = commands.add_parser("compare")
    comparing.add_argument("file", type=Path)
    comparing.add_argument("--stacks", nargs="+", default=[*ALONE, "mean-18+surface"])
    comparing.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    comparing.set_defaults(does=compare)
    learning = commands.add_parser("curve")
    learning.add_argument("file", type=Path)
    learning.add_argument("--stacks", nargs="+", default=[*ALONE])
    learning.add_argument("--shares", nargs="+", type=float, default=[0.25, 0.5, 0.75, 1.0])
    learning.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    learning.set_defaults(does=curve)
    options = parser.parse_args()
    options.does(options)


if __name__ == "__main__":
    main()
