"""The files between web and trainer: what is read is what was written, or an error that names the place."""

import dataclasses
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.record import judgment as record
from annotation.record.judgment import SpanPart
from training.contract import ContractError
from training.contract.checkpoint import (
    CHECKPOINT_NAME,
    Manifest,
    manifest_digest,
    read_manifest,
    write_manifest,
)
from training.contract.files import sha256_of_file, write_atomically
from training.contract.methods import settings_from_json
from training.contract.methods.policy import (
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    WatchSettings,
)
from training.contract.methods.reward import RewardSettings
from training.contract.run import (
    RunSpec,
    RunStatus,
    read_metrics,
    read_spec,
    read_status,
    write_spec,
    write_status,
)
from training.contract.snapshot import (
    SNAPSHOT_ROWS_FILE,
    Message,
    Passage,
    SnapshotCompletion,
    SnapshotHeader,
    SnapshotRow,
    read_snapshot,
    write_snapshot,
)

TEXT = "No idea."
"""The third completion of `row`."""


def row(**changes) -> SnapshotRow:
    values: dict[str, Any] = {
        "judgment": "7",
        "comparison": "3",
        "annotator": "a-pseudonym",
        "round": 1,
        "prompt": "11",
        "split": "train",
        "messages": (Message(role="user", content="Why is the sky blue?"),),
        "completions": (
            SnapshotCompletion(id="1", text="Rayleigh scattering 🙂.", source="starter"),
            SnapshotCompletion(id="2", text="It reflects the sea.", source="starter"),
            SnapshotCompletion(id="3", text=TEXT, source="starter"),
        ),
        "verdict": "ranked",
        "ranks": {"1": 1, "2": 2, "3": 2},
    }
    return SnapshotRow(**(values | changes))


def write(folder: Path, *rows: SnapshotRow) -> SnapshotHeader:
    return write_snapshot(folder, rows, project="sky", rounds=(1,))


def test_rows_come_back_as_they_were_written(tmp_path):
    full = row(
        spans=(SpanPart(completion="1", category="fluff", start=20, end=21, quote="🙂"),),
        missing=(
            record.MissingPart(
                completion="2",
                category="omits",
                evidence=(
                    record.EvidencePointer(passage=0, sentence=1),
                    record.EvidencePointer(passage=0),
                ),
            ),
        ),
        context=(Passage(title="Sky", sentences=("Air scatters light.", "Blue most.")),),
        corrections=(record.CorrectionPart(completion="3", text="Scattering."),),
    )
    header = write(tmp_path, full, row(judgment="8"))
    assert header.rows == 2
    assert list(read_snapshot(tmp_path)) == [full, row(judgment="8")]


def test_equal_rows_have_equal_digests_and_one_changed_letter_has_another(tmp_path):
    first = write(tmp_path / "a", row())
    again = write(tmp_path / "b", row())
    other = write(tmp_path / "c", row(comment="x"))
    assert first.digest == again.digest != other.digest


def test_a_changed_snapshot_is_refused_before_its_first_row(tmp_path):
    write(tmp_path, row())
    path = tmp_path / SNAPSHOT_ROWS_FILE
    path.write_text(path.read_text().replace("sea", "ice"))
    with pytest.raises(ContractError, match="is not the header's"):
        next(read_snapshot(tmp_path))


def test_a_folder_without_a_header_is_no_snapshot(tmp_path):
    with pytest.raises(ContractError, match=r"snapshot\.json: the file is missing"):
        next(read_snapshot(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("ranks"), "line 1, ranks: the field is missing"),
        (lambda values: values.update(rank={}), "line 1: unknown field 'rank'"),
        (lambda values: values.update(ranks={"9": 1}), "line 1, .*names a completion that is not in the row"),
        (lambda values: values.update(ranks={"1": 0}), "line 1, .*must count from 1"),
        (
            lambda values: values.update(ranks={"1": True}),
            "line 1, ranks, 1: must be a whole number, not True",
        ),
        (
            lambda values: values.update(split="test"),
            "line 1, split: must be 'train' or 'held-out'",
        ),
        (
            lambda values: values["messages"][0].pop("role"),
            "line 1, messages, item 1, role: the field is",
        ),
        (
            lambda values: values["messages"][0].update(role="judge"),
            "role: must be 'system', 'user'",
        ),
        (lambda values: values.update(completions="text"), "line 1, completions: must be a list, not 'text'"),
        (
            lambda values: values.update(
                spans=[{"completion": "1", "category": "c", "start": 0, "end": 3, "quote": "ray"}]
            ),
            "line 1, .*span 0:3 does not stand on its quote 'ray'",
        ),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_field(tmp_path, change, message):
    write(tmp_path, row())
    path = tmp_path / SNAPSHOT_ROWS_FILE
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values) + "\n")
    with pytest.raises(ContractError, match=message):
        list(read_snapshot(tmp_path, verify=False))


