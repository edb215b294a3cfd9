"""Baselines of a reward model, and linear heads on frozen features of the base, which are one of them.

Place and ridge of a head are chosen by cross-validation grouped by prompt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from training.contract.methods.reward import Covariate
from training.contract.snapshot import SnapshotRow
from training.contract.validation import (
    BaselineFigures,
    BaselineName,
    BaselineReport,
    CandidateName,
    Interval,
    RewardCandidate,
    RewardChoice,
)
from training.rlhf.measures.calibration import Floats, cluster_bootstrap
from training.rlhf.measures.features import (
    LENGTH,
    SURFACE_FEATURES,
    TEXT_FEATURES,
    FeatureCache,
    Values,
    correlations,
    length_controlled_accuracy,
    preferred_place,
    surface_features,
)
from training.rlhf.measures.linear_choice import Choices, LinearScore, choices_of, fit_at, fit_cross_validated
from training.rlhf.measures.pairs import accuracy_interval, length_slope, name_hash, resample
from training.rlhf.model.backbone import BOUNDS, COVARIATES, OFFSET, SCORE, TEXT, Backbone, Place
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example

_CLEARLY = 2.0
"""Standard errors by which another place's cost has to be lower."""


_OUTERMOST = 0.05
"""Share of the judged completions beyond each end of what a score reads of a text. In the first hour's study
scores of other completions were as often right as without ends."""


@dataclass(frozen=True, slots=True)
class FrozenHead:
    """A linear score of the features at one place."""

    place: Place
    score: LinearScore
    column: int
    """The place's column in a table of features."""

    def scores(self, features: Values) -> Floats:
        """Return the scores of completions: (rows, places, hidden) to (rows,)."""
        return self.score(features[:, self.column].astype(np.float64))

    @property
    def reads(self) -> str:
        """Return what the head reads, in words."""
        return "surface features of the text" if self.place == TEXT else str(self.place)


def fit_frozen_head(features: Values, choices: Choices, places: Sequence[Place]) -> FrozenHead:
    """Return the head at the preferred place, or where the cross-validated cost is clearly lower.

    features: (rows, places, hidden). Of the places whose cost is lower than that of `preferred_place` by more
    than two standard errors of the difference over prompts, the best is taken: with few judgments the lowest
    of many costs is lowest by chance.
    """
    heads = [
        FrozenHead(place, fit_cross_validated(features[:, column].astype(np.float64), choices), column)
        for column, place in enumerate(places)
    ]
    preferred = heads[list(places).index(preferred_place(places))]
    clearer = [head for head in heads if _is_clearly_better(head.score, preferred.score, choices)]
    return min(clearer, key=lambda head: head.score.log_loss, default=preferred)


def _is_clearly_better(score: LinearScore, other: LinearScore, choices: Choices) -> bool:
    if not np.isfinite(other.log_loss):
        return False
    saved = other.costs - score.costs
    return choices.mean(saved) > _CLEARLY * choices.standard_error(saved)


def fit_members(
    head: FrozenHead,
    features: Values,
    examples: Sequence[Example],
    *,
    whole: bool,
    count: int,
    seed: int,
    covariates: Sequence[Covariate] = (),
) -> list[LinearScore]:
    """Return the members of an ensemble: each fitted at the head's place and ridge to its own resample."""
    table = features[:, head.column].astype(np.float64)
    drawn = resample([example.judgment for example in examples], heads=count, seed=seed).tolist()
    members = []
    for times in drawn:
        weighed = [
            replace(example, weight=example.weight * often)
            for example, often in zip(examples, times, strict=True)
        ]
        choices = choices_of(weighed, whole=whole, covariates=covariates)
        # A resample of next to nothing may hold no judgment at all.
        drew_any = bool(choices.weight.any())
        members.append(fit_at(table, choices, head.score.strength) if drew_any else head.score)
    return members


def install_head(
    backbone: Backbone, adapter: str, head: FrozenHead, members: Sequence[LinearScore], features: Values
) -> None:
    """Let the score of an adapter be the head: its outputs are the members, read where the head reads.

    An output's constant is the same for all: the mean over the members. features: (rows, places, hidden), of
    the judged completions. A score that reads the text reads its features up to their ends there, see
    `_OUTERMOST`: a line fitted to them says nothing of a text without a word or with a thousand, which a
    policy would otherwise be rewarded for.
    """
    weights = torch.tensor(np.stack([member.weight for member in members]), dtype=torch.float32)
    offset = torch.tensor([float(np.mean([member.offset for member in members]))])
    backbone.set_head(adapter, SCORE, weights)
    backbone.set_reads(adapter, head.place)
    backbone.add_extra(adapter, OFFSET, offset)
    if len(head.score.coefficients):
        explained = torch.tensor(head.score.coefficients, dtype=torch.float32)
        backbone.add_extra(adapter, COVARIATES, explained)
    if head.place == TEXT:
        judged = features[:, head.column, : len(TEXT_FEATURES)]
        ends = np.quantile(judged, [_OUTERMOST, 1 - _OUTERMOST], axis=0)
        backbone.add_extra(adapter, BOUNDS, torch.tensor(ends, dtype=torch.float32))


