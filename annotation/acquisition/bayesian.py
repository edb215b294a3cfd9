"""Strategies by a posterior of the reward: values of comparisons, and batches of them. NumPy and SciPy.

Of a comparison with completions a, b: z = x_a − x_b, and under the posterior N(μ, Σ) their difference of
rewards is normal with mean m = z·μ and variance v = zᵀΣz. Values of a ranking are those of its pairs
together: the mean, or for gaps the widest one.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached
from django.db.models import Count, F, Max, QuerySet
from numpy.typing import NDArray
from scipy.special import ndtr

from annotation.acquisition.posterior import (
    NOBODY,
    ChoiceTable,
    Posterior,
    Rows,
    Values,
    sets_of,
    standardised,
    table_of,
)
from annotation.choices import Purpose, Verdict
from annotation.models import (
    Candidate,
    Comparison,
    CompletionFeatures,
    Judgment,
    Project,
    RankedCompletion,
)

# Features of completions, comparisons and rankings of a project, as arrays. Reads only.
#
# Cached in the process from one update to the next: only new rows are read. Completions whose features are
# not stored are returned by `unread`; the caller stores them.

# Features of a completion that need no model: counts, and words by signed hashing. NumPy alone.
#
# They are there the moment a completion is, whatever wrote it, and cost a fraction of a millisecond. On
# published judgments word n-grams know about as much of a preference as a small model does, see
# tests/benchmarks/quality.md.

SPACE = "text-1"
"""Name of these features: another name where they mean something else."""

SURFACE = (
    *("words", "log_words", "lines", "item_share", "sentence_words", "word_letters", "variety"),
    *("overlap_prompt", "digits", "capitals", "questions", "exclamations", "ends"),
    *("code", "emphasis", "refusal"),
)
"""Names of the first columns."""
HASHED = 80
"""Columns that words and pairs of words are hashed into."""
DIMENSIONS = len(SURFACE) + HASHED

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_ITEM = re.compile(r"^[ \t]*(?:[-*•+]|\d{1,3}[.)])[ \t]+\S")
_REFUSAL = re.compile(
    r"\b(?:i(?:['’]m| am) (?:very |so |really )?sorry|i apologi[sz]e|i (?:can(?:['’]t|not)|won['’]t)"
    r"|i am unable|as an ai)\b",
    re.IGNORECASE,
)
_ENDS = tuple(".!?…:;)\"'”’`")


def features_of(prompt: str, text: str) -> NDArray[np.float32]:
    """Return the features of a completion of a prompt, (DIMENSIONS,)."""
    words = _WORD.findall(text.lower())
    values = np.zeros(DIMENSIONS, dtype=np.float32)
    values[: len(SURFACE)] = _surface(prompt, text, words)
    if words:
        scale = 1 / math.sqrt(len(words))
        for token in (*words, *map(" ".join, itertools.pairwise(words))):
            code = zlib.crc32(token.encode())
            values[len(SURFACE) + (code >> 1) % HASHED] += scale if code & 1 else -scale
    return values


def _surface(prompt: str, text: str, words: list[str]) -> list[float]:
    count = len(words)
    per_word = 1 / max(1, count)
    lines = [line for line in text.splitlines() if line.strip()]
    sentences = max(1, sum(text.count(sign) for sign in ".!?"))
    prompt_words = set(_WORD.findall(prompt.lower()))
    letters = max(1, len(text))
    return [
        min(count, 500) / 100,
        math.log1p(count),
        math.log1p(len(lines)),
        sum(bool(_ITEM.match(line)) for line in lines) / max(1, len(lines)),
        min(count / sentences, 60) / 20,
        sum(map(len, words)) * per_word,
        len(set(words)) * per_word,
        # Of what the prompt says, the share that is taken up.
        len(prompt_words.intersection(words)) / max(1, len(prompt_words)),
        10 * sum(map(str.isdigit, text)) / letters,
        10 * sum(map(str.isupper, text)) / letters,
        math.log1p(text.count("?")),
        math.log1p(text.count("!")),
        float(text.rstrip().endswith(_ENDS)),
        float("```" in text),
        math.log1p(text.count("**") / 2),
        float(bool(_REFUSAL.search(text))),
    ]


_READ_AT_ONCE = 500
_ROOM = 1024


@dataclass(slots=True)
class ProjectArrays:
    """Arrays of one project and round."""

    project: int
    round_number: int
    row_of: dict[int, int] = field(default_factory=dict)
    """Completion → row of the features."""
    comparisons: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Comparison of the round → rows of its completions."""
    rankings: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """Judgment → rows and ranks, what a partial ranking leaves without an order tied last; of all rounds."""
    prompt_of: dict[int, int] = field(default_factory=dict)
    """Judgment → prompt."""
    last_judgment: int = 0
    last_comparison: int = 0
    mode: Values | None = None
    """Last mode of the posterior; None before the first fit."""
    _table: Values = field(default_factory=lambda: np.zeros((_ROOM, DIMENSIONS), dtype=np.float32))
    _standard: tuple[int, Values] | None = None
    _tables: list[tuple[Rows, Rows]] | None = None
    _sets: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    """Judgment → its choices."""

    def add(self, completion: int, values: NDArray[np.float32]) -> None:
        """Add the features of a completion."""
        row = len(self.row_of)
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[row] = values
        self.row_of[completion] = row

    def features(self) -> Values:
        """Return the features of all completions, standardised over them, (rows, d) float32."""
        count = len(self.row_of)
        if self._standard is None or self._standard[0] != count:
            self._standard = count, standardised(self._table[:count])
        return self._standard[1]

    def choices(self) -> ChoiceTable:
        """Return what all rankings chose."""
        for judgment in self._sets.keys() - self.rankings.keys():
            del self._sets[judgment]
        for judgment in self.rankings.keys() - self._sets.keys():
            self._sets[judgment] = sets_of(*self.rankings[judgment])
        return table_of([choice for judgment in self.rankings for choice in self._sets[judgment]])

    def open_tables(self) -> list[tuple[Rows, Rows]]:
        """Return the comparisons of the round that may still be asked, by size: their ids and rows."""
        if self._tables is None:
            self._tables = _by_size(self.comparisons)
        # Those that are full are fewer, for as long as choosing matters.
        full = Comparison.objects.filter(
            project=self.project,
            round_number=self.round_number,
            purpose=Purpose.WORK,
            open_slots=0,
        ).order_by()
        closed = np.array(list(full.values_list("pk", flat=True)), dtype=np.int64)
        chosen = [(ids, table, ~np.isin(ids, closed)) for ids, table in self._tables]
        return [(ids[open_], table[open_]) for ids, table, open_ in chosen if open_.any()]


