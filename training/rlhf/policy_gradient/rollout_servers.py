"""Servers that draw a policy's completions: each adapter is saved, loaded there, and requested by name.

Where the server is, its key, and the folder that it loads adapters from are the machine owner's to say, in
the trainer's environment: a spec that named them could have anyone's server asked and any folder written to.
The folder lies under the same path for both: on one machine, or on a file system that they share.
"""

from __future__ import annotations

import copy
import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import httpx

from training.contract import ContractError
from training.contract.methods.policy import RolloutServerSettings
from training.contract.run import RunSpec
from training.model_server import Closing, ModelServer, ServerError
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.families import is_text_part
from training.rlhf.rollout.samples import Sample, TextStream, TokenLogProb, end_tokens
from training.rlhf.runtime.run_folder import log
from training.rlhf.sampling import MAX_SEED, FinishReason, SamplingParameters

# ── The same samples from a server: vLLM, or any that speaks OpenAI's completions and returns token ids ──


LogProbSource = Literal["model", "sampler"]
"""Log-probabilities that a server returns: the model's before temperature and filters, or those drawn by."""

VLLM_NEUTRAL: Mapping[str, Any] = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Fields that a request to vLLM must set: they default to the model's generation configuration."""

_MOST_BIASED = 1024
"""Tokens that vLLM takes a bias for."""


def vllm_fields(*, ends: Collection[int], unknown: Collection[int]) -> dict[str, Any]:
    """Return further fields of a request to vLLM, so that it draws as `rollout` does.

    ends: tokens that end a completion; vLLM knows those of the generation configuration alone, which may lack
    the end of a turn. unknown: ids that the tokenizer does not have, which are not to be drawn.
    """
    fields: dict[str, Any] = {**VLLM_NEUTRAL, "stop_token_ids": sorted(ends)}
    if 0 < len(unknown) <= _MOST_BIASED:
        fields["logit_bias"] = {str(id): -100 for id in sorted(unknown)}
    return fields