# ── The choice among length, surface features and a head on frozen features ──


def fit_to_text(features: Values, choices: Choices, places: Sequence[Place], *, length: bool) -> FrozenHead:
    """Return the head on the text's surface features, or on its length alone.

    features: (rows, places, hidden), with the place `TEXT` among them.
    """
    column = list(places).index(TEXT)
    table = features[:, column].astype(np.float64)
    if length:
        table = np.where(np.arange(table.shape[1]) == LENGTH, table, 0.0)
    return FrozenHead(TEXT, fit_cross_validated(table, choices), column)


def choose_head(
    features: Values,
    examples: Sequence[Example],
    places: Sequence[Place],
    *,
    whole: bool,
    covariates: Sequence[Covariate] = (),
) -> tuple[FrozenHead, RewardChoice]:
    """Return the head with the lowest log-loss of pairs, cross-validated grouped by prompt, and the choice.

    features: (rows, places, hidden), the place `TEXT` being the last. Without two prompts nothing can be
    cross-validated, and the length is taken: it has one weight to fit.
    """
    pairs = choices_of(examples, whole=False, covariates=covariates)
    frozen = slice(0, len(places) - 1)

    def fitted(name: CandidateName, choices: Choices) -> FrozenHead:
        if name == "frozen":
            return fit_frozen_head(features[:, frozen], choices, places[frozen])
        return fit_to_text(features, choices, places, length=name == "length")

    names: tuple[CandidateName, ...] = ("length", "surface", "frozen")
    heads = {name: fitted(name, pairs) for name in names}
    candidates = [_candidate(name, head, pairs) for name, head in heads.items()]
    candidates.sort(key=lambda entry: entry.log_loss.value)
    chosen = candidates[0].name
    choice = RewardChoice(
        chosen=chosen,
        candidates=tuple(candidates),
        measured_on="cross_validation",
        judgments=len(examples),
        prompts=len({example.prompt for example in examples}),
    )
    if not whole:
        return heads[chosen], choice
    return fitted(chosen, choices_of(examples, whole=True, covariates=covariates)), choice


def _candidate(name: CandidateName, head: FrozenHead, pairs: Choices) -> RewardCandidate:
    costs = head.score.costs
    if not len(costs):
        # One prompt: that of a coin.
        costs = np.full(len(pairs.weight), np.log(2))
    right = (np.sign(np.log(2) - costs) + 1) / 2
    return RewardCandidate(
        name=name,
        log_loss=_interval(pairs, costs),
        accuracy=_interval(pairs, right, most=1.0),
        layer=head.place.layer,
        mean=head.place.mean and head.place != TEXT,
    )


def _interval(pairs: Choices, values: Floats, most: float = math.inf) -> Interval:
    mean, error = pairs.mean(values), 1.96 * pairs.standard_error(values)
    return Interval(value=mean, low=max(0.0, mean - error), high=min(most, mean + error))


def choice_beside_adapter(
    report: BaselineReport, *, improved: bool, judgments: int, prompts: int
) -> RewardChoice:
    """Return the choice between an adapter and the head that it began at.

    improved: whether a state after the start was the best on the validation part.
    """
    by_name = {entry.name: entry for entry in report.baselines}
    candidates = [
        RewardCandidate(
            name=name,
            log_loss=by_name[name].log_loss,
            accuracy=by_name[name].accuracy,
            layer=by_name[name].layer,
            mean=by_name[name].mean,
        )
        for name in ("length", "surface", "frozen")
        if name in by_name
    ]
    chosen: CandidateName = "adapter" if improved else "frozen"
    candidates = [entry for entry in candidates if entry.name != chosen]
    candidates.append(RewardCandidate(name=chosen, log_loss=report.log_loss, accuracy=report.accuracy))
    return RewardChoice(
        chosen=chosen,
        candidates=tuple(sorted(candidates, key=lambda entry: entry.log_loss.value)),
        measured_on="held_out",
        judgments=judgments,
        prompts=prompts,
    )


