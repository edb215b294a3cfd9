"""A trainer is a process of its own: what it inherits, how it is stopped, what is heard of its end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from training.contract.log_lines import tail
from training.contract.methods.policy import PolicyGradientSettings, RewardPart
from training.contract.methods.reward import RewardSettings
from training.contract.run import RunSpec, RunStatus, write_spec
from training.contract.snapshot import Message, SnapshotCompletion, SnapshotRow, write_snapshot
from training.services.runs.launcher import reward_server, run_trainer, trainer_environment


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of a run over a snapshot of one judgment."""
    row = SnapshotRow(
        judgment="1",
        comparison="1",
        annotator="p",
        round=1,
        prompt="1",
        split="train",
        messages=(Message(role="user", content="?"),),
        completions=(
            SnapshotCompletion(id="1", text="a", source="s"),
            SnapshotCompletion(id="2", text="b", source="s"),
        ),
        verdict="ranked",
        ranks={"1": 1, "2": 2},
    )
    header = write_snapshot(tmp_path / "snapshots/one", [row], project="tea", rounds=(1,))
    folder = tmp_path / "runs/one"
    spec = RunSpec(
        method="reward",
        base_model="/models/tiny",
        snapshot="../../snapshots/one",
        snapshot_digest=header.digest,
        settings=RewardSettings(),
        name="one",
    )
    write_spec(folder, spec)
    return folder


def behave(folder: Path, behaviour: str) -> None:
    (folder.parent.parent / "fake_trainer.json").write_text(behaviour)


def wait_for(condition, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.01)


pytestmark = pytest.mark.usefixtures("fake_trainer")


def test_progress_is_passed_on_and_the_end_is_told(run_folder: Path):
    heard: list[RunStatus | None] = []
    behave(run_folder, '{"seconds": 0.05}')

    def listen(status: RunStatus | None) -> bool:
        heard.append(status)
        return False

    ending = run_trainer(run_folder, watch=listen)
    assert ending.finished
    assert ending.status.step == ending.status.total_steps == 3
    assert any(status and status.state == "running" and status.step in (1, 2) for status in heard)
    assert (run_folder / "checkpoint/manifest.json").is_file()


def test_a_cancel_lets_the_trainer_save_and_stop(run_folder: Path):
    behave(run_folder, '{"steps": 1000, "seconds": 0.01}')
    ending = run_trainer(run_folder, watch=lambda status: bool(status and status.step >= 2))
    assert ending.stopped
    assert int((run_folder / "state/step").read_text()) >= 2


def test_a_cancel_of_last_time_does_not_stop_the_next_start(run_folder: Path):
    (run_folder / "cancel").touch()
    assert run_trainer(run_folder, watch=lambda status: False).finished