def test_a_tie_gives_no_pair_and_every_decided_pair_is_given_once():
    assert sorted(row().pairs()) == [("1", "2"), ("1", "3")]
    assert list(row(ranks={"1": 1, "2": 1, "3": 1}).pairs()) == []
    assert list(row(ranks={}, verdict="cannot_judge").pairs()) == []


def test_a_partial_ranking_gives_pairs_with_what_it_leaves_out_and_none_among_it():
    assert sorted(row(ranks={"2": 1}).pairs()) == [("2", "1"), ("2", "3")]
    assert sorted(row(ranks={"2": 1, "3": 1}).pairs()) == [("2", "1"), ("3", "1")]


@given(st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_pairs_are_those_of_the_definition(ranks):
    pairs = set(row(ranks=dict(zip("123", ranks, strict=True))).pairs())
    assert pairs == {
        (a, b) for a, i in zip("123", ranks, strict=True) for b, j in zip("123", ranks, strict=True) if i < j
    }


def spec(**changes) -> RunSpec:
    values: dict[str, Any] = {
        "method": "reward",
        "base_model": "/models/tiny",
        "snapshot": "../snapshot",
        "snapshot_digest": "d" * 64,
        "settings": RewardSettings(),
    }
    return RunSpec(**(values | changes))


def test_a_spec_comes_back_with_every_default_written_out(tmp_path):
    write_spec(tmp_path, spec(seed=5))
    assert read_spec(tmp_path) == spec(seed=5)
    assert json.loads((tmp_path / "spec.json").read_text())["settings"]["lora"]["rank"] == 16


def test_settings_keep_their_methods_defaults_for_what_is_left_out():
    settings = settings_from_json("preference", {"optimiser": {"epochs": 2}})
    assert settings.optimiser == replace(PreferenceSettings().optimiser, epochs=2)
    assert settings.optimiser.learning_rate is None


def test_settings_nested_twice_come_back_from_json_and_from_a_dictionary_in_memory():
    watch = WatchSettings(held_out=(RewardPart(name="b", kind="bleu"),))
    settings = PolicyGradientSettings(
        rewards=(RewardPart(name="a", kind="length", options={"most": 3}),), watch=watch
    )
    values = dataclasses.asdict(settings)
    assert settings_from_json("policy_gradient", values) == settings
    assert settings_from_json("policy_gradient", json.loads(json.dumps(values))) == settings


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        ("reward", {"beta": 0.1}, "unknown field 'beta'"),
        ("ppo", {}, "method 'ppo' is not known; it is one of kto, policy_gradient, preference, reward, sft"),
        ("preference", {"beta": 0}, "beta: must be positive"),
        ("preference", {"beta": "0.1"}, "beta: must be a number, not '0.1'"),
        ("preference", {"beta": float("nan")}, "beta: must be a finite number, not nan"),
        ("preference", {"loss": "log"}, "loss: must be 'sigmoid', 'ipo', .*, not 'log'"),
        ("reward", {"optimiser": {"epochs": 1.5}}, "optimiser, epochs: must be a whole number, not 1.5"),
        ("reward", {"optimiser": {"batch_size": True}}, "batch_size: must be a whole number, not True"),
        ("reward", {"optimiser": {"max_steps": 0}}, "max_steps: must be at least 1 or null"),
        ("reward", {"lora": {"targets": "q_proj"}}, "targets: must be a list, not 'q_proj'"),
        (
            "reward",
            {"lora": {"rnk": 3}, "optimiser": {"epochs": 0}},
            "lora: unknown field 'rnk'; did you mean 'rank'.*; optimiser, epochs: must be at least 1, not 0",
        ),
        ("reward", {"lora": 3}, "reward settings, lora: must be an object, not 3"),
        ("reward", {"label_smoothing": 0.5}, "label_smoothing: must be below 0.5, not 0.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(method, values, message):
    with pytest.raises(ContractError, match=message):
        settings_from_json(method, values)


def test_a_spec_whose_settings_belong_to_another_method_is_refused():
    with pytest.raises(ContractError, match="settings are those of 'preference'"):
        spec(settings=PreferenceSettings())


def test_a_status_replaces_the_one_before_and_is_never_half_written(tmp_path):
    assert read_status(tmp_path) is None
    write_status(tmp_path, RunStatus(state="running", step=1, total_steps=9))
    write_status(tmp_path, RunStatus(state="running", step=2, total_steps=9))
    assert read_status(tmp_path).step == 2
    assert os.listdir(tmp_path) == ["status.json"]


def test_metrics_leave_out_a_line_still_being_written_and_keep_the_newer_of_a_step_taken_twice(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 0.7}\n{"step": 2, "loss": 0.6}\n{"step": 2, "loss": 0.5}\n{"step": 3, "lo'
    )
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 0.7}, {"step": 2, "loss": 0.5}]
    assert read_metrics(tmp_path, after_step=1) == [{"step": 2, "loss": 0.5}]
    assert read_metrics(tmp_path / "nowhere") == []


