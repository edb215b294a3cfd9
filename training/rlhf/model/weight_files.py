"""Weights of a base model in its safetensors files, read a few rows at a time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from training.contract import ContractError

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
