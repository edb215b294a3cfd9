"""Suggestions on the labelling screen. Nothing here tells which of them are planted."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from annotation.choices import SuggestionDecision, SuggestionKind, Verdict
from annotation.forms.final_pass import decided_in
from annotation.models import HelpReveal, Suggestion
from annotation.selectors.suggestions import suggestions_for
from annotation.services.suggestions.applying import SUGGESTED_STRENGTH, ranks_of
from annotation.text.orders import with_rest
from annotation.views.labelling.screen import CandidateOnScreen


class SuggestionOnScreen:
    """One suggestion: what it says, in the letters of the page, and the decision so far."""

    def __init__(
        self, row: Suggestion, candidates: Mapping[int, CandidateOnScreen], decision: str, asks_strength: bool
    ) -> None:
        self.pk = row.pk
        self.kind = row.kind
        self.kind_label = row.get_kind_display()
        self.candidate = candidates.get(row.completion_id or 0)
        self.category = row.category
        self.quote = row.quote
        self.text = row.text
        self.severity = row.severity
        self.percent = None if row.confidence is None else round(100 * row.confidence)
        self.decision = decision if decision in SuggestionDecision.values else ""
        self.start, self.end = row.start, row.end
        self.ranks: dict[str, int] = {}
        self.preference = self.choice = ""
        if row.kind == SuggestionKind.PREFERENCE:
            ranked = {pk: rank for pk, rank in ranks_of(row).items() if pk in candidates}
            self.ranks = {candidates[pk].letter: rank for pk, rank in ranked.items()}
            letters = [candidate.letter for candidate in candidates.values()]
            rest = [letter for letter in letters if letter not in self.ranks] if self.ranks else []
            self.preference = with_rest(_order(self.ranks), rest)
            self.choice = _choice(row, ranked, candidates, asks_strength)

    def as_json(self) -> dict[str, Any]:
        """Return what label-help.js takes."""
        return {
            "id": self.pk,
            "kind": self.kind,
            "candidate": self.candidate.token if self.candidate else "",
            "category": self.category.key if self.category else "",
            "start": self.start,
            "end": self.end,
            "severity": self.severity,
            "text": self.text,
            "choice": self.choice,
            "ranks": self.ranks,
        }


class HelpOnScreen:
    """The suggestions of a final pass."""

    def __init__(
        self,
        reveal: HelpReveal,
        candidates: Sequence[CandidateOnScreen],
        tokens: Mapping[str, int],
        fields: Mapping[str, Any],
    ) -> None:
        comparison = reveal.assignment.comparison
        by_completion = {tokens[candidate.token]: candidate for candidate in candidates}
        decided = decided_in(fields)
        self.times = _last(fields.get("suggestion_times", ""))
        self.suggestions = [
            SuggestionOnScreen(row, by_completion, decided.get(row.pk, ""), comparison.project.ask_strength)
            for row in suggestions_for(comparison)
        ]

    @property
    def left(self) -> int:
        """The number of suggestions without a decision."""
        return sum(not suggestion.decision for suggestion in self.suggestions)


def _order(ranks: Mapping[str, int]) -> str:
    """The ranking in letters: "B > A = C"."""
    best_first = sorted(ranks, key=lambda letter: (ranks[letter], letter))
    return " > ".join(
        " = ".join(tier) for _rank, tier in groupby(best_first, key=lambda letter: ranks[letter])
    )


def _choice(
    row: Suggestion,
    ranks: Mapping[int, int],
    candidates: Mapping[int, CandidateOnScreen],
    asks_strength: bool,
) -> str:
    """The value of the preference as the form of a pair sends it; empty for a ranking of more."""
    if row.verdict != Verdict.RANKED:
        return row.verdict
    if len(candidates) != 2:
        return ""
    winner = candidates[min(ranks, key=lambda pk: ranks[pk])].token
    return f"win:{winner}:{SUGGESTED_STRENGTH}" if asks_strength else f"win:{winner}"


def _last(value: Any) -> str:
    return str(value[-1]) if isinstance(value, list) and value else str(value or "")
