"""Features of completions, comparisons and rankings of a project, as arrays. Reads only.

Cached in the process from one update to the next: only new rows are read. Completions whose features are not
stored are returned by `unread`; the caller stores them.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from cachetools import LRUCache, cached
from django.db.models import Count, F, Max, QuerySet
from numpy.typing import NDArray

from annotation.acquisition.posterior import (
    NOBODY,
    ChoiceTable,
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


@cached(LRUCache(_MOST_CACHED), key=lambda project, round_number: (project.pk, round_number), lock=Lock())
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
