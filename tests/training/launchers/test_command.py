"""The command template: placeholders fill single arguments, and no shell ever reads a value."""

from pathlib import Path

import pytest

from training.launchers import (
    ClusterPaths,
    JobReport,
    LauncherError,
    LauncherUnreachableError,
    LaunchJob,
    Resources,
)
from training.launchers.command import OF_SUBMIT, CommandTemplate, command_arguments

PLACE = ClusterPaths(python="/opt/bin/python", code="/opt/rondo", home="/data", shares_files=True)


def template(tmp_path: Path, **commands: str) -> CommandTemplate:
    return CommandTemplate(
        PLACE,
        runs=tmp_path,
        submit_command=commands.get("submit", "echo 1"),
        poll_command=commands.get("poll", "echo running"),
        cancel_command=commands.get("cancel", "true"),
        logs_command=commands.get("logs", ""),
    )


def test_a_value_is_one_argument_whatever_it_holds():
    values = {"name": "a b; rm -rf / $(id) {folder}", "folder": "x"}
    assert command_arguments("bsub -J {name} '-o {folder}/out put'", values) == [
        "bsub",
        "-J",
        "a b; rm -rf / $(id) {folder}",
        "-o x/out put",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bsub {nmae}", r"\{nmae\} is not known here; use \{script\}, \{name\}"),
        ("bsub {name.__class__}", "is not known here"),
        ("bsub {name!r}", "is not known here"),
        ("bsub 'unclosed", "cannot be read"),
        ("bsub {name", "cannot be read"),
    ],
)
def test_a_wrong_template_is_refused_with_the_placeholders_that_there_are(text: str, words: str):
    with pytest.raises(LauncherError, match=words):
        command_arguments(text, dict.fromkeys(OF_SUBMIT, ""))


def test_the_script_of_several_nodes_takes_its_number_and_the_meeting_point_from_variables(tmp_path: Path):
    job = LaunchJob(name="rondo-1-1-a", run="r", resources=Resources(nodes=2))
    assert template(tmp_path).script(job) == (
        "#!/bin/sh\nset -eu\ncd /opt/rondo\nexec /opt/bin/python -m training.launchers.node /data/runs/r "
        "--job rondo-1-1-a --nodes 2 --processes 1 --rank-from RONDO_NODE_RANK "
        '--master "${RONDO_MASTER:?host:port of the first node}"\n'
    )


def test_submit_hands_out_script_and_wishes_and_reads_the_handle(tmp_path: Path):
    job = LaunchJob(
        name="rondo-1-1-a",
        run="r",
        resources=Resources(gpus=2, memory_gb=1.5, queue="q"),
        environment={"RONDO_JUDGE_KEY": "k"},
    )
    submit = (
        f"sh -c 'echo \"$@\" > {tmp_path}/said; echo $RONDO_JUDGE_KEY >> {tmp_path}/said; echo job-9; echo x'"
    )
    command = template(tmp_path, submit=submit + " - {name} {script} {gpus} {memory_gb} {hours}")
    assert command.submit(job) == "job-9"
    script = tmp_path / "r" / "job.sh"
    assert (tmp_path / "said").read_text() == f"rondo-1-1-a {script} 2 1.5\nk\n".replace("1.5\n", "1.5 \n")
    assert script.read_text() == command.script(job)
    assert script.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("says", ["", "--help", "two words"])
def test_a_submit_command_that_writes_no_handle_is_refused(tmp_path: Path, says: str):
    job = LaunchJob(name="rondo-1-1-a", run="r", resources=Resources())
    with pytest.raises(LauncherError, match="must write the handle"):
        template(tmp_path, submit=f"printf %s {says!r}").submit(job)


def test_the_state_is_the_first_word_and_the_rest_says_why(tmp_path: Path):
    assert template(tmp_path, poll="echo waiting for {handle}").poll("7") == JobReport(
        state="waiting", reason="for 7"
    )
    with pytest.raises(LauncherError, match="it must write one of waiting, running, ended"):
        template(tmp_path, poll="echo PEND").poll("7")
    with pytest.raises(LauncherUnreachableError, match="failed"):
        template(tmp_path, poll="false").poll("7")


def test_logs_are_the_last_lines_and_empty_without_a_command(tmp_path: Path):
    assert template(tmp_path, logs="seq 1 {lines}0").logs("7", lines=2) == "19\n20"
    assert template(tmp_path).logs("7", lines=2) == ""
