"""Strategies by a posterior of the reward: values of comparisons, and batches of them. NumPy and SciPy.

Of a comparison with completions a, b: z = x_a − x_b, and under the posterior N(μ, Σ) their difference of
rewards is normal with mean m = z·μ and variance v = zᵀΣz. Values of a ranking are those of its pairs
together: the mean, or for gaps the widest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from annotation.acquisition.posterior import Posterior, Rows, Values

UCB_WIDTH = 1.0
"""Standard deviations that DeltaUCB adds to an expected gap."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_SHORTLIST = 30
"""For each place of a batch so many comparisons of the highest value are looked at again."""
_READ_AT_ONCE = 20_000
_LN2 = float(np.log(2))


@dataclass(frozen=True, slots=True)
class Pool:
    """Comparisons of one size: what may be asked."""

    features: Values
    """(rows, d) of all completions."""
    table: Rows
    """(N, k) rows of each comparison's completions."""

    def differences(self, chosen: NDArray[np.int64] | slice = slice(None)) -> Values:
        """Return z of all pairs of some comparisons, (n, pairs, d)."""
        first, second = _pairs(self.table.shape[1])
        table = self.table[chosen]
        return np.asarray(self.features[table[:, first]] - self.features[table[:, second]])


def bald(mean: Values, variance: Values) -> Values:
    """Return the information of an answer about the reward in bits: H(E p) − E H(p) (Houlsby et al. 2011)."""
    chances = _sigmoid(mean[..., None] + np.sqrt(variance)[..., None] * _NODES)
    return _entropy(chances @ _WEIGHTS) - _entropy(chances) @ _WEIGHTS


def uncertainty(mean: Values, variance: Values) -> Values:
    """Return the entropy of the answer in bits: of what is not known and of chance alike."""
    return _entropy(_expected(mean, variance))


def d_optimal(mean: Values, variance: Values) -> Values:
    """Return the gain in log det of the information: log(1 + p (1 − p) v)."""
    p = _expected(mean, variance)
    return np.log1p(p * (1 - p) * variance)


def delta_ucb(mean: Values, variance: Values) -> Values:
    """Return the upper confidence bound of the gap between two completions (Melikidze et al. 2026)."""
    return np.abs(mean) + UCB_WIDTH * np.sqrt(variance)


def information_directed(mean: Values, variance: Values) -> Values:
    """Return the inverse of the information ratio: bits of information for a squared regret of 1.

    Russo & Van Roy 2014: the next action has the lowest Δ² / g. To ask about a pair is to show both
    completions, so the regret Δ is half of the expected gap E|r_a − r_b|, the mean of a folded normal
    distribution; g is the information of the answer about the reward. Of equal completions it is 0.
    """
    spread = np.sqrt(variance)
    ratio = np.divide(mean, spread, out=np.full_like(spread, np.inf), where=spread > 0)
    density = np.exp(-np.square(ratio) / 2) / np.sqrt(2 * np.pi)
    gap = 2 * spread * density + np.abs(mean) * (2 * ndtr(np.abs(ratio)) - 1)
    information = bald(mean, variance)
    return np.asarray(np.divide(4 * information, np.square(gap), out=np.zeros_like(gap), where=gap > 1e-9))


MEASURES: Mapping[str, tuple[Callable[[Values, Values], Values], Callable[[Values], Values]]] = {
    "bald": (bald, lambda values: values.mean(axis=1)),
    "head_uncertainty": (uncertainty, lambda values: values.mean(axis=1)),
    "head_d_optimal": (d_optimal, lambda values: values.mean(axis=1)),
    "delta_ucb": (delta_ucb, lambda values: values.max(axis=1)),
    "information_directed": (information_directed, lambda values: values.mean(axis=1)),
}
"""Strategy → value of a pair by mean and variance of its difference, and how pairs make up a ranking."""

THOMPSON = "thompson"
TARGETED = "targeted"
STRATEGIES = (*MEASURES, THOMPSON, TARGETED)


def values_of(strategy: str, posterior: Posterior, pool: Pool, random: np.random.Generator) -> Values:
    """Return the value of each comparison, (N,)."""
    target = _target(posterior, pool, random) if strategy == TARGETED else None
    values = np.zeros(len(pool.table))
    # In the precision of the features: of many comparisons that is half of the time.
    theta = posterior.mean.astype(pool.features.dtype)
    covariance = posterior.covariance.astype(pool.features.dtype)
    for start in range(0, len(values), _READ_AT_ONCE):
        some = slice(start, start + _READ_AT_ONCE)
        if strategy == THOMPSON:
            values[some] = _sampled_gap(posterior, pool.features[pool.table[some]], random)
            continue
        differences = pool.differences(some)
        mean = differences @ theta
        reach = differences @ covariance
        variance = np.maximum(np.einsum("npd,npd->np", reach, differences), 0.0)
        if target is not None:
            p = _expected(mean, variance)
            weight = p * (1 - p) / (1 + p * (1 - p) * variance)
            values[some] = (weight * np.einsum("npd,npd->np", reach @ target, reach)).mean(axis=1)
        else:
            measure, together = MEASURES[strategy]
            values[some] = together(measure(mean, variance))
    return values


