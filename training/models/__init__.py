"""Models of training: checkpoints, rounds, evaluations and comparisons, one module per subject."""

from training.models.base_models import BaseModel, BaseModelAddition, ProjectBase
from training.models.checkpoints import Checkpoint, GpuLease, Launch, Run, Snapshot, validate_checkpoint_name
from training.models.comparing import (
    ArenaBallot,
    ArenaLink,
    ArenaPair,
    EloPoints,
    PromptSet,
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
from training.models.course import LessonRun
from training.models.embeddings import EmbeddingJob, PromptEmbedding
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
from training.models.jobs import CheckpointExport, DriftFigure, DriftMeasurement, Worker
from training.models.judges import Judge, JudgeVerdict, RubricDraft, SuggestionSource
from training.models.live import (
    LEAST_AHEAD,
    LEAST_JUDGMENTS,
    MOST_AHEAD,
    MOST_JUDGMENTS,
    LiveLearning,
    LiveUpdate,
    validate_live_policy,
)
from training.models.providers import ModelProvider
from training.models.rounds import QuestionPair, Round, RoundStep, RunQuestion, validate_recipe
