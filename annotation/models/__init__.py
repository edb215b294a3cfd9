"""Questions to people and their answers, one module per subject."""

from annotation.models.audit import AuditEntry
from annotation.models.inbox import Comment, MailChoice, Notification
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
from annotation.models.kept_answers import KeptAnswer
from annotation.models.people import Invitation, Membership, User
from annotation.models.projects import Category, Criterion, Guideline, Project
from annotation.models.reviews import Review
from annotation.models.texts import Completion, CompletionScore, CompletionSource, Prompt
from annotation.models.tokens import ApiToken
from annotation.models.transfers import FileImport
from annotation.models.webhooks import WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage
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
    "ApiToken",
    "Assignment",
    "AuditEntry",
    "Candidate",
    "Category",
    "Comment",
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
    "FileImport",
    "GoldAnswer",
    "Guideline",
    "Invitation",
    "ItemFlag",
    "Judgment",
    "KeptAnswer",
    "MailChoice",
    "Membership",
    "MissingInfo",
    "Notification",
    "Project",
    "Prompt",
    "RankedCompletion",
    "Rating",
    "Review",
    "SpanFlag",
    "User",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookMessage",
    "Withholding",
]
