"""Slurm by its commands: the script, every state, and what is said where it does not answer or refuses."""

import os
from pathlib import Path

import pytest

from training.launchers import (
    Job,
    JobReport,
    Launcher,
    LauncherError,
    LauncherUnreachableError,
    Place,
    Resources,
)
from training.launchers.slurm import Slurm

PLACE = Place(python="/opt/rondo/bin/python", code="/opt/rondo", home="/data/rondo", shares_files=True)
JOB = Job(
    name="rondo-7-1-abcdef",
    run="tea-round-1-reward",
    resources=Resources(nodes=2, processes=4, gpus=4, memory_gb=120.5, hours=1.5, queue="h100"),
    environment={"OMP_NUM_THREADS": "8", "RONDO_JUDGE_KEY": "very secret"},
)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that come before the real ones."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def program(folder: Path, name: str, *, says: str = "", error: str = "", code: int = 0) -> None:
    """Write a program that notes its arguments, input and variables, and answers so."""
    path = folder / name
    path.write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" > {folder}/{name}.arguments\n'
        f"env > {folder}/{name}.environment\n"
        f"[ {name} = sbatch ] && cat > {folder}/{name}.input\n"
        f"cat <<'END'\n{says}\nEND\n"
        f"cat >&2 <<'END'\n{error}\nEND\n"
        f"exit {code}\n"
    )
    path.chmod(0o755)


def slurm() -> Launcher:
    return Slurm(PLACE, options=("--account=nlp", "--comment=two words"))


def test_the_script_asks_for_what_the_recipe_says_and_meets_at_the_first_node():
    assert slurm().script(JOB) == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=rondo-7-1-abcdef\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --no-requeue\n"
        "#SBATCH --gpus-per-node=4\n"
        "#SBATCH --mem=123392M\n"
        "#SBATCH --time=90\n"
        "#SBATCH --partition=h100\n"
        "#SBATCH --chdir=/opt/rondo\n"
        "#SBATCH --output=/data/rondo/runs/tea-round-1-reward/slurm-%j.txt\n"
        "#SBATCH --account=nlp\n"
        "#SBATCH '--comment=two words'\n"
        "set -eu\n"
        "# The first node of the allocation, by the address at which Slurm reaches it.\n"
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
        'address=$(scontrol --oneliner show node "$first" | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")\n'
        "port=$((20000 + SLURM_JOB_ID % 10000))\n"
        "exec srun --wait=0 --kill-on-bad-exit=0 /opt/rondo/bin/python -m training.launchers.node "
        "/data/rondo/runs/tea-round-1-reward --job rondo-7-1-abcdef --nodes 2 --processes 4 "
        '--rank-from SLURM_NODEID --master "${address:-$first}:$port"\n'
    )


def test_a_small_job_asks_for_nothing_that_the_recipe_does_not_name():
    script = Slurm(PLACE).script(Job(name="rondo-1-1-a", run="r", resources=Resources()))
    for option in ("--gpus", "--mem", "--time", "--partition"):
        assert option not in script


def test_names_with_blanks_and_quotes_stay_one_argument():
    place = Place(python="/a b/python", code="/c", home="/d'e; rm -rf x", shares_files=False)
    script = Slurm(place).script(Job(name="rondo-1-1-a", run="r", resources=Resources()))
    command = script.splitlines()[-1]
    assert command.startswith(
        "exec srun --wait=0 --kill-on-bad-exit=0 '/a b/python' -m training.launchers.node"
    )
    assert "'/d'\"'\"'e; rm -rf x/runs/r'" in command
    # Without a shared disk the run's folder is not there when Slurm opens the file.
    assert "#SBATCH --output=rondo-1-1-a.txt" in script


def test_a_job_is_submitted_by_standard_input_and_secrets_are_in_the_environment_alone(programs: Path):
    program(programs, "sbatch", says="4711;cluster")
    assert slurm().submit(JOB) == "4711"
    assert (programs / "sbatch.input").read_text() == slurm().script(JOB)
    arguments = (programs / "sbatch.arguments").read_text()
    assert arguments.splitlines() == ["--parsable", "--export=PATH,OMP_NUM_THREADS,RONDO_JUDGE_KEY"]
    assert "RONDO_JUDGE_KEY=very secret" in (programs / "sbatch.environment").read_text()
    assert "very secret" not in slurm().script(JOB) + arguments


