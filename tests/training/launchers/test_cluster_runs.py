"""A run as a job of a cluster: watched, lost, found again, stopped, refused; nothing is half-done."""

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from annotation.models import User
from annotation.services.jobs import worker_is_stopping
from tests.training.launchers.cluster_scene import AtStep, do_step, pause_at_step
from tests.training.launchers.conftest import Scheduler, run_of
from tests.training.rounds.round_scenes import behave
from training.choices import LaunchState, RunState, StepState
from training.contract import read_metrics
from training.launchers import JobFile, read_beat, write_job_file
from training.launchers.node.__main__ import Files, NodeRun
from training.models import Launch, Round, RoundStep
from training.services.rounds.controls import cancel_round, resume_round, start_again
from training.services.runs import clusters
from training.services.runs.clusters import sweep_launches

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fake_trainer", "rings")]


def states() -> list[str]:
    return list(Launch.objects.order_by("pk").values_list("state", flat=True))


def test_a_job_is_submitted_watched_to_its_end_and_kept_with_its_script(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path
):
    behave(rondo_home, steps=4, seconds=0.1)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    run = run_of(step)
    assert (run.state, run.step) == (RunState.FINISHED, 4)
    launch = Launch.objects.get()
    assert (launch.state, launch.handle, launch.exit_code) == (LaunchState.ENDED, "1", 0)
    assert launch.started_at <= launch.ended_at
    assert f"training.launchers.node {run.path} --job {launch.name}" in launch.script
    assert launch.resources["queue"] == "gold"
    assert (run.path / "checkpoint" / "manifest.json").is_file()
    # The log of the trainer is where a page reads it, and the metrics were folded as they came.
    assert run.summary is not None


def test_a_job_that_vanishes_is_submitted_again_and_goes_on(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path
):
    behave(rondo_home, steps=8, seconds=0.2)
    with AtStep(rondo_home / "runs", 3, scheduler.kill):
        assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    run = run_of(step)
    assert states() == [LaunchState.LOST, LaunchState.ENDED]
    starts = (run.path / "starts").read_text().splitlines()
    assert len(starts) == 2
    assert int(starts[1].rpartition(" ")[2]) >= 3
    assert [row["step"] for row in read_metrics(run.path)] == list(range(1, 9))


def test_a_job_that_is_lost_again_and_again_without_coming_further_is_given_up(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path
):
    behave(rondo_home, steps=4, killed_at=2, kills=99)
    assert not do_step(step)
    step.refresh_from_db()
    assert step.state == StepState.FAILED
    assert "was lost, again and again without coming further" in step.error
    assert "goes on from the last saved step" in step.error
    # Once with progress to step 2, then four times without.
    assert states() == [LaunchState.LOST] * 4


def test_a_worker_that_ends_leaves_the_job_running_and_the_next_one_watches_it_further(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path
):
    behave(rondo_home, steps=12, seconds=0.2)
    with AtStep(rondo_home / "runs", 2, worker_is_stopping.set):
        assert not do_step(step)
    worker_is_stopping.clear()
    step.refresh_from_db()
    assert step.state == StepState.WAITING
    assert states() == [LaunchState.RUNNING]
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    assert states() == [LaunchState.ENDED]
    assert len((run_of(step).path / "starts").read_text().splitlines()) == 1


def test_a_worker_that_dies_while_it_submits_leaves_no_second_trainer(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path
):
    behave(rondo_home, steps=12, seconds=0.2)
    with AtStep(rondo_home / "runs", 2, worker_is_stopping.set):
        assert not do_step(step)
    worker_is_stopping.clear()
    # As it was before the handle was written; the template cannot look jobs up, so another is submitted.
    Launch.objects.update(handle="", state=LaunchState.SUBMITTING)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    assert states() == [LaunchState.LOST, LaunchState.ENDED]
    assert [row["step"] for row in read_metrics(run_of(step).path)] == list(range(1, 13))


def test_a_job_that_a_newer_one_follows_leaves_its_heartbeat_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    newer = (
        "import sys, time; from pathlib import Path; from training.launchers import *; "
        "folder = Path(sys.argv[1]); write_job_file(folder, JobFile(job='newer')); "
        "write_beat(folder, Beat(job='newer', number=1, host='there', started_at=time.time(), code=0))"
    )
    write_job_file(tmp_path, JobFile(job="older", trainer=(sys.executable, "-c", newer)))
    files = Files(tmp_path, job="older", is_first=True)
    assert NodeRun(files, nodes=1, rank=0, processes=1, master="").run() == 0
    beat = read_beat(tmp_path, "newer")
    assert beat is not None
    assert beat.code == 0


def test_a_pause_saves_ends_the_job_and_a_new_one_goes_on(
    step: RoundStep,
    scheduler: Scheduler,
    rondo_home: Path,
    carol: User,
    monkeypatch: pytest.MonkeyPatch,
):
    behave(rondo_home, steps=300, seconds=0.05)
    round_ = step.round
    with monkeypatch.context() as patch:
        pause_at_step(patch, round_, carol, step=2)
        assert not do_step(step)
    run = run_of(step)
    assert run.state == RunState.STOPPED
    assert states() == [LaunchState.ENDED]
    steps_taken = len(read_metrics(run.path))
    behave(rondo_home, steps=steps_taken + 2)
    resume_round(round_=Round.objects.get(pk=round_.pk), actor=carol)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    assert (run.path / "starts").read_text().splitlines()[-1].endswith(f"from {steps_taken}")


