"""The web application's client of model servers: OpenAI's interface, its dialects, and Rondo's extensions.

Sends and reads through `training.model_server`; adds errors for people, the addresses that may be asked, the
server of each checkpoint, and a relay that frees a server at once when its client disconnects.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypedDict, Unpack

import httpx
from django.conf import settings
from django.utils.translation import gettext as _

from annotation.models.webhooks import SealBrokenError
from annotation.services import addresses
from annotation.services.addresses import AddressPolicy, Resolve
from training.model_server import Closing, ModelServer, ServerError, authorization
from training.models import Checkpoint, ModelProvider

# ── Errors: the messages are for people ──


class EngineError(Exception):
    """A failed request to a model server."""

    def __init__(self, message: str, *, status: int | None = None, param: str | None = None) -> None:
        """status: of the server's answer, where there was one. param: the field it blames."""
        super().__init__(message)
        self.status = status
        self.param = param


class EngineUnavailableError(EngineError):
    """It is down, busy, or still loading its model: a later request may succeed."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """retry_after: seconds after which the server accepts another request, if known."""
        super().__init__(message, status=status, param=param)
        self.retry_after = retry_after


class EngineUnknownModelError(EngineError):
    """It does not know the model. It may take a moment to find a new checkpoint."""


# ── Dialects: differences between servers that speak OpenAI's interface ──


_CAN_BE_LEFT_OUT = (
    *("top_k", "seed", "stream_options", "max_tokens", "temperature", "top_p"),
    "truncate_prompt_tokens",
)
"""Fields that a server may not know. OpenAI's newer models rename `max_tokens`, and some of them sample at
one temperature alone."""

_RENAMED = {"max_tokens": "max_completion_tokens"}
_ASKED_WRONGLY = (400, 422)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The request fields that a server is assumed to know."""

    extensions: bool
    """True for Rondo's server: it knows every field, so a refusal is the caller's fault."""

    def body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of a request, without optional fields at their neutral value."""
        body = dict(fields)
        if not self.extensions and not body.get("top_k"):
            # OpenAI's interface has no such field, and servers that have it differ in how it is turned off.
            body.pop("top_k", None)
        return body

    def without(self, body: Mapping[str, Any], refused: frozenset[str]) -> dict[str, Any]:
        """Return the body without the refused field, or with the server's name for it."""
        left = {name: value for name, value in body.items() if name not in refused}
        return left | {_RENAMED[name]: body[name] for name in refused & body.keys() & _RENAMED.keys()}

    def blamed(self, error: EngineError, body: Mapping[str, Any], refused: frozenset[str]) -> str | None:
        """Return the field that a server does not know; None if it has another reason."""
        if self.extensions or error.status not in _ASKED_WRONGLY:
            return None
        for name in _CAN_BE_LEFT_OUT:
            named = error.param == name or re.search(rf"\b{name}\b", str(error))
            if named and name in body and name not in refused and _UNKNOWN.search(str(error)):
                return name
        return None


_UNKNOWN = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|not permitted|extra inputs|forbidden"
    r"|does not support|use 'max_completion_tokens'",
    re.IGNORECASE,
)


RONDO = Dialect(extensions=True)
OPENAI = Dialect(extensions=False)


# ── Results ──


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseState:
    """The state of a base model on the model server."""

    name: str
    state: str
    """`ready`, `asleep`, `failed`, or on its way."""
    message: str
    memory_bytes: int
    waiting: int
    """Requests that have not begun."""
    in_flight: int
    """Requests that it has, waiting or in progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """The state of a model server."""

    ready: bool
    message: str
    progress: float | None = None
    """Share of the loading that is done, 0 to 1, if known."""
    bases: tuple[BaseState, ...] = ()
    """Of each base model; none where the server has one alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A completion from the model server."""

    text: str
    finish_reason: str
    seed: int | None
    token_count: int | None
    prompt_tokens: int | None = None
    """Number of tokens in the prompt, if the server reports it and one answer was requested."""
    ignored: tuple[str, ...] = ()
    """Request fields that the server does not know; they had no effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamDelta:
    """The next piece of a streamed answer. The last has no text but the finish reason."""

    text: str = ""
    finish_reason: str | None = None
    token_count: int | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentScore:
    """The score of one segment of an answer by one head of a reward model."""

    start: int
    end: int
    """[start, end) of the answer's text, in code points."""
    reward: float
    """Log-odds that the segment is faultless."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """All scores of a reward model for the completions of one chat, in their order."""

    scores: tuple[float, ...]
    """The score of each completion, higher is better; empty where the model has no such head."""
    heads: Mapping[str, tuple[tuple[float, ...], ...]]
    """By head on whole answers: for each completion its outputs (the members of an ensemble, ratings)."""
    segments: Mapping[str, tuple[tuple[SegmentScore, ...], ...]]
    """By head on segments: for each completion its segments in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenKl:
    """The divergence of a policy from its reference at each token of an answer."""

    tokens: tuple[str, ...]
    kl: tuple[float, ...]
    """Per token log π − log π_ref: its mean over sampled answers estimates the KL divergence (k1)."""
    offsets: tuple[tuple[int, int], ...]
    """[start, end) of each token in the answer's text, in code points."""


