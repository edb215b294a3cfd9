"""The processes that train one run together, as torchrun or accelerate start them; usually one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_LONGEST_WAIT = timedelta(hours=6)
"""A process that has died is noticed at once; one that only computes for long is waited for."""

_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Connection refused")
"""Error messages of gloo for a process that is gone."""

_Object = TypeVar("_Object")


@dataclass(frozen=True, slots=True)
class Processes:
    """This process's place among those of the run. The first one alone writes files."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    """Processes of the run on this machine."""
    rest: Callable[[], None] | None = None
    """Called before every exchange: with a sharded base it waits until nobody needs this process's part of
    the weights, see `sharding.Turnstile`."""

    @property
    def first(self) -> bool:
        """Return whether this process writes the run's files."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the elementwise sum of `values` over all processes."""
        if self.world > 1:
            self._come_to_rest()
            dist.all_reduce(values)
        return values

    def gather(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of one dimension, put end to end over all processes; on the CPU. All get the same."""
        mine = {name: value.cpu() for name, value in values.items()}
        if self.world == 1:
            return mine
        every = self.gather_objects(mine)
        names = {name for part in every for name in part}
        return {name: torch.cat([part[name] for part in every if name in part]) for name in sorted(names)}

    def gather_objects(self, mine: _Object) -> list[_Object]:
        """Return what each process hands over, by rank. It is pickled: among processes of one run alone."""
        if self.world == 1:
            return [mine]
        self._come_to_rest()
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, mine)
        return every

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is up in any process; all get the same answer."""
        if self.world == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes. One without examples adds 0; what has a
        gradient in none of them keeps none, as in a run of one process: AdamW leaves it where it is. Those of
        cut weights are summed in the backward pass."""
        if self.world == 1:
            return
        trained = [parameter for parameter in parameters if not isinstance(parameter, DTensor)]
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in trained]
        there = grads[0].new_tensor([float(parameter.grad is not None) for parameter in trained])
        flat = self.sum(torch.cat([there, *(grad.reshape(-1) for grad in grads)]))
        counts, *pieces = torch.split(flat, [len(trained), *(parameter.numel() for parameter in trained)])
        for parameter, count, piece in zip(trained, counts.tolist(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter) if count else None

    def wait(self) -> None:
        """Return once every process has come here."""
        if self.world > 1:
            self._come_to_rest()
            dist.barrier()

    def _come_to_rest(self) -> None:
        if self.rest is not None:
            self.rest()


class Share:
    """This process's part of a step's prompts; all of them where it is alone.

    Answers and scores are exchanged as soon as they are there, so that advantages, whitening, running means
    and β are computed from the whole step, by every process alike. Groups are never split. Gradients are
    summed; a loss is divided by the tokens or answers of the whole minibatch, so that the sum is the gradient
    of one process.
    """

    def __init__(self, processes: Processes | None = None) -> None:
        self.processes = processes or Processes()

    def rows(self, group: Sequence[int], rows: Sequence[int] | None = None) -> list[int]:
        """Return rows of answers to this process's prompts.

        group: (B) the number of each one's prompt; for the prompts themselves, their numbers. rows: among
        which; None is all.
        """
        among = range(len(group)) if rows is None else rows
        return [row for row in among if group[row] % self.processes.world == self.processes.rank]

    def merged(self, rows: Sequence[int], mine: Sequence[_Object]) -> list[_Object]:
        """Return one thing for every row of the step in order, from those for this process's rows."""
        every = dict[int, _Object]()
        for part in self.processes.gather_objects(dict(zip(rows, mine, strict=True))):
            every |= part
        return [every[row] for row in sorted(every)]

    def filled(self, values: Tensor) -> Tensor:
        """Return (B, T) of all answers, from values that are 0 for answers to other processes' prompts."""
        return self.processes.sum(values)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is up in any process."""
        return self.processes.any(flag, torch.device("cpu"))


@contextmanager
def join_processes() -> Iterator[Processes]:
    """Join the group that the launcher's environment variables describe; leave it at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    place = Processes(
        rank=int(os.environ["RANK"]),
        world=world,
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        local_world=int(os.environ.get("LOCAL_WORLD_SIZE", str(world))),
    )
    # Both backends: gradients may be on a GPU while flags are on the CPU.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_LONGEST_WAIT)
    try:
        yield place
    finally:
        dist.destroy_process_group()


def lost_another_process(error: Exception) -> bool:
    """Return whether an exchange failed because another process of the run is gone."""
    if not isinstance(error, RuntimeError):
        return False
    # Gloo raises nothing more specific; NCCL raises `DistBackendError`.
    text = str(error)
    return isinstance(error, dist.DistBackendError) or any(sign in text for sign in _LOST)