# ── A trained reward model beside its baselines, on the held-out judgments of its evaluation ──
#
# All are fitted to the run's training judgments: the place among the completions, surface features and a
# head on frozen features by ridge regression whose strength is chosen by cross-validation grouped by
# prompt, length as `measures.pairs` says. Frozen features are read of a bounded number of judgments.

MOST_TRAINED_ON_FEATURES = 1000
"""Frozen features are read of so many training judgments at most, those of prompts drawn by hash."""
MOST_HELD_OUT = 1000
"""So many held-out judgments are compared at most, drawn in the same way."""
_FEWEST = 2
"""Judgments and prompts without which nothing is fitted or compared."""

Scored = tuple[Floats, Mapping[str, Any]]
"""Scores of all held-out completions, and the report on the fit."""


def comparable(examples: Iterable[Example], most: int | None = None) -> list[Example]:
    """Return the decided judgments of completions as they are, at most so many: by prompts, in hash order."""
    decided = [example for example in examples if example.pairs and example.completions and example.weight]
    if most is None or len(decided) <= most:
        return decided
    chosen = sorted(decided, key=lambda example: name_hash(example.prompt))[:most]
    judgments = {example.judgment for example in chosen}
    return [example for example in decided if example.judgment in judgments]


@dataclass(frozen=True)
class Pairs:
    """The decided pairs of judgments whose completions are rows in order."""

    winners: np.ndarray[Any, np.dtype[np.int64]]
    losers: np.ndarray[Any, np.dtype[np.int64]]
    share: Floats
    """Share of each pair in its judgment."""
    prompts: list[str]

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Pairs:
        """Return the pairs in the order of their prompts' hashes, which no order of judgments changes."""
        rows: list[tuple[int, int, int, float, str]] = []
        first = 0
        for example in examples:
            share = 1 / len(example.pairs)
            rows += [
                (name_hash(example.prompt), first + winner, first + loser, share, example.prompt)
                for winner, loser in example.pairs
            ]
            first += len(example.answers)
        rows.sort(key=lambda row: row[0])
        _, winners, losers, shares, prompts = zip(*rows, strict=True)
        return cls(np.array(winners), np.array(losers), np.array(shares), list(prompts))

    def margins(self, scores: Floats) -> Floats:
        """Return the winners' scores less the losers'."""
        return np.asarray(scores[self.winners] - scores[self.losers], dtype=np.float64)

    def interval(self, values: Floats) -> Interval:
        """Return the mean over judgments with its interval over prompts."""
        estimate = cluster_bootstrap(values, self.prompts, weight=self.share)
        return Interval(value=estimate.mean, low=estimate.low, high=estimate.high)

    def accuracy(self, right: Floats) -> Interval:
        """Return the share of pairs ordered right, with the interval that evaluations give it."""
        estimate = cluster_bootstrap(right, self.prompts, weight=self.share)
        low, high = accuracy_interval(estimate, float(round(self.share.sum())))
        return Interval(value=estimate.mean, low=low, high=high)


def compare_with_baselines(
    *,
    train: Sequence[Example],
    held_out: Sequence[Example],
    rows: Callable[[], Iterable[SnapshotRow]],
    scores: Callable[[Sequence[Example]], Floats],
    features: FeatureCache | None,
    whole: bool,
    check: Callable[[], None],
) -> BaselineReport | None:
    """Return a reward model's comparison with its baselines; None without enough decided judgments.

    rows: the snapshot's. scores: the model's, of all completions of judgments in order. features: of the
    base; None leaves the head on them out. whole: rankings are fitted as a whole, else pair by pair.
    """
    started = time.monotonic()
    train, held_out = comparable(train), comparable(held_out, MOST_HELD_OUT)
    if len(train) < _FEWEST or not held_out:
        return None
    texts = surface_tables(rows(), (train, held_out))
    baselines: dict[BaselineName, Scored] = {
        "position": score_by_position(train, held_out, whole=whole),
        "length": score_by_length(train, held_out),
        "surface": score_by_surface(train, texts, whole=whole),
    }
    read = comparable(train, MOST_TRAINED_ON_FEATURES) if features is not None else []
    if features is not None:
        baselines["frozen"] = score_by_frozen(read, held_out, features, whole=whole, check=check)
    model_scores = scores(held_out)
    pairs = Pairs.of(held_out)
    report = BaselineReport(
        judgments=len(held_out),
        prompts=len(set(pairs.prompts)),
        trained=len(train),
        trained_on_features=len(read),
        accuracy=pairs.accuracy(_right(pairs.margins(model_scores))),
        log_loss=pairs.interval(_surprise(pairs.margins(model_scores))),
        baselines=tuple(
            _figures(name, *scored, model_scores=model_scores, pairs=pairs)
            for name, scored in baselines.items()
        ),
        length_controlled_accuracy=length_controlled_accuracy(
            pairs.margins(model_scores), pairs.margins(texts[1][:, 0]), pairs.share
        ),
        correlations=correlations(
            pairs.margins(model_scores),
            {name: pairs.margins(texts[1][:, column]) for column, name in enumerate(SURFACE_FEATURES)},
        ),
    )
    log.info("Compared with %d baselines in %.1f s", len(baselines), time.monotonic() - started)
    return report


