"""Helpers with which the tests of rounds set and look up state."""

import json
from pathlib import Path

import pytest

from annotation.models import AuditEntry
from annotation.services import jobs
from training.choices import RoundVerdict, StepKind
from training.models import Round, RoundStep
from training.services.rounds import deciding, executor
from training.services.rounds.deciding import RoundDecision

BY_HAND = {"promotion": {"by_hand": True}}


def decide(monkeypatch: pytest.MonkeyPatch, *, ready: bool, promote: bool, reason: str) -> None:
    """Let the evidence be this, whatever the model server says."""
    verdict = RoundVerdict.PROMOTE if promote else RoundVerdict.REJECT
    decision = RoundDecision(verdict=verdict, waits=not ready, reasons=(reason,))
    monkeypatch.setattr(deciding, "decision_of", lambda *, round_: decision)


def deeds(round_: Round) -> list[tuple[str, str | None]]:
    """Return the actions on a round in the audit log, oldest first, each with who did it."""
    entries = AuditEntry.objects.filter(subject_id=round_.pk, action__startswith="round.").order_by("pk")
    return [(entry.action, entry.actor.username if entry.actor else None) for entry in entries]


def states(round_: Round) -> list[str]:
    return list(round_.steps.order_by("position").values_list("state", flat=True))


def behave(home: Path, **behaviour: object) -> None:
    (home / "fake_trainer.json").write_text(json.dumps(behaviour))


def do_steps_before(round_: Round, kind: StepKind) -> None:
    """Do the steps of training up to this one, as a worker that ends before it."""
    for step in round_.steps.filter(position__gt=0).order_by("position"):
        if step.kind == kind:
            return
        claimed = jobs.claim(RoundStep.objects.all(), step.pk)
        assert claimed is not None
        assert executor._carry_out(claimed)
