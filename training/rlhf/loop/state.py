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
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from training.contract import ContractError
from training.contract.files import canonical_json, sha256_of_file
from training.contract.methods import settings_from_json
from training.contract.run import STATE_FOLDER, RunSpec
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.sharding import local, local_rows, place_in_copy
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import log

# ── Tensors of a run in one folder: one file, or of cut tensors a file for each part, each with its digest ──
#
# A run may be continued by another number of processes: each then reads its rows from the files that have
# them.

_SINGLE = "state.safetensors"
_PART = "state-{:05d}.safetensors"
_DIGEST = ".sha256"


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], *, first: bool) -> None:
    """Write tensors, or this process's part of them, into a folder that is there.

    first: whether this is the run's first process, which writes what is whole in each.
    """
    cut = {name: value for name, value in tensors.items() if isinstance(value, DTensor)}
    if not cut:
        if first:
            _write(folder / _SINGLE, tensors)
        return
    copy, part = place_in_copy(next(iter(cut.values())))
    if copy == 0:
        _write(folder / _PART.format(part), tensors if part == 0 else cut)


def read_tensors(folder: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return all tensors of a folder by name; those that `like` has as cut ones are cut in the same way.

    Raises OSError, ValueError or SafetensorError where they cannot be read.
    """
    with ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(path, framework="pt"))
            for path in sorted(folder.glob("state*.safetensors"))
        ]
        if not files:
            raise OSError("it has no state*.safetensors")
        holders: dict[str, list[Any]] = {}
        for file in files:
            for name in file.keys():  # noqa: SIM118 - no mapping
                holders.setdefault(name, []).append(file)
        return {name: _read_tensor(name, some, like.get(name)) for name, some in holders.items()}


def damage(folder: Path, processes: Processes) -> str:
    """Return which file of a folder is not as it was written, by its digest; empty where all are.

    All processes call it, each reads a part of the files, and all get the same. Folders of older versions of
    Rondo have no digests.
    """
    # The digests decide which files there are, not the folder: one may be gone.
    digests = sorted(folder.glob(f"*{_DIGEST}"))
    mine = [fault for path in digests[processes.rank :: processes.world] if (fault := _fault(path))]
    return next((fault for faults in processes.gather_objects(mine) for fault in faults), "")


def _fault(digest: Path) -> str:
    path = digest.with_name(digest.name.removesuffix(_DIGEST))
    try:
        intact = sha256_of_file(path) == digest.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        return f"{path.name}: {error}"
    return "" if intact else f"{path.name} is not as it was written"


def write_digest(path: Path) -> None:
    """Write a file's digest beside it."""
    digest = path.with_name(path.name + _DIGEST)
    digest.write_text(sha256_of_file(path) + "\n", encoding="ascii")
    sync(digest)


def _read_tensor(name: str, files: list[Any], like: Tensor | None) -> Tensor:
    rows = local_rows(like) if isinstance(like, DTensor) else None
    if rows is None or not isinstance(like, DTensor):
        parts = [file.get_tensor(name) for file in files]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    parts, start = [], 0
    for file in files:
        held = file.get_slice(name)
        length = held.get_shape()[0]
        begin, end = max(rows.start, start), min(rows.stop, start + length)
        if begin < end:
            parts.append(held[begin - start : end - start])
        start += length
    if start != like.shape[0]:
        raise ValueError(f"{name} has {start} rows instead of {like.shape[0]}")
    here = torch.cat(parts) if parts else torch.empty_like(like.to_local())
    return DTensor.from_local(
        here.to(like.device),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: local(value).detach().cpu().contiguous() for name, value in tensors.items()}, path)
    sync(path)
    write_digest(path)


