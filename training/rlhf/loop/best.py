"""The best state that a run has been in, as its evaluations saw it. Its weights lie in the run's folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from training.contract import STATE_FOLDER, ContractError
from training.rlhf.loop.tensor_files import damage, read_tensors, write_tensors
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes

VALIDATION_LOSS = "validation_loss"
"""Figure of an evaluation that chooses the best state; without it the held-out loss does."""

_NAME = "best-"


def loss_of(figures: Mapping[str, float]) -> float | None:
    """Return the loss that the best state has least of; None without an evaluation."""
    return figures.get(VALIDATION_LOSS, figures.get("held_out_loss"))


class BestState:
    """The adapter and heads with the lowest validation loss so far, and when that was."""

    def __init__(self, run_folder: Path, processes: Processes) -> None:
        self.step = 0
        """Optimiser steps taken then."""
        self.figures: dict[str, float] = {}
        """Figures of that state; empty before the first evaluation."""
        self.stale = 0
        """Evaluations in a row since."""
        self._states = run_folder / STATE_FOLDER
        self._processes = processes

    def offer(
        self, backbone: Backbone, adapter: str, *, step: int, figures: Mapping[str, float], keep: bool
    ) -> bool:
        """Take the present state where it is better; whether it was. Without an evaluation none is.

        keep: write its weights down. All processes call it.
        """
        loss, lowest = loss_of(figures), loss_of(self.figures)
        if loss is None:
            return False
        # Not (loss < best) would let NaN in: what is not a number is not better.
        if lowest is not None and not loss < lowest:
            self.stale += 1
            return False
        self.step, self.figures, self.stale = step, dict(figures), 0
        if keep:
            self._write(tensors_of(backbone, adapter))
        return True

    def put_back(self, backbone: Backbone, adapter: str) -> None:
        """Make it the adapter's state again. All processes call it. Raises `ContractError` where it is
        damaged."""
        self._processes.wait()
        if problem := self.damage(self.step):
            raise ContractError(
                f"{self._folder}: the best state is damaged ({problem}); delete {self._states} to train "
                "from the beginning"
            )
        tensors = read_tensors(self._folder, tensors_of(backbone, adapter))
        backbone.overwrite(adapter, under(tensors, "adapter."), under(tensors, "head."))

    def to_json(self) -> dict[str, Any]:
        """Return all but the tensors."""
        return {"step": self.step, "figures": self.figures, "stale": self.stale}

    def load(self, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Come back as `to_json` gave it. tensors: of the saved state, in which older versions of Rondo kept
        the best one's too."""
        self.step, self.figures, self.stale = values["step"], dict(values["figures"]), values["stale"]
        if older := under(tensors, "best."):
            self._write(older)

    def damage(self, step: int) -> str:
        """Return what is wrong with the weights of the best state of a step; empty where nothing is, and
        where none were written. All processes call it."""
        return damage(self._states / f"{_NAME}{step}", self._processes)

    def forget_others(self, *, but: Iterable[int]) -> None:
        """Delete the weights of states that were the best before; those of the steps `but` stay."""
        kept = {self._folder, *(self._states / f"{_NAME}{step}" for step in but)}
        for folder in self._states.glob(f"{_NAME}*"):
            if folder not in kept:
                shutil.rmtree(folder)

    @property
    def _folder(self) -> Path:
        return self._states / f"{_NAME}{self.step}"

    def _write(self, tensors: Mapping[str, Tensor]) -> None:
        """Write the weights under another name first: a folder of the final one is whole."""
        partial = self._states / f".{_NAME}partial"
        if self._processes.first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self._processes.wait()
        write_tensors(partial, tensors, first=self._processes.first)
        self._processes.wait()
        if self._processes.first:
            shutil.rmtree(self._folder, ignore_errors=True)
            partial.rename(self._folder)


def tensors_of(backbone: Backbone, adapter: str) -> dict[str, Tensor]:
    """Return the tensors of an adapter and its heads, by names that tell them apart."""
    return {f"adapter.{name}": value for name, value in backbone.adapter_state(adapter).items()} | {
        f"head.{name}": value for name, value in backbone.head_state(adapter).items()
    }


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
