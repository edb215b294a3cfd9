"""Linear scores of groups and annotators, their differences, and drift of preferences over rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from training.contract.validation import FEWEST_PROMPTS, SIGNIFICANT, DriftFigures, GroupDifference, Interval
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.features import SURFACE_FEATURES
from training.rlhf.measures.linear_choice import FOLDS, Choices, Ints, choices_of, fit_ridge
from training.rlhf.tokens.example import Example

# ── Linear scores of groups and annotators, pooled partially towards the score that is common to all ──
#
# A completion with the standardised features x scores, for annotator a of group g,
#
#     x·θ + z·δ_g + Σ_k u_ak (z·v_k) + place · (b + b_a)
#
# z are the first principal components of x, `place` is 1 for the completion shown first and 0 for the last.
# θ is the common score, δ_g a group's deviation, v_k a few directions in which annotators differ and u_a an
# annotator's coordinates in them (PReF: Shenfeld et al. 2025, arXiv 2503.06358; LoRe: Bose et al. 2025,
# arXiv 2504.14439), b the lead of the first place and b_a an annotator's deviation from it.
#
# Every deviation is penalised, so that who judged little has the score of their group, and a group that
# judged little the common one. The penalty is ½ λ ‖δ‖² for groups, ½ λ (‖u‖² + ‖v‖²) for annotators, which
# is the nuclear norm of their deviations (Srebro et al. 2005). λ is chosen by cross-validation grouped by
# prompt, and infinite, which leaves no deviation, unless another one costs less by more than two standard
# errors.
#
# Everything is deterministic: directions begin at the singular vectors of a ridge fit.

COMPONENTS = 32
"""Principal components in which deviations lie."""
GROUP_STRENGTHS = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
ANNOTATOR_STRENGTHS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Penalties that cross-validation chooses from, strongest first; infinite comes before both."""
POSITION_PRECISION = 4.0
"""Precision of the prior of a place's lead: half a logit is one standard deviation."""
_CLEARLY = 2.0
"""Standard errors by which deviations have to cost less than none."""
_WORSE = 1.02
"""Weaker penalties are not tried once one costs so much more than none."""
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class People:
    """Annotator and group of every row of a feature table."""

    groups: tuple[str, ...]
    annotators: tuple[str, ...]
    group: Ints
    """(rows,) number of the group; −1 for none."""
    annotator: Ints
    """(rows,) number of the annotator; −1 for a reviewer's decision."""
    place: Floats
    """(rows,) 1 for the completion shown first, 0 for the last; 0 for all where no order is known."""


def number_people(examples: Sequence[Example], *, known: People | None = None) -> People:
    """Return who judged the completions of judgments, rows in order.

    known: whose numbers are used; others have none. Without it they are numbered in the order of names.
    """
    groups = known.groups if known else tuple(sorted({item.group for item in examples} - {""}))
    annotators = known.annotators if known else tuple(sorted({item.annotator for item in examples} - {""}))
    group_numbers = {name: number for number, name in enumerate(groups)}
    numbers = {name: number for number, name in enumerate(annotators)}
    of_group: list[int] = []
    of_annotator: list[int] = []
    places: list[float] = []
    for example in examples:
        count = len(example.answers)
        of_group += [group_numbers.get(example.group, _NOBODY)] * count
        of_annotator += [numbers.get(example.annotator, _NOBODY)] * count
        last = max(example.places, default=0)
        places += [1 - place / last for place in example.places] if last else [0.0] * count
    return People(
        groups,
        annotators,
        np.array(of_group, dtype=np.int64),
        np.array(of_annotator, dtype=np.int64),
        np.array(places, dtype=np.float64),
    )


@dataclass(frozen=True, slots=True)
class PooledScore:
    """The common score and the deviations of groups and annotators from it, of features as they are."""

    common: Floats
    """(F,)"""
    groups: dict[str, Floats]
    """Deviation by group, (F,); all 0 without groups."""
    directions: Floats
    """(K, F) directions in which annotators differ; K = 0 where they are treated alike."""
    annotators: dict[str, Floats]
    """Coordinates by annotator, (K,)."""
    first_place: float
    """Lead of the completion shown first over the last, in log odds."""
    annotator_places: dict[str, float]
    """An annotator's deviation from that lead."""
    group_strength: float
    annotator_strength: float
    """Penalties; infinite where cross-validation found nothing to tell apart, or nothing was fitted."""

    def scores(self, features: Floats, people: People, *, annotators: bool = True) -> Floats:
        """Return the scores of completions for who judged them, without the lead of a place: (rows,).

        annotators: with their deviations, or those of their groups alone.
        """
        scores = features @ self.common
        for number, name in enumerate(people.groups):
            if name in self.groups:
                scores = scores + (people.group == number) * (features @ self.groups[name])
        if annotators and len(self.directions):
            along = features @ self.directions.T
            weights = np.zeros((len(people.annotators) + 1, len(self.directions)))
            for number, name in enumerate(people.annotators):
                if name in self.annotators:
                    weights[number] = self.annotators[name]
            scores = scores + (along * weights[people.annotator]).sum(1)
        return np.asarray(scores)


