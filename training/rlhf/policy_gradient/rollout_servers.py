"""Servers that draw a policy's answers together: each loads every adapter and answers some of the prompts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from training.contract import RolloutServerSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout import Sample, SamplingParameters
from training.rlhf.rollout.compatible_server import CompatibleServer, ServerError
from training.rlhf.rollout.limits import end_tokens
from training.rlhf.rollout.remote import RemoteRollout, vllm_fields
from training.rlhf.runtime.run_folder import log


@dataclass(kw_only=True, slots=True)
class _Server:
    url: str
    remote: RemoteRollout
    """Draws answers."""
    control: CompatibleServer
    """Loads adapters and takes them away."""
    is_used: bool = True
    """True if it has the adapter and answers."""


class RolloutServers:
    """One or more servers of one base. Close them after use.

    A server that does not answer is left out, and the others answer its prompts; it is tried again with the
    next adapter. Seeds belong to prompts, so it makes no difference which server draws an answer.
    """

    def __init__(
        self,
        urls: Sequence[str],
        backbone: Backbone,
        settings: RolloutServerSettings,
        *,
        key: str,
        attempts: int,
        pause: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """attempts, pause: times a request is sent to a server that is silent, and seconds before the second
        time."""
        self._is_vllm = settings.kind == "vllm"
        # A fast tokenizer that one thread changes the truncation of serves no other meanwhile.
        tokenizer = copy.deepcopy(backbone.tokenizer)
        ends = end_tokens(backbone)
        unknown = backbone.unknown_tokens.ids
        fields = vllm_fields(ends=ends, unknown=unknown) if self._is_vllm else None

        def server(url: str) -> _Server:
            remote = RemoteRollout(
                url=url,
                key=key,
                model="",
                tokenizer=tokenizer,
                end_tokens=ends,
                unknown_tokens=unknown,
                tells=settings.tells,
                timeout=settings.seconds,
                attempts=attempts,
                pause=pause,
                extra_fields=fields,
                transport=transport,
            )
            control = CompatibleServer(
                name="the rollout server",
                url=url,
                key=key,
                timeout=settings.seconds,
                attempts=attempts,
                pause=pause,
                transport=transport,
            )
            return _Server(url=url, remote=remote, control=control)

        self._servers = [server(url) for url in urls]

    def close(self) -> None:
        """Give the connections back."""
        for server in self._servers:
            server.remote.close()
            server.control.close()

    def abort(self) -> None:
        """Break off all drawing, also from another thread: a server that sees it stops, too."""
        for server in self._servers:
            server.remote.abort()

    def use(self, name: str, folder: Path) -> None:
        """Have every server answer with an adapter. Raises `ServerError` where none of them loads it."""

        def load(server: _Server) -> None:
            if self._is_vllm:
                _load(server.control, name, folder)
            server.remote.model = name

        self._each(self._servers, load)

    def drop(self, name: str) -> None:
        """Take an adapter away from every server that answers; the others free the room automatically."""
        for server in self._servers if self._is_vllm else ():
            if server.is_used:
                try:
                    server.control.post("/v1/unload_lora_adapter", {"lora_name": name})
                except ServerError as error:
                    log.info("The adapter %s stays loaded: %s", name, error)

    def rollout(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        *,
        n: int,
        seeds: Sequence[int],
    ) -> list[list[Sample]]:
        """Draw `n` samples of every prompt, in the order of the prompts.

        Raises `ServerError` where no server is left that answers.
        """
        drawn: dict[int, list[Sample]] = {}
        while missing := [number for number in range(len(prompts)) if number not in drawn]:
            servers = [server for server in self._servers if server.is_used]

            def draw(server: _Server, servers: list[_Server] = servers, missing: list[int] = missing) -> None:
                part = missing[servers.index(server) :: len(servers)]
                answers = server.remote.rollout(
                    [prompts[number] for number in part],
                    parameters,
                    n=n,
                    seeds=[seeds[number] for number in part],
                )
                drawn.update(zip(part, answers, strict=True))

            self._each(servers, draw)
        return [drawn[number] for number in range(len(prompts))]

    def _each(self, servers: Sequence[_Server], work: Callable[[_Server], None]) -> None:
        """Do something with each server at once, and leave out those that fail. Raises where all do."""

        def attempt(server: _Server) -> ServerError | None:
            try:
                work(server)
            except ServerError as error:
                server.is_used = False
                return error
            server.is_used = True
            return None

        with ThreadPoolExecutor(max(1, len(servers))) as pool:
            errors = list(pool.map(attempt, servers))
        failed = [error for error in errors if error is not None]
        if len(failed) == len(servers):
            raise failed[0]
        for server, error in zip(servers, errors, strict=True):
            if error is not None:
                log.warning("%s is left out until the next adapter: %s", server.url, error)


def _load(control: CompatibleServer, name: str, folder: Path) -> None:
    try:
        control.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
    except ServerError as error:
        raise ServerError(
            f"{error}: the adapter in {folder} could not be loaded there; vLLM must be started with "
            "--enable-lora, --max-lora-rank of at least the adapter's and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and see that folder under the same path"
        ) from error
