"""Resamples of the votes, and what becomes of the parameters in each.

The Bayesian bootstrap (Rubin 1981): a resample gives each vote an exponential weight of mean 1, where
Efron's gives it a Poisson count of mean 1. c votes that say the same weigh Gamma(c) together, so counts
are resampled as counts. Every vote keeps some weight, so where ratings exist they exist in every resample;
Efron's loses the only defeat of a strong item in a third of them, and has no finite rating there.

A prior is resampled, too: each resample draws its centre, as if it were one more observation. So what only
the prior speaks of is as uncertain as the prior, here as in the sandwich.
"""

import numpy as np

from training.ratings.matrix import inverse
from training.ratings.result import Floats
from training.ratings.rows import Rows

SEED = 20131
_MOST_REFITTED = 12_000_000
_REFITTED_THOUGH_VOTES_ARE_PLENTY = 2_000_000
_PLENTY = 500
"""Votes for each parameter of which one step's error, a share of about 1 / √votes, is small."""
_NUMBERS_AT_ONCE = 400_000
_ENTRIES_AT_ONCE = 2_000_000
_BLOCKS = 4096


def resampled(rows: Rows, fitted: Floats, *, resamples: int, seed: int) -> Floats:
    """Return the parameters of each resample, (resamples, P). Deterministic for a seed.

    Each resample is refitted while rows × resamples is at most 2 million (about a second), or 12 million
    where there are fewer than 500 votes for each parameter. Beyond that one step from the estimate is the
    answer to first order (the k-step bootstrap of Andrews 2002 with k = 1): see `_one_step`.
    """
    generator = np.random.default_rng(seed)
    chord = inverse(rows.information(fitted[:, None], rows.counts[:, :, None])[0])
    plenty = rows.counts.sum() >= _PLENTY * len(fitted)
    most = _REFITTED_THOUGH_VOTES_ARE_PLENTY if plenty else _MOST_REFITTED
    if len(rows.counts) * resamples > most:
        return _one_step(rows, fitted, chord, generator, resamples)
    at_once = min(_NUMBERS_AT_ONCE // max(1, len(rows.counts)), _ENTRIES_AT_ONCE // len(fitted) ** 2)
    size = max(1, min(resamples, at_once))
    parameters = []
    for start in range(0, resamples, size):
        some = min(size, resamples - start)
        weights = generator.standard_gamma(rows.counts[:, :, None], size=(*rows.counts.shape, some))
        same = np.repeat(fitted[:, None], some, axis=1)
        centre = _centres(rows, fitted, generator, some).T
        parameters.append(rows.refit(same, weights, chord=chord, centre=centre).T)
    return np.concatenate(parameters)


def _centres(rows: Rows, fitted: Floats, generator: np.random.Generator, resamples: int) -> Floats:
    """Return the prior's centre in each resample, (resamples, P), of the ratings about their mean."""
    if not rows.prior:
        return np.zeros((resamples, len(fitted)))
    centres = generator.normal(0, rows.prior**-0.5, (resamples, len(fitted)))
    centres[:, : rows.items] -= centres[:, : rows.items].mean(axis=1, keepdims=True)
    return centres


def _one_step(
    rows: Rows, fitted: Floats, chord: Floats, generator: np.random.Generator, resamples: int
) -> Floats:
    """θ* = θ + A⁻¹ Σ (w − 1) g over blocks of votes, w exponential, g what a block adds to the gradient.

    Votes are dealt by chance into 4,096 blocks: with that many, weights for blocks spread θ* as weights for
    votes do, to about one part in a hundred, and there is a thousandth of them to draw. Takes memory and
    time in proportion to the votes.
    """
    along, by_tie = (part.ravel() for part in rows.scores(fitted))
    cells = np.repeat(np.arange(along.size), np.rint(rows.counts.ravel()).astype(np.int64))
    blocks = generator.integers(0, _BLOCKS, len(cells))
    row, width = cells // 3, rows.linear
    added = np.zeros((_BLOCKS, len(fitted)))
    entries = int(rows.design.indptr[1])
    columns, values = (part.reshape(-1, entries) for part in (rows.design.indices, rows.design.data))
    for place in range(entries):
        keys = blocks * width + columns[row, place]
        sums = np.bincount(keys, weights=along[cells] * values[row, place], minlength=_BLOCKS * width)
        added[:, :width] += sums.reshape(_BLOCKS, width)
    if rows.with_tie:
        added[:, width] = np.bincount(blocks, weights=by_tie[cells], minlength=_BLOCKS)
    weights = generator.standard_exponential((resamples, _BLOCKS))
    pull = rows.prior * _centres(rows, fitted, generator, resamples)
    steps = ((weights - 1) @ added + pull) @ chord
    steps[:, : rows.items] -= steps[:, : rows.items].mean(axis=1, keepdims=True)
    moved: Floats = fitted + steps
    return moved
