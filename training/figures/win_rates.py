"""The interval of a win rate, valid at every number of prompts at once. Pure arithmetic, no Django.

Each held-out prompt gives one outcome in [0, 1]: 1 where the new policy's response wins, 0 where it loses,
1/2 for a tie. The interval of the mean outcome is a confidence sequence: it holds at every number of prompts
at once, so a decision may be looked at whenever another judgment arrives. It is the betting construction of
Waudby-Smith & Ramdas (2024), "Estimating means of bounded random variables by betting". For a candidate mean
m, the capital of a gambler who bets that the mean is larger is

    K(m) = ∫ Π_i (1 + (2q − 1) · (x_i − m) / m) f(q) dq

with f the density of Beta(5, 5) on (1/2, 1], a spread of bets that suits win rates of 55 to 80 %. If m is
the true mean, K(m) exceeds 1/α at any time with probability at most α (Ville's inequality). The lower bound
is the smallest m whose capital stays below 2/(1 − level); the upper bound mirrors it. At m = 1/2 a tie
neither wins nor loses a bet, so the decision rests on the prompts that differ, as in a sign test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]


# NumPy is imported on use: web processes show decisions without computing them.

MINIMUM = 20
"""Prompts on which the policies must differ before anything is decided."""
LEVEL = 0.95
_BET_SHAPE = 5.0
_BETS = 512
_BISECTIONS = 40
_SETTLED = 12
"""Successive sizes that must reach the power: a discrete test's power is not monotone in its size."""
_MOST_PROMPTS = 20_000


def win_rate_interval(outcomes: Sequence[float], *, level: float = LEVEL) -> tuple[float, float]:
    """Return the bounds of the win rate, valid at every number of outcomes at once; (0, 1) without any.

    One half lies outside exactly where `decide` with a minimum of 0 decides. Raises as `decide` does.
    """
    values = checked_outcomes(outcomes, level)
    low = _lower_bound(values, level)
    high = 1 - _lower_bound([1 - value for value in values], level)
    return low, high


def prompts_needed(
    win_rate: float = 0.7, *, level: float = LEVEL, power: float = 0.8, tie_rate: float = 0.0
) -> int:
    """Return the number of held-out prompts that show a true win rate with the given probability.

    Args:
        win_rate: of the new policy, ties counting half; above or below one half, the same.
        power: probability that `decide` reaches the right verdict.
        tie_rate: share of prompts that are expected to tie; the others decide.

    The number of deciding prompts is exact (binomial, one look at the end); the expected share of ties is
    then added. Raises `ValueError` for rates that contradict each other, and where more than 20,000 prompts
    were needed.
    """
    if not 0 <= tie_rate < 1 or not 0 < power < 1 or not 0 < level < 1:
        raise ValueError("tie_rate must lie in [0, 1), power and level in (0, 1).")
    wins = (max(win_rate, 1 - win_rate) - tie_rate / 2) / (1 - tie_rate)
    if not 0.5 < wins <= 1:
        raise ValueError(f"A win rate of {win_rate} with a tie rate of {tie_rate} shows no difference.")
    deciding = _deciding_prompts(round(wins, 6), level, power)
    return math.ceil(deciding / (1 - tie_rate))


@lru_cache(maxsize=64)
def win_rate_shown(prompts: int, *, level: float = LEVEL, power: float = 0.8) -> float | None:
    """Return the least true win rate that so many deciding prompts show with a probability of `power`.

    The inverse of `prompts_needed`. None where they are fewer than the minimum of a decision, or even winning
    all of them shows nothing.
    """
    from scipy.special import bdtri

    if prompts < MINIMUM or not _shows(prompts, 0, level):
        return None
    few, many = 0, prompts
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if _shows(prompts, middle, level) else (few, middle)
    return 1 - float(bdtri(few, prompts, power))


@lru_cache(maxsize=64)
def _deciding_prompts(wins: float, level: float, power: float) -> int:
    from scipy.special import bdtr

    reached = 0
    most_losses = -1
    for size in range(1, _MOST_PROMPTS + 1):
        # One more prompt allows at most one more loss.
        if _shows(size, most_losses + 1, level):
            most_losses += 1
        enough = most_losses >= 0 and bdtr(most_losses, size, 1 - wins) >= power
        reached = reached + 1 if enough else 0
        if reached == _SETTLED:
            return max(size - _SETTLED + 1, MINIMUM)
    raise ValueError(f"More than {_MOST_PROMPTS} prompts would be needed.")