def test_a_job_that_waits_in_the_queue_is_taken_out_when_the_round_is_cancelled(
    step: RoundStep, scheduler: Scheduler, carol: User, monkeypatch: pytest.MonkeyPatch
):
    scheduler.switch("hold")
    round_ = step.round
    real = clusters._Watcher._waiting_message

    def cancel_once_it_waits(watcher: Any) -> str:
        words = real(watcher)
        if words == "waiting in the queue of command: for a free node":
            cancel_round(round_=round_, actor=carol)
        return words

    monkeypatch.setattr(clusters._Watcher, "_waiting_message", cancel_once_it_waits)
    assert not do_step(step)
    step.refresh_from_db()
    assert step.state == StepState.CANCELLED
    assert states() == [LaunchState.CANCELLED]
    assert run_of(step).state == RunState.STOPPED


def test_a_job_that_somebody_cancelled_in_the_queue_fails_the_step_with_the_remedy(
    step: RoundStep, scheduler: Scheduler
):
    scheduler.switch("hold")
    scheduler.switch("taken_out")
    assert not do_step(step)
    step.refresh_from_db()
    assert step.error == (
        "The job 1 was cancelled at command, not from here (by root). Start again, and training goes on from "
        "the last saved step."
    )
    assert states() == [LaunchState.CANCELLED]


def test_a_scheduler_that_goes_away_while_a_job_runs_changes_nothing_for_the_job(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path
):
    behave(rondo_home, steps=10, seconds=0.2)
    with AtStep(rondo_home / "runs", 2, lambda: scheduler.switch("down")):
        assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    assert states() == [LaunchState.ENDED]


def test_a_refused_job_fails_the_step_in_the_scheduler_s_words(
    step: RoundStep, scheduler: Scheduler, carol: User
):
    scheduler.switch("refuse")
    assert not do_step(step)
    step.refresh_from_db()
    assert "queue gold: you have no account there" in step.error
    assert "Change compute in the recipe" in step.error
    assert states() == [LaunchState.REFUSED]
    scheduler.switch("refuse", on=False)
    assert run_of(step).state == RunState.FAILED
    start_again(round_=Round.objects.get(pk=step.round_id), actor=carol)
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error


def test_a_job_whose_heartbeat_stops_is_ended_and_submitted_again(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path, settings: Settings
):
    settings.RONDO_JOB_STALE_SECONDS = 7
    behave(rondo_home, steps=6, seconds=0.5)
    with AtStep(rondo_home / "runs", 2, lambda: scheduler.kill(sign=signal.SIGSTOP)):
        began = time.monotonic()
        assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    assert time.monotonic() - began > 7
    assert states() == [LaunchState.LOST, LaunchState.ENDED]
    assert "Its heartbeat stopped" in Launch.objects.order_by("pk").first().reason


def test_a_failed_trainer_fails_the_step_in_its_own_words(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path
):
    behave(rondo_home, fail_at=1)
    assert not do_step(step)
    step.refresh_from_db()
    assert step.error == "Loss was not finite at step 1. Lower the learning rate."
    assert Launch.objects.get().exit_code == 1


def test_a_job_whose_round_was_cancelled_while_nobody_watched_is_ended_by_the_sweep(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path, carol: User
):
    behave(rondo_home, steps=1000, seconds=0.05)
    with AtStep(rondo_home / "runs", 2, worker_is_stopping.set):
        assert not do_step(step)
    worker_is_stopping.clear()
    sweep_launches()
    assert states() == [LaunchState.RUNNING]
    cancel_round(round_=step.round, actor=carol)
    sweep_launches()
    assert states() == [LaunchState.CANCELLED]
    until = time.monotonic() + 20
    status = run_of(step).path / "status.json"
    while '"stopped"' not in status.read_text():
        assert time.monotonic() < until, status.read_text()
        time.sleep(0.05)


@pytest.mark.slow
def test_without_a_shared_disk_the_store_carries_everything(
    step: RoundStep, scheduler: Scheduler, rondo_home: Path, tmp_path: Path, settings: Settings
):
    behave(rondo_home, steps=5, seconds=0.3)
    (tmp_path / "node").mkdir()
    behave(tmp_path / "node", steps=5, seconds=0.3)
    settings.RONDO_STORE_URL = f"file://{tmp_path / 'store'}"
    settings.RONDO_CLUSTER_HOME = str(tmp_path / "node")
    base = rondo_home / "models" / step.round.policy.base_model
    base.mkdir(parents=True, exist_ok=True)
    (base / "config.json").write_text("{}")
    assert do_step(step), RoundStep.objects.get(pk=step.pk).error
    run = run_of(step)
    there = tmp_path / "node" / "runs" / run.name
    assert (there / "starts").is_file()
    assert (tmp_path / "node" / "models" / step.round.policy.base_model / "config.json").is_file()
    assert (run.path / "checkpoint" / "manifest.json").read_bytes() == (
        there / "checkpoint" / "manifest.json"
    ).read_bytes()
    assert [row["step"] for row in read_metrics(run.path)] == [1, 2, 3, 4, 5]
    assert run.state == RunState.FINISHED
