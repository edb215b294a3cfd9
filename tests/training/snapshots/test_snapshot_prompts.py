"""Prompts in a snapshot: what a policy is sampled on, with references, under the snapshot's digest."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.snapshots.test_contract import row
from training.contract import ContractError
from training.contract.snapshot import (
    SNAPSHOT_PROMPTS_FILE,
    SNAPSHOT_ROWS_FILE,
    Message,
    Passage,
    SnapshotHeader,
    SnapshotPrompt,
    read_prompts,
    read_snapshot,
    write_snapshot,
)


def prompt(**changes: Any) -> SnapshotPrompt:
    values: dict[str, Any] = {
        "id": "11",
        "split": "train",
        "messages": (Message(role="user", content="Reverse “ab 🙂”\nplease."),),
    }
    return SnapshotPrompt(**(values | changes))


def write(folder: Path, *prompts: SnapshotPrompt) -> SnapshotHeader:
    return write_snapshot(folder, [row()], project="sky", rounds=(1,), prompts=prompts)


def test_prompts_come_back_as_they_were_written(tmp_path):
    full = [
        prompt(reference="🙂 ba", context=(Passage(title="Rule", sentences=("Backwards.", "All.")),)),
        prompt(id="12", split="held-out", reference=["a", "b"]),
        prompt(id="13", reference={"output": "7", "input": ""}),
        prompt(id="14", reference=0),
        prompt(id="15"),
    ]
    assert write(tmp_path, *full).prompts == 5
    assert list(read_prompts(tmp_path)) == full
    assert list(read_snapshot(tmp_path)) == [row()]


def test_the_digest_of_a_snapshot_without_prompts_is_that_of_its_rows_alone(tmp_path):
    header = write(tmp_path)
    rows = (tmp_path / SNAPSHOT_ROWS_FILE).read_bytes()
    assert header.digest == hashlib.sha256(rows).hexdigest()
    assert not (tmp_path / SNAPSHOT_PROMPTS_FILE).exists()


def test_one_changed_letter_of_a_reference_gives_another_digest(tmp_path):
    digests = {write(tmp_path / name, prompt(reference=name)).digest for name in ("ab", "ac")} | {
        write(tmp_path / "none").digest
    }
    assert len(digests) == 3
    assert (
        write(tmp_path / "again", prompt(reference="ab")).digest
        == write(tmp_path / "ab", prompt(reference="ab")).digest
    )


def test_a_folder_that_is_written_again_without_prompts_keeps_none(tmp_path):
    write(tmp_path, prompt(reference="ab"))
    write(tmp_path)
    assert [stored.reference for stored in read_prompts(tmp_path)] == [None]


@pytest.mark.parametrize("read", [read_prompts, read_snapshot])
def test_prompts_changed_added_or_removed_afterwards_are_refused(tmp_path, read):
    changed, added, removed = tmp_path / "changed", tmp_path / "added", tmp_path / "removed"
    for folder in (changed, removed):
        write(folder, prompt(reference="ab"))
    write(added)
    path = changed / SNAPSHOT_PROMPTS_FILE
    path.write_text(path.read_text().replace('"ab"', '"ba"'))
    (added / SNAPSHOT_PROMPTS_FILE).write_text(prompt().to_json() + "\n")
    (removed / SNAPSHOT_PROMPTS_FILE).unlink()
    for folder in (changed, added):
        with pytest.raises(ContractError, match="is not the header's"):
            next(read(folder))
    with pytest.raises(ContractError, match=r"prompts\.jsonl: the file is missing"):
        next(read(removed))


def test_without_a_file_of_prompts_those_of_the_judgments_serve_each_once(tmp_path):
    other = (Message(role="user", content="And at dusk?"),)
    rows = [row(), row(judgment="8"), row(judgment="9", prompt="12", split="held-out", messages=other)]
    write_snapshot(tmp_path, rows, project="sky", rounds=(1,))
    assert list(read_prompts(tmp_path)) == [
        SnapshotPrompt(id="11", split="train", messages=row().messages),
        SnapshotPrompt(id="12", split="held-out", messages=other),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "test"}, r"prompts\.jsonl line 1, split: must be 'train' or 'held-out'"),
        ({"messages": []}, "line 1, messages: must not be empty"),
        ({"messages": "hello"}, "line 1, messages: must be a list, not 'hello'"),
        (
            {"messages": [{"role": "judge", "content": ""}]},
            "line 1, messages, item 1, role: must be",
        ),
        ({"references": ["a"]}, "line 1: unknown field 'references'; did you mean 'reference'"),
        ({"id": ""}, "line 1, id: must not be empty"),
    ],
)
def test_a_bad_prompt_is_refused_with_its_line_and_field(tmp_path, change, message):
    write(tmp_path, prompt())
    path = tmp_path / SNAPSHOT_PROMPTS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(ContractError, match=message):
        list(read_prompts(tmp_path, verify=False))


def test_a_prompt_that_is_there_twice_is_refused(tmp_path):
    write(tmp_path, prompt(), prompt(split="held-out"))
    with pytest.raises(ContractError, match="line 2: prompt '11' is there twice"):
        list(read_prompts(tmp_path))


def test_a_reference_that_is_no_json_is_refused():
    with pytest.raises(ContractError, match="reference: is no JSON"):
        prompt(reference={1, 2})
