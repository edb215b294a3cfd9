"""Every set of states and kinds in `training`, in one place."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class RoundState(models.TextChoices):
    """Life of a round: labelling → training → finished; a failed or cancelled one trains again."""

    LABELLING = "labelling", _("labelling")
    TRAINING = "training", _("training")
    FAILED = "failed", _("failed")
    CANCELLED = "cancelled", _("cancelled")
    FINISHED = "finished", _("finished")


class StepKind(models.TextChoices):
    """What a step of a round does, in the order in which a round does it."""

    FREEZE_SNAPSHOT = "freeze_snapshot", _("freeze snapshot")
    TRAIN_REWARD_MODEL = "train_reward_model", _("train reward model")
    TRAIN_POLICY = "train_policy", _("train policy")
    REGISTER_CHECKPOINTS = "register_checkpoints", _("register checkpoints")
    ANSWER_PROMPTS = "answer_prompts", _("answer the prompts")


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
CAN_START_AGAIN = (RoundState.FAILED, RoundState.CANCELLED)
