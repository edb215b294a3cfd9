"""Saved state to resume a run: `state/step-N/`, one folder per save.

A save is written under another name and renamed, so a folder named `step-N` is whole. It
holds the adapter, the heads, AdamW's moments and the best state so far, bit for bit, and what a method
trains and counts beside them. The learning rate, the order of the examples and all random numbers follow
from the seed and the step, so the step is all there is to save of them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training.contract import STATE_FOLDER, ContractError, RunSpec, canonical_json, settings_from_json
from training.rlhf.loop.best import BestState
from training.rlhf.model.backbone import Backbone

_STEP_FOLDER = re.compile(r"step-(\d+)")
_TENSORS = "state.safetensors"
_HEADER = "state.json"
_FREE_TO_CHANGE = frozenset(
    {"base_model", "snapshot", "parent", "device", "sharding", "processes", "cache", "commit", "name"}
)
_FREE_OPTIMISER_SETTINGS = frozenset({"micro_batch_tokens", "gradient_checkpointing", "save_every"})
"""Settings that change where files are or how fast it goes, not what is computed."""


class MethodState(Protocol):
    """State that a method saves besides its adapter."""

    @property
    def adapters(self) -> Mapping[str, float]:
        """Other adapters that are trained, and the multiple of the learning rate that each goes at."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return counters and other state as JSON values."""
        ...

    def load(self, values: Mapping[str, Any]) -> None:
        """Come back as `to_json` gave it."""
        ...


def what_is_trained(spec: RunSpec, base_digest: str) -> dict[str, Any]:
    """Return the part of a spec that a saved state depends on: another one cannot be continued from it."""
    values = {key: value for key, value in spec.to_json().items() if key not in _FREE_TO_CHANGE}
    settings = dict(values["settings"])
    settings["optimiser"] = {
        key: value for key, value in settings["optimiser"].items() if key not in _FREE_OPTIMISER_SETTINGS
    }
    decoded: dict[str, Any] = json.loads(
        canonical_json({**values, "settings": settings, "base_digest": base_digest})
    )
    return decoded


def save_state(
    run_folder: Path,
    *,
    step: int,
    backbone: Backbone,
    adapter: str,
    optimiser: torch.optim.Optimizer,
    best: BestState,
    trained: dict[str, Any],
    beside: MethodState | None = None,
) -> None:
    """Save the run after `step` optimiser steps, then remove older saves."""
    states = run_folder / STATE_FOLDER
    partial = states / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = _tensors_of(backbone, adapter)
    for other in beside.adapters if beside else ():
        tensors |= {f"beside.{other}.{name}": value for name, value in _tensors_of(backbone, other).items()}
    for index, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": value for name, value in moments.items()}
    tensors |= best.tensors()
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()}, partial / _TENSORS
    )
    header = {"step": step, "trained": trained, "best": best.to_json()}
    if beside is not None:
        header["beside"] = beside.to_json()
    (partial / _HEADER).write_text(canonical_json(header) + "\n", encoding="utf-8")
    for path in (partial / _TENSORS, partial / _HEADER, partial):
        _sync(path)
    final = states / f"step-{step}"
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync(states)
    for older in _saves(states)[:-1]:
        shutil.rmtree(older)


def load_state(
    run_folder: Path,
    *,
    backbone: Backbone,
    adapter: str,
    parameters: list[nn.Parameter],
    optimiser: torch.optim.Optimizer,
    best: BestState,
    trained: dict[str, Any],
    beside: MethodState | None = None,
) -> int:
    """Bring the last saved state back; the step it was saved after, 0 where there is none.

    Raises `ContractError` where the state is unreadable or belongs to another spec.
    """
    saves = _saves(run_folder / STATE_FOLDER)
    if not saves:
        return 0
    folder = saves[-1]
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        tensors = load_file(folder / _TENSORS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ContractError(
            f"{folder}: the saved state cannot be read ({error}); delete it to go on from the one before, "
            "or from the beginning"
        ) from error
    _refuse_another_spec(folder, header["trained"], trained)
    backbone.overwrite(adapter, _under(tensors, "adapter."), _under(tensors, "head."))
    if beside is not None:
        for other in beside.adapters:
            part = _under(tensors, f"beside.{other}.")
            backbone.overwrite(other, _under(part, "adapter."), _under(part, "head."))
        beside.load(header["beside"])
    best.load(header["best"], tensors)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimiser.").items():
        index, _, key = name.partition(".")
        moments.setdefault(int(index), {})[key] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": moments})
    return int(header["step"])


def _tensors_of(backbone: Backbone, adapter: str) -> dict[str, Tensor]:
    return {f"adapter.{name}": value for name, value in backbone.adapter_state(adapter).items()} | {
        f"head.{name}": value for name, value in backbone.head_state(adapter).items()
    }


def _refuse_another_spec(folder: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
    saved = _with_defaults(saved)
    differing = sorted(key for key in saved.keys() | wanted.keys() if saved.get(key) != wanted.get(key))
    if differing:
        raise ContractError(
            f"{folder}: the state was saved under another {', '.join(differing)}; put that back into "
            "spec.json, or delete the state to train from the beginning"
        )


def _with_defaults(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved spec with the settings that an older version of Rondo did not have yet at their defaults."""
    try:
        settings = settings_from_json(saved["method"], saved["settings"])
    except (ContractError, KeyError):
        return saved
    resolved = json.loads(canonical_json(dataclasses.asdict(settings)))
    for name in _FREE_OPTIMISER_SETTINGS:
        resolved["optimiser"].pop(name, None)
    return {**saved, "settings": resolved}


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _saves(states: Path) -> list[Path]:
    if not states.is_dir():
        return []
    folders = [
        (int(match[1]), path) for path in states.iterdir() if (match := _STEP_FOLDER.fullmatch(path.name))
    ]
    return [path for _, path in sorted(folders)]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
