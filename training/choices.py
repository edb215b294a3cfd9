"""Every set of states and kinds in `training`, in one place."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class RoundState(models.TextChoices):
    """Life of a round; which may follow which stands in `services/rounds/transitions.py`."""

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


class Verdict(models.TextChoices):
    """What the evidence on a round's new policy supports; the names of `services.evaluation.decision`."""

    PROMOTE = "promote", _("promote")
    REJECT = "reject", _("reject")
    NOT_ENOUGH_EVIDENCE = "not_enough_evidence", _("not enough evidence")


class StepKind(models.TextChoices):
    """What a step of a round does, in the order in which a round does it."""

    ANSWER_PROMPTS = "answer_prompts", _("answer the prompts")
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
    STOPPED = "stopped", _("stopped, can go on")
    FAILED = "failed", _("failed")


class JobState(models.TextChoices):
    """Life of a background job: waiting → running → finished or failed; one whose worker died waits again."""

    WAITING = "waiting", _("waiting")
    RUNNING = "running", _("running")
    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")


class Method(models.TextChoices):
    """How a run trains; the names of `contract.Method`."""

    REWARD = "reward", _("reward model")
    PREFERENCE = "preference", _("policy by DPO")
    KTO = "kto", _("policy by KTO")
    SFT = "sft", _("policy by supervised fine-tuning")
    POLICY_GRADIENT = "policy_gradient", _("policy by reinforcement learning")


class CheckpointKind(models.TextChoices):
    """What a checkpoint is good for; the names of `contract.CheckpointKind`."""

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