@dataclass(frozen=True, slots=True)
class _Table:
    """Standardised features and who judged them."""

    features: Floats
    components: Floats
    """(rows, P) principal components."""
    people: People
    by_group: csr_matrix
    """(groups, rows) 1 where a row is a group's."""
    by_annotator: csr_matrix


def _indicator(numbers: Ints, count: int) -> csr_matrix:
    rows = np.flatnonzero(numbers >= 0)
    return csr_matrix((np.ones(len(rows)), (numbers[rows], rows)), shape=(count, len(numbers)))


@dataclass(frozen=True, slots=True)
class _Fit:
    """Parameters fitted to a table: (F,), (), (groups, P), (K, P), (annotators, K), (annotators,)."""

    theta: Floats
    lead: float
    groups: Floats
    directions: Floats
    coordinates: Floats
    leads: Floats

    def scores(self, table: _Table) -> Floats:
        group, annotator = table.people.group, table.people.annotator
        lead = self.lead + np.append(self.leads, 0.0)[annotator]
        offsets = np.vstack([self.groups, np.zeros_like(table.components[:1])])[group]
        if len(self.directions):
            weights = np.vstack([self.coordinates, np.zeros((1, len(self.directions)))])
            offsets = offsets + weights[annotator] @ self.directions
        scores = table.features @ self.theta + table.people.place * lead
        return np.asarray(scores + (table.components * offsets).sum(1))


Fitting = Callable[["_Table", Choices, float], _Fit]


def fit_pooled(
    features: Floats,
    choices: Choices,
    people: People,
    *,
    strength: float,
    groups: bool = True,
    rank: int = 0,
) -> PooledScore:
    """Fit the common score and the deviations from it.

    features: (rows, F). strength: of the ridge of the common score. groups: fit deviations of groups. rank:
    the most directions in which annotators differ; with 0 they are treated alike.
    """
    mean, spread = features.mean(0), features.std(0)
    spread = np.where(spread == 0, 1.0, spread)
    standard = (features - mean) / spread
    axes = np.linalg.svd(standard, full_matrices=False)[2][:COMPONENTS]
    table = _Table(
        standard,
        standard @ axes.T,
        people,
        _indicator(people.group, len(people.groups)),
        _indicator(people.annotator, len(people.annotators)),
    )

    def fit_groups(part: _Table, some: Choices, penalty: float) -> _Fit:
        return _fit_groups(part, some, strength, penalty)

    of_groups = _chosen(table, choices, fit_groups, GROUP_STRENGTHS if groups and people.groups else ())
    fit, of_annotators = of_groups.fit, math.inf
    if rank and people.annotators:

        def fit_annotators(part: _Table, some: Choices, penalty: float) -> _Fit:
            begun = fit_groups(part, some, of_groups.penalty)
            return _fit_annotators(part, some, begun, penalty, rank)

        selection = _chosen(table, choices, fit_annotators, ANNOTATOR_STRENGTHS)
        fit, of_annotators = selection.fit, selection.penalty
    back = axes / spread
    return PooledScore(
        common=fit.theta / spread,
        groups=dict(zip(people.groups, fit.groups @ back, strict=True)) if groups else {},
        directions=fit.directions @ back,
        annotators=dict(zip(people.annotators, fit.coordinates, strict=True)) if rank else {},
        first_place=fit.lead,
        annotator_places=dict(zip(people.annotators, fit.leads.tolist(), strict=True)) if rank else {},
        group_strength=of_groups.penalty,
        annotator_strength=of_annotators,
    )


@dataclass(frozen=True, slots=True)
class _Chosen:
    fit: _Fit
    penalty: float