def sync(path: Path) -> None:
    """Return once a file or a folder's list of files is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ── The best state that a run has been in, as its evaluations saw it. Its weights lie in the run's folder ──

VALIDATION_LOSS = "validation_loss"
"""Figure of an evaluation that chooses the best state; without it the held-out loss does."""


def validation_loss(figures: Mapping[str, float]) -> float | None:
    """Return the loss that the best state has least of; None without an evaluation."""
    return figures.get(VALIDATION_LOSS, figures.get("held_out_loss"))


class KeptWeights:
    """The adapter and heads after some steps, a folder for each: `state/NAME-N/`, whole once it is there.

    All processes call each method.
    """

    def __init__(self, run_folder: Path, processes: Processes, *, name: str) -> None:
        self._states = run_folder / STATE_FOLDER
        self._processes = processes
        self._name = name

    @property
    def steps(self) -> list[int]:
        """Return the steps of which there are weights, in order."""
        if not self._states.is_dir():
            return []
        folder = re.compile(rf"{re.escape(self._name)}-(\d+)")
        found = (folder.fullmatch(path.name) for path in self._states.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the weights under another name first: a folder of the final one is whole."""
        partial = self._states / f".{self._name}-partial"
        if self._processes.first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._processes.wait()
        write_tensors(partial, tensors, first=self._processes.first)
        self._processes.wait()
        if self._processes.first:
            shutil.rmtree(self.folder(step), ignore_errors=True)
            partial.rename(self.folder(step))
        self._processes.wait()

    def put_back(self, step: int, backbone: Backbone, adapter: str) -> None:
        """Make them the adapter's weights. Raises `ContractError` where they are damaged."""
        self._processes.wait()
        if problem := self.damage(step):
            raise ContractError(
                f"{self.folder(step)}: the kept state is damaged ({problem}); delete {self._states} to train "
                "from the beginning"
            )
        tensors = read_tensors(self.folder(step), adapter_tensors(backbone, adapter))
        backbone.overwrite(adapter, under(tensors, "adapter."), under(tensors, "head."))

    def damage(self, step: int) -> str:
        """Return what is wrong with the weights of a step; empty where nothing is, or none were written."""
        return damage(self.folder(step), self._processes)

    def forget_others(self, *, but: Iterable[int]) -> None:
        """Delete all but those of the steps `but`."""
        for step in set(self.steps) - set(but):
            shutil.rmtree(self.folder(step))

    def folder(self, step: int) -> Path:
        """Return where the weights of a step lie."""
        return self._states / f"{self._name}-{step}"


class BestState:
    """The adapter and heads with the lowest validation loss so far, and when that was."""

    def __init__(self, run_folder: Path, processes: Processes) -> None:
        self.step = 0
        """Optimiser steps taken then."""
        self.figures: dict[str, float] = {}
        """Figures of that state; empty before the first evaluation."""
        self.stale = 0
        """Evaluations in a row since."""
        self._weights = KeptWeights(run_folder, processes, name="best")

    def offer(
        self, backbone: Backbone, adapter: str, *, step: int, figures: Mapping[str, float], keep: bool
    ) -> bool:
        """Take the present state where it is better; whether it was. Without an evaluation none is.

        keep: write its weights down. All processes call it.
        """
        loss, lowest = validation_loss(figures), validation_loss(self.figures)
        if loss is None:
            return False
        # Not (loss < best) would let NaN in: what is not a number is not better.
        if lowest is not None and not loss < lowest:
            self.stale += 1
            return False
        self.step, self.figures, self.stale = step, dict(figures), 0
        if keep:
            self._weights.write(step, adapter_tensors(backbone, adapter))
        return True

    def put_back(self, backbone: Backbone, adapter: str) -> None:
        """Make it the adapter's state again. All processes call it. Raises `ContractError` where it is
        damaged."""
        self._weights.put_back(self.step, backbone, adapter)

    def to_json(self) -> dict[str, Any]:
        """Return all but the tensors."""
        return {"step": self.step, "figures": self.figures, "stale": self.stale}

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Come back as `to_json` gave it. tensors: of the saved state, in which older versions of Rondo kept
        the best one's too."""
        self.step, self.figures, self.stale = values["step"], dict(values["figures"]), values["stale"]
        if older := under(tensors, "best."):
            self._weights.write(self.step, older)

    def damage(self, step: int) -> str:
        """Return what is wrong with the weights of the best state of a step; empty where nothing is, and
        where none were written. All processes call it."""
        return self._weights.damage(step)

    def forget_others(self, *, but: Iterable[int]) -> None:
        """Delete the weights of states that were the best before; those of the steps `but` stay."""
        self._weights.forget_others(but={self.step, *but})


def adapter_tensors(backbone: Backbone, adapter: str) -> dict[str, Tensor]:
    """Return the tensors of an adapter and its heads, by names that tell them apart."""
    return {f"adapter.{name}": value for name, value in backbone.adapter_state(adapter).items()} | {
        f"head.{name}": value for name, value in backbone.head_state(adapter).items()
    }


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


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
        tensors = adapter_tensors(self.backbone, self.adapter)
        for other in self.method.adapters if self.method else ():
            some = adapter_tensors(self.backbone, other)
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
