"""Bytes of the files of the contract: the same for the same settings in every release of one format."""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from annotation.record import judgment as record
from training.contract import checkpoint, files, methods, run, snapshot
from training.recipe.recipe import default_recipe

GOLDEN = Path(__file__).with_name("written_bytes.json")
"""SHA-256 and decoded content of each file, as release 0.1 writes it. A new setting changes its line."""

REWARD_OF_A_POLICY = {"name": "brief", "kind": "length", "options": {"most": 9}, "clip": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "reward": {
        "lora": {"alpha": 16, "layers": 8},
        "ratings": [{"name": "warmth", "criterion": "Warmth"}],
        "segments": [{"name": "faults", "categories": ["a", "b"], "weight": 2}],
        "completeness": {"categories": ["c"]},
    },
    "sft": {"sources": ["preferred", "corrections"], "optimiser": {"epochs": 2, "learning_rate": 1}},
    "preference": {"beta": 1, "loss": "plackett_luce", "ties": "davidson"},
    "kto": {"criteria": ["Warmth"], "weight_desirable": 1.5},
    "policy_gradient": {
        "rewards": [REWARD_OF_A_POLICY],
        "watch": {"held_out": [{"name": "b", "kind": "model", "checkpoint": "c", "heads": {"score": 1}}]},
        "rollout": {"stop": ["\n\n"], "server": {"every": 2, "tells": "sampler"}},
        "update": {"truncate": 2},
    },
}


def spec_of(method: str) -> run.RunSpec:
    return run.RunSpec.from_json(
        {
            "method": method,
            "base_model": "/models/tiny",
            "snapshot": "../snapshot",
            "snapshot_digest": "d" * 64,
            "settings": SETTINGS[method],
            "seed": 5,
        }
    )


def write_spec(folder: Path, method: str) -> Path:
    run.write_spec(folder, spec_of(method))
    return folder / run.SPEC_FILE


def write_manifest(folder: Path) -> Path:
    manifest = checkpoint.Manifest(
        kind="reward",
        name="sky-round-1-reward",
        base_model="tiny",
        base_digest="b" * 64,
        spec=spec_of("reward").to_json(),
        snapshot_digest="d" * 64,
        seed=0,
        commit="c",
        steps=3,
        metrics={"held_out_accuracy": 0.5, "held_out_decided": 4},
        dropped=[{"judgment": "7", "completion": "", "reason": "too long"}],
        heads=["score"],
        files={"heads.safetensors": "f" * 64},
        versions={"torch": "2"},
    )
    checkpoint.write_manifest(folder, manifest)
    return folder / checkpoint.MANIFEST_FILE


def write_rows(folder: Path) -> Path:
    row = snapshot.SnapshotRow(
        judgment="7",
        comparison="3",
        annotator="a-pseudonym",
        round=1,
        prompt="11",
        split="train",
        messages=(snapshot.Message(role="user", content="Why is the sky blue?"),),
        completions=(
            snapshot.SnapshotCompletion(id="1", text="Scattering 🙂.", source="starter"),
            snapshot.SnapshotCompletion(id="2", text="No idea.", source="starter"),
        ),
        verdict="ranked",
        ranks={"1": 1, "2": 2},
        context=(snapshot.Passage(title="Sky", sentences=("Air scatters light.",)),),
        spans=(record.SpanPart(completion="1", category="fluff", start=11, end=12, quote="🙂"),),
        missing=(
            record.MissingPart(
                completion="2",
                category="omits",
                evidence=(record.EvidencePointer(passage=0, sentence=0),),
            ),
        ),
        weight=1,
    )
    prompt = snapshot.SnapshotPrompt(
        id="11", split="train", messages=row.messages, reference=["Rayleigh", 1.0]
    )
    snapshot.write_snapshot(folder, [row], project="sky", rounds=(1,), prompts=[prompt])
    return folder / snapshot.SNAPSHOT_HEADER_FILE


def write_recipe(folder: Path) -> Path:
    path = folder / "recipe.json"
    path.write_text(files.canonical_json(default_recipe()))
    return path


WRITERS: dict[str, Callable[[Path], Path]] = {
    **{f"spec of {method}": partial(write_spec, method=method) for method in SETTINGS},
    "manifest": write_manifest,
    "snapshot header": write_rows,
    "default recipe": write_recipe,
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_bytes_of_a_file_are_those_of_the_first_release(name: str, tmp_path: Path):
    written = WRITERS[name](tmp_path).read_bytes()
    golden = json.loads(GOLDEN.read_text())[name]
    # Equality of values first: its message names the setting that differs.
    assert json.loads(written) == golden["content"]
    assert hashlib.sha256(written).hexdigest() == golden["sha256"]


def test_every_method_has_golden_bytes():
    assert set(SETTINGS) == set(methods.SETTINGS)
