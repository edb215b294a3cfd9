"""Every set of states and kinds in `training`, in one place."""

from collections.abc import Mapping
from enum import StrEnum

from django.db import models
from django.utils.translation import gettext_lazy as _


class TrainingTask(StrEnum):
    """Names of the Celery tasks of `training`; messages in flight bear them."""

    ADVANCE_ROUND = "training.tasks.advance_round"
    SCORE_PROJECT = "training.tasks.score_project"
    PREPARE_ARENA = "training.tasks.prepare_arena"
    PREPARE_OPENINGS = "training.tasks.prepare_openings"
    DO_JOB = "training.tasks.do_job"
    JUDGE = "training.tasks.judge"
    SELECT_FEEDBACK = "training.tasks.select_feedback"
    SWEEP = "training.tasks.sweep"
    RETENTION = "training.tasks.retention"


class JobKind(StrEnum):
    """Kinds of jobs that share the task `do_job`; messages in flight bear them."""

    BASE_MODEL = "base-model"
    EXPORT = "export"
    DRIFT = "drift"
    RUBRIC_DRAFT = "rubric-draft"
    SUGGESTIONS = "suggestions"
    LIVE = "live"
    LESSON = "lesson"
    EMBEDDINGS = "embeddings"


class BaseOrigin(models.TextChoices):
    """Sources of base models."""

    STARTER = "starter", _("starter package")
    FOLDER = "folder", _("folder on the server")
    HUB = "hub", _("Hugging Face hub")
    SERVER = "server", _("OpenAI-compatible server")


class RoundState(models.TextChoices):
    """Life of a round; which may follow which stands in `services/rounds/controls.py`."""

    DRAFT = "draft", _("draft")
    SAMPLING = "sampling", _("sampling")
    LABELLING = "labelling", _("labelling")
    TRAINING_REWARD_MODELS = "training_reward_models", _("training reward models")
    TRAINING_POLICY = "training_policy", _("training policy")
    EVALUATING = "evaluating", _("evaluating")
    DECIDING = "deciding", _("deciding")
    PROMOTED = "promoted", _("promoted")
    REJECTED = "rejected", _("rejected")
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence", _("not enough evidence")
    PAUSED = "paused", _("paused")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


class RoundVerdict(models.TextChoices):
    """Verdicts on a round's new policy; the names of `services.evaluation.decision`."""

    PROMOTE = "promote", _("promote")
    REJECT = "reject", _("reject")
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence", _("not enough evidence")


class QuestionOutcome(models.TextChoices):
    """What became of a question that a run asked people."""

    OPEN = "open", _("open")
    FINE = "fine", _("not worse: the run went on")
    WORSE = "worse", _("worse: the run went back and ended")
    UNDECIDED = "undecided", _("undecided: the run went on")
    UNANSWERED = "unanswered", _("not answered in time: the run went back and ended")
    SPENT = "spent", _("not asked, all pairs are spent: the run went back and ended")
    WITHDRAWN = "withdrawn", _("withdrawn: the round was stopped")


class LiveState(models.TextChoices):
    """Life of an update of live learning: training → served, failed or cancelled; a served one may be
    withdrawn."""

    TRAINING = "training", _("training")
    SERVED = "served", _("served")
    WITHDRAWN = "withdrawn", _("withdrawn: people found it worse")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled: its round went on without it")


class StepKind(models.TextChoices):
    """Steps of a round, in their order."""

    ANSWER_PROMPTS = "answer_prompts", _("generate responses")
    FREEZE_SNAPSHOT = "freeze_snapshot", _("freeze snapshot")
    TRAIN_REWARD_MODEL = "train_reward_model", _("train reward model")
    TRAIN_EVALUATOR = "train_evaluator", _("train second reward model")
    TRAIN_POLICY = "train_policy", _("train policy")
    REGISTER_CHECKPOINTS = "register_checkpoints", _("register checkpoints")
    EVALUATE = "evaluate", _("evaluate")
    DECIDE = "decide", _("decide")


class StepState(models.TextChoices):
    """Life of a step: waiting → running → finished, failed or cancelled; the last two wait again."""

    WAITING = "waiting", _("waiting")
    RUNNING = "running", _("running")
    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")


class RunState(models.TextChoices):
    """Life of a run: what `contract.RunState` says, and waiting before its trainer first started."""

    WAITING = "waiting", _("waiting")
    STARTING = "starting", _("starting")
    RUNNING = "running", _("running")
    FINISHED = "finished", _("finished")
    STOPPED = "stopped", _("stopped, can be resumed")
    FAILED = "failed", _("failed")


