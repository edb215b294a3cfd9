"""Checkpoint folder: adapter, heads, and a manifest of their provenance."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from annotation.record.base import Figure, record, require
from training.contract.files import (
    FORMAT_VERSION,
    read_record,
    sha256_of_file,
    write_atomically,
)

MANIFEST_FILE = "manifest.json"
HEADS_FILE = "heads.safetensors"
"""The heads by name, (outputs, hidden) each, float32; an ensemble's score is the mean of its outputs.

Beside a head, as `HEAD.what`, what is learned with it: `score.log_tie`, log δ_2 … log δ_12 of tied answers;
`score.reads`, (2,), where the score reads instead of the last token after the last block: the block from 1,
and 1 for the mean over the completion's tokens or 0 for its last; `score.offset`, (1,), what is added;
`score.annotator.PSEUDONYM`, (1, hidden), what an annotator's own head has more than the shared one;
`NAME.bias`; `NAME.thresholds_SCALE`, the first threshold between ratings, then the logarithms of the steps
to the next."""

CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A checkpoint's name is also its folder's name and its model id on the model server."""

CheckpointKind = Literal["starter", "policy", "reward"]


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


@record
class Manifest:
    """The provenance of a checkpoint. Holds no time and no machine: equal runs write equal bytes."""

    kind: CheckpointKind
    name: str
    base_model: str
    """Name of the base model: its folder's last part."""
    base_digest: str
    """Digest over the base model's weights and tokenizer; another base is refused."""
    spec: dict[str, Any]
    """The resolved spec of the run."""
    snapshot_digest: str
    seed: int
    commit: str
    steps: int
    metrics: dict[str, Figure]
    """Held-out figures at the end."""
    dropped: list[dict[str, str]]
    """The first examples that the run could not learn from, with reasons; the run's `dropped.jsonl` has
    all."""
    heads: list[str]
    """Names of the scalar heads in `heads.safetensors`."""
    files: dict[str, str]
    """SHA-256 of every other file in the folder."""
    versions: dict[str, str]
    """Versions of torch, transformers and peft."""
    parent_digest: str | None = None
    dropped_counts: dict[str, int] = field(default_factory=dict)
    """Number of examples that it could not learn from, by reason."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about its settings and judgments."""
    format: int = FORMAT_VERSION


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Write `manifest.json`, the last of a checkpoint's files; return its digest."""
    path = folder / MANIFEST_FILE
    write_atomically(path, json.dumps(dataclasses.asdict(manifest), indent=2, sort_keys=True) + "\n")
    return sha256_of_file(path)


def read_manifest(folder: Path, *, verify: bool = False) -> Manifest:
    """Read a checkpoint's manifest; with `verify` check every file it names."""
    path = folder / MANIFEST_FILE
    manifest = read_record(Manifest, path)
    if verify:
        for name, expected in manifest.files.items():
            file = folder / name
            require(file.is_file(), str(file), "the file is missing; the checkpoint is damaged")
            digest = sha256_of_file(file)
            require(digest == expected, str(file), f"digest {digest} is not the manifest's {expected}")
    return manifest


def manifest_digest(folder: Path) -> str:
    """Return a checkpoint's identity: the digest of its manifest, which lists the digests of all files."""
    return sha256_of_file(folder / MANIFEST_FILE)


def base_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of a base model's weights and tokenizer files."""
    digest = hashlib.sha256()
    tokenizer = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for path in sorted([*folder.glob("*.safetensors"), *tokenizer]):
        digest.update(f"{path.name} {sha256_of_file(path)}\n".encode())
    return digest.hexdigest()