def manifest(folder: Path) -> Manifest:
    return Manifest(
        kind="reward",
        name="sky-round-1-reward",
        base_model="tiny",
        base_digest="b" * 64,
        spec=spec().to_json(),
        snapshot_digest="d" * 64,
        seed=0,
        commit="c",
        steps=3,
        metrics={"held_out_accuracy": 0.5},
        dropped=[],
        heads=["reward"],
        files={"heads.safetensors": sha256_of_file(folder / "heads.safetensors")},
        versions={"torch": "2"},
    )


def test_a_manifest_verifies_its_files_and_names_the_one_that_changed(tmp_path):
    heads = tmp_path / "heads.safetensors"
    heads.write_bytes(b"weights")
    digest = write_manifest(tmp_path, manifest(tmp_path))
    assert digest == manifest_digest(tmp_path)
    assert read_manifest(tmp_path, verify=True).heads == ["reward"]
    heads.write_bytes(b"weighty")
    with pytest.raises(ContractError, match=r"heads\.safetensors: digest .* is not the manifest's"):
        read_manifest(tmp_path, verify=True)
    heads.unlink()
    with pytest.raises(ContractError, match="the checkpoint is damaged"):
        read_manifest(tmp_path, verify=True)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "file.json"
    write_atomically(target, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "new \ud800")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.json"]


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "a\\b", "x" * 101, "a\n"])
def test_a_checkpoint_name_is_never_a_path(name):
    assert CHECKPOINT_NAME.fullmatch(name) is None


def test_a_checkpoint_name_may_be_the_starters():
    assert CHECKPOINT_NAME.fullmatch("SmolLM2-135M-Instruct")


def test_a_spec_resolves_the_learning_rate_by_method_and_adapter_and_keeps_one_that_is_set():
    preference = PreferenceSettings()
    full = PreferenceSettings(adapter="none")
    assert preference.optimiser.learning_rate is full.optimiser.learning_rate is None
    resolved = [spec(method="preference", settings=settings) for settings in (preference, full)]
    adapter_rate, full_rate = (resolved_spec.settings.optimiser.learning_rate for resolved_spec in resolved)
    assert adapter_rate == preference.default_rates["lora"] > full_rate == full.default_rates["none"]
    set_by_hand = settings_from_json("preference", {"optimiser": {"learning_rate": 1e-6}})
    assert spec(method="preference", settings=set_by_hand).settings.optimiser.learning_rate == 1e-6


def test_hashes_quotes_of_evidence_and_authors_of_edits_change_no_byte_of_a_row():
    def written(text_hash: str = "", quote: str = "", origin: record.Origin = record.BY_HAND) -> str:
        span = record.SpanPart(
            completion="3", category="vague", start=0, end=1, quote=TEXT[0], text_hash=text_hash
        )
        evidence = record.EvidencePointer(passage=0, sentence=1, quote=quote)
        edit = record.Edit(start=0, end=len(TEXT), quote=TEXT, replacement="Tea.", origin=origin)
        return row(
            spans=(span,),
            missing=(record.MissingPart(completion="3", category="gap", evidence=(evidence,)),),
            corrections=(record.CorrectionPart(completion="3", text="Tea.", edits=(edit,)),),
        ).to_json()

    known = written("ab", "Tea is a drink.", record.Origin(continuation=3, seed=1, span=("vague", 0, 1)))
    assert known == written()
    assert not {"text_hash", "origin", "Tea is a drink."} & set(re.split(r'"', known))
