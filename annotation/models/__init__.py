"""Questions to people and their answers, one module per subject."""

from annotation.models.acquisition import AcquisitionFigures, CompletionFeatures
from annotation.models.audit import AuditEntry
from annotation.models.conversations import Conversation, ConversationTask, ConversationTurn
from annotation.models.inbox import Comment, MailChoice, Notification
from annotation.models.judgments import (
    Continuation,
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
from annotation.models.rubrics import Rubric, RubricCriterion, RubricScore, RubricVersion
from annotation.models.suggestions import (
    DecidedSuggestion,
    HelpReveal,
    HelpSettings,
    Suggestion,
    SuggestionSet,
)
from annotation.models.texts import Completion, CompletionScore, CompletionSource, Prompt
from annotation.models.tokens import ApiToken
from annotation.models.traces import LabelledStep, TraceStep
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
    RoundTally,
    Withholding,
)

__all__ = [
    "AcquisitionFigures",
    "AnnotatorTally",
    "ApiToken",
    "Assignment",
    "AuditEntry",
    "Candidate",
    "Category",
    "Comment",
    "Comparison",
    "Completion",
    "CompletionFeatures",
    "CompletionScore",
    "CompletionSource",
    "Continuation",
    "Conversation",
    "ConversationTask",
    "ConversationTurn",
    "Correction",
    "CorrectionEdit",
    "Criterion",
    "Critique",
    "DecidedSuggestion",
    "Demonstration",
    "DisplayTally",
    "Draft",
    "FileImport",
    "GoldAnswer",
    "Guideline",
    "HelpReveal",
    "HelpSettings",
    "Invitation",
    "ItemFlag",
    "Judgment",
    "KeptAnswer",
    "LabelledStep",
    "MailChoice",
    "Membership",
    "MissingInfo",
    "Notification",
    "Project",
    "Prompt",
    "RankedCompletion",
    "Rating",
    "Review",
    "RoundTally",
    "Rubric",
    "RubricCriterion",
    "RubricScore",
    "RubricVersion",
    "SpanFlag",
    "Suggestion",
    "SuggestionSet",
    "TraceStep",
    "User",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookEndpoint",
    "WebhookMessage",
    "Withholding",
]