def _by_size(comparisons: dict[int, tuple[int, ...]]) -> list[tuple[Rows, Rows]]:
    """Return ids and rows of comparisons, by their number of completions."""
    sizes: dict[int, list[int]] = defaultdict(list)
    for pk, rows in comparisons.items():
        sizes[len(rows)].append(pk)
    return [
        (np.array(ids), np.array([comparisons[pk] for pk in ids]))
        for size, ids in sorted(sizes.items())
        if size > 1
    ]


_MOST_CACHED = 8


def _key(project: Project, round_number: int) -> tuple[int, int, int]:
    # What a calibration session hides or reveals is older than what was read: all is read again.
    return project.pk, round_number, project.calibration_seals


@cached(LRUCache(_MOST_CACHED), key=_key, lock=Lock())
def arrays_of(project: Project, round_number: int) -> ProjectArrays:
    """Return the arrays of a project and its newest round, cached from one update to the next."""
    return ProjectArrays(project.pk, round_number)


def clear_cache() -> None:
    """Drop the cached arrays of all projects."""
    arrays_of.cache_clear()


def unread(arrays: ProjectArrays) -> set[int]:
    """Return completions of the round's comparisons and of rankings that are not among the features."""
    return {pk for pk in _completions(arrays) if pk not in arrays.row_of}


def _completions(arrays: ProjectArrays) -> set[int]:
    new = Candidate.objects.filter(
        comparison__project=arrays.project,
        comparison__round_number=arrays.round_number,
        comparison__purpose=Purpose.WORK,
        comparison__gt=arrays.last_comparison,
    ).order_by()
    completions = set(new.values_list("completion_id", flat=True))
    ranked = RankedCompletion.objects.filter(judgment__in=_new_judgments(arrays)).order_by()
    unordered = {pk for rest in _unordered(arrays).values() for pk in rest}
    return completions | set(ranked.values_list("completion_id", flat=True)) | unordered


