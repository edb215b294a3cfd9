"""Talks to the model server over HTTP: the OpenAI interface, a score and a health address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx
from django.conf import settings

ANSWER_SECONDS = 300.0
"""How long one request may take; a CPU that is shared with a trainer is slow."""


class EngineError(Exception):
    """The model server did not do what was asked. The message is for people."""


class EngineUnavailableError(EngineError):
    """It is down, or still loads its model: asking again later may help."""


class EngineUnknownModelError(EngineError):
    """It does not know the model. A new checkpoint may take it a moment to find."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """What the model server says of itself."""

    ready: bool
    message: str
    progress: float | None = None
    """Share of the loading that is done, 0 to 1, where that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One completion as the model server gave it."""

    text: str
    finish_reason: str
    seed: int | None
    token_count: int | None


class Engine:
    """A client of one model server. Safe to use from several threads; close it after use."""

    def __init__(
        self,
        *,
        url: str | None = None,
        key: str | None = None,
        timeout: float = ANSWER_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._client = httpx.Client(
            base_url=url or settings.RONDO_MODEL_SERVER_URL,
            headers={"Authorization": f"Bearer {key or settings.RONDO_MODEL_SERVER_KEY}"},
            timeout=httpx.Timeout(timeout, connect=3.0),
            transport=transport,
            # A proxy of the environment has no business with a server on this machine.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def health(self, *, timeout: float = 2.0) -> Health:
        """Whether the server can answer, in its own words. Never raises."""
        try:
            response = self._client.get("/health", timeout=timeout)
            told = response.json()
        except (httpx.HTTPError, ValueError):
            return Health(ready=False, message="it does not answer and may be starting")
        state = str(told.get("state", ""))
        progress = told.get("progress")
        return Health(
            ready=response.is_success and state in ("ready", "ok"),
            message=str(told.get("message") or state),
            progress=float(progress) if isinstance(progress, int | float) else None,
        )

    def models(self) -> list[str]:
        """Names of the models that the server answers for."""
        return [str(model["id"]) for model in self._ask("GET", "/v1/models")["data"]]

    def complete(
        self,
        *,
        model: str,
        messages: Sequence[Mapping[str, str]],
        seed: int,
        n: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        max_tokens: int = 256,
    ) -> list[Answer]:
        """`n` answers to a chat. The first is drawn with `seed`, every other with a seed of its own."""
        told = self._ask(
            "POST",
            "/v1/chat/completions",
            {
                "model": model,
                "messages": [dict(message) for message in messages],
                "n": n,
                "seed": seed,
                "temperature": temperature,
                "top_p": top_p,
                "top_k": top_k,
                "max_tokens": max_tokens,
            },
        )
        choices = sorted(told["choices"], key=lambda choice: int(choice["index"]))
        usage = told.get("usage") or {}
        return [_answer(choice, seed if n == 1 else None, usage if n == 1 else {}) for choice in choices]

    def score(
        self, *, model: str, messages: Sequence[Mapping[str, str]], completions: Sequence[str]
    ) -> list[float]:
        """A reward model's score of each completion of one chat, higher is better."""
        told = self._ask(
            "POST",
            "/v1/score",
            {"model": model, "messages": [dict(m) for m in messages], "completions": list(completions)},
        )
        return [float(score) for score in told["scores"]]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.TimeoutException:
            raise EngineUnavailableError("The model server took too long to answer.") from None
        except httpx.HTTPError:
            raise EngineUnavailableError(
                f"The model server does not answer at {self._client.base_url}; it may be starting."
            ) from None
        if response.is_success:
            return response.json()
        message = _message_of(response)
        if response.status_code == 404:
            raise EngineUnknownModelError(message)
        if response.status_code in (408, 429) or response.status_code >= 500:
            raise EngineUnavailableError(message)
        raise EngineError(message)


def _answer(choice: Mapping[str, Any], seed: int | None, usage: Mapping[str, Any]) -> Answer:
    own_seed = choice.get("seed", seed)
    tokens = choice.get("token_count", usage.get("completion_tokens"))
    return Answer(
        text=str(choice["message"]["content"] or ""),
        finish_reason=str(choice.get("finish_reason") or ""),
        seed=int(own_seed) if own_seed is not None else None,
        token_count=int(tokens) if tokens is not None else None,
    )


def _message_of(response: httpx.Response) -> str:
    """What the server said went wrong: OpenAI's error object, or a message, or the status."""
    try:
        told = response.json()
        error = told.get("error", told)
        message = error.get("message") if isinstance(error, Mapping) else error
    except (ValueError, AttributeError):
        message = None
    return str(message) if message else f"The model server answered with status {response.status_code}."