def _chosen(table: _Table, choices: Choices, fitting: Fitting, penalties: Sequence[float]) -> _Chosen:
    """Return the fit at the penalty with the lowest cross-validated cost, if it is clearly below infinite."""
    folds = choices.prompt % FOLDS
    best = math.inf
    if penalties and len(np.unique(folds)) > 1:
        costs = {math.inf: _held_out_costs(table, choices, folds, fitting, math.inf)}
        for penalty in penalties:
            costs[penalty] = _held_out_costs(table, choices, folds, fitting, penalty)
            # Past the lowest cost weaker penalties cost more and more.
            if choices.mean(costs[penalty]) > _WORSE * choices.mean(costs[math.inf]):
                break
        lowest = min(costs, key=lambda penalty: choices.mean(costs[penalty]))
        saved = costs[math.inf] - costs[lowest]
        if choices.mean(saved) > _CLEARLY * choices.standard_error(saved):
            best = lowest
    return _Chosen(fitting(table, choices, best), best)


def _held_out_costs(
    table: _Table, choices: Choices, folds: NDArray[np.int64], fitting: Fitting, penalty: float
) -> Floats:
    costs = np.zeros(len(folds))
    for fold in np.unique(folds):
        here = folds == fold
        fit = fitting(table, choices.of(~here), penalty)
        costs[here] = choices.of(here).costs(fit.scores(table))
    return costs


def _minimise(cost: Callable[[Floats], tuple[float, Floats]], start: Floats) -> Floats:
    minimum = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 200, "gtol": 1e-5})
    return np.asarray(minimum.x)


def _fit_groups(table: _Table, choices: Choices, strength: float, penalty: float) -> _Fit:
    """Fit θ, b and, unless the penalty is infinite, δ: a convex problem."""
    total, width = choices.weight.sum(), table.features.shape[1]
    parts = table.components.shape[1]
    count = table.by_group.shape[0] if math.isfinite(penalty) else 0
    precision = POSITION_PRECISION / total
    none = _Fit(
        np.zeros(width),
        0.0,
        np.zeros((table.by_group.shape[0], parts)),
        np.zeros((0, parts)),
        np.zeros((table.by_annotator.shape[0], 0)),
        np.zeros(table.by_annotator.shape[0]),
    )

    def fit_at(vector: Floats) -> _Fit:
        groups = vector[width + 1 :].reshape(count, parts) if count else none.groups
        return replace(none, theta=vector[:width], lead=float(vector[width]), groups=groups)

    def cost(vector: Floats) -> tuple[float, Floats]:
        fit = fit_at(vector)
        scores = fit.scores(table)
        mean, slopes = choices.mean_cost(scores)
        weight = np.concatenate([np.full(width, strength), [precision], np.full(count * parts, penalty)])
        gradient = [table.features.T @ slopes, np.array([table.people.place @ slopes])]
        if count:
            gradient.append((table.by_group @ (table.components * slopes[:, None])).ravel())
        return mean + float(weight @ vector**2) / 2, np.concatenate(gradient) + weight * vector

    weights = count * parts
    return fit_at(_minimise(cost, np.zeros(width + 1 + weights)))


def _fit_annotators(table: _Table, choices: Choices, begun: _Fit, penalty: float, rank: int) -> _Fit:
    """Fit b_a and, unless the penalty is infinite, u and v to what the groups' scores leave."""
    total, parts = choices.weight.sum(), table.components.shape[1]
    people = table.by_annotator.shape[0]
    precision = POSITION_PRECISION / total
    rank = min(rank, parts, people) if math.isfinite(penalty) else 0
    sizes = np.cumsum([people, people * rank])

    def fit_at(vector: Floats) -> _Fit:
        leads, coordinates, directions = np.split(vector, sizes)
        return replace(
            begun,
            leads=leads,
            coordinates=coordinates.reshape(people, rank),
            directions=directions.reshape(rank, parts),
        )

    def cost(vector: Floats) -> tuple[float, Floats]:
        fit = fit_at(vector)
        scores = fit.scores(table)
        mean, slopes = choices.mean_cost(scores)
        weight = np.concatenate([np.full(people, precision), np.full(len(vector) - people, penalty)])
        weight = np.where(np.isfinite(weight), weight, 0.0)
        by_annotator = table.by_annotator @ (table.components * slopes[:, None])
        gradient = [
            table.by_annotator @ (table.people.place * slopes),
            (by_annotator @ fit.directions.T).ravel(),
            (fit.coordinates.T @ by_annotator).ravel(),
        ]
        return mean + float(weight @ vector**2) / 2, np.concatenate(gradient) + weight * vector

    start = np.zeros(people)
    if rank:
        coordinates, directions = _begun_directions(table, choices, begun, penalty, rank)
        start = np.concatenate([start, coordinates.ravel(), directions.ravel()])
    return fit_at(_minimise(cost, start))


