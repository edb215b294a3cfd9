"""Drafts of rubrics with the check of each criterion. Loads NumPy where imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from annotation.agreement.estimate import Estimate
from annotation.agreement.shares import share_of_independent
from training.models import RubricDraft


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedCriterion:
    """A drafted criterion, and its agreement with people on held-out pairs."""

    values: Mapping[str, Any]
    agreement: Estimate
    """Share of decided pairs on which its scores prefer what people prefer, with Wilson's interval."""
    tied: int
    """Pairs that its scores do not decide."""

    @property
    def is_doubtful(self) -> bool:
        """Return whether it decides no pair, or agrees on no more than half of them."""
        return self.agreement.value is None or self.agreement.value <= 0.5


def checked_criteria(draft: RubricDraft) -> list[CheckedCriterion]:
    """Return the criteria of a draft in their order, the most frequently proposed first."""
    return [
        CheckedCriterion(
            values=row,
            agreement=share_of_independent([True] * row["agreeing"] + [False] * row["opposing"]),
            tied=row["tied"],
        )
        for row in draft.criteria
    ]
