"""Saved state to resume a run: `state/step-N/`, one folder per save.

A save is written under another name and renamed, so a folder named `step-N` is whole. It
holds the adapter, the heads and AdamW's moments, bit for bit, and what a method trains and counts beside
them; the best state so far lies in a folder of its own, `state/best-N/`. Of weights that are cut over
processes each writes its part. The last two saves stay: a disk that loses bits costs the steps between them,
not the run. The learning rate, the order of the examples and all random numbers follow
from the seed and the step, so the step is all there is to save of them.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from training.contract import STATE_FOLDER, ContractError, RunSpec, canonical_json, settings_from_json
from training.rlhf.loop.best import BestState, tensors_of, under
from training.rlhf.loop.tensor_files import damage, read_tensors, sync, write_digest, write_tensors
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import log

_STEP_FOLDER = re.compile(r"step-(\d+)")
_HEADER = "state.json"
_CUT_MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's moments, cut as their parameters are."""
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


def resume_key(spec: RunSpec, base_digest: str) -> dict[str, Any]:
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


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The parts of a run that its state is made of."""

    run_folder: Path
    backbone: Backbone
    adapter: str
    optimiser: torch.optim.Optimizer
    parameters: list[nn.Parameter]
    """All that the optimiser has, in an order that does not depend on what is cut over processes."""
    best: BestState
    trained: dict[str, Any]
    """As `resume_key` returns it."""
    processes: Processes
    method: MethodState | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors but the moments, by name."""
        tensors = tensors_of(self.backbone, self.adapter)
        for other in self.method.adapters if self.method else ():
            some = tensors_of(self.backbone, other)
            tensors |= {f"beside.{other}.{name}": value for name, value in some.items()}
        return tensors

    def places(self) -> list[int]:
        """Return the place among `parameters` of each that the optimiser has, in its own order."""
        place = {id(value): number for number, value in enumerate(self.parameters)}
        return [place[id(value)] for group in self.optimiser.param_groups for value in group["params"]]


def save_state(saved: Saved, step: int) -> None:
    """Save the run after `step` optimiser steps; the save before stays. All processes call it."""
    states = saved.run_folder / STATE_FOLDER
    partial = states / ".partial"
    if saved.processes.first:
        shutil.rmtree(partial, ignore_errors=True)
        # Before anything is written: there is never room for more than two.
        for older in _saves(states)[:-1]:
            shutil.rmtree(older)
        partial.mkdir(parents=True)
    tensors = saved.tensors()
    places = saved.places()
    for index, moments in saved.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{places[index]}.{name}": value for name, value in moments.items()}
    saved.processes.wait()
    write_tensors(partial, tensors, first=saved.processes.first)
    saved.processes.wait()
    if not saved.processes.first:
        return
    header = {"step": step, "trained": saved.trained, "best": saved.best.to_json()}
    if saved.method is not None:
        header["beside"] = saved.method.to_json()
    (partial / _HEADER).write_text(canonical_json(header) + "\n", encoding="utf-8")
    sync(partial / _HEADER)
    write_digest(partial / _HEADER)
    sync(partial)
    final = states / f"step-{step}"
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    sync(states)
    saved.best.forget_others(but=[best for path in _saves(states) if (best := _best_step(path)) is not None])


def load_state(saved: Saved) -> int:
    """Bring the last saved state that is intact back; the step it was saved after, 0 where there is none.

    Later ones that are damaged are named in the log and removed. All processes call it. Raises
    `ContractError` where none is intact, and where the state belongs to another spec.
    """
    saves = _saves(saved.run_folder / STATE_FOLDER)
    if not saves:
        return 0
    damaged: dict[Path, str] = {}
    for folder in reversed(saves):
        try:
            header, tensors = _read(folder, saved)
        except _DamagedError as error:
            damaged[folder] = str(error)
        else:
            break
    else:
        folder, problem = next(iter(damaged.items()))
        raise ContractError(
            f"{folder}: the saved state is damaged ({problem}), and there is no intact one; delete "
            f"{folder.parent} to train from the beginning"
        )
    _refuse_another_spec(folder, header["trained"], saved.trained)
    for path, problem in damaged.items() if saved.processes.first else ():
        log.warning("%s: the saved state is damaged (%s); it is removed", path, problem)
        shutil.rmtree(path)
    backbone, method = saved.backbone, saved.method
    backbone.overwrite(saved.adapter, under(tensors, "adapter."), under(tensors, "head."))
    if method is not None:
        for other in method.adapters:
            part = under(tensors, f"beside.{other}.")
            backbone.overwrite(other, under(part, "adapter."), under(part, "head."))
        method.load(header["beside"])
    saved.best.load(header["best"], tensors)
    index_of = {place: index for index, place in enumerate(saved.places())}
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in under(tensors, "optimiser.").items():
        number, _, key = name.partition(".")
        moments.setdefault(index_of[int(number)], {})[key] = value
    saved.optimiser.load_state_dict({**saved.optimiser.state_dict(), "state": moments})
    return int(header["step"])


class _DamagedError(Exception):
    """A saved state that is not as it was written."""


def _read(folder: Path, saved: Saved) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return header and tensors of a save. Raises `_DamagedError` in all processes, or in none."""
    problem, processes = damage(folder, saved.processes), saved.processes
    header: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    best = 0
    if not problem:
        like = saved.tensors()
        for place, parameter in enumerate(saved.parameters):
            like |= {f"optimiser.{place}.{name}": parameter for name in _CUT_MOMENTS}
        try:
            header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
            tensors, best = read_tensors(folder, like), header["best"]["step"]
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            problem = f"{type(error).__name__}: {error}"
        problem = next(filter(None, processes.gather_objects(problem)), "")
    if not problem:
        # Put back at the end: damaged, it would cost the run then.
        problem = saved.best.damage(best)
    if problem:
        raise _DamagedError(problem)
    return header, tensors


def _best_step(folder: Path) -> int | None:
    """Return the step of the best state that a save goes with; None where the save is damaged."""
    try:
        return int(json.loads((folder / _HEADER).read_text(encoding="utf-8"))["best"]["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _refuse_another_spec(folder: Path, saved: dict[str, Any], requested: dict[str, Any]) -> None:
    saved = _with_defaults(saved)
    differing = sorted(key for key in saved.keys() | requested.keys() if saved.get(key) != requested.get(key))
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


def _saves(states: Path) -> list[Path]:
    if not states.is_dir():
        return []
    folders = [
        (int(match[1]), path) for path in states.iterdir() if (match := _STEP_FOLDER.fullmatch(path.name))
    ]
    return [path for _, path in sorted(folders)]