def _begun_directions(
    table: _Table, choices: Choices, begun: _Fit, penalty: float, rank: int
) -> tuple[Floats, Floats]:
    """Return where u and v begin: at the largest singular vectors of annotators' own deviations by ridge."""
    shape = (table.by_annotator.shape[0], table.components.shape[1])
    common = begun.scores(table)

    def cost(vector: Floats) -> tuple[float, Floats]:
        offsets = np.vstack([vector.reshape(shape), np.zeros((1, shape[1]))])[table.people.annotator]
        scores = common + (table.components * offsets).sum(1)
        mean, slopes = choices.mean_cost(scores)
        gradient = (table.by_annotator @ (table.components * slopes[:, None])).ravel()
        return mean + penalty / 2 * float(vector @ vector), gradient + penalty * vector

    deviations = _minimise(cost, np.zeros(shape[0] * shape[1])).reshape(shape)
    left, sizes, right = np.linalg.svd(deviations, full_matrices=False)
    root = np.sqrt(sizes[:rank])
    # Of size 0 a direction would stay 0 for ever.
    root = np.maximum(root, 1e-3)
    return left[:, :rank] * root, root[:, None] * right[:rank]


# ── Surface features that one group of annotators values otherwise than the others ──
#
# For each group, two logistic Bradley-Terry models of the standardised features are fitted by ridge
# regression: to the group's decided pairs, and to those of all other annotators. Their coefficients differ
# significantly where the difference over its standard error has a small p-value, times the number of
# comparisons made (Bonferroni). Standard errors are those of the sandwich over prompts (Godambe 1960).

STRENGTH = 0.01
FEWEST_JUDGMENTS = 20
"""Judgments of a group, and of the others, without which nothing is compared."""
_LEFT_OUT = "words"
"""Feature left out: its logarithm is a feature, too."""
_NORMAL_97_5 = NormalDist().inv_cdf(0.975)


def group_differences(
    features: Floats, examples: Sequence[Example], names: Sequence[str] = SURFACE_FEATURES
) -> dict[str, tuple[GroupDifference, ...]]:
    """Return by group the features that it values otherwise, the largest difference first.

    features: (rows, F) of all completions of the judgments, in order; names: of the F columns.
    """
    columns = [
        column for column, name in enumerate(names) if name != _LEFT_OUT and features[:, column].std() > 0
    ]
    groups = sorted({example.group for example in examples} - {""})
    if not columns or not groups:
        return {}
    table = features[:, columns]
    table = (table - table.mean(0)) / table.std(0)
    choices = choices_of(examples, whole=False)
    of_choice = np.array([example.group for example in examples for _ in example.pairs])
    tests = len(columns) * len(groups)
    result = {}
    for group in groups:
        mine = of_choice == group
        judged = {example.judgment for example in examples if example.group == group and example.pairs}
        others = {example.judgment for example in examples if example.pairs} - judged
        if min(len(judged), len(others)) < FEWEST_JUDGMENTS:
            continue
        group_weights, own_variance = fit_with_variance(table, choices.of(mine))
        rest, rest_variance = fit_with_variance(table, choices.of(~mine))
        errors = np.sqrt(own_variance + rest_variance)
        rows = zip([names[column] for column in columns], group_weights - rest, errors, strict=True)
        differences = (_difference(name, float(value), float(error), tests) for name, value, error in rows)
        significant = [difference for difference in differences if difference.p_value < SIGNIFICANT]
        result[group] = tuple(sorted(significant, key=lambda difference: -abs(difference.difference)))
    return result


def fit_with_variance(table: Floats, choices: Choices) -> tuple[Floats, Floats]:
    """Return the coefficients and their variances, (F,) each."""
    theta = fit_ridge(table, choices, STRENGTH, start=np.zeros(table.shape[1]))
    apart = table[choices.table[:, 0]] - table[choices.table[:, 1]]
    chance = 1 / (1 + np.exp(-(apart @ theta)))
    total = choices.weight.sum()
    curvature = (choices.weight * chance * (1 - chance)) @ (apart[:, :, None] * apart[:, None, :]).reshape(
        len(apart), -1
    )
    curvature = curvature.reshape(len(theta), -1) / total + STRENGTH * np.eye(len(theta))
    slopes = np.zeros((int(choices.prompt.max()) + 1, len(theta)))
    np.add.at(slopes, choices.prompt, (choices.weight * (1 - chance))[:, None] * apart)
    inverse = np.linalg.inv(curvature)
    return theta, np.diag(inverse @ (slopes.T @ slopes / total**2) @ inverse)


