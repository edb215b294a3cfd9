"""Questions to people and their answers, one module per subject."""

from annotation.models.calibration import CalibrationAnswer, CalibrationItem, CalibrationSession
from annotation.models.changes import BulkChange
from annotation.models.conversations import Conversation, ConversationTask, ConversationTurn
from annotation.models.inbox import Comment, MailChoice, Notification
from annotation.models.jobs import FileImport
from annotation.models.judgments import (
    Continuation,
    Correction,
    CorrectionEdit,
    Critique,
    DecidedSuggestion,
    Demonstration,
    HelpReveal,
    HelpSettings,
    Judgment,
    MissingInfo,
    QuestionAnswer,
    RankedCompletion,
    Rating,
    RepeatedQuestion,
    Review,
    ReviewDecision,
    ReviewReturn,
    SpanFlag,
    Suggestion,
    SuggestionSet,
)
from annotation.models.panels import Panel, PanelParticipant
from annotation.models.pastes import PasteRecord
from annotation.models.people import ApiToken, AuditEntry, Invitation, KeptAnswer, Membership, User
from annotation.models.projects import (
    Category,
    Criterion,
    Guideline,
    Project,
    ProjectQuestion,
    QuestionVersion,
    Rubric,
    RubricCriterion,
    RubricScore,
    RubricVersion,
)
from annotation.models.saved_views import QueuedComparison, SavedView, ViewQueue
from annotation.models.sources import ImportSource, SourceFile
from annotation.models.texts import (
    AcquisitionFigures,
    Completion,
    CompletionFeatures,
    CompletionScore,
    CompletionSource,
    LabelledStep,
    Prompt,
    TraceStep,
)
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
