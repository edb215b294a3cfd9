"""String reversal: the model, its data, its measure, its curve. The runs are in test_reverse_runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from training.contract import ContractError
from training.contract.snapshot import read_prompts, read_snapshot
from training.rlhf.examples import reverse
from training.rlhf.examples.reverse import (
    CHARACTERS,
    COURSE,
    character_model,
    draw,
    exact_match,
    freeze_names,
    question,
    read_names,
    smoothed,
    table,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.encoding import Encoder


@pytest.fixture(scope="module")
def character_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "characters"
    assert character_model(folder, seed=3) <= 5_000_000
    return folder


@pytest.fixture
def names_file(tmp_path: Path) -> Path:
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"train": ["anna", "bo", "bo"], "dev": ["cy", "bo", "dan", "cy"]}))
    return path


def test_names_of_dev_that_stand_in_train_are_left_out_and_counted(names_file: Path) -> None:
    names = read_names(names_file)
    assert names.train == ("anna", "bo", "bo")
    assert names.dev == ("cy", "dan")
    assert names.known == 1


def test_without_the_file_it_is_said_where_it_was_looked_for_and_how_to_name_it(tmp_path: Path) -> None:
    with pytest.raises(
        ContractError, match=r"nowhere\.json: the names are not here; name the file with --data"
    ):
        read_names(tmp_path / "nowhere.json")


def test_the_snapshot_holds_demonstrations_and_prompts_with_the_right_answer(
    names_file: Path, tmp_path: Path
) -> None:
    header = freeze_names(tmp_path / "snapshot", read_names(names_file), wording="say {name}", held_out=1)
    assert (header.rows, header.prompts) == (4, 4)
    rows = list(read_snapshot(tmp_path / "snapshot"))
    assert [(row.split, row.messages[0].content, row.demonstration) for row in rows] == [
        ("train", "say anna", "anna"),
        ("train", "say bo", "ob"),
        ("train", "say bo", "ob"),
        ("held-out", "say cy", "yc"),
    ]
    prompts = list(read_prompts(tmp_path / "snapshot"))
    assert [(prompt.split, prompt.reference) for prompt in prompts][-1] == ("held-out", "yc")
    assert len({prompt.id for prompt in prompts}) == 4


def test_every_character_is_a_token_and_the_chat_ends_with_the_end_token(character_folder: Path) -> None:
    tokenizer = Backbone.load(character_folder, device="cpu", dtype=torch.float32).tokenizer
    row = Encoder(tokenizer).encode(question("anna", "{name}"), "anna")
    assert tokenizer.convert_ids_to_tokens(row.ids) == [
        "<|begin|>", "a", "n", "n", "a", "<|asked|>", "a", "n", "n", "a", "<|end|>"
    ]  # fmt: skip
    assert row.answer_start == 6
    assert tokenizer.decode(row.ids[6:], skip_special_tokens=True) == "anna"
    assert tokenizer("Ä")["input_ids"] == [tokenizer.unk_token_id]


def test_the_same_seed_draws_the_same_model(character_folder: Path, tmp_path: Path) -> None:
    for seed in (3, 4):
        character_model(tmp_path / str(seed), seed=seed)
    weights = "model.safetensors"
    assert (tmp_path / "3" / weights).read_bytes() == (character_folder / weights).read_bytes()
    assert (tmp_path / "4" / weights).read_bytes() != (character_folder / weights).read_bytes()


def test_exact_match_counts_answers_that_are_the_whole_name_backwards(
    character_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = Backbone.load(character_folder, device="cpu", dtype=torch.float32)
    replies = {"anna": "anna", "bo": "ob", "cyd": "dy", "dan": "nadx"}

    def answers(_backbone, prompts, *_arguments, **_options):
        decoded = [backbone.tokenizer.decode(ids, skip_special_tokens=True) for ids in prompts]
        return [[SimpleNamespace(text=replies[name])] for name in decoded]

    monkeypatch.setattr(reverse, "rollout", answers)
    share = exact_match(
        backbone, list(replies), adapter=None, wording="{name}", temperature=0.0, max_tokens=5
    )
    assert share == 0.5


def test_both_tasks_train_all_weights_for_the_exact_answer_and_a_small_model_for_its_letters_too() -> None:
    for task in (CHARACTERS, COURSE):
        assert task.sft().adapter == task.policy_gradient().adapter == "none"
    earned = [(part.kind, part.weight) for part in CHARACTERS.policy_gradient().rewards]
    assert earned == [("exact_match", 1.0), ("chrf", 0.5)]
    recipe = COURSE.policy_gradient()
    assert [part.kind for part in recipe.rewards] == ["exact_match"]
    assert recipe.update.inner_epochs == 3
    assert (recipe.optimiser.batch_size, recipe.rollout.samples, recipe.rollout.max_tokens) == (32, 8, 10)
    assert (1 - recipe.update.clip_low, 1 + recipe.update.clip_high) == (0.8, 2.0)
    assert COURSE.sft(max_steps=10).optimiser.max_steps == 10


def test_the_curve_is_a_line_for_each_seed_within_the_frame() -> None:
    svg = draw({"seed 0": [(1, 0.5), (100, 0.95)], "seed <1>": [(1, 0.61)]}, title="a & b", goal=0.926)
    root = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text == "a & b"
    lines = [line.attrib["points"].split() for line in root.iter(f"{space}polyline")]
    assert [len(points) for points in lines] == [2, 1]
    (_, first_y), (last_x, last_y) = (map(float, point.split(",")) for point in lines[0])
    # The frame is 640 by 360 with a margin of 48; the floor is 50 %, where the curve begins.
    assert first_y == 360 - 48
    assert last_x == 640 - 48
    assert last_y == pytest.approx(360 - 48 - 0.9 * (360 - 96), abs=0.1)


def test_a_point_is_the_mean_of_the_steps_up_to_it() -> None:
    assert smoothed([(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0)], 2) == [(1, 0.0), (2, 0.5), (3, 1.0), (4, 1.0)]


def test_a_table_stands_in_columns() -> None:
    assert table([{"seed": "0", "greedy": "92.6%"}, {"seed": "12", "greedy": "9%"}]) == (
        "seed  greedy\n   0   92.6%\n  12      9%\n"
    )
