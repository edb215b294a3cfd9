"""The chat of a prompt, as models see it."""

from collections.abc import Mapping, Sequence
from typing import Any

from annotation.models import Prompt
from training.contract import Message, Passage, with_context


def chat_of(prompt: Prompt) -> list[dict[str, str]]:
    """Return the chat that a model answers: the messages, with the context before the last question.

    Training and scoring build it in the same way.
    """
    return chat_with(prompt.messages, prompt.context)


def chat_with(
    messages: Sequence[Mapping[str, Any]], context: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return messages as a chat, with the context before the last question."""
    chat = with_context(
        [Message(role=turn["role"], content=turn["content"]) for turn in messages],
        [Passage(title=passage["title"], sentences=tuple(passage["sentences"])) for passage in context],
    )
    return [{"role": turn.role, "content": turn.content} for turn in chat]


def system_of(messages: Sequence[Mapping[str, str]]) -> str:
    """Return the system prompt of a chat; empty without one."""
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else ""


def with_system(messages: Sequence[Mapping[str, str]], system: str) -> list[dict[str, str]]:
    """Return a chat with another system prompt; an empty one leaves the chat as it is."""
    chat = [dict(turn) for turn in messages]
    if not system:
        return chat
    return [{"role": "system", "content": system}, *(turn for turn in chat if turn["role"] != "system")]
