"""The policy on a server that draws its answers: each adapter is written down, loaded there, asked by name.

Where the server is, its key, and the folder that it loads adapters from are the machine owner's to say, in
the trainer's environment: a spec that named them could have anyone's server asked and any folder written to.
The folder lies under the same path for both: on one machine, or on a file system that they share.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from training.contract import ContractError, RolloutServerSettings, RunSpec
from training.rlhf.loop.checkpoints import save_checkpoint
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.ahead import Ahead
from training.rlhf.policy_gradient.rollout_servers import RolloutServers
from training.rlhf.rollout import Sample, SamplingParameters
from training.rlhf.runtime.run_folder import log

URL_VARIABLE = "RONDO_ROLLOUT_URL"
"""Environment variable: the servers that draw answers for runs that want one, without `/v1`, separated by
commas."""
KEY_VARIABLE = "RONDO_ROLLOUT_KEY"
"""Environment variable: their key."""
FOLDER_VARIABLE = "RONDO_ROLLOUT_FOLDER"
"""Environment variable: the folder that they load adapters from; the checkpoints of Rondo's model server."""

_ATTEMPTS, _PAUSE = 3, 1.0
_GAP_TOLD = 0.5
"""Nats between trainer and server, per token, that no rounding explains."""


class BatchRequest(NamedTuple):
    """A batch to be drawn: `n` samples of every prompt, by seeds of the prompts' first ones."""

    prompts: Sequence[Sequence[int]]
    parameters: SamplingParameters
    n: int
    seeds: Sequence[int]


class Drawn(NamedTuple):
    """Samples of a batch by prompt, and the policy that drew them."""

    samples: list[list[Sample]]
    version: int
    """Optimiser steps that this policy had taken."""


class ServedPolicy:
    """Answers of an adapter by servers, which are given it every so many steps. Close it after use.

    With `max_staleness` above 0 the batches of that many later steps are drawn while the trainer learns.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: str,
        spec: RunSpec,
        settings: RolloutServerSettings,
        *,
        run: Path,
        environment: Mapping[str, str] = os.environ,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """run: the run's folder, from which its adapters there have their names.

        Raises `ContractError` where the environment does not say where the server is or which folder it loads
        from.
        """
        addresses = _needed(
            environment, URL_VARIABLE, "the server that draws this run's answers, without /v1"
        )
        urls = [url.strip() for url in addresses.split(",") if url.strip()]
        folder = Path(_needed(environment, FOLDER_VARIABLE, "the folder that it loads adapters from"))
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ContractError(f"{FOLDER_VARIABLE}: {folder} is no folder that the trainer can write to")
        key = environment.get(KEY_VARIABLE, "")
        self._backbone, self._adapter, self._spec, self._settings = backbone, adapter, spec, settings
        self._folder = folder
        self._prefix = f"rollout-{hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:10]}-"
        # vLLM keeps a name until it is unloaded: a trainer that was killed must not meet its own.
        self._start = secrets.token_hex(4)
        self._written: dict[int, str] = {}
        """Names of the adapters in the folder by version."""
        self._newest = 0
        self._loaded: int | None = None
        self._is_first = True
        self._ahead: Ahead[BatchRequest, Drawn] = Ahead(self._draw, most=settings.max_staleness)
        self._servers = RolloutServers(
            urls, backbone, settings, key=key, attempts=_ATTEMPTS, pause=_PAUSE, transport=transport
        )
        self._warned = False
        self._remove_leftovers()

    def close(self) -> None:
        """Break off what is being drawn, take the adapters away, and give the connections back."""
        self._ahead.give_up()
        self._servers.abort()
        self._ahead.close()
        self._drop(self._written)
        self._servers.close()

    def drawn(
        self,
        step: int,
        make_request: Callable[[int], BatchRequest],
        *,
        last: int,
        stopped: Callable[[], bool],
    ) -> Drawn | None:
        """Return the batch of a step, drawn by the policy as it is or, within the bound, as it was.

        make_request: returns the batch of any step. last: number of steps of the run. None once `stopped`
        holds. Raises `ServerError` where no server loads the adapter, or none gives answers.
        """
        if self._is_first and step and self._settings.max_staleness:
            log.info("What was being sampled for later steps when the run ended is sampled again")
        self._is_first = False
        if not self._written or step % self._settings.every == 0:
            self._write(step)
        return self._ahead.take(step, make_request, policy=self._newest, last=last, stopped=stopped)

    def check(self, gap: float) -> None:
        """Warn, once, where the trainer finds the answers much more or less likely than the server did: gap
        is the mean of |log π − log μ| over drawn tokens."""
        is_current = self._settings.every == 1 and not self._settings.max_staleness
        if is_current and gap > _GAP_TOLD and not self._warned:
            self._warned = True
            log.warning(
                "The server's log-probabilities are %.2f nats per token from the trainer's: it has another "
                "base or precision, or tells those of the other kind (rollout, server, tells)",
                gap,
            )

    def _write(self, step: int) -> None:
        """Write the adapter down as it is after `step` steps."""
        # A step that was given up is taken again: it is the same adapter.
        if step in self._written:
            return
        name = f"{self._prefix}{self._start}-{step}"
        save_checkpoint(
            self._folder / name,
            backbone=self._backbone,
            adapter=self._adapter,
            kind="policy",
            spec=self._spec,
            steps=step,
            metrics={},
            dropped=[],
        )
        self._written[step] = name
        self._newest = step

    def _draw(self, request: BatchRequest, version: int) -> Drawn:
        """Draw a batch, in the thread of `Ahead`."""
        if version != self._loaded:
            older = [written for written in list(self._written) if written < version]
            try:
                self._servers.use(self._written[version], self._folder / self._written[version])
            finally:
                self._drop(older)
            self._loaded = version
        samples = self._servers.rollout(request.prompts, request.parameters, n=request.n, seeds=request.seeds)
        return Drawn(samples, version)

    def _drop(self, versions: Iterable[int]) -> None:
        """Take adapters away from servers and folder."""
        for version in list(versions):
            name = self._written.pop(version)
            if version == self._loaded:
                self._servers.drop(name)
                self._loaded = None
            shutil.rmtree(self._folder / name, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Adapters of a trainer of this run that was killed."""
        for pattern in (f"{self._prefix}*", f".{self._prefix}*.partial"):
            for place in self._folder.glob(pattern):
                shutil.rmtree(place, ignore_errors=True)


def _needed(environment: Mapping[str, str], variable: str, what: str) -> str:
    value = environment.get(variable, "").strip()
    if not value:
        raise ContractError(
            f"rollout, server: {variable} is not set in the trainer's environment; set it to {what}, or set "
            "rollout, server to null, which draws the answers in the trainer"
        )
    return value
