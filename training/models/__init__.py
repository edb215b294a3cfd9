"""Models of training: checkpoints, rounds, evaluations and comparisons, one module per subject."""

from training.models.base_models import BaseModel, BaseModelAddition, ProjectBase
from training.models.checkpoints import Checkpoint, Run, Snapshot, validate_checkpoint_name
from training.models.comparing import (
    ArenaBallot,
    ArenaLink,
    ArenaPair,
    EloPoints,
    SideBySide,
    SideBySideAnswer,
    Slice,
    VoteCount,
    VoteLedger,
    Voters,
    VoteTotals,
)
from training.models.conversations import (
    ArenaTalk,
    ContinuesWith,
    ConversationSettings,
    ModelDraw,
    PreparedOpening,
    TurnResponse,
)
from training.models.evaluations import FIGURES_FORMAT, EvaluatedPrompt, Evaluation, YardstickResult
from training.models.feedback import (
    KEY_PREFIX,
    ApplicationRequest,
    Feedback,
    FeedbackComparison,
    FeedbackIncident,
    FeedbackKey,
    FeedbackRule,
    FeedbackSettings,
    RequestOptIn,
)
from training.models.jobs import CheckpointExport, DriftFigure, DriftMeasurement
from training.models.judges import Judge, JudgeVerdict, RubricDraft
from training.models.launches import GpuLease, Launch
from training.models.prompt_sets import PromptSet
from training.models.questions import QuestionPair, RunQuestion
from training.models.rounds import Round, RoundStep, validate_recipe
from training.models.suggestions import SuggestionSource
from training.models.workers import Worker

__all__ = [
    "FIGURES_FORMAT",
    "KEY_PREFIX",
    "ApplicationRequest",
    "ArenaBallot",
    "ArenaLink",
    "ArenaPair",
    "ArenaTalk",
    "BaseModel",
    "BaseModelAddition",
    "Checkpoint",
    "CheckpointExport",
    "ContinuesWith",
    "ConversationSettings",
    "DriftFigure",
    "DriftMeasurement",
    "EloPoints",
    "EvaluatedPrompt",
    "Evaluation",
    "Feedback",
    "FeedbackComparison",
    "FeedbackIncident",
    "FeedbackKey",
    "FeedbackRule",
    "FeedbackSettings",
    "GpuLease",
    "Judge",
    "JudgeVerdict",
    "Launch",
    "ModelDraw",
    "PreparedOpening",
    "ProjectBase",
    "PromptSet",
    "QuestionPair",
    "RequestOptIn",
    "Round",
    "RoundStep",
    "RubricDraft",
    "Run",
    "RunQuestion",
    "SideBySide",
    "SideBySideAnswer",
    "Slice",
    "Snapshot",
    "SuggestionSource",
    "TurnResponse",
    "VoteCount",
    "VoteLedger",
    "VoteTotals",
    "Voters",
    "Worker",
    "YardstickResult",
    "validate_checkpoint_name",
    "validate_recipe",
]
