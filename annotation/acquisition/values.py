"""Values of comparisons in the database by strategy: their rewards and designs, as arrays. Reads only.

It loads NumPy: import it where a strategy is followed, not at the start of a web process.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from django.db.models import QuerySet

from annotation.acquisition import strategies
from annotation.acquisition.strategies import Values
from annotation.choices import AcquisitionStrategy
from annotation.models import Candidate, Comparison, CompletionScore

_READ_AT_ONCE = 400

_CHOSEN_GREEDILY = 256
"""So many are put in order exactly by D-optimality; the rest follow by what each would add to them."""


@dataclass(slots=True)
class Candidates:
    """The completions of one comparison, by index."""

    completions: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)


def values_of(
    strategy: str, shuffles: Mapping[int, int], in_round: QuerySet[Comparison]
) -> Mapping[int, float]:
    """Comparison id → value, for all in `shuffles`."""
    if strategy == AcquisitionStrategy.RANDOM:
        return dict(zip(shuffles, strategies.random(list(shuffles.values())).tolist(), strict=True))
    candidates = candidates_of(in_round)
    rewards = rewards_of(in_round, candidates)
    if strategy == AcquisitionStrategy.D_OPTIMAL:
        return _d_optimal(list(shuffles), candidates, rewards)
    value_of = (
        strategies.uncertainty if strategy == AcquisitionStrategy.UNCERTAINTY else strategies.disagreement
    )
    scored = [pk for pk in shuffles if pk in rewards]
    values = value_of([rewards[pk] for pk in scored])
    defaults = dict.fromkeys(shuffles, strategies.neutral(values))
    return defaults | dict(zip(scored, values.tolist(), strict=True))


def _d_optimal(
    comparisons: Sequence[int], candidates: Mapping[int, Candidates], rewards: Mapping[int, Values]
) -> dict[int, float]:
    """The design: which model wrote each completion. What was judged in this round is known already."""
    sources = sorted({source for candidate_set in candidates.values() for source in candidate_set.sources})
    place = {source: index for index, source in enumerate(sources)}
    one_hot = np.eye(len(sources))

    def designs_of(ids: Iterable[int]) -> list[Values]:
        return [one_hot[[place[source] for source in candidates[pk].sources]] for pk in ids]

    def rewards_of(ids: Iterable[int]) -> list[Values]:
        return [rewards.get(pk, np.zeros((1, len(candidates[pk].sources)))) for pk in ids]

    judged = sorted(candidates.keys() - set(comparisons))
    known = strategies.information(designs_of(judged), rewards_of(judged), features=len(sources))
    values = strategies.d_optimal(
        designs_of(comparisons), rewards_of(comparisons), known=known, most=_CHOSEN_GREEDILY
    )
    return dict(zip(comparisons, values.tolist(), strict=True))


def candidates_of(comparisons: QuerySet[Comparison]) -> dict[int, Candidates]:
    """Comparison id → its completions, with who wrote them."""
    candidates: dict[int, Candidates] = defaultdict(Candidates)
    rows = Candidate.objects.filter(comparison__in=comparisons).order_by("comparison", "index")
    for comparison, completion, source in rows.values_list(
        "comparison_id", "completion_id", "completion__source_id"
    ).iterator(chunk_size=_READ_AT_ONCE):
        candidates[comparison].completions.append(completion)
        candidates[comparison].sources.append(source)
    return candidates


def rewards_of(comparisons: QuerySet[Comparison], candidates: Mapping[int, Candidates]) -> dict[int, Values]:
    """Comparison id → (members, k): only scorers that scored all of its completions."""
    by_completion: dict[int, dict[str, float]] = defaultdict(dict)
    rows = CompletionScore.objects.filter(completion__comparisons__in=comparisons).order_by()
    for completion, scorer, value in rows.values_list("completion_id", "scorer", "value").iterator(
        chunk_size=_READ_AT_ONCE
    ):
        by_completion[completion][scorer] = value
    rewards: dict[int, Values] = {}
    for pk, candidate_set in candidates.items():
        scored = [by_completion.get(completion, {}) for completion in candidate_set.completions]
        members = sorted(set(scored[0]).intersection(*scored[1:]))
        if members:
            rewards[pk] = np.array([[values[member] for values in scored] for member in members])
    return rewards