def _shows(size: int, losses: int, level: float) -> bool:
    """Return whether `losses` among `size` deciding prompts still promote, by the capital's closed form.

    Without ties the integrand is (2q)^W (2(1 − q))^L, so the integral is an incomplete beta function.
    """
    from scipy.special import betaincc, betaln

    first, second = size - losses + _BET_SHAPE, losses + _BET_SHAPE
    log_capital = (
        (size + 1) * math.log(2)
        + betaln(first, second)
        - betaln(_BET_SHAPE, _BET_SHAPE)
        + math.log(max(float(betaincc(first, second, 0.5)), 1e-300))
    )
    return losses <= size and bool(log_capital >= math.log(2 / (1 - level)))


def checked_outcomes(outcomes: Sequence[float], level: float) -> list[float]:
    if not 0 < level < 1:
        raise ValueError(f"The level {level} does not lie between 0 and 1.")
    values = [float(outcome) for outcome in outcomes]
    for place, value in enumerate(values):
        if not 0 <= value <= 1:
            raise ValueError(f"Outcome {place} is {value}: give 1 for a win, 0.5 for a tie, 0 for a loss.")
    return values


def _lower_bound(values: Sequence[float], level: float) -> float:
    """Return the smallest mean that the bets on a larger one do not refute; the capital falls as the mean
    rises."""
    threshold = math.log(2 / (1 - level))
    refuted, possible = 0.0, math.fsum(values) / len(values) if values else 0.0
    if not possible:
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (refuted + possible) / 2
        if log_capital(values, middle) >= threshold:
            refuted = middle
        else:
            possible = middle
    return refuted


def log_capital(values: Sequence[float], mean: float, *, shape: float = _BET_SHAPE) -> float:
    """Return the log capital of a gambler who bets that the mean is larger than `mean` in (0, 1).

    shape: of the spread of bets; with 1 all stakes are alike, for win rates far from one half.
    """
    import numpy as np

    stakes, log_weights = _bets(shape)
    distinct, counts = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    with np.errstate(divide="ignore"):
        gains = np.log1p(stakes[:, None] * ((distinct - mean) / mean)[None, :])
    exponents = log_weights + gains @ counts
    top = exponents.max()
    return float(top + np.log(np.exp(exponents - top).sum()))


