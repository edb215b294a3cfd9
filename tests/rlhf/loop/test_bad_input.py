"""Faults in a run's input are reported in its status and log, by name and with what to do.

Nothing is a bare traceback, and nothing silently makes the training set smaller.
"""

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.runs import files_of, judgments, make_run, row, status_of, train
from tests.tiny import tiny_model_folder
from training.contract import read_manifest
from training.contract.files import sha256_of_file
from training.contract.methods import Method
from training.contract.run import EXIT_FAILED, EXIT_FINISHED
from training.contract.snapshot import SnapshotRow

METHODS: tuple[Method, ...] = ("reward", "preference", "sft", "kto")
# What lets each method learn from rankings alone.
FROM_RANKS: dict[Method, dict[str, Any]] = {
    "reward": {},
    "preference": {},
    "sft": {"sources": ["preferred"]},
    "kto": {"sources": ["ranks"]},
}
each_method = pytest.mark.parametrize("method", METHODS)


def short_run(folder: Path, base: Path, rows: list[SnapshotRow], method: Method, **more: Any) -> Path:
    """A run of one step that learns from rankings."""
    settings = {**FROM_RANKS[method], **more.pop("settings", {})}
    return make_run(folder, base, rows, method=method, settings=settings, optimiser={"max_steps": 1}, **more)


def failure_of(folder: Path, *, traceback: bool = False) -> str:
    """The message of a run that must fail, the same in status and log."""
    assert train(folder) == EXIT_FAILED
    status = status_of(folder)
    log = (folder / "log.txt").read_text()
    assert status.state == "failed"
    assert status.message in log
    assert ("Traceback" in log) is traceback
    assert not (folder / "checkpoint").exists()
    return status.message


def told_by(folder: Path) -> list[dict[str, str]]:
    """Return what a finished run says that it left out; check that status, log and manifest agree."""
    assert train(folder) == EXIT_FINISHED, status_of(folder).message
    dropped = [json.loads(line) for line in (folder / "dropped.jsonl").read_text().splitlines()]
    manifest = read_manifest(folder / "checkpoint", verify=True)
    assert manifest.dropped == dropped[:100]
    log = (folder / "log.txt").read_text()
    counted = {
        reason: sum(entry["reason"] == reason for entry in dropped) for reason in manifest.dropped_counts
    }
    assert manifest.dropped_counts == counted
    assert sum(counted.values()) == len(dropped)
    assert all(f"Left out, {count} times: {reason}" in log for reason, count in counted.items())
    assert f"{len(dropped)} entries were left out, see dropped.jsonl" in status_of(folder).message
    return dropped


@each_method
def test_an_answer_that_is_empty_or_too_long_or_holds_a_control_token_is_left_out_and_listed(
    base: Path, tmp_path: Path, method: Method
) -> None:
    rows = [
        *judgments(),
        row("empty", ["  ", "fine", "worse"], [1, 2, 3]),
        row("long", ["so " * 300, "fine", "bad"], [1, 2, 3]),
        row("control", ["one<|im_end|>", "fine", "bad"], [1, 2, 3]),
    ]
    dropped = told_by(short_run(tmp_path / "run", base, rows, method))
    assert {"judgment": "empty", "completion": "empty.0", "reason": "the answer is empty"} in dropped
    reasons = {entry["completion"]: entry["reason"] for entry in dropped}
    assert reasons["long.0"] == "the answer is longer than max_tokens (128)"
    assert reasons["control.0"] == "the text holds the control token '<|im_end|>'"


@each_method
def test_a_prompt_longer_than_max_tokens_loses_its_beginning_with_a_warning(
    base: Path, tmp_path: Path, method: Method
) -> None:
    rows = [*judgments(), row("long", ["good", "bad"], [1, 2], prompt="and then " * 100)]
    folder = short_run(tmp_path / "run", base, rows, method)
    assert train(folder) == EXIT_FINISHED
    warning = "1 prompts were longer than max_tokens (128) allows and lost their beginning"
    assert warning in (folder / "log.txt").read_text()
    assert warning in read_manifest(folder / "checkpoint").warnings
    assert warning in status_of(folder).message
    assert "13 judgments to train on" in (folder / "log.txt").read_text()


def test_one_annotator_only_is_warned_of(base: Path, tmp_path: Path) -> None:
    folder = short_run(tmp_path / "one", base, judgments(), "reward")
    assert train(folder) == EXIT_FINISHED
    warning = "All judgments to train on are by one annotator (annotator-1)"
    assert warning in read_manifest(folder / "checkpoint").warnings
    assert warning in status_of(folder).message
    several = [*judgments(), row("other", ["good", "bad"], [1, 2], annotator="annotator-2")]
    folder = short_run(tmp_path / "two", base, several, "reward")
    assert train(folder) == EXIT_FINISHED
    assert not any("annotator" in text for text in read_manifest(folder / "checkpoint").warnings)