def test_words_of_an_earlier_failure_are_not_taken_for_those_of_this_one(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    behave(run_folder, '{"fail_at": 0}')
    first = run_trainer(run_folder, watch=lambda status: False)
    assert first.message == "Loss was not finite at step 0. Lower the learning rate."
    monkeypatch.setattr(
        settings, "RONDO_TRAINER_COMMAND", (sys.executable, "-c", "raise SystemExit('no torch')")
    )
    second = run_trainer(run_folder, watch=lambda status: False)
    assert second.message == "The trainer ended with status 1. It said last: no torch"


def test_a_trainer_that_the_system_kills_is_told_apart(run_folder: Path, monkeypatch: pytest.MonkeyPatch):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(settings, "RONDO_TRAINER_COMMAND", (sys.executable, "-c", kill))
    ending = run_trainer(run_folder, watch=lambda status: False)
    assert "killed by signal 9" in ending.message
    assert "goes on from the last saved step" in ending.message


def starts_of(folder: Path) -> list[str]:
    """From which step each trainer of a run went on."""
    return [line.partition(" ")[2] for line in (folder / "starts").read_text().splitlines()]


def test_a_trainer_that_was_killed_is_started_again_and_goes_on(run_folder: Path):
    behave(run_folder, '{"steps": 4, "killed_at": 2, "kills": 2}')
    assert run_trainer(run_folder, watch=lambda status: False).finished
    assert starts_of(run_folder) == ["from 0", "from 2", "from 2"]


def test_a_trainer_that_dies_each_time_at_the_same_place_is_given_up(run_folder: Path):
    behave(run_folder, '{"steps": 4, "killed_at": 2, "kills": 9}')
    ending = run_trainer(run_folder, watch=lambda status: False)
    assert ending.killed
    assert "lower micro_batch_tokens" in ending.message
    assert starts_of(run_folder) == ["from 0", "from 2", "from 2"]


def test_a_trainer_that_is_killed_once_it_was_asked_to_stop_is_not_started_again(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    program = """if True:
        import os, pathlib, signal, sys, time
        folder = pathlib.Path(sys.argv[1])
        (folder / "starts").open("a").write("1 from 0\\n")
        while not (folder / "cancel").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    monkeypatch.setattr(settings, "RONDO_TRAINER_COMMAND", (sys.executable, "-c", program))
    ending = run_trainer(run_folder, watch=lambda status: (run_folder / "starts").exists())
    assert ending.killed
    assert starts_of(run_folder) == ["from 0"]


def test_an_error_of_the_watcher_stops_the_trainer_too(run_folder: Path):
    behave(run_folder, '{"steps": 100000, "seconds": 0.01}')

    def lose_claim(status: RunStatus | None) -> bool:
        if status and status.step:
            raise RuntimeError("someone else has it")
        return False

    with pytest.raises(RuntimeError, match="someone else"):
        run_trainer(run_folder, watch=lose_claim)
    wait_for(lambda: '"stopped"' in (run_folder / "status.json").read_text())


def test_a_worker_killed_with_sigkill_takes_its_trainer_along_and_the_next_goes_on(run_folder: Path):
    behave(run_folder, '{"steps": 100000, "seconds": 0.01}')
    program = (
        "import sys, django; django.setup();"
        "from pathlib import Path; from training.services.runs import launcher;"
        "from django.conf import settings;"
        f"settings.RONDO_TRAINER_COMMAND = {settings.RONDO_TRAINER_COMMAND!r};"
        "launcher.run_trainer(Path(sys.argv[1]), watch=lambda status: False)"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program, str(run_folder)],
        cwd=settings.BASE_DIR,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "webapp.settings", "RONDO_HOME": str(run_folder.parent)},
    )
    state = run_folder / "state/step"
    wait_for(lambda: state.exists() and state.read_text() not in ("", "1"))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    wait_for(lambda: '"stopped"' in (run_folder / "status.json").read_text())
    trainer = int((run_folder / "starts").read_text().split()[0])
    wait_for(lambda: not Path(f"/proc/{trainer}").exists())

    reached = int(state.read_text())
    behave(run_folder, f'{{"steps": {reached + 2}}}')
    assert run_trainer(run_folder, watch=lambda status: False).finished
    assert (run_folder / "starts").read_text().splitlines()[-1].endswith(f"from {reached}")


def test_a_trainer_inherits_threads_and_of_secrets_those_of_the_judge_and_the_servers_it_asks_alone():
    inherited = trainer_environment(
        {
            "PATH": "/bin",
            "OMP_NUM_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": "0",
            "LC_ALL": "C.UTF-8",
            "RONDO_SECRET_KEY": "s",
            "RONDO_MODEL_SERVER_KEY": "s",
            "RONDO_REWARD_FUNCTIONS": "acme.polite",
            "RONDO_JUDGE_URL": "http://judge",
            "RONDO_JUDGE_KEY": "k",
            "RONDO_ROLLOUT_KEY": "r",
            "RONDO_ENVIRONMENT_URL": "http://shop",
            "RONDO_TEACHER_URL": "http://teacher",
            "RONDO_TEACHER_KEY": "t",
            "RONDO_REWARD_URL": "http://scores",
            "RONDO_REWARD_KEY": "w",
            "DATABASE_URL": "postgres://user:password@host/db",
            "AWS_SECRET_ACCESS_KEY": "s",
        }
    )
    assert inherited == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "LC_ALL": "C.UTF-8",
        "RONDO_REWARD_FUNCTIONS": "acme.polite",
        "RONDO_JUDGE_URL": "http://judge",
        "RONDO_JUDGE_KEY": "k",
        "RONDO_ROLLOUT_KEY": "r",
        "RONDO_ENVIRONMENT_URL": "http://shop",
        "RONDO_TEACHER_URL": "http://teacher",
        "RONDO_TEACHER_KEY": "t",
        "RONDO_REWARD_URL": "http://scores",
        "RONDO_REWARD_KEY": "w",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    assert trainer_environment({"OMP_WAIT_POLICY": "ACTIVE"}) == {"OMP_WAIT_POLICY": "ACTIVE"}


def spec_with(kind: Any) -> RunSpec:
    part = RewardPart(name="people", kind=kind, checkpoint="tea-reward")
    return RunSpec(
        method="policy_gradient",
        base_model="base",
        snapshot="snapshot",
        snapshot_digest="0" * 64,
        settings=PolicyGradientSettings(rewards=(part,)),
    )


def test_only_a_run_by_a_served_reward_model_gets_the_key_of_the_model_server(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(settings, "RONDO_MODEL_SERVER_URL", "http://ours")
    monkeypatch.setattr(settings, "RONDO_MODEL_SERVER_KEY", "secret")
    assert reward_server(spec_with("model")) == {}
    ours = {"RONDO_REWARD_URL": "http://ours", "RONDO_REWARD_KEY": "secret"}
    assert reward_server(spec_with("served")) == ours
    monkeypatch.setenv("RONDO_REWARD_URL", "http://elsewhere")
    # Another server does not get the key of this one.
    assert reward_server(spec_with("served")) == {}


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path):
    log = tmp_path / "log.txt"
    assert tail(log, lines=3) == ""
    log.write_text("".join(f"line {n}\n" for n in range(5000)))
    assert tail(log, lines=2) == "line 4998\nline 4999"