@lru_cache(maxsize=2)
def _bets(shape: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the stakes 2q − 1 at the nodes of a Gauss-Legendre rule, with the logarithms of their
    weights."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(_BETS)
    stakes = (nodes + 1) / 2
    # Beta(5, 5) at q = (1 + stake) / 2 is proportional to (1 − stake²)⁴.
    density = (1 - stakes**2) ** (shape - 1) * weights
    return stakes, np.log(density / density.sum())


# Evidence on a win rate from people's outcomes and an evaluator's, valid at every number of answers at
# once.
#
# A pool of N held-out prompts has an evaluator's outcome f_i each; people answer some of them, drawn at
# random without replacement, and give Y_i: 1 where the new policy's response wins, 0 where it loses, 1/2
# for a tie. People's outcomes are few and count; the evaluator's are many and only remove noise: whatever
# they are worth, the guarantee holds.
#
# **These prompts.** If the pool's mean of Y were a, the t-th answer would have the conditional mean a_t =
# (N a − Σ_{s<t} Y_s) / (N − t + 1), and the evaluator's outcome of the prompt drawn has exactly the mean
# μ_t of those not yet drawn. So
#
# X_t(a) = (Y_t − a_t) − λ_t (f_t − μ_t)
#
# has the mean zero for every λ_t that rests on earlier answers alone, and a gambler's capital M(a) = Π_t (1
# + b_t X_t(a)) with b_t fixed before the answer is a martingale (Waudby-Smith & Ramdas 2020, "Confidence
# sequences for sampling without replacement"). λ_t is the regression of Y on f over earlier answers, drawn
# to a first guess; the bet is Kelly's for a win rate of 1/2 + δ.
#
# **New prompts like these.** The pool is itself a sample, so its mean is not the win rate. For N
# independent prompts whose win rate is at most m, whatever their outcomes in [0, 1],
#
# c(a) = exp(η N a) / (1 − m + m e^η)^N
#
# is at most one on average at the pool's own mean a, so that inf_a M(a) · c(a) exceeds 1/α at any time with
# probability at most α: it is no more than the product at the pool's mean, where M does not gain given the
# pool. That holds the pool's variance, which a known mean of f would leave out. λ_t and the bets may rest
# on all f; η may not, and rests on δ and N alone. (Prediction-powered e-values, Csillag, Struchiner &
# Goedert, ICML 2025, arXiv 2502.04294, bet on the same sum.)
#
# Several δ share the stakes, and for new prompts people's answers alone (`win_rates.log_capital`)
# are one more gambler, with the more weight the smaller the pool is.

# NumPy is imported on use: web processes show decisions without computing them.

Claim = Literal["new_prompts", "these_prompts"]

_EFFECTS = (0.08, 0.12, 0.18, 0.27)
"""Win rates above the null that a gambler bets on each; those that rounds are about."""
_SHARES = (1 / 6, 1 / 3, 1 / 3, 1 / 6)
_POOL_SLOPE = 9.5
"""η N δ: near δ² over the variance at which evidence of ln 40 is reached, so the best η for a decision."""
_POOL_OF_PEOPLE = 100
"""Pool in which people's answers alone have half of the stakes."""
_FIRST_SLOPE, _SLOPE_WEIGHT = 0.5, 10.0
_FIRST_VARIANCE, _VARIANCE_WEIGHT = 0.21, 30.0
_LEAST_VARIANCE = 0.02
_MOST_OF_CAPITAL = 0.95
"""Share of the capital that a bet may lose at most."""
_COARSE, _FINE = 15, 9
_REFINEMENTS = 3
_SLACK = 0.01
"""Taken from the evidence: the infimum over the pool's mean is searched on a grid."""
_THRESHOLD_BISECTIONS = 14
_OVERHEAD = 1.5
"""Evidence beyond the threshold that a decision costs on average: the shared stakes and the search."""


@dataclass(frozen=True, slots=True)
class Answers:
    """People's outcomes in the order in which they came, with the evaluator's for the whole pool.

    outcomes: (n,) of people, in [0, 1]. controls: (n,) the evaluator's of the same prompts. pool: (N,) the
    evaluator's of all prompts.
    """

    outcomes: Floats
    controls: Floats
    pool: Floats

    @property
    def mirrored(self) -> Answers:
        """Return the same from the parent's side."""
        return Answers(1 - self.outcomes, 1 - self.controls, 1 - self.pool)


def read_answers(answers: Sequence[tuple[int, float]], scores: Sequence[float | None]) -> Answers:
    """Return checked answers; a prompt without a score gets the mean of the others, which tells nothing.

    Raises `ValueError` for a position that is answered twice or lies outside the scores, and for an outcome
    or a score outside [0, 1].
    """
    import numpy as np

    known = [float(score) for score in scores if score is not None]
    mean = math.fsum(known) / len(known) if known else 0.5
    pool = np.array([mean if score is None else float(score) for score in scores], dtype=np.float64)
    if not np.all((pool >= 0) & (pool <= 1)):
        place = int(np.flatnonzero(~((pool >= 0) & (pool <= 1)))[0])
        raise ValueError(f"Score {place} is {pool[place]}: give the evaluator's outcome, 0 to 1.")
    seen: set[int] = set()
    for place, (position, outcome) in enumerate(answers):
        if not 0 <= position < len(pool) or position != int(position):
            raise ValueError(f"Answer {place} is of position {position}: there are {len(pool)} scores.")
        if position in seen:
            raise ValueError(f"Answer {place} is of position {position}, which was answered before.")
        if not 0 <= outcome <= 1:
            raise ValueError(f"Answer {place} is {outcome}: give 1 for a win, 0.5 for a tie, 0 for a loss.")
        seen.add(int(position))
    positions = np.array([int(position) for position, _ in answers], dtype=np.intp)
    outcomes = np.array([float(outcome) for _, outcome in answers], dtype=np.float64)
    return Answers(outcomes=outcomes, controls=pool[positions], pool=pool)


def log_evidence(answers: Answers, null: float = 0.5, *, claim: Claim = "new_prompts") -> float:
    """Return the log capital of gamblers who bet that the win rate is larger than `null` in (0, 1)."""
    import numpy as np
    from scipy.special import logsumexp

    size, answered = len(answers.pool), len(answers.outcomes)
    if not answered:
        return 0.0
    won = float(answers.outcomes.sum())
    least, most = won / size, (won + size - answered) / size
    effects = np.array([min(effect, 0.9 * (1 - null)) for effect in _EFFECTS])
    draws = _Draws.of(answers)
    if claim == "these_prompts":
        if not least <= null <= most:
            # Whatever the other answers were, the mean of these prompts is another.
            return math.inf if null < least else -math.inf
        at_null = draws.log_capital(np.full((len(effects), 1), null), null + effects)[:, 0]
        return float(logsumexp(at_null, b=_SHARES))
    capitals = _least_products(draws, null, effects, least, most)
    of_people = 1 / (1 + (size / _POOL_OF_PEOPLE) ** 2)
    alone = log_capital(answers.outcomes.tolist(), null)
    shares = [(1 - of_people) * share for share in _SHARES]
    return float(logsumexp([*capitals, alone], b=[*shares, of_people]))


def _least_products(draws: _Draws, null: float, effects: Floats, least: float, most: float) -> Floats:
    """Return the infimum of log M(a) c(a) for each effect, over the pool's means that the answers allow."""
    import numpy as np

    size = draws.size
    # Kelly's bet on the whole pool is the most that it bears.
    slopes = np.minimum(_POOL_SLOPE / effects, size * effects / (null * (1 - null)))
    rates = slopes / size
    costs = size * (np.log1p(null * np.expm1(rates)) - rates * null)
    # Below the null by δ, c is tiny and M at a larger mean than the true one loses; above it by δ nothing is
    # bet and c only grows: the infimum lies between.
    low = np.clip(least, np.maximum(null - effects, 0.0), null + effects)
    high = np.clip(most, low, null + effects)
    rows = np.arange(len(effects))
    lowest = np.full(len(effects), np.inf)
    for points in (_COARSE, *[_FINE] * _REFINEMENTS):
        means = np.linspace(low, high, points, axis=1)
        values = draws.log_capital(means, null + effects) + slopes[:, None] * (means - null) - costs[:, None]
        best = values.argmin(axis=1)
        lowest = np.minimum(lowest, values[rows, best])
        low = means[rows, np.maximum(best - 1, 0)]
        high = means[rows, np.minimum(best + 1, points - 1)]
    found: Floats = lowest - _SLACK
    return found


@dataclass(frozen=True, slots=True)
class _Draws:
    """What a gambler knows before each of n answers, and the answer. All (n,) but the size of the pool."""

    size: int
    outcomes: Floats
    noise: Floats
    """λ_t (f_t − μ_t): what the evaluator's outcome of the prompt explains."""
    won: Floats
    """Sum of people's outcomes before the answer."""
    variance: Floats
    """Of what is left of an answer when the evaluator's part is taken away, as estimated before it."""
    worst_noise: Floats
    """The largest value that `noise` could take."""

    @classmethod
    def of(cls, answers: Answers) -> _Draws:
        import numpy as np

        outcomes, controls, pool = answers.outcomes, answers.controls, answers.pool
        size, mean, spread = len(pool), float(pool.mean()), float(pool.var())
        before = np.arange(len(outcomes))
        won, scored = _before(outcomes), _before(controls)
        centre = (won + 2.0) / (before + 4.0)
        deviations = controls - mean
        # Sums over earlier answers, around a centre of people's outcomes that moves with them.
        squares = _before(deviations**2)
        products = _before(outcomes * deviations) - centre * _before(deviations)
        own_squares = _before(outcomes**2) - 2 * centre * won + before * centre**2
        largest = float(np.abs(pool - mean).max(initial=0.0))
        steepest = 1 / largest if largest else 0.0
        first = min(_FIRST_SLOPE, 0.3 * steepest)
        weight = _SLOPE_WEIGHT * spread
        slope = np.clip((weight * first + products) / np.maximum(weight + squares, 1e-12), 0.0, steepest)
        left = own_squares - 2 * slope * products + slope**2 * squares
        variance = (_VARIANCE_WEIGHT * _FIRST_VARIANCE + left) / (_VARIANCE_WEIGHT + before)
        expected = (size * mean - scored) / (size - before)
        return cls(
            size=size,
            outcomes=outcomes,
            noise=slope * (controls - expected),
            won=won,
            variance=np.clip(variance, _LEAST_VARIANCE, 0.25),
            worst_noise=slope * np.maximum(pool.max(initial=0.0) - expected, 0.0),
        )

    def log_capital(self, means: Floats, alternatives: Floats) -> Floats:
        """Return the log capital (J, A) of a gambler for each of J alternatives, were the pool's mean `means`
        (J, A)."""
        import numpy as np

        remaining = (self.size - np.arange(len(self.outcomes))).astype(np.float64)
        gain = np.maximum(alternatives[:, None] - means, 0.0)

        def column(values: Floats) -> Floats:
            return values[:, None, None]

        expected = np.clip((self.size * means - column(self.won)) / column(remaining), 0.0, 1.0)
        drift = gain * column(self.size / remaining)
        bets = drift / (column(self.variance) + drift**2)
        most_lost = expected + column(self.worst_noise)
        bets = np.minimum(bets, _MOST_OF_CAPITAL / np.maximum(most_lost, 1e-9))
        steps = bets * (column(self.outcomes) - expected - column(self.noise))
        capital: Floats = np.log1p(steps).sum(axis=0)
        return capital


def _before(values: Floats) -> Floats:
    """Return the sum of what comes before each place."""
    import numpy as np

    sums: Floats = np.concatenate(([0.0], np.cumsum(values)[:-1])) if len(values) else values
    return sums


def sign_test(outcomes: Floats, *, pool: int | None = None) -> float:
    """Return the probability of so many wins or more, were the win rate at most one half; exact, one look.

    outcomes: (n,) of people, in [0, 1], on prompts drawn at random; what is neither a win, a tie nor a loss
    counts as the next lower of these. pool: number of prompts that they were drawn from, where the claim is
    about these alone; None where it is about new ones.

    Ties say nothing: given m answers that are none, wins among them are binomial with at most one half, or
    hypergeometric, where the number of prompts in the pool that are no ties is taken as the worst possible.
    """
    import numpy as np
    from scipy.stats import binom, hypergeom

    wins = int((outcomes == 1).sum())
    decided = int(((outcomes == 1) | (outcomes < 0.5)).sum())
    if not wins:
        return 1.0
    if pool is None:
        return float(binom.sf(wins - 1, decided, 0.5))
    possible = np.arange(decided, pool - (len(outcomes) - decided) + 1)
    return float(hypergeom.sf(wins - 1, possible, possible // 2, decided).max())


# ── Estimates and what they need ──


@dataclass(frozen=True, slots=True)
class WinRateEstimate:
    """A win rate with the interval that the decision rests on."""

    value: float
    low: float
    high: float


def point_estimate(answers: Answers) -> float:
    """Return people's mean, corrected by how the answered prompts differ from the pool to the evaluator."""
    return _OutcomeRegression.of(answers).value


def estimate(answers: Answers, *, claim: Claim = "new_prompts", level: float = LEVEL) -> WinRateEstimate:
    """Return the win rate by people and model; its interval holds at every number of answers at once.

    The value is that of `point_estimate`.
    """
    threshold = math.log(2 / (1 - level))
    value = point_estimate(answers)
    low = _bound(answers, value, claim, threshold)
    high = 1 - _bound(answers.mirrored, 1 - value, claim, threshold)
    return WinRateEstimate(value=value, low=min(low, value), high=max(high, value))


def _bound(answers: Answers, value: float, claim: Claim, threshold: float) -> float:
    """Return the largest null below the estimate that is refuted; 0 where none is."""
    refuted, possible = 0.0, min(max(value, 0.01), 0.99)
    for _ in range(_THRESHOLD_BISECTIONS):
        middle = (refuted + possible) / 2
        if log_evidence(answers, middle, claim=claim) >= threshold:
            refuted = middle
        else:
            possible = middle
    return refuted


@dataclass(frozen=True, slots=True)
class _OutcomeRegression:
    """The regression of people's outcomes on the evaluator's."""

    value: float
    """Estimated win rate."""
    variance: float
    """Of people's outcomes."""
    left: float
    """Of what the evaluator does not explain of them."""

    @classmethod
    def of(cls, answers: Answers) -> _OutcomeRegression:
        import numpy as np

        size, pool = len(answers.outcomes), answers.pool
        if not size:
            return cls(value=0.5, variance=0.25, left=0.25)
        mean = float(answers.outcomes.mean())
        deviations = answers.controls - answers.controls.mean()
        spread = float(pool.var())
        products = float(((answers.outcomes - mean) * deviations).sum())
        weight = _SLOPE_WEIGHT * spread
        slope = max(
            (weight * _FIRST_SLOPE + products) / max(weight + float((deviations**2).sum()), 1e-12), 0.0
        )
        value = mean - slope * float(answers.controls.mean() - pool.mean())
        prior = _VARIANCE_WEIGHT
        own = float(((answers.outcomes - mean) ** 2).sum())
        variance = (prior * 0.22 + own) / (prior + size)
        rest = float(((answers.outcomes - mean - slope * deviations) ** 2).sum())
        left = (prior * _FIRST_VARIANCE + rest) / (prior + size)
        return cls(value=float(np.clip(value, 0.0, 1.0)), variance=variance, left=min(left, variance))


def answers_until_decision(
    answers: Answers, *, pool: int | None = None, claim: Claim = "new_prompts", level: float = LEVEL
) -> int | None:
    """Return how many answers a decision takes in all if the estimate is right; None where the pool is too
    small for it.

    pool: number of scored prompts, if it were another than now.
    """
    fit = _OutcomeRegression.of(answers)
    size = pool or len(answers.pool)
    effect = abs(fit.value - 0.5)
    allowed = effect**2 / (2 * (math.log(2 / (1 - level)) + _OVERHEAD))
    of_pool = fit.variance / size if claim == "new_prompts" else 0.0
    of_answers = allowed - of_pool
    if of_answers <= 0:
        return None
    return max(math.ceil(1 / (of_answers / max(fit.left, 1e-9) + 1 / size)), 1)


def chance_of_decision(answers: Answers, *, claim: Claim = "new_prompts", level: float = LEVEL) -> float:
    """Return the probability that the answers decide once the whole pool is answered, by what is known now.

    The mean of the whole pool is normal around the estimate, with the variance that is left by the prompts
    without an answer; it decides where it lies far enough from one half.
    """
    fit = _OutcomeRegression.of(answers)
    size, answered = len(answers.pool), len(answers.outcomes)
    if claim == "new_prompts":
        needed = math.sqrt(2 * (math.log(2 / (1 - level)) + _OVERHEAD) * fit.variance / size)
    else:
        needed = 0.5 / size
    spread = math.sqrt(fit.left * max(1 / max(answered, 1) - 1 / size, 0.0))
    if not spread:
        return float(abs(fit.value - 0.5) >= needed)

    def above(bound: float) -> float:
        return 0.5 * math.erfc((bound - fit.value) / spread / math.sqrt(2))

    return above(0.5 + needed) + 1 - above(0.5 - needed)


def answers_needed(
    win_rate: float = 0.7,
    *,
    pool: int,
    agreement: float = 0.5,
    level: float = LEVEL,
    power: float = 0.8,
) -> int | None:
    """Return the answers that show a true win rate with a probability of `power`; None where a pool of so
    many scored prompts is too small to show it of new prompts.

    agreement: probability that the evaluator's outcome is people's; 1/2 tells nothing. The number is that of
    the normal approximation, which simulations reach within a tenth.
    """
    effect = abs(win_rate - 0.5)
    variance = win_rate * (1 - win_rate)
    # Covariance and variance of an evaluator that errs as often by either policy.
    scored = win_rate * agreement + (1 - win_rate) * (1 - agreement)
    covariance = variance * (2 * agreement - 1)
    left = variance - covariance**2 / (scored * (1 - scored))
    evidence = math.sqrt(2 * (math.log(2 / (1 - level)) + _OVERHEAD)) + NormalDist().inv_cdf(power)
    of_answers = (effect / evidence) ** 2 - variance / pool
    if effect == 0 or of_answers <= 0:
        return None
    return math.ceil(1 / (of_answers / max(left, 1e-9) + 1 / pool))
