"""Server-sent events of a streamed answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _

from training.engine.errors import EngineError, EngineUnavailableError
from training.engine.results import Delta

_END = "[DONE]"


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream. Raises `EngineUnavailableError` if it breaks off."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            text, data = "\n".join(data), []
            if text == _END:
                return
            yield _object(text)
    raise EngineUnavailableError(_("The model server broke off in the middle of its answer."))


def deltas(chunks: Iterable[Mapping[str, Any]], *, seed: int | None) -> Iterator[Delta]:
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
                yield Delta(text=str(text))
            reason = choice.get("finish_reason") or reason
            counted = choice.get("token_count", counted)
            seed = choice.get("seed", seed)
        counted = counted if counted is not None else (chunk.get("usage") or {}).get("completion_tokens")
    if reason is None:
        raise EngineUnavailableError(_("The model server broke off in the middle of its answer."))
    yield Delta(finish_reason=str(reason), token_count=counted, seed=seed)


def _object(text: str) -> dict[str, Any]:
    try:
        chunk = json.loads(text)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise EngineError(_("The model server streams something that is no answer."))
    return chunk


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or "The model server failed in the middle of its answer.")