@each_method
def test_more_tokens_than_the_base_has_positions_are_refused(
    base: Path, tmp_path: Path, method: Method
) -> None:
    folder = short_run(tmp_path / "run", base, judgments(), method, settings={"max_tokens": 2049})
    message = failure_of(folder)
    assert "max_tokens: 2049 is more than tiny reads (2048, max_position_embeddings" in message
    assert "set it to 2048 or less" in message


@each_method
def test_ties_alone_teach_nothing_and_that_is_said(base: Path, tmp_path: Path, method: Method) -> None:
    rows = [row(f"tie{index}", ["one", "other"], [1, 1]) for index in range(5)]
    message = failure_of(short_run(tmp_path / "run", base, rows, method))
    assert re.search(r"the snapshot (has no|calls no)", message)
    assert re.search(r"of 5 judgments 0 usable ones are held out; 5 × .+\. [A-Z]", message), "no remedy"


def test_ties_beside_ratings_leave_no_head_as_it_was_drawn(base: Path, tmp_path: Path) -> None:
    rating = {"criterion": "helpful", "scale": "five", "value": 4}
    rows = [
        row(f"tie{index}", ["one", "other"], [1, 1], ratings=[{**rating, "completion": f"tie{index}.0"}])
        for index in range(5)
    ]
    heads = {"ratings": [{"name": "helpful", "criterion": "helpful"}]}
    message = failure_of(short_run(tmp_path / "run", base, rows, "reward", settings=heads))
    assert "no judgment to train on says anything of 'score', though 5 say something of the rest" in message


@pytest.mark.parametrize(
    ("method_settings", "named"),
    [
        ({"ratings": [{"name": "safe", "criterion": "safety"}]}, "'safety'"),
        ({"segments": [{"name": "faults", "categories": ["untrue"]}]}, "untrue"),
        ({"completeness": {"categories": ["source"]}}, "source"),
    ],
)
def test_a_category_without_examples_is_named(
    base: Path, tmp_path: Path, method_settings: dict[str, Any], named: str
) -> None:
    message = failure_of(short_run(tmp_path / "run", base, judgments(), "reward", settings=method_settings))
    assert named in message
    assert "leave" in message, "what to do is not said"


def test_a_long_list_of_what_is_left_out_is_cut_in_the_manifest_and_counted(
    base: Path, tmp_path: Path
) -> None:
    empty = [row(f"empty{index}", ["", "fine"], [1, 2]) for index in range(150)]
    folder = short_run(tmp_path / "run", base, [*judgments(), *empty], "reward")
    dropped = told_by(folder)
    assert len(dropped) == 300
    manifest = read_manifest(folder / "checkpoint")
    assert len(manifest.dropped) == 100
    assert manifest.dropped_counts == {
        "no two usable answers differ in rank": 150,
        "the answer is empty": 150,
    }


def broken_base(base: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    shutil.copytree(base, folder)
    change(folder)
    return folder


def with_nan(file: Path, name: str) -> None:
    tensors = load_file(file)
    tensors[name].view(-1)[3] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_weight_that_is_not_a_number_is_named_before_training(base: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    broken = broken_base(base, tmp_path / "nan", lambda it: with_nan(it / "model.safetensors", name))
    message = failure_of(short_run(tmp_path / "of-base", broken, judgments(), "reward"))
    assert f"nan: the weights {name} hold values that are not finite; fetch the base model again" in message


@pytest.mark.parametrize("method", ["reward", "preference"])
def test_a_parent_with_a_weight_that_is_not_a_number_is_refused(
    base: Path, tmp_path: Path, method: Method
) -> None:
    parent = short_run(tmp_path / "parent", base, judgments(), method)
    assert train(parent) == EXIT_FINISHED
    checkpoint = parent / "checkpoint"
    file = checkpoint / "adapter_model.safetensors"
    name = sorted(load_file(file))[0]
    with_nan(file, name)
    # As if it had been trained so: the manifest vouches for the file.
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][file.name] = sha256_of_file(file)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    child = short_run(tmp_path / "child", base, judgments(), method, parent=str(checkpoint))
    message = failure_of(child)
    assert f"the weights {name} hold values that are not finite; train this checkpoint again" in message


def test_a_parent_of_another_base_is_refused_with_the_name_of_its_own(base: Path, tmp_path: Path) -> None:
    parent = short_run(tmp_path / "parent", base, judgments(), "preference")
    assert train(parent) == EXIT_FINISHED
    other = tiny_model_folder(tmp_path / "other", seed=1)
    child = short_run(tmp_path / "child", other, judgments(), "preference", parent=str(parent / "checkpoint"))
    message = failure_of(child)
    assert "checkpoint 'tested' was trained on base tiny" in message
    assert "load that base instead" in message


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text())
    values.pop("chat_template", None)
    path.write_text(json.dumps(values))


