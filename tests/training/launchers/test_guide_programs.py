"""The guide's programs for Slurm and Kubernetes; stand-ins for `sbatch` and `kubectl` start processes."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from pytest_django import Settings

from annotation.models import User
from annotation.services.jobs import worker_is_stopping
from tests.guide_blocks import block
from tests.training.launchers.cluster_scene import AtStep, do_step
from tests.training.launchers.conftest import run_of
from tests.training.rounds.round_scenes import behave
from training.choices import RunState
from training.contract import read_metrics
from training.launchers import (
    ClusterPaths,
    JobReport,
    LauncherError,
    LauncherUnreachableError,
    LaunchJob,
    Resources,
)
from training.launchers.command import CommandTemplate
from training.models import Launch, RoundStep
from training.services.rounds.controls import cancel_round
from training.services.runs.clusters import sweep_launches

PAGE = "how-to/train-on-a-cluster.md"
FAKE = Path(__file__).with_name("fake_programs.py")
OF_SLURM = ("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel")
SUBMIT = "{name} {nodes} {gpus} {memory_gb} {hours} {queue} {variables}"
JOB = LaunchJob(
    name="rondo-7-1-abcdef",
    run="tea",
    resources=Resources(nodes=2, processes=4, gpus=4, memory_gb=1.5, hours=2, queue="team-a"),
    environment={"OMP_NUM_THREADS": "8", "RONDO_JUDGE_KEY": "very secret"},
)
SMALL = LaunchJob(name="rondo-1-1-a", run="tea", resources=Resources())


@dataclass
class Cluster:
    """A program of the guide, and the folder of the cluster that it speaks to."""

    command: str
    folder: Path

    def switch(self, name: str, text: str = "") -> None:
        """Make the cluster misbehave."""
        (self.folder / name).write_text(text)

    @property
    def calls(self) -> list[list[str]]:
        """Return the commands that were run."""
        return [shlex.split(line) for line in (self.folder / "calls").read_text().splitlines()]

    def launcher(self, runs: Path) -> CommandTemplate:
        """Return a launcher whose script tells a node's number and where the nodes meet."""
        python = runs / "python"
        python.write_text(
            '#!/bin/sh\necho "$RONDO_NODE_RANK $RONDO_MASTER $OMP_NUM_THREADS ${DATABASE_URL-}" "$@"\n'
        )
        python.chmod(0o755)
        return CommandTemplate(
            ClusterPaths(python=str(python), code=str(runs), home=str(runs), shares_files=True),
            runs=runs,
            submit_command=f"{self.command} submit {SUBMIT}",
            poll_command=f"{self.command} poll {{handle}}",
            cancel_command=f"{self.command} cancel {{handle}}",
            logs_command=f"{self.command} logs {{handle}} {{lines}}",
        )


def make_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, programs: tuple[str, ...]
) -> Iterator[Cluster]:
    folder, binaries = tmp_path / "cluster", tmp_path / "bin"
    folder.mkdir()
    binaries.mkdir()
    for program in programs:
        path = binaries / program
        # A program is known by its name, which `exec -a` cannot give to a script.
        path.write_text(FAKE.read_text().replace("#!/usr/bin/env python\n", f"#!{sys.executable}\n"))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CLUSTER", str(folder))
    monkeypatch.setenv("DATABASE_URL", "postgres://worker:secret@db/rondo")
    text = block(PAGE, f'"""{name.capitalize()} by')
    script = tmp_path / f"{name}.py"
    script.write_text(text.replace("/shared/rondo/jobs", str(folder)))
    yield Cluster(shlex.join([sys.executable, str(script)]), folder)
    for path in folder.glob("*.json"):
        for pid in json.loads(path.read_text()).get("pids", ()):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    yield from make_cluster(tmp_path, monkeypatch, "slurm", OF_SLURM)


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    yield from make_cluster(tmp_path, monkeypatch, "kubernetes", ("kubectl",))