def _difference(name: str, value: float, error: float, tests: int) -> GroupDifference:
    by_chance = math.erfc(abs(value) / error / math.sqrt(2)) if error > 0 else float(value == 0)
    return GroupDifference(
        feature=name,
        difference=value,
        low=value - _NORMAL_97_5 * error,
        high=value + _NORMAL_97_5 * error,
        p_value=min(1.0, tests * by_chance),
    )


# ── Drift of preferences: older judgments are discounted where that predicts the newest round better ──
#
# A judgment of age a rounds counts 2^(−a / h). For every half-life h of a few, a linear score is fitted
# with and without the discount to all judgments but those of a fifth of the prompts, and predicts the
# newest round's judgments of that fifth. The test is one-sided: the mean log-loss saved over its standard
# error over prompts, by the normal distribution, times the number of half-lives tried (Bonferroni).

HALF_LIVES = (0.5, 1.0, 2.0)
"""Half-lives that are tried, in rounds."""


def discounts(rounds: Sequence[int], *, newest: int, half_life: float) -> Floats:
    """Return the factor of the weight of judgments of these rounds: (N,) in (0, 1]."""
    ages = np.maximum(newest - np.array(rounds, dtype=np.float64), 0)
    return np.asarray(2.0 ** (-ages / half_life))


def newest_round(examples: Sequence[Example]) -> int | None:
    """Return the newest round in which enough prompts were judged; None where it has no predecessor."""
    prompts: dict[int, set[str]] = {}
    for example in examples:
        prompts.setdefault(example.round, set()).add(example.prompt)
    enough = [number for number, some in prompts.items() if len(some) >= FEWEST_PROMPTS]
    newest = max(enough, default=min(prompts, default=0))
    return newest if newest > min(prompts, default=0) else None


@dataclass(frozen=True, slots=True)
class _Test:
    half_life: float
    mean: float
    error: float

    @property
    def p_value(self) -> float:
        if self.error == 0:
            return 0.0 if self.mean > 0 else 1.0
        return min(1.0, len(HALF_LIVES) * (1 - NormalDist().cdf(self.mean / self.error)))


def measure_drift(
    features: Floats, choices: Choices, rounds: Sequence[int], *, newest: int, strength: float
) -> DriftFigures | None:
    """Test whether a discount predicts the newest round better; None where no fold can be left out.

    features: (rows, F). rounds: (C,) of each choice. strength: of the ridge.
    """
    mean, spread = features.mean(0), features.std(0)
    table = (features - mean) / np.where(spread == 0, 1.0, spread)
    ages = np.array(rounds)
    present = ages >= newest
    folds = choices.prompt % FOLDS
    if len(np.unique(folds[present])) < 2:
        return None
    equal = _predicted(table, choices, present, strength)
    tests = []
    for half_life in HALF_LIVES:
        weight = choices.weight * discounts(rounds, newest=newest, half_life=half_life)
        saved = equal - _predicted(table, replace(choices, weight=weight), present, strength)
        newly = choices.of(present)
        tests.append(_Test(half_life, newly.mean(saved), newly.standard_error(saved)))
    best = min(tests, key=lambda test: (test.p_value, -test.mean))
    return DriftFigures(
        round=newest,
        judgments=round(float(choices.weight[present].sum())),
        p_value=best.p_value,
        half_life=best.half_life,
        gain=Interval(
            value=best.mean,
            low=best.mean - _NORMAL_97_5 * best.error,
            high=best.mean + _NORMAL_97_5 * best.error,
        ),
        applied=best.p_value < SIGNIFICANT,
    )


def _predicted(table: Floats, choices: Choices, present: np.ndarray, strength: float) -> Floats:
    """Return the cross-validated costs of the present choices, (present,)."""
    folds = choices.prompt % FOLDS
    costs = np.full(len(folds), math.nan)
    theta = np.zeros(table.shape[1])
    for fold in np.unique(folds[present]):
        theta = fit_ridge(table, choices.of(folds != fold), strength, start=theta)
        here = present & (folds == fold)
        costs[here] = choices.of(here).costs(table @ theta)
    return np.asarray(costs[present])
