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
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from training.contract import ContractError, RolloutServerSettings, RunSpec
from training.rlhf.loop.checkpoints import save_checkpoint
from training.rlhf.model.backbone import Backbone
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


class ServedPolicy:
    """Answers of an adapter by a server, which is given it every so many steps. Close it after use."""

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
        given = _needed(environment, URL_VARIABLE, "the server that draws this run's answers, without /v1")
        urls = [url.strip() for url in given.split(",") if url.strip()]
        folder = Path(_needed(environment, FOLDER_VARIABLE, "the folder that it loads adapters from"))
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ContractError(f"{FOLDER_VARIABLE}: {folder} is no folder that the trainer can write to")
        key = environment.get(KEY_VARIABLE, "")
        self._backbone, self._adapter, self._spec, self._settings = backbone, adapter, spec, settings
        self._folder = folder
        self._prefix = f"rollout-{hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:10]}-"
        # vLLM keeps a name until it is unloaded: a trainer that was killed must not meet its own.
        self._start = secrets.token_hex(4)
        self._loaded: str | None = None
        self._servers = RolloutServers(
            urls, backbone, settings, key=key, attempts=_ATTEMPTS, pause=_PAUSE, transport=transport
        )
        self._warned = False
        self._remove_leftovers()

    def close(self) -> None:
        """Take the adapter away from the server, and give the connections back."""
        self._drop(self._loaded)
        self._loaded = None
        self._servers.close()

    def rollout(
        self,
        step: int,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        *,
        n: int,
        seeds: Sequence[int],
    ) -> list[list[Sample]]:
        """`n` answers to every prompt, by the policy as it is or, between two adapters, as it was.

        Raises `ServerError` where no server loads the adapter, or none gives answers.
        """
        if self._loaded is None or step % self._settings.every == 0:
            self._hand_over(step)
        return self._servers.rollout(prompts, parameters, n=n, seeds=seeds)

    def check(self, gap: float) -> None:
        """Warn, once, where the trainer finds the answers much more or less likely than the server did: gap
        is the mean of |log π − log μ| over drawn tokens."""
        if self._settings.every == 1 and gap > _GAP_TOLD and not self._warned:
            self._warned = True
            log.warning(
                "The server's log-probabilities are %.2f nats per token from the trainer's: it has another "
                "base or precision, or tells those of the other kind (rollout, server, tells)",
                gap,
            )

    def _hand_over(self, step: int) -> None:
        """Write the adapter down and have it loaded; then the one before is taken away."""
        name = f"{self._prefix}{self._start}-{step}"
        # A step that was given up is taken again: it is the same adapter.
        if name == self._loaded:
            return
        place = self._folder / name
        save_checkpoint(
            place,
            backbone=self._backbone,
            adapter=self._adapter,
            kind="policy",
            spec=self._spec,
            steps=step,
            metrics={},
            dropped=[],
        )
        before, self._loaded = self._loaded, name
        self._servers.use(name, place)
        self._drop(before)

    def _drop(self, name: str | None) -> None:
        if name is None:
            return
        self._servers.drop(name)
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