@pytest.fixture(params=["slurm", "kubernetes"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    made: Cluster = request.getfixturevalue(request.param)
    return made


def ends(launcher: CommandTemplate, handle: str) -> JobReport:
    """Return the report of a job's end."""
    until = time.monotonic() + 20
    while (report := launcher.poll(handle)).state in ("waiting", "running"):
        assert time.monotonic() < until, report
        time.sleep(0.1)
    return report


# A round


@pytest.fixture
def step_there(step: RoundStep, cluster: Cluster, settings: Settings) -> RoundStep:
    """The step that trains a reward model, about to begin on the cluster."""
    settings.RONDO_COMMAND_SUBMIT = f"{cluster.command} submit {SUBMIT}"
    settings.RONDO_COMMAND_POLL = f"{cluster.command} poll {{handle}}"
    settings.RONDO_COMMAND_CANCEL = f"{cluster.command} cancel {{handle}}"
    settings.RONDO_COMMAND_LOGS = f"{cluster.command} logs {{handle}} {{lines}}"
    return step


in_a_round = pytest.mark.usefixtures("fake_trainer", "rings")


@in_a_round
@pytest.mark.django_db
def test_a_round_trains_to_its_end(step_there: RoundStep, rondo_home: Path):
    behave(rondo_home, steps=4, seconds=0.1)
    assert do_step(step_there), RoundStep.objects.get(pk=step_there.pk).error
    run = run_of(step_there)
    assert (run.state, len(read_metrics(run.path))) == (RunState.FINISHED, 4)
    launch = Launch.objects.get()
    assert (launch.state, launch.exit_code) == ("ended", 0)
    assert launch.started_at is not None


@in_a_round
@pytest.mark.django_db
def test_a_trainer_that_fails_fails_the_step_in_its_own_words(step_there: RoundStep, rondo_home: Path):
    behave(rondo_home, fail_at=1)
    assert not do_step(step_there)
    step_there.refresh_from_db()
    assert step_there.error == "Loss was not finite at step 1. Lower the learning rate."


@in_a_round
@pytest.mark.django_db
def test_a_running_job_saves_when_its_round_is_cancelled(
    step_there: RoundStep, rondo_home: Path, carol: User
):
    behave(rondo_home, steps=1000, seconds=0.05)
    with AtStep(rondo_home / "runs", 2, worker_is_stopping.set):
        assert not do_step(step_there)
    worker_is_stopping.clear()
    cancel_round(round_=step_there.round, actor=carol)
    sweep_launches()
    assert Launch.objects.get().state == "cancelled"
    status = run_of(step_there).path / "status.json"
    until = time.monotonic() + 20
    while '"stopped"' not in status.read_text():
        assert time.monotonic() < until, status.read_text()
        time.sleep(0.05)


@in_a_round
@pytest.mark.django_db
def test_a_cluster_that_does_not_answer_has_the_step_wait(step_there: RoundStep, cluster: Cluster):
    cluster.switch("down")
    assert not do_step(step_there)
    step_there.refresh_from_db()
    assert step_there.state == "waiting"
    assert "Unable to con" in step_there.message


# Both programs


def test_every_node_runs_the_script_with_its_number_and_without_the_worker_s_secrets(
    cluster: Cluster, tmp_path: Path
):
    launcher = cluster.launcher(tmp_path)
    handle = launcher.submit(JOB)
    assert ends(launcher, handle).state == "ended"
    text = "".join(path.read_text() for path in sorted(cluster.folder.glob("*.txt")))
    lines = sorted(text.splitlines())
    assert [line[:1] for line in lines] == ["0", "1"]
    masters = {line.split()[1] for line in lines}
    assert masters in ({"127.0.0.1:20001"}, {"rondo-7-1-abcdef-0.rondo-7-1-abcdef:29400"})
    for line in lines:
        # The URL of the database would stand between the threads and the arguments.
        assert line.split()[2:4] == ["8", "-m"]
        assert line.endswith(f"--rank-from RONDO_NODE_RANK --master {line.split()[1]}")
    assert launcher.logs(handle, lines=1) in lines
    assert "very secret" not in (cluster.folder / "calls").read_text()


def test_a_job_that_waits_says_why_and_is_taken_out_of_the_queue(cluster: Cluster, tmp_path: Path):
    cluster.switch("hold")
    launcher = cluster.launcher(tmp_path)
    handle = launcher.submit(SMALL)
    report = launcher.poll(handle)
    assert (report.state, report.reason in ("Priority", "Unschedulable")) == ("waiting", True)
    launcher.cancel(handle)
    assert launcher.poll(handle).state == "cancelled"


def test_a_cluster_that_is_away_may_be_asked_again(cluster: Cluster, tmp_path: Path):
    launcher = cluster.launcher(tmp_path)
    cluster.switch("down")
    for ask in (lambda: launcher.submit(SMALL), lambda: launcher.poll("1"), lambda: launcher.cancel("1")):
        with pytest.raises(LauncherUnreachableError, match="Unable to con"):
            ask()


def test_a_refusal_is_passed_on_with_the_remedy(cluster: Cluster, tmp_path: Path):
    cluster.switch("refuse")
    with pytest.raises(
        LauncherError, match=r"(invalid partition|is forbidden).*Change compute in the recipe"
    ):
        cluster.launcher(tmp_path).submit(JOB)
    # Kubernetes takes the Job before it refuses the Service.
    assert not list(cluster.folder.glob("*.json"))


def test_cancelling_a_job_that_is_gone_does_nothing(cluster: Cluster, tmp_path: Path):
    cluster.launcher(tmp_path).cancel("9")


# Slurm


def test_sbatch_is_asked_for_what_the_recipe_says(slurm: Cluster, tmp_path: Path):
    slurm.switch("hold")
    slurm.launcher(tmp_path).submit(JOB)
    slurm.launcher(tmp_path).submit(SMALL)
    [all_of_it, little] = [call[1:] for call in slurm.calls if call[0] == "sbatch"]
    assert all_of_it == [
        *("--parsable", "--job-name=rondo-7-1-abcdef", "--nodes=2", "--ntasks-per-node=1", "--no-requeue"),
        *(f"--output={slurm.folder}/slurm-%j.txt", "--export=PATH,OMP_NUM_THREADS,RONDO_JUDGE_KEY"),
        *("--gpus-per-node=4", "--mem=1536M", "--time=120", "--partition=team-a"),
    ]
    assert little[-1] == "--export=PATH"


@pytest.mark.parametrize(
    ("line", "state", "reason"),
    [
        ("PENDING|Resources|(null)", "waiting", "Resources"),
        ("RUNNING|None|gpu[1-2]", "running", "gpu[1-2]"),
        ("COMPLETING|None|gpu1", "running", "gpu1"),
        ("COMPLETED|None|gpu1", "ended", "COMPLETED gpu1"),
        ("NODE_FAIL|NodeDown|gpu1", "ended", "NODE_FAIL NodeDown gpu1"),
        ("TIMEOUT|TimeLimit|gpu1", "ended", "TIMEOUT TimeLimit gpu1"),
        ("CANCELLED+|None|", "cancelled", "CANCELLED+"),
        ("OUT_OF_MEMORY|OOM|g", "failed", "OUT_OF_MEMORY OOM g"),
        ("IMAGINED||", "unknown", ""),
    ],
)
def test_every_state_of_squeue_is_understood(
    slurm: Cluster, tmp_path: Path, line: str, state: Any, reason: str
):
    slurm.switch("squeue", line)
    assert slurm.launcher(tmp_path).poll("12") == JobReport(state=state, reason=reason)


def test_a_job_that_squeue_has_forgotten_is_looked_up_in_the_accounts(slurm: Cluster, tmp_path: Path):
    launcher = slurm.launcher(tmp_path)
    assert launcher.poll("12") == JobReport(state="unknown")
    slurm.switch("sacct", "CANCELLED by 1000|None|None assigned")
    assert launcher.poll("12") == JobReport(state="cancelled", reason="CANCELLED by 1000")


# Kubernetes


def manifests(kubernetes: Cluster, tmp_path: Path, job: LaunchJob) -> list[dict[str, Any]]:
    """Return the objects that a job is made of."""
    kubernetes.switch("hold")
    kubernetes.launcher(tmp_path).submit(job)
    kinds = ("Job", "Service")
    paths = [path for kind in kinds for path in kubernetes.folder.glob(f"{job.name}.{kind}")]
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("job", [JOB, SMALL], ids=["two nodes", "one node"])
def test_manifests_keep_to_the_published_schema_of_kubernetes(
    kubernetes: Cluster, tmp_path: Path, version: str, job: LaunchJob
):
    made = manifests(kubernetes, tmp_path, job)
    assert len(made) == job.resources.nodes
    for manifest in made:
        kubernetes_validate.validate(manifest, version, strict=True)
    made[0]["spec"]["completion"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(made[0], version, strict=True)


def test_each_node_is_a_pod_that_asks_for_its_gpus_and_finds_the_first_by_name(
    kubernetes: Cluster, tmp_path: Path
):
    job, service = manifests(kubernetes, tmp_path, JOB)
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 7200)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    container = spec["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4, "memory": "1536Mi"}
    assert container["env"] == [{"name": "OMP_NUM_THREADS", "value": "8"}]
    assert container["envFrom"] == [{"secretRef": {"name": "rondo-keys"}}]
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"] == JOB.name
    assert service["metadata"]["ownerReferences"][0]["uid"] == "11-22"
    assert "very secret" not in json.dumps(job)


NO_IMAGE = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
NO_MEMORY = {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled"}}}]}


@pytest.mark.parametrize(
    ("pod_status", "state", "reason"),
    [
        (NO_IMAGE, "waiting", "ImagePullBackOff"),
        (NO_MEMORY, "failed", "OOMKilled: a pod needed more than its memory"),
        ({"phase": "Running"}, "running", "gpu-1"),
        ({}, "waiting", ""),
    ],
)
def test_the_state_of_a_job_is_read_from_its_pods(
    kubernetes: Cluster, tmp_path: Path, pod_status: dict[str, Any], state: Any, reason: str
):
    # One answer for the Job, which has no conditions yet, and for its pods.
    pods = {"items": [{"spec": {"nodeName": "gpu-1"}, "status": pod_status}]}
    kubernetes.switch("kubectl", json.dumps(pods))
    assert kubernetes.launcher(tmp_path).poll("a") == JobReport(state=state, reason=reason)
