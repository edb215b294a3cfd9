"""Rounds whose policy TRL trains: by a stand-in, and by a real TRL (`make test-trl`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_django import Settings

from annotation.errors import Refusal
from annotation.models import Project, User
from tests.loop.recipe import TINY
from tests.model_server import RunningServer, running_model_server
from tests.rlhf.external.conftest import PACKAGES, make_environment
from tests.tiny import tiny_model_folder
from tests.training.launchers.cluster_scene import do_step, started
from training.choices import CheckpointKind, RunState, StepKind
from training.contract import ContractError, read_manifest, read_metrics
from training.models import Checkpoint, Round, RoundStep
from training.recipe import Recipe
from training.services.rounds.launch_plan import launch_plan

pytestmark = pytest.mark.django_db

GRPO: dict[str, Any] = {
    "method": "policy_gradient",
    "rewards": [{"name": "people", "kind": "model", "checkpoint": "round"}],
    "rollout": {"samples": 4, "max_tokens": 12, "unfinished": "score"},
    "max_tokens": 128,
}


@pytest.fixture(autouse=True)
def tiny(settings: Settings, rondo_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.RONDO_STARTER_MODEL_NAME = TINY
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tiny_model_folder(rondo_home / "models" / TINY)


def named(program: Path | str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the program to the web and to the trainer."""
    settings.RONDO_TRL = str(program)
    monkeypatch.setenv("RONDO_TRL", str(program))


def trained(round_: Round, *kinds: StepKind) -> Checkpoint:
    """Do these steps of a round and register what they trained; the policy's checkpoint."""
    others = round_.steps.exclude(kind__in=[*kinds, StepKind.REGISTER_CHECKPOINTS])
    others.update(state="finished")
    for kind in (*kinds, StepKind.REGISTER_CHECKPOINTS):
        step = round_.steps.get(kind=kind)
        assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    return Checkpoint.objects.get(name="tea-round-1-policy")


def test_a_round_has_trl_train_its_policy_by_the_launcher_of_any_other(
    project: Project,
    alice: User,
    carol: User,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    named(make_environment(tmp_path / "bin", PACKAGES), settings, monkeypatch)
    options = {"use_liger_kernel": False}
    round_ = started(project, alice, carol, {}, steps=3, trainer="trl", trl={"options": options})
    checkpoint = trained(round_, StepKind.FREEZE_SNAPSHOT, StepKind.TRAIN_POLICY)
    assert checkpoint.kind == CheckpointKind.POLICY
    manifest = read_manifest(checkpoint.path, verify=True)
    assert manifest.versions["trl"] == "1.16.0"
    assert manifest.spec["trl"] == {"options": options}
    assert manifest.snapshot_digest == round_.steps.get(kind=StepKind.TRAIN_POLICY).run.snapshot.digest
    run = round_.steps.get(kind=StepKind.TRAIN_POLICY).run
    assert (run.state, run.step, run.total_steps) == (RunState.FINISHED, 3, 3)
    assert run.summary["loss"] == pytest.approx(1 / 3)
    assert "RONDO" not in (checkpoint.path / "trl.json").read_text()


def test_a_round_is_refused_before_it_starts_where_trl_is_missing_or_cannot_continue(
    project: Project, alice: User, carol: User, settings: Settings, tmp_path: Path
):
    settings.RONDO_TRL = ""
    with pytest.raises(Refusal, match="RONDO_TRL is not set"):
        started(project, alice, carol, {}, trainer="trl")
    round_ = Round.objects.get()
    settings.RONDO_TRL = str(tmp_path / "nowhere")
    assert "is no program here" in launch_plan(round_).problems[0]
    settings.RONDO_TRL = str(make_environment(tmp_path / "bin", PACKAGES))
    assert not launch_plan(round_).problems
    round_.policy.kind = CheckpointKind.POLICY
    [problem] = launch_plan(round_).problems
    assert "policy, reference: TRL measures from the base" in problem


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"policy": {"loss": "plackett_luce"}}, "policy, loss: TRL has no loss on rankings"),
        ({"compute": {"nodes": 2, "launcher": "slurm"}}, "compute, nodes: TRL is started on one machine"),
        ({"compute": {"quantization": "nf4"}}, "compute, quantization: TRL loads the base as it is"),
        ({"trl": {"options": {"output_dir": "/"}}}, "trl, options: output_dir is not yours to set"),
    ],
)
def test_a_recipe_that_trl_cannot_follow_is_refused(recipe: dict[str, Any], message: str):
    with pytest.raises(ContractError, match=message):
        Recipe.from_json({"trainer": "trl", **recipe})


def test_rondos_own_trainer_is_the_default():
    assert Recipe().trainer == "rondo"


# ── A real TRL ────────────────────────────────────────────────────────────────────────

real = (
    pytest.mark.trl,
    pytest.mark.slow,
    # TRL's imports alone take a minute on a busy machine.
    pytest.mark.timeout(1800),
    pytest.mark.skipif("RONDO_TEST_TRL" not in os.environ, reason="needs TRL: `make test-trl`"),
)


@pytest.fixture
def server(settings: Settings, rondo_home: Path) -> Iterator[RunningServer]:
    """A model server of the test's own home."""
    (rondo_home / "checkpoints").mkdir(exist_ok=True)
    arguments = ["--base", TINY]
    with running_model_server(
        rondo_home / "models", rondo_home / "checkpoints", arguments=arguments
    ) as running:
        settings.RONDO_MODEL_SERVER_URL = running.url
        settings.RONDO_MODEL_SERVER_KEY = running.key
        yield running


def marked(name: str, policy: dict[str, Any], *steps: StepKind) -> Any:
    return pytest.param(policy, steps, id=name, marks=real)


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        marked("dpo", {"method": "preference"}),
        marked("sft", {"method": "sft", "sources": ["preferred"]}),
        marked("kto", {"method": "kto", "sources": ["ranks"]}),
        marked("grpo", GRPO, StepKind.TRAIN_REWARD_MODEL),
        marked(
            "rloo",
            {
                **GRPO,
                "advantage": {"kind": "leave_one_out"},
                "kl": {"place": "reward", "kind": "k1", "beta": 0.05},
            },
            StepKind.TRAIN_REWARD_MODEL,
        ),
    ],
)
def test_a_real_trl_trains_the_policy_of_a_round_whose_checkpoint_answers(
    project: Project,
    alice: User,
    carol: User,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    server: RunningServer,
    policy: dict[str, Any],
    steps: tuple[StepKind, ...],
):
    named(Path(os.environ["RONDO_TEST_TRL"]).parent / "trl", settings, monkeypatch)
    round_ = started(project, alice, carol, {}, steps=3, policy=policy, trainer="trl")
    checkpoint = trained(round_, StepKind.FREEZE_SNAPSHOT, *steps, StepKind.TRAIN_POLICY)
    manifest = read_manifest(checkpoint.path, verify=True)
    assert manifest.steps == 3
    assert manifest.versions["trl"].startswith("1.")
    run = round_.steps.get(kind=StepKind.TRAIN_POLICY).run
    lines = read_metrics(run.path)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["loss"] is not None and line["gradient_norm"] >= 0 for line in lines)
    if policy["method"] == "policy_gradient":
        assert all("reward" in line for line in lines)
    headers = {"Authorization": f"Bearer {server.key}"}
    body = {"model": checkpoint.name, "max_tokens": 8, "messages": [{"role": "user", "content": "Tea?"}]}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] in ("stop", "length")