# ── Streams ──


def deltas(chunks: Iterable[Mapping[str, Any]], *, seed: int | None) -> Iterator[StreamDelta]:
    """Yield the pieces of a streamed chat's only choice; the last has the finish reason.

    seed: the requested one, used where the server reports none. Some servers count the tokens in the choice's
    last chunk, others in a separate chunk after it.
    """
    reason, counted = None, None
    for chunk in chunks:
        if "error" in chunk:
            raise EngineUnavailableError(_message(chunk["error"]))
        for choice in chunk.get("choices") or ():
            if int(choice.get("index", 0)) != 0:
                continue
            if text := (choice.get("delta") or {}).get("content"):
                yield StreamDelta(text=str(text))
            reason = choice.get("finish_reason") or reason
            counted = choice.get("token_count", counted)
            seed = choice.get("seed", seed)
        counted = counted if counted is not None else (chunk.get("usage") or {}).get("completion_tokens")
    if reason is None:
        raise EngineUnavailableError(_("The model server broke off in the middle of its answer."))
    yield StreamDelta(finish_reason=str(reason), token_count=counted, seed=seed)


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or "The model server failed in the middle of its answer.")


# ── Client ──


ANSWER_SECONDS = 300.0
"""Longest time of one request; a CPU that is shared with a trainer is slow."""

Messages = Sequence[Mapping[str, str]]


