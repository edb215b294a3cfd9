"""One large transformer over the processes of a run: each of them keeps a part of every block's weights.

FSDP2 (`fully_shard`, Zhao et al. 2023) gathers a block's weights from all processes just before the block
computes, forward and backward, and lets them go after. What stays whole in every process: embeddings, the
LM head and the last norm; adapters and heads, which are small and whose gradients are summed over the
processes as in any other run.

Where all weights are trained, blocks keep their float32 weights, gradients and moments cut too. They compute
in the precision of the base: parts are rounded before they are gathered, gradients are summed in float32.

On several machines the base may also be cut within each, which then has a copy of its own (hybrid sharding):
weights are gathered over the links of one machine alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from training.contract import ContractError
from training.contract.run import Sharding
from training.rlhf.model.families import decoder_blocks, decoder_in
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import log

_COPIES, _PARTS = "copies", "parts"


def make_mesh(processes: Processes, device: torch.device, sharding: Sharding) -> DeviceMesh:
    """Return the processes in the order of their parts: one row for each copy of the base.

    full: one row of all. node: a row of each machine. Raises `ContractError` where machines have different
    numbers of processes.
    """
    parts = processes.world if sharding == "full" else processes.local_world
    if processes.world % parts:
        raise ContractError(
            f"spec, sharding: {processes.world} processes are not divided by the {parts} of this machine; "
            "start as many on each, or set it to 'full'"
        )
    copies = processes.world // parts
    if copies == 1:
        return init_device_mesh(device.type, (parts,), mesh_dim_names=(_PARTS,))
    return init_device_mesh(device.type, (copies, parts), mesh_dim_names=(_COPIES, _PARTS))


def shard_model(model: Any, mesh: DeviceMesh, *, computes_in: torch.dtype) -> None:
    """Cut the blocks of a transformer over a mesh, before any adapter is added to it.

    Its parameters may have no memory yet (device "meta"): then only this process's part is ever allocated.
    computes_in: precision that parts are gathered in.
    """
    in_all = model.num_parameters()
    decoder = decoder_in(model)
    policy = MixedPrecisionPolicy()
    if model.dtype != computes_in:
        policy = MixedPrecisionPolicy(param_dtype=computes_in, reduce_dtype=torch.float32)
    blocks: Any = decoder_blocks(model)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
        # A loss is divided by the examples of the whole step: gradients are summed.
        block.set_gradient_divide_factor(1.0)
        # Gloo has no other reduction.
        block.set_force_sum_reduction_for_comms(True)
    # The decoder ties its blocks together, so that one is gathered while the one before computes.
    cut = {id(parameter) for block in blocks for parameter in block.parameters()}
    whole = {parameter for parameter in decoder.parameters() if id(parameter) not in cut}
    fully_shard(decoder, mesh=mesh, ignored_params=whole)
    here = sum(local(parameter).numel() for parameter in model.parameters())
    log.info(
        "The base is cut over %d processes; each keeps about %d of its %d parameters",
        mesh[_PARTS].size(),
        here,
        in_all,
    )


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor that is cut; any other is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_rows(tensor: Tensor) -> slice | None:
    """Return the rows of a cut tensor that are this process's; None is all of one that is not cut."""
    if not isinstance(tensor, DTensor):
        return None
    over = next(number for number, kind in enumerate(tensor.placements) if isinstance(kind, Shard))
    each = -(-tensor.shape[0] // tensor.device_mesh.size(over))
    start = min(tensor.device_mesh.get_local_rank(over) * each, tensor.shape[0])
    return slice(start, start + len(tensor.to_local()))


def place_in_copy(tensor: DTensor) -> tuple[int, int]:
    """Return which copy of the model this process has a part of, and which part."""
    mesh = tensor.device_mesh
    return (0 if mesh.ndim == 1 else mesh.get_local_rank(_COPIES)), mesh.get_local_rank(_PARTS)


def clip_gradients(parameters: Sequence[nn.Parameter], most: float) -> Tensor:
    """Scale gradients to a norm of at most `most` over all parameters; return the norm before.

    All processes call it at the same time where parameters are cut.
    """
    cut = [value.grad for value in parameters if isinstance(value.grad, DTensor)]
    if not cut:
        return nn.utils.clip_grad_norm_(parameters, most)
    whole = [
        value.grad for value in parameters if value.grad is not None and not isinstance(value.grad, DTensor)
    ]
    squares = torch.stack([local(gradient).square().sum() for gradient in cut]).sum()
    dist.all_reduce(squares, group=cut[0].device_mesh[_PARTS].get_group())
    norm = torch.stack([squares, *(gradient.square().sum() for gradient in whole)]).sum().sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for gradient in (*cut, *whole):
        local(gradient).mul_(factor)
    return norm


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


_TRANSFORMERS = 16
"""More of them than a run has: the frozen base, what is trained in its place, a frozen reference."""


class Turnstile:
    """Lets all processes pass through a sharded base at the same time.

    Weights can only be gathered when every process takes part, but processes have different numbers of
    passes to make: one has fewer examples, another remembers what a third must compute. So each announces
    its next move, the first in order is made, and whoever has nothing to compute there computes a row of
    one token that counts for nothing.
    """

    def __init__(self, idle: Callable[[int, bool], Tensor], mesh: DeviceMesh) -> None:
        """`idle` makes a pass of a transformer over one token; with or without what a backward pass needs.
        Those wait for each other that share a copy of the base."""
        self._idle = idle
        self._group: dist.ProcessGroup | None = mesh[_PARTS].get_group()
        self._idle_states: list[Tensor] = []

    def wait_for_copies(self) -> None:
        """Wait for the processes of all copies from now on: where blocks are trained, a backward pass sums
        their gradients over the copies."""
        self._group = None

    def forward(self, transformer: int, *, learning: bool) -> None:
        """Come back when this process may make its forward pass of this transformer."""
        self._pass_through(_Move.LEARN if learning else _Move.READ, transformer)

    def backward(self) -> None:
        """Come back when this process may make its backward pass."""
        self._pass_through(_Move.RETURN)

    def rest(self) -> None:
        """Come back when no process has a pass to make before the next exchange."""
        self._pass_through(_Move.REST)

    def _pass_through(self, requested: _Move, transformer: int = 0) -> None:
        while (announced := self._announce(requested, transformer)) != (requested, transformer):
            due, which = announced
            if due is _Move.RETURN:
                (0.0 * torch.stack([states.sum() for states in self._idle_states]).sum()).backward()  # type: ignore[no-untyped-call]
                self._idle_states.clear()
                continue
            states = self._idle(which, due is _Move.LEARN)
            if due is _Move.LEARN:
                self._idle_states.append(states)

    def _announce(self, requested: _Move, transformer: int) -> tuple[_Move, int]:
        due = torch.tensor(int(requested) * _TRANSFORMERS + transformer)
        dist.all_reduce(due, op=dist.ReduceOp.MIN, group=self._group)
        move, which = divmod(int(due), _TRANSFORMERS)
        return _Move(move), which