def test_a_refusal_is_passed_on_with_the_remedy(programs: Path):
    program(programs, "sbatch", error="sbatch: error: invalid partition specified: h100", code=1)
    with pytest.raises(
        LauncherError, match=r"invalid partition specified: h100\. Change compute in the recipe"
    ):
        slurm().submit(JOB)


@pytest.mark.parametrize(
    "error",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Munge encode failed: Failed to access /run/munge/munge.socket.2",
        "squeue: fatal: Could not establish a configuration source",
    ],
)
def test_a_controller_that_is_away_may_be_asked_again(programs: Path, error: str):
    program(programs, "squeue", error=error, code=1)
    program(programs, "sbatch", error=error, code=1)
    for ask in (lambda: slurm().poll("1"), lambda: slurm().submit(JOB), lambda: slurm().find("rondo-1")):
        with pytest.raises(LauncherUnreachableError, match="Slurm does not answer"):
            ask()


def test_without_slurm_s_programs_the_remedy_is_said(programs: Path):
    os.environ["PATH"] = str(programs)
    with pytest.raises(
        LauncherError, match=r"the program sbatch is not on this machine; install it, or choose"
    ):
        slurm().submit(JOB)


@pytest.mark.parametrize(
    ("line", "report"),
    [
        ("PENDING|Priority|", JobReport(state="waiting", reason="Priority")),
        ("PENDING|Resources|(null)", JobReport(state="waiting", reason="Resources")),
        ("RUNNING|None|gpu[1-2]", JobReport(state="running", nodes=("gpu[1-2]",))),
        ("COMPLETING|None|gpu1", JobReport(state="running", nodes=("gpu1",))),
        ("COMPLETED|None|gpu1", JobReport(state="ended", reason="COMPLETED", nodes=("gpu1",))),
        ("NODE_FAIL|NodeDown|gpu1", JobReport(state="ended", reason="NODE_FAIL, NodeDown", nodes=("gpu1",))),
        ("TIMEOUT|TimeLimit|gpu1", JobReport(state="ended", reason="TIMEOUT, TimeLimit", nodes=("gpu1",))),
        ("CANCELLED|None|", JobReport(state="cancelled", reason="CANCELLED")),
        ("OUT_OF_MEMORY|OOM|g", JobReport(state="failed", reason="OUT_OF_MEMORY, OOM", nodes=("g",))),
    ],
)  # fmt: skip
def test_every_state_of_squeue_is_understood(programs: Path, line: str, report: JobReport):
    program(programs, "squeue", says=line)
    assert slurm().poll("12") == report
    assert "--jobs=12" in (programs / "squeue.arguments").read_text()


def test_a_job_that_squeue_has_forgotten_is_looked_up_in_the_accounts(programs: Path):
    program(programs, "squeue", error="slurm_load_jobs error: Invalid job id specified", code=1)
    program(programs, "sacct", says="CANCELLED by 1000|None|None assigned")
    assert slurm().poll("12") == JobReport(state="cancelled", reason="CANCELLED by 1000")
    program(programs, "sacct", error="Slurm accounting storage is disabled", code=1)
    assert slurm().poll("12") == JobReport(state="unknown")


def test_a_job_is_found_by_its_name(programs: Path):
    program(programs, "squeue", says="12")
    assert slurm().find("rondo-7-1-abcdef") == "12"
    assert "--name=rondo-7-1-abcdef" in (programs / "squeue.arguments").read_text()
    program(programs, "squeue", says="")
    program(programs, "sacct", says="9")
    assert slurm().find("rondo-7-1-abcdef") == "9"
    program(programs, "sacct", says="")
    assert slurm().find("rondo-7-1-abcdef") is None


def test_cancelling_a_job_that_has_ended_does_nothing(programs: Path):
    program(
        programs,
        "scancel",
        error="scancel: error: Kill job error on job id 12: Invalid job id specified",
        code=1,
    )
    slurm().cancel("12")
    assert (programs / "scancel.arguments").read_text().split() == ["--quiet", "12"]


def test_partitions_are_listed_for_the_status_page(programs: Path):
    program(programs, "sinfo", says="h100|up|3/1/1/5|gpu:h100:8|2-00:00:00\ncpu*|up|0/4/0/4|(null)|infinite")
    assert list(slurm().look()) == [
        "partition h100 (up): 5 nodes, 3 busy, 1 idle, 1 unavailable, gpu:h100:8 each, time limit 2-00:00:00",
        "partition cpu* (up): 4 nodes, 0 busy, 4 idle, 0 unavailable, time limit infinite",
    ]
