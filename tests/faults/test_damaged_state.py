"""Saved states and checkpoints on a disk that loses bits: named, never used, and the save before is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.rlhf.loop.trainers import Trainer, finish_one
from tests.rlhf.runs import files_of, make_run, status_of, train
from tests.tiny import tiny_model_folder
from training.contract import ContractError, read_metrics
from training.contract.run import EXIT_FAILED, EXIT_FINISHED
from training.rlhf.model.backbone import Backbone

Damage = Callable[[Path], object]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_last(path: Path) -> None:
    """One bit of the last byte: of a tensor, so that the file still reads."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def flip_digit(path: Path) -> None:
    """One digit of a JSON file, which still reads."""
    content = path.read_text()
    place = next(place for place in range(len(content) - 1, 0, -1) if content[place].isdigit())
    path.write_text(content[:place] + str(9 - int(content[place])) + content[place + 1 :])


DAMAGES = [
    ("state.safetensors", flip_last),
    ("state.json", flip_digit),
    *(
        pytest.param(name, damage, marks=pytest.mark.long)
        for name in ("state.safetensors", "state.json")
        for damage in (truncate, Path.unlink)
    ),
]
"""The damage to each file of a save."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = make_run(
        tmp_path_factory.mktemp("whole") / "run", base, optimiser={"save_every": 2, "evaluate_every": 2}
    )
    assert train(folder) == EXIT_FINISHED
    return folder


@pytest.fixture(scope="module")
def killed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, killed with two saves."""
    folder = make_run(
        tmp_path_factory.mktemp("killed") / "run", base, optimiser={"save_every": 2, "evaluate_every": 2}
    )
    trainer = Trainer(folder)
    while len(saves(folder)) < 2 or len(read_metrics(folder)) < 5:
        assert trainer.poll() is None, trainer.output
    trainer.kill()
    return folder


@pytest.fixture
def run(killed: Path, tmp_path: Path) -> Path:
    """A copy of it, beside its snapshot."""
    shutil.copytree(killed.parent, tmp_path / "copy")
    return tmp_path / "copy" / killed.name


def saves(folder: Path) -> list[Path]:
    return sorted((folder / "state").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_run_whose_last_save_is_damaged_goes_on_from_the_one_before_to_the_same_bytes(
    run: Path, whole: Path, name: str, damage: Damage
):
    earlier, last = saves(run)[-2:]
    damage(last / name)
    code, output = finish_one(run)
    assert code == EXIT_FINISHED, output
    assert f"{last}: the saved state is damaged" in output
    assert f"Going on after step {earlier.name.removeprefix('step-')} of" in output
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")
    assert [line["loss"] for line in read_metrics(run)] == [line["loss"] for line in read_metrics(whole)]


@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_a_run_without_an_intact_save_is_refused_by_the_name_of_its_last_and_left_as_it_is(
    run: Path, name: str, damage: Damage
):
    for folder in saves(run):
        damage(folder / name)
    before = files_of(run / "state")
    assert train(run) == EXIT_FAILED
    assert str(saves(run)[-1]) in status_of(run).message
    assert files_of(run / "state") == before
    assert not (run / "checkpoint").exists()
    shutil.rmtree(run / "state")
    assert train(run) == EXIT_FINISHED


def test_a_damaged_best_state_counts_as_damage_of_the_save_that_goes_with_it(run: Path):
    bests = sorted((run / "state").glob("best-*"))
    assert bests
    for best in bests:
        flip_last(best / "state.safetensors")
    assert train(run) == EXIT_FAILED
    assert "damaged" in status_of(run).message


def test_the_last_two_saves_stay_and_no_draft(whole: Path):
    names = [path.name for path in (whole / "state").iterdir()]
    assert len([name for name in names if name.startswith("step-")]) == 2
    assert not [name for name in names if name.startswith(".")]


@pytest.mark.parametrize(
    "damage", [flip_last, *(pytest.param(each, marks=pytest.mark.long) for each in (truncate, Path.unlink))]
)
def test_a_damaged_checkpoint_is_neither_continued_nor_served(
    whole: Path, base: Path, tmp_path: Path, damage: Damage
):
    parent = shutil.copytree(whole / "checkpoint", tmp_path / "parent")
    files = [path for path in sorted(parent.iterdir()) if path.suffix in (".safetensors", ".json")]
    assert len(files) >= 3
    for path in files:
        content = path.read_bytes()
        damage(path)
        child = make_run(tmp_path / f"child-{path.name}", base, parent=str(parent))
        assert train(child) == EXIT_FAILED, path.name
        assert str(parent) in status_of(child).message
        assert not (child / "checkpoint").exists()
        backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
        with pytest.raises((ContractError, OSError)):
            backbone.load_adapter("parent", parent)
        assert not backbone.adapters
        path.write_bytes(content)
