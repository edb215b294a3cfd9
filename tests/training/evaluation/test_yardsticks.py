"""A reward model on a public test set: measured by the trainer, kept, shown on the checkpoint's page."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from annotation.models import Project, User
from tests.refusals import refused
from tests.training.evaluation.test_scores import reward_model
from training.models import Checkpoint, Snapshot, YardstickResult
from training.services.checkpoints import register_starter
from training.services.evaluation import evaluating as evaluations
from training.services.runs.launcher import Ended

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]
RESULT = {
    "title": "RM-Bench",
    "file_sha256": "a" * 64,
    "items": 3,
    "left_out": 1,
    "sampled": False,
    "chance": 0.5,
    "figures": {
        "all": {"value": 0.6667, "items": 3, "low": 0.2, "high": 0.94},
        "hard": {"value": 0.25, "items": 3, "low": None, "high": None},
    },
    "published": [{"model": "somebody", "figure": "hard", "value": 0.466, "source": "a paper"}],
}


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The trainer's commands; it writes `RESULT`, and refuses a file whose name says so."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> Ended:
        commands.append(list(command))
        if command[4].endswith("bad.jsonl"):
            return Ended(code=1, output="", last_line="bad.jsonl: row 3: field 'domain' is missing")
        Path(command[command.index("--out") + 1]).write_text(json.dumps(RESULT))
        return Ended(code=0, output="", last_line="")

    monkeypatch.setattr(evaluations, "run_process", run)
    return commands


@pytest.fixture
def checkpoint(project: Project) -> Checkpoint:
    made = reward_model(project, "round-1-reward")
    Snapshot.objects.update(counts={"judgments": 3})
    return made


def test_figures_are_kept_and_shown_beside_those_of_others(
    checkpoint: Checkpoint,
    trainer: list[list[str]],
    carol: User,
    client_of: ClientOf,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    for _ in range(2):
        call_command("measure_yardstick", checkpoint.name, "rm-bench", str(tmp_path / "set.jsonl"), most=9)
    assert "RM-Bench: 0.667 of 3 items" in capsys.readouterr().out
    command = trainer[0]
    assert command[3:5] == [str(checkpoint.path), str(tmp_path / "set.jsonl")]
    assert command[-2:] == ["--most", "9"]
    # Measured twice, kept once.
    [stored] = YardstickResult.objects.all()
    assert stored.result == RESULT
    page = client_of(carol).get(checkpoint.get_absolute_url()).content.decode()
    section = page.partition('id="yardsticks"')[2].partition("</section>")[0]
    figures = ("66.7 %", "20.0 % – 94.0 %", "46.6 %", "chance: 50.0 %")
    for text in ("RM-Bench", "3 items, 1 left out", "somebody", *figures):
        assert text in section


def test_what_cannot_be_measured_is_refused_in_words_and_leaves_nothing(
    checkpoint: Checkpoint, trainer: list[list[str]], tmp_path: Path
):
    with pytest.raises(CommandError, match=r"row 3: field 'domain' is missing"):
        call_command("measure_yardstick", checkpoint.name, "rm-bench", str(tmp_path / "bad.jsonl"))
    with pytest.raises(CommandError, match="'nobody'"):
        call_command("measure_yardstick", "nobody", "rm-bench", str(tmp_path / "set.jsonl"))
    with refused("not_a_reward_model", CommandError):
        call_command("measure_yardstick", register_starter().name, "rm-bench", str(tmp_path / "set.jsonl"))
    assert not YardstickResult.objects.exists()
