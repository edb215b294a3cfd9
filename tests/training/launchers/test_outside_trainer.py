"""The trainer that the guide shows: it keeps to the contract of folders, and is started by any launcher."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from django.test import Client
from pytest_django import Settings

from annotation.models import Project, User
from tests.guide_blocks import block
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from tests.training.launchers.cluster_scene import do_step, pause_at_step, started
from tests.training.launchers.conftest import Scheduler
from training.choices import RunState, StepKind
from training.contract import read_manifest, read_metrics
from training.models import Checkpoint, Round, RoundStep
from training.rlhf.model.backbone import Backbone
from training.services.rounds.controls import resume_round
from webapp.environment import read_environment

pytestmark = pytest.mark.django_db

SFT: dict[str, Any] = {"method": "sft", "sources": ["preferred"]}


@pytest.fixture(autouse=True)
def trainer(settings: Settings, rondo_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the guide's trainer, as the setting does."""
    program = tmp_path / "trainer.py"
    program.write_text(block("how-to/train-with-your-trainer.md", '"""A trainer of'))
    command = shlex.join([sys.executable, str(program)])
    values = read_environment({"RONDO_TRAINER_COMMAND": command})
    settings.RONDO_TRAINER_COMMAND = tuple(shlex.split(values["RONDO_TRAINER_COMMAND"]))
    settings.RONDO_STARTER_MODEL_NAME = TINY
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(settings.BASE_DIR))
    tiny_model_folder(rondo_home / "models" / TINY)


def policy_step(round_: Round) -> RoundStep:
    """Return the step that trains the policy, once its snapshot is there."""
    assert do_step(round_.steps.get(kind=StepKind.FREEZE_SNAPSHOT))
    round_.steps.filter(kind=StepKind.TRAIN_REWARD_MODEL).update(state="finished")
    return round_.steps.get(kind=StepKind.TRAIN_POLICY)


def test_its_run_is_shown_as_finished_and_its_checkpoint_is_loaded(
    project: Project,
    alice: User,
    carol: User,
    client_of: Callable[[User], Client],
    rondo_home: Path,
):
    round_ = started(project, alice, carol, {"launcher": "local", "gpus": 0}, steps=3, policy=SFT)
    step = policy_step(round_)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    run = round_.steps.get(kind=StepKind.TRAIN_POLICY).run
    assert (run.state, run.step, run.total_steps) == (RunState.FINISHED, 3, 3)
    assert [line["step"] for line in read_metrics(run.path)] == [1, 2, 3]
    page = client_of(carol).get(run.get_absolute_url()).content.decode()
    assert "finished 3/3" in page
    register = round_.steps.get(kind=StepKind.REGISTER_CHECKPOINTS)
    assert do_step(register), RoundStep.objects.get(pk=register.pk).error
    checkpoint = Checkpoint.objects.get(name=run.name)
    manifest = read_manifest(checkpoint.path, verify=True)
    assert manifest.snapshot_digest == run.snapshot.digest
    backbone = Backbone.load(rondo_home / "models" / TINY, device="cpu", dtype=torch.float32)
    backbone.load_adapter("policy", checkpoint.path)
    learned = [weight for name, weight in backbone.adapter_state("policy").items() if "lora_B" in name]
    assert any(bool(weight.any()) for weight in learned)


def test_it_stops_when_the_round_is_paused_and_is_started_again(
    project: Project,
    alice: User,
    carol: User,
    scheduler: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
):
    round_ = started(project, alice, carol, {"launcher": "command", "gpus": 0}, steps=100, policy=SFT)
    step = policy_step(round_)
    with monkeypatch.context() as patch:
        pause_at_step(patch, round_, carol, step=2)
        assert not do_step(step)
    step.refresh_from_db()
    assert step.run.state == RunState.STOPPED
    resume_round(round_=Round.objects.get(pk=round_.pk), actor=carol)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    step.refresh_from_db()
    assert (step.run.state, step.run.step) == (RunState.FINISHED, 100)


def test_what_it_does_not_train_goes_to_rondos_trainer(project: Project, alice: User, carol: User):
    round_ = started(project, alice, carol, {}, steps=2)
    step = policy_step(round_)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    run = RoundStep.objects.get(pk=step.pk).run
    assert (run.method, run.state) == ("preference", RunState.FINISHED)
    assert "Training" in (run.path / "log.txt").read_text()