def figures_of_baselines(report: BaselineReport) -> dict[str, float]:
    """Return the accuracy and log-loss of each baseline as held-out figures; length has its log-loss."""
    figures = {}
    for baseline in report.baselines:
        figures[f"held_out_{baseline.name}_accuracy"] = baseline.accuracy.value
        if baseline.name != "length":
            figures[f"held_out_{baseline.name}_log_loss"] = baseline.log_loss.value
    return figures


def report_to_json(report: BaselineReport) -> dict[str, Any]:
    """Return the report as JSON values."""
    return asdict(report)


def _figures(
    name: BaselineName, scores: Floats, details: Mapping[str, Any], *, model_scores: Floats, pairs: Pairs
) -> BaselineFigures:
    margin, own_margin = pairs.margins(scores), pairs.margins(model_scores)
    return BaselineFigures(
        name=name,
        accuracy=pairs.accuracy(_right(margin)),
        log_loss=pairs.interval(_surprise(margin)),
        accuracy_gain=pairs.interval(_right(own_margin) - _right(margin)),
        log_loss_gain=pairs.interval(_surprise(margin) - _surprise(own_margin)),
        **details,
    )


def _right(margins: Floats) -> Floats:
    return np.asarray((np.sign(margins) + 1) / 2)


def _surprise(margins: Floats) -> Floats:
    return np.logaddexp(0, -margins)


def score_by_position(train: Sequence[Example], held_out: Sequence[Example], *, whole: bool) -> Scored:
    """Score held-out completions by their place on the annotator's screen alone.

    Where no order is known, by their place in the snapshot, which imported sets keep.
    """
    most = 1 + max(
        place for example in (*train, *held_out) for place in (*example.places, len(example.answers) - 1)
    )

    def table(examples: Sequence[Example]) -> Floats:
        places = [place for example in examples for place in example.places or range(len(example.answers))]
        return np.eye(most)[places]

    score = fit_cross_validated(table(train), choices_of(train, whole=whole))
    return score(table(held_out)), {"strength": score.strength}


def score_by_length(train: Sequence[Example], held_out: Sequence[Example]) -> Scored:
    """Score held-out completions by the logarithm of their length alone."""
    slope = length_slope(train)
    lengths = [len(answer.ids) - answer.answer_start for example in held_out for answer in example.answers]
    return slope * np.log(np.array(lengths, dtype=np.float64)), {}


def score_by_surface(train: Sequence[Example], texts: tuple[Floats, Floats], *, whole: bool) -> Scored:
    """Score held-out completions by a linear score of surface features. texts: of both sets."""
    score = fit_cross_validated(texts[0], choices_of(train, whole=whole))
    return score(texts[1]), {"strength": score.strength}


def score_by_frozen(
    train: Sequence[Example],
    held_out: Sequence[Example],
    features: FeatureCache,
    *,
    whole: bool,
    check: Callable[[], None],
) -> Scored:
    """Score held-out completions by a linear head on frozen features."""
    try:
        table = features.features(train, check)
        measured = features.features(held_out, check)
    finally:
        features.save()
    head = fit_frozen_head(table, choices_of(train, whole=whole), features.places)
    details = {"layer": head.place.layer, "mean": head.place.mean, "strength": head.score.strength}
    return head.scores(measured), details


def surface_tables(
    rows: Iterable[SnapshotRow], sets: tuple[Sequence[Example], Sequence[Example]]
) -> tuple[Floats, Floats]:
    """Return the surface features of both sets of judgments, (completions, features) each."""
    examples = {example.judgment: example for some in sets for example in some}
    features = {
        row.judgment: surface_features(row, examples[row.judgment].completions)
        for row in rows
        if row.judgment in examples
    }
    first, second = (np.concatenate([features[example.judgment] for example in some]) for some in sets)
    return first, second
