"""Client of one model server: the OpenAI interface, and the extensions of Rondo's server."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack

import httpx
from django.conf import settings
from django.utils.translation import gettext as _

from training.engine.dialect import OPENAI, RONDO, Dialect
from training.engine.errors import EngineError, EngineUnavailableError, EngineUnknownModelError
from training.engine.results import Answer, BaseState, Delta, Health, Scores, SegmentScore, TokenKl
from training.engine.streams import deltas, events

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


class Engine:
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
        self._client = httpx.Client(
            base_url=url or settings.RONDO_MODEL_SERVER_URL,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=3.0 if dialect is RONDO else 10.0),
            transport=transport,
            # No proxy of the environment: it would bypass the check of addresses.
            trust_env=False,
        )
        self._names = dict(names or {})
        self._dialect = dialect
        self._refused: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def health(self, *, timeout: float = 2.0) -> Health:
        """Return the server's health. Never raises."""
        if self._dialect is OPENAI:
            return self._health_by_models(timeout)
        try:
            response = self._client.get("/health", timeout=timeout)
            result = response.json()
        except (httpx.HTTPError, ValueError):
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
    ) -> Generator[Delta, None, None]:
        """Stream one answer to a chat; closing the iterator cancels it.

        seconds: limit for the whole answer, after which it raises `EngineUnavailableError`.
        """
        body = self._body(model, messages, seed, 1, sampling)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        response = self._open_adapting("/v1/chat/completions", body, seconds)
        try:
            yield from deltas(events(self._lines(response, seconds)), seed=seed)
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
        response = self._send(method, path, body, timeout=timeout)
        try:
            return response.json()
        except ValueError:
            raise EngineError(
                _("The model server's answer is not JSON."), status=response.status_code
            ) from None

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
                return self._send("POST", path, known, stream=True, timeout=seconds)
            except EngineError as error:
                self._take_back(error, body)

    def _take_back(self, error: EngineError, body: Mapping[str, Any]) -> None:
        """Record the field that the server does not know. Raises the error if it has another cause."""
        field = self._dialect.blamed(error, body, self._refused)
        if field is None:
            raise error
        self._refused |= {field}

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        stream: bool = False,
        timeout: float | None = None,
    ) -> httpx.Response:
        request = self._client.build_request(method, path, json=body, timeout=timeout or self._client.timeout)
        try:
            response = self._client.send(request, stream=stream)
            if stream and not response.is_success:
                response.read()
        except httpx.TimeoutException:
            raise EngineUnavailableError(_("The model server took too long to answer.")) from None
        except httpx.HTTPError:
            raise EngineUnavailableError(
                _("The model server does not answer at %(url)s; it may be starting.")
                % {"url": self._client.base_url}
            ) from None
        if not response.is_success:
            raise _refusal(response)
        return response

    def _lines(self, response: httpx.Response, seconds: float | None) -> Iterator[str]:
        until = None if seconds is None else time.monotonic() + seconds
        try:
            for line in response.iter_lines():
                if until is not None and time.monotonic() > until:
                    raise EngineUnavailableError(
                        _("The answer took longer than %(seconds)g seconds.") % {"seconds": seconds}
                    )
                yield line
        except httpx.HTTPError:
            raise EngineUnavailableError(
                _("The model server broke off in the middle of its answer.")
            ) from None


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


def _refusal(response: httpx.Response) -> EngineError:
    """Return the error for an unsuccessful status."""
    message, param = _error_of(response)
    status = response.status_code
    if status == 404:
        return EngineUnknownModelError(message, status=status, param=param)
    if status in (408, 429) or status >= 500:
        return EngineUnavailableError(
            message, status=status, param=param, retry_after=_seconds(response.headers.get("Retry-After"))
        )
    return EngineError(message, status=status, param=param)


def _error_of(response: httpx.Response) -> tuple[str, str | None]:
    """Return the server's error message: OpenAI's error object, or a message, or the status."""
    if response.is_redirect:
        return "The model server answers with a redirect, which is not followed.", None
    message, param = None, None
    try:
        result = response.json()
        error = result.get("error", result)
        if isinstance(error, Mapping):
            message, param = error.get("message"), error.get("param")
        else:
            message = error
    except (ValueError, AttributeError):
        message = None
    text = str(message) if message else f"The model server answered with status {response.status_code}."
    return text, str(param) if param else None


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:
        return None


def _base_state(entry: Mapping[str, Any]) -> BaseState:
    return BaseState(
        name=str(entry.get("name", "")),
        state=str(entry.get("state", "")),
        message=str(entry.get("message", "")),
        memory_bytes=int(entry.get("memory_bytes") or 0),
        waiting=int(entry.get("waiting") or 0),
        in_flight=int(entry.get("in_flight") or 0),
    )