class Sampling(TypedDict, total=False):
    """Sampling settings of a request; `_SAMPLING` has the defaults."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int


_CONTINUING = {"add_generation_prompt": False, "continue_final_message": True}
"""Never left out for a server that refuses them: it would answer with another message."""

_SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=256)


class Engine(Closing):
    """A client of one model server. Safe to use from several threads; close it after use."""

    def __init__(
        self,
        *,
        url: str | None = None,
        key: str | None = None,
        timeout: float = ANSWER_SECONDS,
        transport: httpx.BaseTransport | None = None,
        names: Mapping[str, str] | None = None,
        dialect: Dialect = RONDO,
    ) -> None:
        """url: without `/v1`; none is our own server. key: none is that of our own server, "" sends none.

        timeout: seconds. names: what the server calls models that are called otherwise here.
        """
        key = settings.RONDO_MODEL_SERVER_KEY if key is None else key
        self._server = ModelServer(
            url=url or settings.RONDO_MODEL_SERVER_URL,
            key=key,
            timeout=timeout,
            connect_timeout=3.0 if dialect is RONDO else 10.0,
            transport=transport,
            # It would bypass the check of addresses.
            use_proxy=False,
        )
        self._names = dict(names or {})
        self._dialect = dialect
        self._refused: frozenset[str] = frozenset()

    def close(self) -> None:
        self._server.close()

    def health(self, *, timeout: float = 2.0) -> Health:
        """Return the server's health. Never raises."""
        if self._dialect is OPENAI:
            return self._health_by_models(timeout)
        try:
            response = self._server.send("GET", "/health", timeout=timeout, any_status=True)
            result = response.json()
        except (ServerError, ValueError):
            return Health(ready=False, message="it does not answer and may be starting")
        state = str(result.get("state", ""))
        progress = result.get("progress")
        return Health(
            ready=response.is_success and state in ("ready", "ok"),
            message=str(result.get("message") or state),
            progress=float(progress) if isinstance(progress, int | float) else None,
            bases=tuple(map(_base_state, result.get("bases") or ())),
        )

    def _health_by_models(self, timeout: float) -> Health:
        try:
            self._ask("GET", "/v1/models", timeout=timeout)
        except EngineError as error:
            return Health(ready=False, message=str(error))
        return Health(ready=True, message="ready")

    def models(self) -> list[str]:
        """Return the names of the server's models."""
        return [str(model["id"]) for model in self._ask("GET", "/v1/models")["data"]]

    def complete(
        self,
        *,
        model: str,
        messages: Messages,
        seed: int,
        n: int = 1,
        prefix: str = "",
        **sampling: Unpack[Sampling],
    ) -> list[Answer]:
        """Return `n` answers to a chat. The first is drawn with `seed`, every other with its own.

        With a `prefix` each answer is what follows it: Rondo's server and vLLM continue a last message of the
        assistant. `EngineError` where the server refuses to.

        Other servers may know neither `top_k` nor seeds: a field that they refuse by name is left out and
        listed in each answer's `ignored`.
        """
        if prefix:
            messages = [*messages, {"role": "assistant", "content": prefix}]
        body = self._body(model, messages, seed, n, sampling) | (_CONTINUING if prefix else {})
        result = self._ask_adapting("/v1/chat/completions", body)
        choices = sorted(result["choices"], key=lambda choice: int(choice["index"]))
        usage = result.get("usage") or {}
        ignored = tuple(sorted(self._refused & body.keys()))
        alone = n == 1
        return [
            _answer(choice, seed if alone else None, usage if alone else {}, ignored) for choice in choices
        ]

    def stream(
        self,
        *,
        model: str,
        messages: Messages,
        seed: int,
        seconds: float | None = None,
        **sampling: Unpack[Sampling],
    ) -> Generator[StreamDelta, None, None]:
        """Stream one answer to a chat; closing the iterator cancels it.

        seconds: limit for the whole answer, after which it raises `EngineUnavailableError`.
        """
        body = self._body(model, messages, seed, 1, sampling)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        response = self._open_adapting("/v1/chat/completions", body, seconds)
        try:
            with self._phrased(seconds):
                yield from deltas(self._server.events(response, seconds=seconds), seed=seed)
        finally:
            response.close()

    def score(self, *, model: str, messages: Messages, completions: Sequence[str]) -> list[float]:
        """Return a reward model's score of each completion, higher is better. Rondo's server only."""
        result = self._ask("POST", "/v1/score", self._scored(model, messages, completions))
        return [float(score) for score in result["scores"]]

    def scores_of_heads(self, *, model: str, messages: Messages, completions: Sequence[str]) -> Scores:
        """Return the scores of every head of a reward model for each completion. Rondo's server only."""
        result = self._ask("POST", "/v1/score", self._scored(model, messages, completions) | {"heads": True})
        return Scores(
            scores=tuple(map(float, result["scores"])),
            heads={
                head: tuple(tuple(map(float, outputs)) for outputs in of_completions)
                for head, of_completions in result["heads"].items()
            },
            segments={
                head: tuple(tuple(SegmentScore(**reward) for reward in rewards) for rewards in of_completions)
                for head, of_completions in result["segments"].items()
            },
        )

    def embed(self, *, model: str, texts: Sequence[str], most_tokens: int) -> list[list[float]]:
        """Return a vector of each text, in their order. The last `most_tokens` of each are read, by servers
        that can be asked for that."""
        body = {"model": self._names.get(model, model), "input": list(texts)}
        result = self._ask_adapting("/v1/embeddings", {**body, "truncate_prompt_tokens": most_tokens})
        try:
            rows = sorted(result["data"], key=lambda row: int(row["index"]))
            vectors = [[float(value) for value in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError):
            raise EngineError(_("The model server's answer holds no embeddings.")) from None
        if len(vectors) != len(texts) or len(set(map(len, vectors))) > 1:
            raise EngineError(_("The model server's answer holds no embeddings."))
        return vectors

    def token_kl(
        self, *, model: str, messages: Messages, completion: str, reference: str | None = None
    ) -> TokenKl:
        """Return the divergence of `model` from `reference` (default: its base) per token. Rondo's server
        only."""
        body: dict[str, Any] = {
            "model": model,
            "messages": [dict(message) for message in messages],
            "completion": completion,
        }
        result = self._ask("POST", "/v1/kl", body | ({"reference": reference} if reference else {}))
        return TokenKl(
            tokens=tuple(map(str, result["tokens"])),
            kl=tuple(map(float, result["kl"])),
            offsets=tuple((int(start), int(end)) for start, end in result["offsets"]),
        )

    # ── Bodies ────────────────────────────────────────────────────────────────────────

    def _body(self, model: str, messages: Messages, seed: int, n: int, sampling: Sampling) -> dict[str, Any]:
        return self._dialect.body(
            {
                "model": self._names.get(model, model),
                "messages": [dict(message) for message in messages],
                "n": n,
                "seed": seed,
                **_SAMPLING,
                **sampling,
            }
        )

    @staticmethod
    def _scored(model: str, messages: Messages, completions: Sequence[str]) -> dict[str, Any]:
        return {
            "model": model,
            "messages": [dict(message) for message in messages],
            "completions": list(completions),
        }

    # ── Requests ──────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        with self._phrased():
            return self._server.ask(method, path, body, timeout=timeout)

    def _ask_adapting(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request, and repeat it without fields that another server does not know."""
        while True:
            try:
                return self._ask("POST", path, self._dialect.without(body, self._refused))
            except EngineError as error:
                self._take_back(error, body)

    def _open_adapting(self, path: str, body: Mapping[str, Any], seconds: float | None) -> httpx.Response:
        while True:
            known = self._dialect.without(body, self._refused)
            try:
                with self._phrased():
                    return self._server.send("POST", path, known, stream=True, timeout=seconds)
            except EngineError as error:
                self._take_back(error, body)

    def _take_back(self, error: EngineError, body: Mapping[str, Any]) -> None:
        """Record the field that the server does not know. Raises the error if it has another cause."""
        field = self._dialect.blamed(error, body, self._refused)
        if field is None:
            raise error
        self._refused |= {field}

    @contextmanager
    def _phrased(self, seconds: float | None = None) -> Iterator[None]:
        """Raise the `EngineError` of a `ServerError`, for people. seconds: limit of a stream."""
        try:
            yield
        except ServerError as error:
            raise _engine_error(error, url=str(self._server.url), seconds=seconds) from None


def _engine_error(error: ServerError, *, url: str, seconds: float | None) -> EngineError:
    match error.failure:
        case "refused":
            return _refusal(error)
        case "timeout":
            return EngineUnavailableError(_("The model server took too long to answer."))
        case "silent":
            return EngineUnavailableError(
                _("The model server does not answer at %(url)s; it may be starting.") % {"url": url}
            )
        case "too long":
            return EngineUnavailableError(
                _("The answer took longer than %(seconds)g seconds.") % {"seconds": seconds}
            )
        case "cut off":
            return EngineUnavailableError(_("The model server broke off in the middle of its answer."))
        case "not JSON":
            return EngineError(_("The model server's answer is not JSON."), status=error.status)
        case _:
            return EngineError(_("The model server streams something that is no answer."))


def _refusal(error: ServerError) -> EngineError:
    """Return the error for an unsuccessful status."""
    status = error.status or 500
    message = error.server_message or f"The model server answered with status {status}."
    if status == 404:
        return EngineUnknownModelError(message, status=status, param=error.param)
    if status in (408, 429) or status >= 500:
        return EngineUnavailableError(
            message, status=status, param=error.param, retry_after=error.retry_after
        )
    return EngineError(message, status=status, param=error.param)


def _answer(
    choice: Mapping[str, Any], seed: int | None, usage: Mapping[str, Any], ignored: tuple[str, ...]
) -> Answer:
    own_seed = choice.get("seed", seed)
    tokens = choice.get("token_count", usage.get("completion_tokens"))
    return Answer(
        text=str(choice["message"]["content"] or ""),
        finish_reason=str(choice.get("finish_reason") or ""),
        seed=int(own_seed) if own_seed is not None else None,
        token_count=int(tokens) if tokens is not None else None,
        prompt_tokens=int(usage["prompt_tokens"]) if usage.get("prompt_tokens") is not None else None,
        ignored=ignored,
    )


def _base_state(entry: Mapping[str, Any]) -> BaseState:
    return BaseState(
        name=str(entry.get("name", "")),
        state=str(entry.get("state", "")),
        message=str(entry.get("message", "")),
        memory_bytes=int(entry.get("memory_bytes") or 0),
        waiting=int(entry.get("waiting") or 0),
        in_flight=int(entry.get("in_flight") or 0),
    )


# ── Addresses ──


class AddressError(EngineError):
    """An address that is refused. The message says why and what to do."""


_MODEL_SERVERS = AddressPolicy(setting="RONDO_MODEL_SERVER_HOSTS", what="server", error=AddressError)


def check_url(url: str) -> None:
    """Raise `AddressError` for a URL that cannot be another model server's (`Policy.check_url`)."""
    _MODEL_SERVERS.check_url(url)


class ModelServerTransport(addresses.GuardedTransport):
    """Transport that connects only to public internet hosts and those of RONDO_MODEL_SERVER_HOSTS."""

    def __init__(self, *, inner: httpx.BaseTransport | None = None, resolve: Resolve | None = None) -> None:
        super().__init__(_MODEL_SERVERS, inner=inner, resolve=resolve)


class AsyncModelServerTransport(addresses.AsyncGuardedTransport):
    """`ModelServerTransport` for an event loop."""

    def __init__(
        self, *, inner: httpx.AsyncBaseTransport | None = None, resolve: Resolve | None = None
    ) -> None:
        super().__init__(_MODEL_SERVERS, inner=inner, resolve=resolve)


# ── Servers ──


KEY_NAME = re.compile(r"RONDO_SERVER_KEY_[A-Z0-9_]{1,80}")
"""Allowed names of a variable with another server's key. Any other name would let a user who may add a server
send it any secret of the environment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """Another server that answers for a checkpoint."""

    url: str
    """Without `/v1`."""
    model: str
    """The server's name for the checkpoint."""
    key: str
    """Empty if none is needed. Never stored, logged or shown."""


def upstream_of(checkpoint: Checkpoint) -> Upstream | None:
    """Return the server in a checkpoint's record; None for Rondo's.

    Raises `EngineError` if the variable with its key is not set.
    """
    if not checkpoint.server_url:
        return None
    check_url(checkpoint.server_url)
    return Upstream(
        url=base_of(checkpoint.server_url),
        model=checkpoint.server_model or checkpoint.name,
        key=key_of(checkpoint.server_key, provider=checkpoint.provider),
    )


def key_of(variable: str, *, provider: ModelProvider | None = None) -> str:
    """Return the key of a provider, else the one in an environment variable; "" for an empty name.

    Raises `EngineError` if the variable is not set or its name is not allowed for server keys, and if the
    provider's key was sealed with a secret key that is gone.
    """
    if provider is not None:
        try:
            return provider.key
        except SealBrokenError:
            raise EngineError(
                _(
                    "The key of %(provider)s cannot be read, because Rondo's secret key has changed. "
                    "Write the provider's key again."
                )
                % {"provider": provider}
            ) from None
    if not variable:
        return ""
    if not KEY_NAME.fullmatch(variable):
        raise EngineError(
            _("%(variable)s is no variable for a server's key. Its name must begin with RONDO_SERVER_KEY_.")
            % {"variable": variable}
        )
    if not (key := os.environ.get(variable, "").strip()):
        raise EngineError(
            _(
                "The variable %(variable)s, which holds the server's key, is not set. Set it for "
                "the web server and the workers, and start them again."
            )
            % {"variable": variable}
        )
    return key


def base_of(url: str) -> str:
    """Return a server's address without the `/v1` that OpenAI's clients expect at its end."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def engine_for(checkpoint: Checkpoint, *, timeout: float = ANSWER_SECONDS) -> Engine:
    """Return a client of a checkpoint's server, which knows the checkpoint by its name in Rondo.

    Close it after use. Raises `AddressError` or `EngineError` if its server cannot be used.
    """
    upstream = upstream_of(checkpoint)
    if upstream is None:
        return Engine(timeout=timeout)
    return Engine(
        url=upstream.url,
        key=upstream.key,
        timeout=timeout,
        transport=ModelServerTransport(),
        names={checkpoint.name: upstream.model},
        dialect=OPENAI,
    )


class Engines(Closing):
    """Clients of all servers that a task uses, each created once and all closed at its end."""

    def __init__(self, rondo_engine: Engine | None = None) -> None:
        """rondo_engine: the client of Rondo's server; a supplied one is not closed here."""
        self._own = rondo_engine
        self._made: dict[int | None, Engine] = {}

    def of(self, checkpoint: Checkpoint) -> Engine:
        """Return the client of a checkpoint's server."""
        if not checkpoint.server_url and self._own is not None:
            return self._own
        key = checkpoint.pk if checkpoint.server_url else None
        if key not in self._made:
            self._made[key] = engine_for(checkpoint)
        return self._made[key]

    def close(self) -> None:
        while self._made:
            self._made.popitem()[1].close()


# ── Relay ──
#
# A thread that waits in a read cannot be woken; a task of an event loop can be cancelled, which closes the
# connection. So one thread per process runs a loop with all connections, and the web server's threads read
# from queues and check regularly that their client is still connected.


LOOK_SECONDS = 0.5
"""Interval between checks for the client while the server is silent."""


class ClientGoneError(Exception):
    """The client closed its connection, so the answer is not needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Status and headers of a server's answer."""

    status: int
    headers: Mapping[str, str]


_Event = Head | bytes | EngineError | None
"""The beginning, then pieces of the body, then None; an error ends it at any time."""


class Exchange:
    """A relayed request. Read `head`, then iterate over it; always close it."""

    def __init__(self, is_gone: Callable[[], bool]) -> None:
        self._is_gone = is_gone
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._task: Future[None] | None = None

    def head(self) -> Head:
        """Return the answer's head. Raises `EngineError`, or `ClientGoneError` if the client disconnected."""
        event = self._next()
        if not isinstance(event, Head):
            raise EngineUnavailableError(_("The model server gave no answer."))
        return event

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next piece of the body. Raises as `head` does."""
        event = self._next()
        if isinstance(event, bytes):
            return event
        raise StopIteration

    def close(self) -> None:
        """Cancel the request if it is still running, closing its connection."""
        if self._task is not None:
            self._task.cancel()

    def _next(self) -> _Event:
        while True:
            try:
                event = self._events.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if self._is_gone():
                    self.close()
                    raise ClientGoneError from None
                continue
            if isinstance(event, EngineError):
                raise event
            return event


class Relay:
    """The loop's thread and its clients. Safe to use from several threads."""

    def __init__(
        self,
        *,
        plain: httpx.AsyncBaseTransport | None = None,
        guarded: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._plain = httpx.AsyncClient(transport=plain, trust_env=False)
        self._guarded = httpx.AsyncClient(transport=guarded or AsyncModelServerTransport(), trust_env=False)
        threading.Thread(target=self._loop.run_forever, name="relay", daemon=True).start()

    def post(
        self,
        *,
        url: str,
        key: str,
        body: bytes,
        seconds: float,
        guarded: bool,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Exchange:
        """Relay a JSON body. seconds: for the whole answer. guarded: check the host's addresses first."""
        exchange = Exchange(is_gone)
        headers = {"Content-Type": "application/json"} | authorization(key)
        client = self._guarded if guarded else self._plain
        request = client.build_request(
            "POST", url, content=body, headers=headers, timeout=httpx.Timeout(seconds, connect=10.0)
        )
        exchange._task = asyncio.run_coroutine_threadsafe(
            _pass_on(client, request, exchange._events.put, seconds), self._loop
        )
        return exchange


async def _pass_on(
    client: httpx.AsyncClient, request: httpx.Request, put: Callable[[_Event], None], seconds: float
) -> None:
    try:
        async with asyncio.timeout(seconds):
            response = await client.send(request, stream=True)
            try:
                put(Head(status=response.status_code, headers=dict(response.headers)))
                async for piece in response.aiter_bytes():
                    put(piece)
                put(None)
            finally:
                await response.aclose()
    except (TimeoutError, httpx.TimeoutException):
        put(
            EngineUnavailableError(
                _("The answer took longer than %(seconds)g seconds.") % {"seconds": seconds}, status=504
            )
        )
    except httpx.HTTPError:
        put(EngineUnavailableError(_("The model server does not answer; it may be starting."), status=503))
    except AddressError as error:
        put(error)


@cache
def relay() -> Relay:
    """Return the relay of this process, created on first use: a loop does not survive a fork."""
    return Relay()
