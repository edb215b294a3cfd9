"""What people are asked and what they answered, one module per subject."""

from annotation.models.judgments import (
    Correction,
    CorrectionEdit,
    Critique,
    Demonstration,
    Judgment,
    MissingInfo,
    RankedCompletion,
    Rating,
    SpanFlag,
)
from annotation.models.people import Membership, User
from annotation.models.projects import Category, Criterion, Guideline, Project
from annotation.models.reviews import Review
from annotation.models.texts import Completion, CompletionScore, CompletionSource, Prompt
from annotation.models.work import (
    AnnotatorTally,
    Assignment,
    Candidate,
    Comparison,
    DisplayTally,
    Draft,
    GoldAnswer,
    ItemFlag,
    Withholding,
)

__all__ = [
    "AnnotatorTally",
    "Assignment",
    "Candidate",
    "Category",
    "Comparison",
    "Completion",
    "CompletionScore",
    "CompletionSource",
    "Correction",
    "CorrectionEdit",
    "Criterion",
    "Critique",
    "Demonstration",
    "DisplayTally",
    "Draft",
    "GoldAnswer",
    "Guideline",
    "ItemFlag",
    "Judgment",
    "Membership",
    "MissingInfo",
    "Project",
    "Prompt",
    "RankedCompletion",
    "Rating",
    "Review",
    "SpanFlag",
    "User",
    "Withholding",
]
