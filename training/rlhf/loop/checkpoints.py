"""Writing a checkpoint: the adapter as plain peft reads it, or the whole model as transformers does, the
heads, the manifest last.

Reading one is `Backbone.load_adapter`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from training.contract import (
    HEADS_FILE,
    CheckpointKind,
    Manifest,
    RunSpec,
    manifest_digest,
    sha256_of_file,
    write_manifest,
)
from training.rlhf.loop.run import counts_by_reason
from training.rlhf.model.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.config import code_version, library_versions

_DROPPED_LISTED = 100
"""Of a large snapshot much may be left out: the manifest, which pages show, lists so many and counts all."""


def save_checkpoint(
    folder: Path,
    *,
    backbone: Backbone,
    adapter: str,
    kind: CheckpointKind,
    spec: RunSpec,
    steps: int,
    metrics: dict[str, float],
    dropped: list[dict[str, str]],
    warnings: Sequence[str] = (),
    weights: Mapping[str, Tensor] | None = None,
) -> Manifest:
    """Write a checkpoint so that `folder` is there as a whole or not at all. Returns its manifest.

    weights: all of them, gathered, where they are cut over processes.

    Equal runs write equal bytes: nothing here tells of time, machine or folder.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if backbone.is_whole(adapter):
        backbone.save_whole(adapter, partial, weights)
        for path in partial.iterdir():
            _sync(path)
    else:
        save_adapter(partial, backbone, adapter)
    heads = backbone.head_state(adapter)
    if heads:
        _save_tensors(partial / HEADS_FILE, heads)
    manifest = Manifest(
        kind=kind,
        name=spec.name or kind,
        base_model=backbone.folder.name,
        base_digest=backbone.base_digest,
        spec=_portable(spec),
        snapshot_digest=spec.snapshot_digest,
        seed=spec.seed,
        commit=code_version(spec),
        steps=steps,
        metrics=metrics,
        dropped=dropped[:_DROPPED_LISTED],
        dropped_counts=counts_by_reason(dropped),
        warnings=list(warnings),
        heads=sorted(name for name in heads if "." not in name),
        files={path.name: sha256_of_file(path) for path in sorted(partial.iterdir())},
        versions=library_versions(),
        parent_digest=manifest_digest(Path(spec.parent)) if spec.parent else None,
    )
    write_manifest(partial, manifest)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return manifest


def save_adapter(folder: Path, backbone: Backbone, adapter: str) -> None:
    """Write an adapter's two files as plain peft reads them."""
    _save_tensors(folder / ADAPTER_FILE, backbone.adapter_state(adapter))
    config = json.dumps(backbone.adapter_config(adapter), indent=2, sort_keys=True)
    (folder / ADAPTER_CONFIG_FILE).write_text(config + "\n", encoding="utf-8")


def _portable(spec: RunSpec) -> dict[str, Any]:
    """Return the spec with the names of folders in place of where they lie; digests say which they were."""
    values = spec.to_json()
    for name in ("base_model", "snapshot", "parent"):
        if values[name] is not None:
            values[name] = PurePath(values[name]).name
    return values


def _save_tensors(path: Path, tensors: dict[str, Any]) -> None:
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())},
        path,
        metadata={"format": "pt"},
    )
    _sync(path)


def _sync(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