def _unordered(arrays: ProjectArrays) -> dict[int, list[int]]:
    """Return new partial rankings with the completions that they leave without an order."""
    partial = (
        _new_judgments(arrays)
        .filter(verdict=Verdict.RANKED, comparison__size__gt=2)
        .annotate(ranked=Count("ranks"))
        .filter(ranked__lt=F("comparison__size"))
        .order_by()
    )
    rest = {pk: set(shown) for pk, shown in partial.values_list("pk", "assignment__display_order")}
    ranked = RankedCompletion.objects.filter(judgment__in=list(rest)).order_by()
    for judgment, completion in ranked.values_list("judgment_id", "completion_id") if rest else ():
        rest[judgment].discard(completion)
    return {judgment: sorted(completions) for judgment, completions in rest.items()}


def read_stored(arrays: ProjectArrays, completions: set[int]) -> set[int]:
    """Read the stored features of completions; return those that have none in this space."""
    ids = sorted(completions)
    for start in range(0, len(ids), _READ_AT_ONCE):
        some = ids[start : start + _READ_AT_ONCE]
        rows = CompletionFeatures.objects.filter(pk__in=some, space=SPACE).order_by()
        for pk, values in rows.values_list("pk", "values"):
            arrays.add(pk, np.frombuffer(bytes(values), dtype="<f4"))
    return completions - arrays.row_of.keys()


def read_new(arrays: ProjectArrays) -> None:
    """Read comparisons and rankings that came since, whose completions are among the features."""
    rankings: dict[int, list[tuple[int, int]]] = defaultdict(list)
    newest_judgment = _new_judgments(arrays).aggregate(newest=Max("pk"))["newest"] or arrays.last_judgment
    rows = RankedCompletion.objects.filter(judgment__in=_new_judgments(arrays)).order_by("judgment_id")
    ranks = rows.values_list("judgment_id", "completion_id", "rank", "judgment__comparison__prompt_id")
    for judgment, completion, rank, prompt in ranks.iterator():
        rankings[judgment].append((arrays.row_of.get(completion, NOBODY), rank))
        arrays.prompt_of[judgment] = prompt
    for judgment, completions in _unordered(arrays).items():
        # Below all ranked ones, and like completions that tie not chosen against each other.
        last = 1 + max((rank for _, rank in rankings[judgment]), default=0)
        rankings[judgment] += [(arrays.row_of.get(pk, NOBODY), last) for pk in completions]
    # What came after the features were read is left for the next time.
    late = [pk for pk, both in rankings.items() if any(row == NOBODY for row, _ in both)]
    until = min(late, default=newest_judgment + 1)
    for judgment, both in rankings.items():
        if judgment < until:
            arrays.rankings[judgment] = tuple(row for row, _ in both), tuple(rank for _, rank in both)
    # A change of mind may say that there is no winner: it has no ranks, and takes the earlier ones away.
    changed = _new_judgments(arrays).filter(pk__lt=until, supersedes__isnull=False).order_by()
    for judgment in changed.values_list("supersedes_id", flat=True):
        arrays.rankings.pop(judgment, None)
    arrays.last_judgment = max(arrays.last_judgment, until - 1)
    _read_comparisons(arrays)


def _read_comparisons(arrays: ProjectArrays) -> None:
    comparisons: dict[int, list[int]] = defaultdict(list)
    candidates = Candidate.objects.filter(
        comparison__project=arrays.project,
        comparison__round_number=arrays.round_number,
        comparison__purpose=Purpose.WORK,
        comparison__gt=arrays.last_comparison,
    ).order_by("comparison_id", "index")
    for comparison, completion in candidates.values_list("comparison_id", "completion_id").iterator():
        comparisons[comparison].append(arrays.row_of.get(completion, NOBODY))
    for comparison, rows in comparisons.items():
        if NOBODY in rows:
            break
        arrays.comparisons[comparison] = tuple(rows)
        arrays.last_comparison = comparison
        arrays._tables = None


def _new_judgments(arrays: ProjectArrays) -> QuerySet[Judgment]:
    return Judgment.objects.filter(
        pk__gt=arrays.last_judgment,
        comparison__project=arrays.project,
        comparison__purpose=Purpose.WORK,
        assignment__retest_of__isnull=True,
        annotator__is_machine=False,
        blind=True,
    )


# ── Bayesian ──

UCB_WIDTH = 1.0
"""Standard deviations that DeltaUCB adds to an expected gap."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_SHORTLIST = 30
"""For each place of a batch so many comparisons of the highest value are looked at again."""
_JUDGMENTS_AT_ONCE = 20_000
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
    for start in range(0, len(values), _JUDGMENTS_AT_ONCE):
        some = slice(start, start + _JUDGMENTS_AT_ONCE)
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
