"""One large frozen base over the processes of a run: each of them keeps a part of every block's weights.

FSDP2 (`fully_shard`, Zhao et al. 2023) gathers a block's weights from all processes just before the block
computes, forward and backward, and lets them go after. What stays whole in every process: embeddings, the
LM head and the last norm; and what is trained, adapters and heads, which is small and whose gradients are
summed over the processes as in any other run. So a checkpoint is written and read as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import log


def shard_base(model: Any, processes: Processes, device: torch.device) -> None:
    """Cut the blocks of a frozen transformer over all processes, before any adapter is added to it.

    The model may lie on the CPU while `device` is a GPU: blocks move there cut, one by one, so that no GPU
    ever holds the whole.
    """
    mesh = init_device_mesh(device.type, (processes.world,))
    in_all = model.num_parameters()
    decoder = model.get_decoder()
    for block in decoder.layers:
        fully_shard(block, mesh=mesh)
    # The decoder ties its blocks together, so that one is gathered while the one before computes.
    cut = {id(parameter) for block in decoder.layers for parameter in block.parameters()}
    whole = {parameter for parameter in decoder.parameters() if id(parameter) not in cut}
    fully_shard(decoder, mesh=mesh, ignored_params=whole)
    model.to(device)
    here = sum(
        parameter.to_local().numel() if isinstance(parameter, DTensor) else parameter.numel()
        for parameter in model.parameters()
    )
    log.info(
        "The base is cut over %d processes; each keeps about %d of its %d parameters",
        processes.world,
        here,
        in_all,
    )


class _Move(IntEnum):
    """Next operation of a process; of several announced, the smallest runs first."""

    READ = 0
    """A forward pass that no backward pass follows."""
    LEARN = 1
    """A forward pass that one follows."""
    RETURN = 2
    """The backward pass."""
    REST = 3
    """No pass: an exchange with the other processes, or the end."""


class Turnstile:
    """Lets all processes pass through a sharded base at the same time.

    Weights can only be gathered when every process takes part, but processes have different numbers of
    passes to make: one has fewer examples, another remembers what a third must compute. So each announces
    its next move, the first in order is made, and whoever has nothing to compute there computes a row of
    one token that counts for nothing.
    """

    def __init__(self, idle: Callable[[bool], Tensor]) -> None:
        """`idle` makes a pass over one token; with or without what a backward pass needs."""
        self._idle = idle
        self._idle_states: list[Tensor] = []

    def forward(self, *, learning: bool) -> None:
        """Come back when this process may make its forward pass."""
        self._pass_through(_Move.LEARN if learning else _Move.READ)

    def backward(self) -> None:
        """Come back when this process may make its backward pass."""
        self._pass_through(_Move.RETURN)

    def rest(self) -> None:
        """Come back when no process has a pass to make before the next exchange."""
        self._pass_through(_Move.REST)

    def _pass_through(self, wanted: _Move) -> None:
        while (due := self._announce(wanted)) is not wanted:
            if due is _Move.RETURN:
                (0.0 * torch.stack([states.sum() for states in self._idle_states]).sum()).backward()  # type: ignore[no-untyped-call]
                self._idle_states.clear()
                continue
            states = self._idle(due is _Move.LEARN)
            if due is _Move.LEARN:
                self._idle_states.append(states)

    def _announce(self, wanted: _Move) -> _Move:
        due = torch.tensor(int(wanted))
        dist.all_reduce(due, op=dist.ReduceOp.MIN)
        return _Move(int(due))
