"""A round that has trained: its new policy and its reward model are registered, and nothing is evaluated."""

from typing import Any

import httpx
from django.test import override_settings

from annotation.choices import SourceKind
from annotation.models import CompletionSource, Project
from annotation.services.jobs import claim
from tests.training.engine.fake_server import FakeServer
from training.choices import RoundState, StepKind
from training.engine import Engine
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.services.checkpoints import register_starter
from training.services.evaluation.evaluating import evaluate_round
from training.services.jobs import StepHeartbeat

VALIDATED = {
    "held_out_decided": 100.0,
    "held_out_accuracy": 0.7,
    "held_out_accuracy_low": 0.6,
    "held_out_accuracy_high": 0.8,
    "held_out_log_loss": 0.6,
}
"""Figures of a reward model that was validated on a hundred held-out judgments."""


def trained_round(project: Project, *, figures: dict[str, float] = VALIDATED, **recipe: Any) -> Round:
    """Round 1 in state evaluating, with checkpoints `tea-policy` and `tea-reward` and no files.

    figures: those of the reward model on held-out judgments.
    """
    round_ = Round.objects.create(
        project=project,
        number=1,
        state=RoundState.EVALUATING,
        policy=register_starter(),
        recipe={"evaluation": {"prompts": 4}, **recipe},
    )
    register(round_, "reward", StepKind.TRAIN_REWARD_MODEL, position=2)
    Checkpoint.objects.filter(kind="reward").update(manifest={"metrics": figures})
    register(round_, "policy", StepKind.TRAIN_POLICY, position=3)
    RoundStep.objects.create(round=round_, position=5, kind=StepKind.EVALUATE)
    return round_


def register(round_: Round, kind: str, step: StepKind, *, position: int) -> Checkpoint:
    """A checkpoint as if a round's step had trained it."""
    project = round_.project
    name = f"{project.slug}-{kind}"
    snapshot, _ = Snapshot.objects.get_or_create(
        project=project, digest="d" * 64, defaults={"folder": "f", "rounds": [1], "counts": {}}
    )
    method = "reward" if kind == "reward" else "preference"
    run = Run.objects.create(name=name, method=method, snapshot=snapshot, spec={}, folder=f"runs/{name}")
    RoundStep.objects.create(round=round_, position=position, kind=step, run=run, state="finished")
    source = None
    if kind == "policy":
        source = CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT)
    return Checkpoint.objects.create(
        name=name,
        kind=kind,
        project=project,
        base_model=round_.policy.base_model,
        run=run,
        folder=f"checkpoints/{name}",
        digest="e" * 64,
        source=source,
    )


def evaluate(round_: Round, server: FakeServer) -> str:
    """Do the evaluation as a worker would."""
    step = RoundStep.objects.get(round=round_, kind=StepKind.EVALUATE)
    RoundStep.objects.filter(pk=step.pk).update(state="waiting", worker="", heartbeat_at=None)
    claimed = claim(RoundStep.objects.all(), step.pk)
    assert claimed is not None
    # Hundreds of heartbeats, of which each would write: no test looks at them.
    rarely = override_settings(RONDO_HEARTBEAT_SECONDS=1)
    with rarely, Engine(transport=httpx.MockTransport(server)) as engine:
        return evaluate_round(round_=round_, heartbeat=StepHeartbeat(claimed), engine=engine)
