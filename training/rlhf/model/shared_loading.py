"""A base model that several processes share: each reads its part of the weights, none holds the whole.

The model is built without memory for its parameters (torch's device "meta"), cut, and filled from the files:
of each cut tensor a process reads its own rows. Families whose files have other tensors than the model
(experts that transformers merges while it loads) or other names are read by the first process, which sends
one tensor after another; that process alone needs memory for the whole.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoConfig, AutoModelForCausalLM

from training.contract import ContractError
from training.rlhf.model.attention import NAME as PACKED_ATTENTION
from training.rlhf.model.base_model import load_base_model, refuse_unsupported_folder, try_first_layers
from training.rlhf.model.sharding import local, rows_of, shard_model
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import log

# ── Weights of a base model in its safetensors files, read a few rows at a time ──

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightFiles:
    """The tensors of one model, by name. Files are mapped into memory, and only what is read is loaded."""

    def __init__(self, folder: Path) -> None:
        """Raise `ContractError` where `folder` has no such files, or unreadable ones."""
        self._folder = folder
        try:
            self.shapes, self._files = _contents(folder)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ContractError(f"{folder}: the model cannot be loaded ({error})") from error

    shapes: dict[str, tuple[int, ...]]
    """The shape of each tensor."""

    def read(self, selection: Iterable[tuple[str, slice | None]]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors, or these rows of them, by name; file by file, so that one is mapped at a time."""
        by_file: dict[Path, list[tuple[str, slice | None]]] = defaultdict(list)
        for name, rows in selection:
            by_file[self._files[name]].append((name, rows))
        for path, some in by_file.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for name, rows in some:
                        yield name, file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
            except (OSError, SafetensorError) as error:
                raise ContractError(f"{path}: the weights cannot be read ({error})") from error


def _contents(folder: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, Path]]:
    """Return shape and file of each tensor. A folder may hold the same weights in other files as well."""
    if (folder / _SINGLE).is_file():
        paths = [folder / _SINGLE]
    else:
        index: dict[str, Any] = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        paths = [folder / name for name in sorted(set(index["weight_map"].values()))]
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
                files[name] = path
    return shapes, files


def load_shared_base(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    mesh: DeviceMesh,
    processes: Processes,
    computes_in: torch.dtype | None = None,
) -> tuple[Any, Any]:
    """The frozen transformer in `folder`, its blocks cut over `mesh`, and its tokenizer.

    computes_in: the precision of its blocks where it is not `dtype`, in which weights are kept. All processes
    call it and all raise the same `ContractError`, as `load_base_model` does.
    """
    tokenizer = refuse_unsupported_folder(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    # Tried once, and before anything large is read.
    with _together(processes):
        if processes.first:
            try_first_layers(config, folder)
    model = _without_memory(config, dtype)
    shard_model(model, mesh, computes_in=computes_in or dtype)
    _allocate(model, device)
    with _together(processes):
        files = WeightFiles(folder)
        names = _names_in_files(model, files)
    if names is None:
        log.info("The base's files have other tensors than the model: the first process reads them for all")
        _receive(model, folder, dtype, processes)
    else:
        with _together(processes):
            _read(model, files, names)
    with _together(processes):
        _refuse_not_finite(model, folder)
    return model, tokenizer


@contextmanager
def _together(processes: Processes) -> Iterator[None]:
    """Raise in every process what was refused in one of them: none goes on to wait for it."""
    refusal = None
    try:
        yield
    except ContractError as error:
        refusal = str(error)
    first = next((message for message in processes.gather_objects(refusal) if message is not None), None)
    if first is not None:
        raise ContractError(first)


def _without_memory(config: Any, dtype: torch.dtype) -> Any:
    """Return the model with parameters on "meta"; buffers, which are computed and not read, are real."""
    with torch.random.fork_rng(devices=[]), _parameters_on_meta():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=PACKED_ATTENTION)
    for part in getattr(model, "_keep_in_fp32_modules_strict", None) or ():
        for name, buffer in model.named_buffers():
            if part in name.split("."):
                buffer.data = buffer.data.float()
    model.requires_grad_(False)
    model.eval()
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _allocate(model: Any, device: torch.device) -> None:
    """Give parameters memory on the device, of cut ones for this process's part."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    # What two layers share is two tensors now.
    model.tie_weights()


def _targets(model: Any) -> dict[str, Tensor]:
    """Return parameters, and buffers that are read, by name; what several layers share stands here once."""
    saved = model.state_dict(keep_vars=True)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    return parameters | {name: value for name, value in model.named_buffers() if name in saved}


def _names_in_files(model: Any, files: WeightFiles) -> dict[str, str] | None:
    """Return the name in the files of each target; None where the files are of another form."""
    same: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        same.setdefault(id(value), []).append(name)
    aliases = {names[0]: names for names in same.values()}
    stored_names: dict[str, str] = {}
    for name, value in _targets(model).items():
        there = [
            alias for alias in aliases.get(name, [name]) if files.shapes.get(alias) == tuple(value.shape)
        ]
        if not there:
            return None
        stored_names[name] = there[0]
    return stored_names


@torch.no_grad()
def _read(model: Any, files: WeightFiles, names: dict[str, str]) -> None:
    targets = {names[name]: target for name, target in _targets(model).items()}
    for name, value in files.read((name, rows_of(target)) for name, target in targets.items()):
        local(targets[name]).copy_(value)


@torch.no_grad()
def _receive(model: Any, folder: Path, dtype: torch.dtype, processes: Processes) -> None:
    """Fill the model from the first process, which loads it as a whole."""
    state: dict[str, Tensor] = {}
    with _together(processes):
        if processes.first:
            state = load_base_model(folder, device="cpu", dtype=dtype)[0].state_dict()
    for name, target in _targets(model).items():
        whole = state[name].contiguous() if processes.first else torch.empty(target.shape, dtype=target.dtype)
        dist.broadcast(whole, 0)
        rows = rows_of(target)
        local(target).copy_(whole if rows is None else whole[rows])


def _refuse_not_finite(model: Any, folder: Path) -> None:
    for name, value in model.named_parameters():
        if not torch.isfinite(local(value)).all():
            raise ContractError(
                f"{folder}: the weights {name} hold values that are not finite; fetch the base model again"
            )
