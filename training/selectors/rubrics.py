"""Rubrics that judges score by, and drafts of rubrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from annotation.agreement.estimate import Estimate
from annotation.models import RubricVersion
from annotation.record.judgment import Scale
from training.judging import JudgingCriterion, JudgingRubric
from training.models import RubricDraft

# ── Rubrics ──


def rubric_of(version: RubricVersion) -> JudgingRubric:
    """Return a version as judges score by it and runs save it."""
    return JudgingRubric(
        name=version.rubric.name,
        version=version.number,
        criteria=tuple(
            JudgingCriterion(
                key=row.key,
                name=row.name,
                text=row.text,
                levels=row.levels,
                scale=_SCALES[row.scale],
                weight=row.weight,
            )
            for row in version.criteria.all()
        ),
    )


_SCALES: dict[str, Scale] = {"five": "five", "seven": "seven", "thumbs": "thumbs"}


# ── Drafts ──


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
    # Imported late: the web process has no use for NumPy.
    from annotation.agreement.intervals import share_of_independent

    return [
        CheckedCriterion(
            values=row,
            agreement=share_of_independent([True] * row["agreeing"] + [False] * row["opposing"]),
            tied=row["tied"],
        )
        for row in draft.criteria
    ]