def choose(
    strategy: str,
    posterior: Posterior,
    pool: Pool,
    count: int,
    random: np.random.Generator,
) -> list[int]:
    """Return indexes of comparisons that are best asked together, the most valuable first.

    Greedy: after each choice the covariance is what it will be once that comparison is answered, whatever the
    answer, so that the next choice is not worth what is known by then. Of near duplicates one is chosen; of
    exact ones never two.
    """
    values = values_of(strategy, posterior, pool, random)
    size = min(len(values), _SHORTLIST * count)
    order = np.argpartition(-values, size - 1)[:size] if size < len(values) else np.arange(len(values))
    order = order[np.argsort(-values[order], kind="stable")]
    order = order[_first_of_each(pool.features[pool.table[order]])]
    if strategy == THOMPSON:
        # Two draws are diverse by themselves.
        return [int(index) for index in order[:count]]
    return [int(order[index]) for index in _greedy(strategy, posterior, pool, order, count)]


def _greedy(
    strategy: str, posterior: Posterior, pool: Pool, order: NDArray[np.int64], count: int
) -> list[int]:
    """Return places in `order`, chosen one by one with the covariance updated after each."""
    differences = pool.differences(order)
    mean = differences @ posterior.mean
    covariance = posterior.covariance.copy()
    variance = np.einsum("npd,npd->np", differences @ covariance, differences)
    # What the gap is expected to be does not shrink, only what is not known of it.
    measure, together = MEASURES.get(strategy, MEASURES["bald"])
    left = np.ones(len(order), dtype=bool)
    chosen: list[int] = []
    while len(chosen) < min(count, len(order)):
        values = together(measure(mean, np.maximum(variance, 0.0)))
        best = int(np.argmax(np.where(left, values, -np.inf)))
        chosen.append(best)
        left[best] = False
        for difference, lead, spread in zip(differences[best], mean[best], variance[best], strict=True):
            p = float(_expected(np.array(lead), np.array(max(spread, 0.0))))
            reach = covariance @ difference
            scale = p * (1 - p) / (1 + p * (1 - p) * float(difference @ reach))
            covariance -= scale * np.outer(reach, reach)
            variance = variance - scale * np.square(differences @ reach)
    return chosen


def _target(posterior: Posterior, pool: Pool, random: np.random.Generator) -> Values:
    """Return the mean of z zᵀ over pairs of completions of a comparison."""
    some = random.permutation(len(pool.table))[:2000]
    flat = pool.differences(some).reshape(-1, len(posterior.mean))
    return np.asarray(flat.T @ flat / max(1, len(flat)))


def _sampled_gap(posterior: Posterior, stacks: Values, random: np.random.Generator) -> Values:
    """Double reversed Thompson sampling (Melikidze et al. 2026): the best completion by one draw of the
    reward, the worst by another, and the gap that both draws see between them. (n, k, d) to (n,)."""
    factor = np.linalg.cholesky(posterior.covariance + 1e-12 * np.eye(len(posterior.mean)))
    noise = stacks @ factor
    expected = stacks @ posterior.mean
    draws = random.standard_normal((2, len(stacks), stacks.shape[2]))
    sampled = [expected + np.einsum("nkd,nd->nk", noise, draw) for draw in draws]
    best, worst = sampled[0].argmax(axis=1), sampled[1].argmin(axis=1)
    rows = np.arange(len(stacks))
    gaps = [draw[rows, best] - draw[rows, worst] for draw in sampled]
    return np.asarray((gaps[0] + gaps[1]) / 2)


def _first_of_each(stacks: Values) -> NDArray[np.int64]:
    """Return the places of comparisons of which none before has the same completions."""
    seen: set[bytes] = set()
    indexes = []
    for index, stack in enumerate(stacks):
        key = np.sort(stack.round(6), axis=0).tobytes()
        if key not in seen:
            seen.add(key)
            indexes.append(index)
    return np.array(indexes, dtype=np.int64)


def _pairs(count: int) -> tuple[list[int], list[int]]:
    pairs = list(combinations(range(count), 2))
    return [a for a, _ in pairs], [b for _, b in pairs]


def _expected(mean: Values, variance: Values) -> Values:
    """Return E σ(m + √v ε), by MacKay's approximation."""
    return _sigmoid(mean / np.sqrt(1 + np.pi / 8 * variance))


def _sigmoid(values: Values) -> Values:
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))


def _entropy(chances: Values) -> Values:
    """Binary entropy in bits."""
    p = np.clip(chances, 1e-12, 1 - 1e-12)
    return np.asarray(-(p * np.log(p) + (1 - p) * np.log1p(-p)) / _LN2)
