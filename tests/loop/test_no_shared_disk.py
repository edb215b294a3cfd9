"""Three machines, one database, one store that speaks S3, no common disk: trained, gone on with, served."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import call_command

from annotation.models import Project, User
from annotation.services.jobs import claim
from tests import factories
from tests.loop.recipe import TINY, tiny_recipe
from tests.model_server import running_model_server
from tests.records import judgment_record
from tests.tiny import tiny_model_folder
from tests.training.jobs.machines import Machines, machines_in
from training.choices import StepKind
from training.contract import read_metrics
from training.models import Checkpoint, Round, RoundStep
from training.services.jobs import StepHeartbeat
from training.services.rounds import executor
from training.services.rounds.controls import open_first_round, pause_round, resume_round, start_round
from training.services.rounds.executor import advance_round

STEPS = 60


@pytest.fixture
def machine(tmp_path: Path, s3_url: str) -> Iterator[Machines]:
    folder = tmp_path / "machines"
    folder.mkdir()
    yield from machines_in(folder, s3_url)


def started(project: Project, alice: User, carol: User) -> Round:
    from annotation.services.assignments.next import assign_next
    from annotation.services.judgments.submission import submit_judgment

    for number in range(4):
        prompt = factories.make_prompt(project, f"What is {number} and {number}?", split="train")
        factories.make_comparison(project, [f"It is {2 * number}.", "I cannot say."], prompt=prompt)
    while assignment := assign_next(project=project, annotator=alice):
        best, other = sorted(assignment.display_order)
        answer = judgment_record(verdict="ranked", ranks={best: 1, other: 2})
        submit_judgment(assignment=assignment, annotator=alice, answer=answer, idempotency_key=uuid.uuid4())
    round_ = open_first_round(project=project, recipe=tiny_recipe(steps=STEPS))
    start_round(round_=round_, started_by=carol)
    return round_


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db
def test_a_run_is_begun_on_one_machine_ended_on_another_and_served_by_a_third(
    project: Project,
    alice: User,
    carol: User,
    machine: Machines,
    monkeypatch: pytest.MonkeyPatch,
    s3_url: str,
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("django.conf.settings.RONDO_STARTER_MODEL_NAME", TINY)
    # Every look at the trainer is a heartbeat, so that it hears of the pause within a few steps.
    monkeypatch.setattr("django.conf.settings.RONDO_HEARTBEAT_SECONDS", 0)
    first = machine("worker one")
    tiny_model_folder(first / "models" / TINY)
    round_ = started(project, alice, carol)

    # The first machine is paused after some steps, as one is that is to be switched off.
    def pause_after_three(heartbeat: StepHeartbeat, *, current: int | None = None, **progress: Any) -> bool:
        trains = heartbeat.job.kind == StepKind.TRAIN_REWARD_MODEL
        if trains and (current or 0) >= 3 and not Round.objects.get(pk=round_.pk).pause_requested:
            pause_round(round_=round_, actor=carol)
        return real(heartbeat, current=current, **progress)

    real = StepHeartbeat.__call__
    with monkeypatch.context() as patch:
        patch.setattr(StepHeartbeat, "__call__", pause_after_three)
        advance_round(round_.pk)
    step = round_.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    assert (step.state, step.error) == ("waiting", "")
    name = step.run.name
    steps_done = len(read_metrics(first / "runs" / name))
    assert 3 <= steps_done < STEPS

    # The second one has neither base model nor snapshot nor run. It does the rest of the training.
    two = machine("worker two")
    Round.objects.filter(pk=round_.pk).update(pause_requested=False)
    round_.refresh_from_db()
    if round_.state == "paused":
        resume_round(round_=round_, actor=carol)
    kinds = (StepKind.TRAIN_REWARD_MODEL, StepKind.TRAIN_POLICY, StepKind.REGISTER_CHECKPOINTS)
    for step in round_.steps.filter(kind__in=kinds).order_by("position"):
        # Not the whole round: nobody answers its prompts here.
        assert executor._carry_out(claim(RoundStep.objects.all(), step.pk))
    done = round_.steps.filter(kind__in=kinds)
    assert [(done_step.state, done_step.error) for done_step in done] == [("finished", "")] * 3
    log = (two / "runs" / name / "log.txt").read_text()
    assert [int(n) for n in re.findall(rf"Going on after step (\d+) of {STEPS}", log)] == [steps_done]
    assert [row["step"] for row in read_metrics(two / "runs" / name)] == list(range(1, STEPS + 1))
    trained = Checkpoint.objects.get(run__method="preference")
    assert not (first / "checkpoints").exists()

    # A model server on a third one serves what was trained, from an empty disk.
    three = machine("model server")
    arguments = ["--base", TINY, "--device", "cpu", "--store", s3_url]
    with running_model_server(three / "models", three / "checkpoints", arguments=arguments) as server:
        headers = {"Authorization": f"Bearer {server.key}"}
        listed = httpx.get(f"{server.url}/v1/models", headers=headers, trust_env=False).json()["data"]
        assert {model["id"]: model["kind"] for model in listed} == {
            TINY: "starter",
            name: "reward",
            trained.name: "policy",
        }
        assert not (three / "checkpoints").exists()
        body = {
            "model": trained.name,
            "messages": [{"role": "user", "content": "What is two and two?"}],
            "max_tokens": 4,
        }
        answer = httpx.post(
            f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120, trust_env=False
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["system_fingerprint"] == f"fp_{trained.digest[:16]}"
    assert (three / "checkpoints" / trained.name / "manifest.json").is_file()
    call_command("verify_checkpoints", trained.name)
