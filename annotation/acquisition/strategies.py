"""Strategies of acquisition: the value of each open comparison as a number. NumPy alone.

Every function takes all open comparisons and returns one value for each; higher is asked
sooner, and `in_order` turns the values into an order. Rewards are those of an ensemble: for a
comparison of k completions an array (members, k), with r_m(a) the reward that member m gives to
completion a. By the model of Bradley and Terry (1952) member m expects a to win over b with
p_m = σ(r_m(a) − r_m(b)). A single reward model is an ensemble of one.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

SMALLEST_PRECISION = 1e-3
"""Prior precision (1 / variance) of every parameter in D-optimality."""

_SHUFFLES = 2**31


def random(shuffles: Sequence[int]) -> Values:
    """By chance: `shuffles` are numbers drawn once per comparison below 2³¹. Values in [0, 1)."""
    return np.asarray(shuffles, dtype=np.float64) / _SHUFFLES


def uncertainty(rewards: Sequence[Values]) -> Values:
    """Return the reward model's uncertainty of the outcome in bits: 1 where it knows nothing.

    The entropy H(p) of the mean over the members of p_m, for a pair highest where the rewards are
    equal (uncertainty sampling: Lewis & Gale 1994). A ranking counts the mean over its pairs, so that
    it stands beside pairs on one scale.
    """
    return _each(rewards, lambda chances: _entropy(chances.mean(axis=1)).mean(axis=-1))


def disagreement(rewards: Sequence[Values]) -> Values:
    """Return the disagreement of an ensemble: the variance of p_m over its members, 0 to ¼.

    The mean over the pairs of a ranking. 0 for a single member. Query by committee (Seung, Opper &
    Sompolinsky 1992); on preferences Christiano et al. 2017, section 2.2.4.
    """
    return _each(rewards, lambda chances: chances.var(axis=1).mean(axis=-1))


def d_optimal(
    designs: Sequence[Values],
    rewards: Sequence[Values],
    *,
    known: Values | None = None,
    precision: float = SMALLEST_PRECISION,
    most: int | None = None,
) -> Values:
    """Return each comparison's gain in information about the parameters of a Bradley-Terry model.

    `designs`: per comparison (k, d), row a the features x_a of completion a; one-hot by the model
    that wrote it asks what the models' strengths are. A pair has the Fisher information
    p(1 − p)(x_a − x_b)(x_a − x_b)ᵀ with p the mean of p_m; a ranking is taken for all its pairs. `known`
    (d, d) is the information of what was judged already: see `information`. What maximises
    log det(precision · I + known + Σ information) is sought greedily (D-optimality: Wald 1943;
    for paired comparisons Graßhoff & Schwabe 2008), which comes within 1 − 1/e of the best choice of
    each size (Nemhauser, Wolsey & Fisher 1978). The value is the gain at the moment of choice; gains
    never rise from one choice to the next. After `most` choices the rest keep their gain beside
    those chosen.
    """
    if len(designs) != len(rewards):
        raise ValueError(f"{len(designs)} designs do not fit {len(rewards)} comparisons")
    if not designs:
        return np.zeros(0)
    roots = _roots_of_information(designs, rewards)
    before = precision * np.eye(designs[0].shape[1])
    covariance = np.asarray(np.linalg.inv(before if known is None else before + known), dtype=np.float64)
    gains = _gains(roots, covariance)
    # Gains only fall as more is chosen, so one that is still the highest after it was computed
    # anew is the highest of all (lazy evaluation: Minoux 1978).
    queue = [(-gain, index, 0) for index, gain in enumerate(gains)]
    heapq.heapify(queue)
    chosen = 0
    while queue and chosen != most:
        _, index, known_at = heapq.heappop(queue)
        if known_at < chosen:
            gains[index] = _gain(roots[index], covariance)
            heapq.heappush(queue, (-gains[index], index, chosen))
            continue
        covariance = _updated(covariance, roots[index])
        chosen += 1
    rest = [index for _, index, _ in queue]
    gains[rest] = _gains([roots[index] for index in rest], covariance)
    return gains


def information(designs: Sequence[Values], rewards: Sequence[Values], *, features: int) -> Values:
    """(features, features): the Fisher information of these comparisons together, as in `d_optimal`."""
    total = np.zeros((features, features))
    for _, stack in _by_shape(_roots_of_information(designs, rewards)):
        rows = stack.reshape(-1, features)
        total += rows.T @ rows
    return total


def in_order(values: Values) -> list[int]:
    """Indexes of the comparisons, the highest value first; equal values stay in their order."""
    return [int(index) for index in np.argsort(-values, kind="stable")]


def neutral(values: Values) -> float:
    """The value of a comparison of which nothing is known: the median of the others, 0 without any."""
    return float(np.median(values)) if len(values) else 0.0


def _pairs(count: int) -> tuple[list[int], list[int]]:
    pairs = list(combinations(range(count), 2))
    return [a for a, _ in pairs], [b for _, b in pairs]


def _chances(rewards: Values) -> Values:
    """(…, k) rewards to (…, pairs): the probability that the first of each pair wins."""
    first, second = _pairs(rewards.shape[-1])
    lead = rewards[..., first] - rewards[..., second]
    # By tanh, which no lead makes overflow.
    return np.asarray(0.5 * (1 + np.tanh(lead / 2)))


def _entropy(chances: Values) -> Values:
    """Binary entropy in bits; 0 at certainty, where p log p is 0."""
    other = 1 - chances
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = -chances * np.log2(chances) - other * np.log2(other)
    return np.nan_to_num(bits, nan=0.0)


def _by_shape(arrays: Sequence[Values]) -> list[tuple[list[int], Values]]:
    """Arrays of one shape in one stack, with their places: what NumPy computes at once."""
    places: dict[tuple[int, ...], list[int]] = {}
    for index, array in enumerate(arrays):
        places.setdefault(array.shape, []).append(index)
    return [(indexes, np.stack([arrays[index] for index in indexes])) for indexes in places.values()]


def _each(rewards: Sequence[Values], value_of: Callable[[Values], Values]) -> Values:
    """One value per comparison, 0 for a completion that stands alone."""
    values = np.zeros(len(rewards))
    for indexes, stack in _by_shape(rewards):
        if stack.shape[-1] > 1:
            values[indexes] = value_of(_chances(stack))
    return values


def _roots_of_information(designs: Sequence[Values], rewards: Sequence[Values]) -> list[Values]:
    """(pairs, d) each: √(p(1 − p)) (x_a − x_b), whose outer products sum to the comparison's information."""
    roots: list[Values] = [np.zeros((0, 0))] * len(designs)
    chances: list[Values] = [np.zeros(0)] * len(designs)
    for indexes, stack in _by_shape(rewards):
        for index, chance in zip(indexes, _chances(stack).mean(axis=1), strict=True):
            chances[index] = chance
    for indexes, stack in _by_shape(designs):
        first, second = _pairs(stack.shape[1])
        p = np.stack([chances[index] for index in indexes])
        stacked_roots = np.sqrt(p * (1 - p))[..., None] * (stack[:, first] - stack[:, second])
        for index, root in zip(indexes, stacked_roots, strict=True):
            roots[index] = root
    return roots


def _gain(roots: Values, covariance: Values) -> float:
    # One by one, and so without the stacking that `_gains` does for many.
    gram = roots @ covariance @ roots.T
    if len(gram) == 1:
        return math.log1p(gram[0, 0])
    return float(np.linalg.slogdet(np.eye(len(gram)) + gram)[1])


def _gains(information: Sequence[Values], covariance: Values) -> Values:
    """log det(M + RᵀR) − log det M = log det(I + R M⁻¹ Rᵀ) for each R, `covariance` being M⁻¹."""
    gains = np.zeros(len(information))
    for indexes, stack in _by_shape(information):
        gram = stack @ covariance @ stack.transpose(0, 2, 1)
        _, gains[indexes] = np.linalg.slogdet(np.eye(stack.shape[1]) + gram)
    return gains


def _updated(covariance: Values, roots: Values) -> Values:
    """(M + RᵀR)⁻¹ by one rank-one update per pair (Sherman & Morrison 1950)."""
    for root in roots:
        direction = covariance @ root
        covariance = covariance - np.outer(direction, direction) / (1 + root @ direction)
    return covariance