class LaunchState(models.TextChoices):
    """Life of a job at a launcher; all but the first three are ends."""

    SUBMITTING = "submitting", _("being submitted")
    WAITING = "waiting", _("waiting in the queue")
    RUNNING = "running", _("running")
    ENDED = "ended", _("ended")
    CANCELLED = "cancelled", _("cancelled")
    LOST = "lost", _("lost")
    REFUSED = "refused", _("refused")


LIVE_LAUNCH = (LaunchState.SUBMITTING, LaunchState.WAITING, LaunchState.RUNNING)
"""States of a job that may still have processes; a run has one such job at most."""


class Method(models.TextChoices):
    """Training methods of a run; the names of `contract.Method`."""

    REWARD = "reward", _("reward model")
    PREFERENCE = "preference", _("policy by DPO")
    KTO = "kto", _("policy by KTO")
    SFT = "sft", _("policy by supervised fine-tuning")
    POLICY_GRADIENT = "policy_gradient", _("policy by reinforcement learning")


class CheckpointKind(models.TextChoices):
    """Kinds of checkpoints; the names of `contract.CheckpointKind`."""

    STARTER = "starter", _("starter model")
    POLICY = "policy", _("policy")
    REWARD = "reward", _("reward model")


WRITES_TEXT = (CheckpointKind.STARTER, CheckpointKind.POLICY)

TRAINS = (
    RoundState.TRAINING_REWARD_MODELS,
    RoundState.TRAINING_POLICY,
    RoundState.EVALUATING,
    RoundState.DECIDING,
)
"""From the start of training to the verdict: one round of a project at a time."""
CAN_START = (RoundState.SAMPLING, RoundState.LABELLING)
CAN_START_AGAIN = (RoundState.FAILED, RoundState.CANCELLED)
IS_DECIDED = (RoundState.PROMOTED, RoundState.REJECTED)
CAN_DECIDE = (RoundState.DECIDING, RoundState.NOT_ENOUGH_EVIDENCE)
"""States in which a round's new policy may be promoted or rejected."""
CAN_ROLL_BACK = (RoundState.DRAFT, *CAN_START)
"""States of the next round in which a decision on the one before it may still change."""

STATE_OF_STEP: Mapping[StepKind, RoundState] = {
    StepKind.ANSWER_PROMPTS: RoundState.SAMPLING,
    StepKind.FREEZE_SNAPSHOT: RoundState.TRAINING_REWARD_MODELS,
    StepKind.TRAIN_REWARD_MODEL: RoundState.TRAINING_REWARD_MODELS,
    StepKind.TRAIN_EVALUATOR: RoundState.TRAINING_REWARD_MODELS,
    StepKind.TRAIN_POLICY: RoundState.TRAINING_POLICY,
    StepKind.REGISTER_CHECKPOINTS: RoundState.TRAINING_POLICY,
    StepKind.EVALUATE: RoundState.EVALUATING,
    StepKind.DECIDE: RoundState.DECIDING,
}


class ChartGroup(models.TextChoices):
    """Groups of a run's charts, in the order of a page."""

    OBJECTIVE = "objective", _("Objective")
    HELD_OUT = "held_out", _("Held-out")
    REWARD = "reward", _("Reward")
    POLICY = "policy", _("Policy and KL divergence")
    RESPONSES = "responses", _("Responses")
    OTHER = "other", _("Other metrics")


class FeedbackKind(models.TextChoices):
    """Kinds of feedback of an application's end users."""

    THUMB = "thumb", _("thumb")
    RATING = "rating", _("rating")
    REWRITE = "rewrite", _("rewrite")
    ALTERNATIVE = "alternative", _("chosen alternative")


class SelectionReason(models.TextChoices):
    """Rules by which a stored request comes before annotators."""

    RANDOM = "random", _("at random")
    NEGATIVE = "negative", _("negative feedback")
    LOW_REWARD = "low_reward", _("low reward")
    DISAGREEMENT = "disagreement", _("reward models disagree")


class AbuseKind(models.TextChoices):
    """Patterns in feedback that look like abuse."""

    BURST = "burst", _("burst")
    CONTRADICTION = "contradiction", _("contradiction")
    DOMINANCE = "dominance", _("dominance")
