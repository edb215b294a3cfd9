"""Models of training: checkpoints, rounds, evaluations and comparisons, one module per subject."""

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
from training.models.evaluations import FIGURES_FORMAT, EvaluatedPrompt, Evaluation
from training.models.jobs import CheckpointExport, DriftFigure, DriftMeasurement
from training.models.judges import Judge, JudgeVerdict
from training.models.prompt_sets import PromptSet
from training.models.rounds import Round, RoundStep, validate_recipe
from training.models.workers import Worker

__all__ = [
    "FIGURES_FORMAT",
    "ArenaBallot",
    "ArenaLink",
    "ArenaPair",
    "Checkpoint",
    "CheckpointExport",
    "DriftFigure",
    "DriftMeasurement",
    "EloPoints",
    "EvaluatedPrompt",
    "Evaluation",
    "Judge",
    "JudgeVerdict",
    "PromptSet",
    "Round",
    "RoundStep",
    "Run",
    "SideBySide",
    "SideBySideAnswer",
    "Slice",
    "Snapshot",
    "VoteCount",
    "VoteLedger",
    "VoteTotals",
    "Voters",
    "Worker",
    "validate_checkpoint_name",
    "validate_recipe",
]