_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class RemoteRollout(Closing):
    """Samples from a server, as `rollout` gives them from a backbone. Safe to use from several threads.

    The server must know the same tokenizer, and the field `return_token_ids` of POST /v1/completions
    (vLLM from 0.10.2 on; Rondo's own model server): a text alone does not determine its tokens. Every choice
    of a request is taken to be drawn with the request's seed plus the choice's number, as both do it.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        tokenizer: Any,
        end_tokens: frozenset[int],
        unknown_tokens: frozenset[int] = frozenset(),
        key: str = "",
        tells: LogProbSource = "model",
        timeout: float = 600.0,
        attempts: int = 3,
        pause: float = 1.0,
        workers: int = 8,
        extra_fields: Mapping[str, Any] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """url: the server's, without `/v1`. model: the name that it serves the policy under.

        end_tokens: ids that end a completion, see `limits.end_tokens`. unknown_tokens: ids that the tokenizer
        does not have; a sample with one is refused. tells: "sampler" for a vLLM
        that was started with `--logprobs-mode processed_logprobs`. timeout: seconds for one prompt's
        samples. attempts: times a prompt is sent when the server is busy or silent, after `pause`
        seconds, then twice that and so on. workers: prompts at a time. extra_fields: further fields of every
        request: `vllm_fields` for a vLLM.
        """
        if attempts < 1 or workers < 1:
            raise ValueError(f"attempts {attempts} and workers {workers} must be at least 1")
        self.model = model
        """The name that the policy is served under; may be changed between two rollouts."""
        self._tokenizer, self._ends, self._unknown = tokenizer, end_tokens, unknown_tokens
        self._tells, self._workers, self._extra_fields = tells, workers, dict(extra_fields or {})
        self._server = ModelServer(
            name="the model server",
            url=url,
            key=key,
            timeout=timeout,
            attempts=attempts,
            pause=pause,
            transport=transport,
        )

    def close(self) -> None:
        self._server.close()

    def abort(self) -> None:
        """Break off the requests of other threads, which raise `ServerError`; none succeeds any more."""
        self._server.abort()

    def rollout(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        *,
        n: int = 1,
        seeds: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """Draw `n` samples of every prompt; prompts, seeds and what is returned are as in `rollout`.

        Raises `ValueError` for what no server can be asked, `ServerError` where one gives no samples:
        it does not answer, it refuses, or it leaves out ids or log-probabilities.
        """
        self._check(prompts, parameters, n, seeds)
        firsts = [parameters.seed] * len(prompts) if seeds is None else seeds
        with ThreadPoolExecutor(self._workers) as pool:
            return list(
                pool.map(lambda prompt, first: self._samples(prompt, parameters, n, first), prompts, firsts)
            )

    def _check(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        n: int,
        seeds: Sequence[int] | None,
    ) -> None:
        if n < 1:
            raise ValueError("n must be at least 1")
        if seeds is not None and len(seeds) != len(prompts):
            raise ValueError(f"seeds holds {len(seeds)} numbers for {len(prompts)} prompts")
        if parameters.alternatives is not None:
            raise ValueError("alternatives must be None: a server tells their texts, not their ids")
        free = parameters.temperature == 1 and parameters.top_p == 1 and parameters.top_k == 0
        if self._tells == "model" and not free:
            raise ValueError(
                "the server tells log-probabilities before temperature and filters, so temperature and top_p "
                "must be 1 and top_k 0; or start vLLM with --logprobs-mode processed_logprobs and say "
                "tells='sampler'"
            )

    def _samples(
        self, prompt: Sequence[int], parameters: SamplingParameters, n: int, first: int
    ) -> list[Sample]:
        body: dict[str, Any] = {
            **self._extra_fields,
            "model": self.model,
            "prompt": list(prompt),
            "n": n,
            "seed": first,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "max_tokens": parameters.max_tokens,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if parameters.top_k:
            body["top_k"] = parameters.top_k
        if parameters.stop:
            body["stop"] = list(parameters.stop)
        response = self._server.post("/v1/completions", body)
        try:
            choices = sorted(response.json()["choices"], key=lambda choice: int(choice["index"]))
            samples = [
                self._sample(choice, parameters, (first + number) % (MAX_SEED + 1))
                for number, choice in enumerate(choices)
            ]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ServerError(
                "the model server's answer lacks token ids or their log-probabilities; it must know "
                "return_token_ids, as vLLM from 0.10.2 on does"
            ) from error
        if len(samples) != n:
            raise ServerError(f"the model server gave {len(samples)} samples of {n}")
        return samples

    def _sample(self, choice: Any, parameters: SamplingParameters, seed: int) -> Sample:
        ids = [int(id) for id in choice["token_ids"]]
        values = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        reason = str(choice["finish_reason"])
        if unknown := self._unknown.intersection(ids):
            raise ServerError(
                f"the model server drew the token {min(unknown)}, which the base's tokenizer does not have"
            )
        if reason not in _REASONS:
            raise ServerError(f"the model server broke a sample off ({reason})")
        ended = bool(ids) and ids[-1] in self._ends
        text = TextStream(self._tokenizer, parameters.stop)
        for id in ids[: len(ids) - ended]:
            text.push(id)
            if text.stopped:
                break
        text.finish(complete=ended)
        return Sample(
            tokens=tuple(TokenLogProb(id=id, log_prob=value) for id, value in zip(ids, values, strict=True)),
            text=text.text,
            visible_tokens=text.visible_tokens,
            finish_reason=_REASONS[reason],
            seed=seed,
        )


# ── Rollout servers ──


Request = TypeVar("Request")
Batch = TypeVar("Batch")

_LOOK_SECONDS = 0.1
"""Between two looks at whether the run is to stop."""


class Prefetcher(Generic[Request, Batch]):
    """Draws batches one after the other in a thread of its own, each by the newest policy there is.

    A batch is numbered by the step that learns from it, a policy by the steps that it has taken. A batch is
    asked for `most` steps before its own at the earliest, when the policy of that step is there already: so
    batch − policy is never more than `most`. With 0 nothing is drawn ahead. Close it after use.
    """

    def __init__(self, draw: Callable[[Request, int], Batch], *, most: int) -> None:
        """draw: takes what is asked for and the number of the policy; called in the thread."""
        self._draw = draw
        self._most = most
        self._newest = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead")
        self._futures: dict[int, Future[Batch]] = {}

    def take(
        self,
        step: int,
        make_request: Callable[[int], Request],
        *,
        policy: int,
        last: int,
        stopped: Callable[[], bool],
    ) -> Batch | None:
        """Return the batch of a step, and have the next ones drawn meanwhile; None once `stopped` holds.

        policy: number of the newest one. last: number of steps of the run. Raises what `draw` raised.
        """
        with self._lock:
            self._newest = policy
        for number in range(step, min(step + self._most + 1, last)):
            if number not in self._futures:
                self._futures[number] = self._pool.submit(self._draw_newest, make_request(number))
        future = self._futures[step]
        while not wait([future], timeout=_LOOK_SECONDS).done:
            if stopped():
                return None
        del self._futures[step]
        return future.result()

    def give_up(self) -> None:
        """Begin no further batch; the one that is being drawn goes on until its servers are let go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Wait until the thread has ended."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _draw_newest(self, request: Request) -> Batch:
        with self._lock:
            policy = self._newest
        return self._draw(request, policy)


@dataclass(kw_only=True, slots=True)
class _Server:
    url: str
    remote: RemoteRollout
    """Draws answers."""
    control: ModelServer
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
            control = ModelServer(
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


def _load(control: ModelServer, name: str, folder: Path) -> None:
    try:
        control.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
    except ServerError as error:
        raise ServerError(
            f"{error}: the adapter in {folder} could not be loaded there; vLLM must be started with "
            "--enable-lora, --max-lora-rank of at least the adapter's and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, and see that folder under the same path"
        ) from error


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
        if settings.kind == "vllm" and is_text_part(backbone.folder):
            raise ContractError(
                f"{backbone.folder}: vLLM loads all of a model that also reads images or sound, with other "
                "names for its layers than the adapter has; save its text part by "
                "`python -m training.rlhf.model.text_part FOLDER TARGET` and add that as the base"
            )
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
        self._ahead: Prefetcher[BatchRequest, Drawn] = Prefetcher(self._draw, most=settings.max_staleness)
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
        """Draw a batch, in the thread of `Prefetcher`."""
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
