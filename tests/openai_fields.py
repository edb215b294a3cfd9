"""Fields of requests as the `openai` package knows them, for tests of both OpenAI-compatible servers."""

from __future__ import annotations

from typing import Any, get_type_hints

from openai.types import completion_create_params
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionMessage,
    ChatCompletionSystemMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)

_MESSAGES = {
    "developer": ChatCompletionDeveloperMessageParam,
    "system": ChatCompletionSystemMessageParam,
    "user": ChatCompletionUserMessageParam,
    "assistant": ChatCompletionAssistantMessageParam,
}


def _names(kind: Any) -> set[str]:
    return set(get_type_hints(kind))


CHAT_FIELDS = sorted(_names(chat_create_params.CompletionCreateParamsNonStreaming) - {"messages", "model"})
COMPLETION_FIELDS = sorted(
    _names(completion_create_params.CompletionCreateParamsNonStreaming) - {"prompt", "model"}
)


def chat_of_nulls() -> list[Any]:
    """Return a chat of every role whose messages hold every field of the package, all as null but two."""
    messages = []
    for role, kind in _MESSAGES.items():
        names = _names(kind)
        if role == "assistant":
            names |= set(ChatCompletionMessage.model_fields)
        messages.append({**dict.fromkeys(sorted(names)), "role": role, "content": f"a turn of the {role}"})
    return [*messages, {"role": "user", "content": "why?"}]