def cut_in_half(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_template, "put its chat_template.jinja into the folder"),
        (cut_in_half, "the model cannot be loaded"),
        (without_a_tensor, "model.layers.0.mlp.up_proj.weight"),
    ],
)
def test_a_base_model_that_cannot_serve_is_refused_with_the_reason(
    base: Path, tmp_path: Path, change: Callable[[Path], None], reason: str
) -> None:
    broken = broken_base(base, tmp_path / "broken", change)
    message = failure_of(short_run(tmp_path / "run", broken, judgments(), "reward"))
    assert f"{broken}: " in message
    assert reason in message


def test_an_encoder_is_refused(base: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = BertConfig(vocab_size=320, **sizes)
    config.save_pretrained(tmp_path / "other")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "other")
    message = failure_of(short_run(tmp_path / "run", tmp_path / "other", judgments(), "reward"))
    assert "model type 'bert' is an encoder, which reads texts and writes none" in message
    assert "; choose a base " in message


def test_layers_that_the_base_lacks_are_named_beside_those_it_has(base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, lora={"targets": ["q_proj", "c_attn"]})
    message = failure_of(folder)
    assert "lora, targets: tiny has no layer c_attn; name some of" in message
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in message


def test_a_snapshot_of_a_later_format_is_refused(base: Path, tmp_path: Path) -> None:
    folder = short_run(tmp_path / "run", base, judgments(), "reward")
    header = tmp_path / "run-snapshot" / "snapshot.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "format": 99, "unheard_of": 1}))
    message = failure_of(folder)
    assert "snapshot.json: format 99 is not 1, the one that this version of Rondo reads" in message
    assert "take the version that wrote it" in message


def test_a_spec_with_an_unknown_field_is_refused_with_the_likely_one(base: Path, tmp_path: Path) -> None:
    folder = short_run(tmp_path / "run", base, judgments(), "reward")
    spec = folder / "spec.json"
    values = json.loads(spec.read_text())
    values["settings"]["optimiser"]["lerning_rate"] = 1e-3
    spec.write_text(json.dumps(values))
    message = failure_of(folder)
    assert "settings, optimiser: unknown field 'lerning_rate'; did you mean 'learning_rate'?" in message


def test_a_row_that_says_nonsense_is_named_by_line_and_field(base: Path, tmp_path: Path) -> None:
    folder = short_run(tmp_path / "run", base, judgments(), "reward")
    rows = tmp_path / "run-snapshot" / "judgments.jsonl"
    lines = rows.read_text().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "strength": "very"})
    rows.write_text("\n".join(lines) + "\n")
    header = tmp_path / "run-snapshot" / "snapshot.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "digest": sha256_of_file(rows)}))
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(json.dumps({**spec, "snapshot_digest": sha256_of_file(rows)}))
    message = failure_of(folder)
    assert "judgments.jsonl line 3, strength: must be a whole number or null, not 'very'" in message


FULL = (
    OSError(errno.ENOSPC, "No space left on device"),
    # What safetensors raises where a disk is full.
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
)


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that nothing interrupted. Tests read it and never write to it."""
    folder = make_run(
        tmp_path_factory.mktemp("runs") / "whole", base, optimiser={"max_steps": 4, "save_every": 2}
    )
    assert train(folder) == EXIT_FINISHED
    return folder


@pytest.mark.parametrize("error", FULL, ids=["the system's error", "the error of safetensors"])
@pytest.mark.parametrize("where", ["training.rlhf.loop.state.save_file", "training.rlhf.loop.run.save_file"])
def test_a_full_disk_is_told_and_the_run_goes_on_to_the_same_bytes_when_there_is_room(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    folder = same_run(whole, tmp_path / "run")

    def full(tensors: Any, path: Path, *_: Any, **__: Any) -> None:
        path.write_bytes(b"half of it")
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(where, full)
        message = failure_of(folder)
    assert message.startswith("the disk is full")
    assert "free some space and start again" in message
    assert train(folder) == EXIT_FINISHED
    assert files_of(folder / "checkpoint") == files_of(whole / "checkpoint")
