"""A round whose steps train on a cluster, once undisturbed and once with a node that dies."""

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annotation.models import Project, User
from annotation.services.assignments.next import assign_next
from annotation.services.jobs import claim
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.loop.recipe import tiny_recipe
from tests.records import judgment_record
from training import launchers
from training.choices import StepKind, StepState
from training.contract import read_metrics
from training.models import Round, RoundStep, Run
from training.services.rounds import executor
from training.services.rounds.controls import open_first_round, pause_round, start_round

STEPS = 40
GRPO: dict[str, Any] = {
    "method": "policy_gradient",
    "rewards": [
        {"name": "short", "kind": "length", "options": {"most": 2, "slack": 30, "unit": "characters"}}
    ],
    "advantage": {"kind": "group_relative"},
    "kl": {"place": "loss", "kind": "k3", "beta": 0.02},
    "rollout": {"samples": 4, "max_tokens": 12},
}
"""Rewards short responses; needs no reward model."""


def started(
    project: Project,
    alice: User,
    carol: User,
    compute: dict[str, Any],
    *,
    grpo: bool = False,
    steps: int = STEPS,
    policy: dict[str, Any] | None = None,
    **recipe_parts: Any,
) -> Round:
    """A round of four judged comparisons that is about to train."""
    for number in range(4):
        prompt = factories.make_prompt(project, f"What is {number} and {number}?", split="train")
        factories.make_comparison(project, [f"It is {2 * number}.", "I cannot say."], prompt=prompt)
    while assignment := assign_next(project=project, annotator=alice):
        best, other = sorted(assignment.display_order)
        answer = judgment_record(verdict="ranked", ranks={best: 1, other: 2})
        submit_judgment(assignment=assignment, annotator=alice, answer=answer, idempotency_key=uuid.uuid4())
    recipe = {**tiny_recipe(steps=steps), "compute": compute, **recipe_parts}
    recipe["policy"] |= policy or {}
    if grpo:
        recipe["policy"] |= GRPO
    round_ = open_first_round(project=project, recipe=recipe)
    start_round(round_=round_, started_by=carol)
    return round_


def train(round_: Round, kind: StepKind) -> Run:
    """Do one step of a round, afresh: with a new run of the same spec. It must finish."""
    step = round_.steps.get(kind=kind)
    RoundStep.objects.filter(pk=step.pk).update(run=None, state=StepState.WAITING)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    return RoundStep.objects.select_related("run").get(pk=step.pk).run


def do_step(step: RoundStep) -> bool:
    """Claim a step and carry it out; whether it finished."""
    claimed = claim(RoundStep.objects.select_related("round__project", "round__policy", "run"), step.pk)
    assert claimed is not None
    return executor._carry_out(claimed)


class AtStep:
    """Does something once, on a thread, as soon as the newest run has taken so many steps."""

    def __init__(self, runs: Path, step: int, do: Callable[[], None]) -> None:
        self._before = {path.name for path in runs.iterdir()} if runs.exists() else set()
        self._runs = runs
        self._step = step
        self._do = do
        self.done_at = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "AtStep":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            for path in self._runs.iterdir() if self._runs.exists() else ():
                if path.name not in self._before and (steps := len(read_metrics(path))) >= self._step:
                    self.done_at = steps
                    self._do()
                    return
            time.sleep(0.05)


def weights_of(run: Run) -> dict[str, bytes]:
    """The weights of a run's checkpoint, byte by byte."""
    return {path.name: path.read_bytes() for path in sorted((run.path / "checkpoint").glob("*.safetensors"))}


def pause_at_step(patch: pytest.MonkeyPatch, round_: Round, actor: User, *, step: int) -> None:
    """Pause a round as soon as the run that is watched has taken so many steps."""

    def read_beat(folder: Path, job: str) -> Any:
        if len(read_metrics(folder)) >= step and not Round.objects.get(pk=round_.pk).pause_requested:
            pause_round(round_=round_, actor=actor)
        return launchers.read_beat(folder, job)

    patch.setattr("training.services.runs.clusters.read_beat", read_beat)
