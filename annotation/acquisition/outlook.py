"""The learning curve of a project's head, the gain of the next annotations, and that of a strategy.

NumPy alone. The curve is measured: the head is fitted to parts of the rankings and asked about prompts that
it has not seen. It is extrapolated as accuracy = a − b / √n, the rate at which a parametric model learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from annotation.acquisition.posterior import Choices, Posterior, Rows, Values, choices_of, fit_at

_PARTS = (0.2, 0.35, 0.5, 0.7, 1.0)
_DEALS = 8
_TESTED = 0.25
_FEWEST = 40
"""With fewer rankings no curve is drawn."""
_MOST = 1500
"""Of more rankings so many are drawn by chance."""
_BOOTSTRAPS = 400
_DRAWS = 20

Ranking = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Outlook:
    """A learning curve, and what lies ahead."""

    rankings: int
    """From how many it was measured."""
    points: list[tuple[int, float]]
    """(rankings learned from, accuracy on prompts that the head had not seen)."""
    now: tuple[float, float, float]
    """Accuracy at this number by the fitted curve, with a 95 % interval."""
    next_100: tuple[float, float, float]
    """Gain of the next hundred annotations, with a 95 % interval."""

    def to_json(self) -> dict[str, object]:
        """Return it for the database."""
        return {
            "rankings": self.rankings,
            "points": [list(point) for point in self.points],
            "now": list(self.now),
            "next_100": list(self.next_100),
        }


def outlook_of(
    features: Values,
    rankings: Sequence[Ranking],
    prompts: Sequence[int],
    precision: float,
    random: np.random.Generator,
) -> Outlook | None:
    """Return the outlook from rankings with their prompts; None before there are enough of them.

    Prompts are dealt to learning and test several times. The interval is that of the deals, by bootstrap.
    """
    indexes = [index for index, (_, ranks) in enumerate(rankings) if len(set(ranks)) > 1]
    if len(indexes) < _FEWEST or len({prompts[index] for index in indexes}) < 10:
        return None
    chosen = random.permutation(indexes)[:_MOST]
    measured = [_deal(features, rankings, prompts, chosen, precision, random) for _ in range(_DEALS)]
    sizes = np.array([[size for size, _ in deal] for deal in measured], dtype=np.float64)
    accuracies = np.array([[value for _, value in deal] for deal in measured])
    now, ahead = _extrapolated(sizes, accuracies, len(indexes))
    drawn = [
        _extrapolated(sizes[some], accuracies[some], len(indexes))
        for some in (random.integers(0, _DEALS, _DEALS) for _ in range(_BOOTSTRAPS))
    ]
    points = [
        (round(float(size)), float(value))
        for size, value in zip(sizes.mean(0), accuracies.mean(0), strict=True)
    ]
    return Outlook(
        len(indexes), points, _interval(now, [a for a, _ in drawn]), _interval(ahead, [b for _, b in drawn])
    )


def _deal(
    features: Values,
    rankings: Sequence[Ranking],
    prompts: Sequence[int],
    chosen: Rows,
    precision: float,
    random: np.random.Generator,
) -> list[tuple[int, float]]:
    """Return the curve of one deal of the prompts."""
    known = sorted({prompts[index] for index in chosen})
    tested = set(random.permutation(known)[: max(1, round(_TESTED * len(known)))].tolist())
    learned = [index for index in random.permutation(chosen) if prompts[index] not in tested]
    test = choices_of([rankings[index] for index in chosen if prompts[index] in tested])
    course, start = [], None
    for part in _PARTS:
        count = max(2, round(part * len(learned)))
        choices = choices_of([rankings[index] for index in learned[:count]])
        posterior = fit_at(features, choices, precision, start=start)
        start = posterior.mean
        course.append((count, accuracy_on(posterior, features, test)))
    return course


def accuracy_on(posterior: Posterior, features: Values, choices: Choices) -> float:
    """Return the share of pairs (chosen, other) that the mean orders so; equal scores count half."""
    scores = features @ posterior.mean
    right, count = 0.0, 0
    for place in range(1, choices.table.shape[1]):
        there = choices.table[:, place] >= 0
        lead = scores[choices.table[there, 0]] - scores[choices.table[there, place]]
        right += float((lead > 0).sum() + (lead == 0).sum() / 2)
        count += len(lead)
    return right / count if count else 0.5


def _extrapolated(sizes: Values, accuracies: Values, count: int) -> tuple[float, float]:
    """Return accuracy at `count`, and the gain of a hundred more, by least squares on 1 / √n.

    A curve that falls with more data is chance: it is taken for flat.
    """
    x, y = 1 / np.sqrt(sizes.ravel()), accuracies.ravel()
    slope = min(0.0, float(np.cov(x, y)[0, 1] / max(x.var(ddof=1), 1e-12)))
    level = float(y.mean() - slope * x.mean())
    now = min(1.0, level + slope / np.sqrt(count))
    return now, min(1.0, level + slope / np.sqrt(count + 100)) - now


def _interval(value: float, drawn: Sequence[float]) -> tuple[float, float, float]:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(value), float(min(low, value)), float(max(high, value))


def random_labels_worth(
    features: Values, judged: Rows, pool: Rows, posterior: Posterior, random: np.random.Generator
) -> float:
    """Return how many pairs drawn at random hold as much information about the reward as those judged.

    Information is log det(λ I + Σ p (1 − p) z zᵀ) by what is known now. judged, pool: (n, 2) rows of pairs.
    """
    goal = _log_det(_information(features, judged, posterior), posterior.precision)
    counts = []
    for _ in range(_DRAWS):
        drawn = pool[random.permutation(len(pool))]
        low, high = 0, len(drawn)
        while low < high:
            middle = (low + high) // 2
            held = _log_det(_information(features, drawn[:middle], posterior), posterior.precision)
            low, high = (middle + 1, high) if held < goal else (low, middle)
        counts.append(low)
    return float(np.mean(counts))


def _information(features: Values, pairs: Rows, posterior: Posterior) -> Values:
    differences = (features[pairs[:, 0]] - features[pairs[:, 1]]).astype(np.float64)
    p = 0.5 * (1 + np.tanh(differences @ posterior.mean / 2))
    return np.asarray(differences.T @ ((p * (1 - p))[:, None] * differences))


def _log_det(information: Values, precision: float) -> float:
    return float(np.linalg.slogdet(precision * np.eye(len(information)) + information)[1])
