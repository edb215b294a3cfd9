"""Context passages as part of a prompt's chat."""

from __future__ import annotations

from collections.abc import Sequence

from annotation.record.base import ContractError
from training.contract.snapshot import Message, Passage


def with_context(messages: Sequence[Message], context: Sequence[Passage]) -> list[Message]:
    """Return the chat with its context passages before the text of the last user message."""
    if not context:
        return list(messages)
    passages = "\n\n".join(f"{passage.title}\n{' '.join(passage.sentences)}".strip() for passage in context)
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=None)
    if last is None:
        raise ContractError("the prompt has context but no user message to put it before")
    question = Message(role="user", content=f"{passages}\n\n{messages[last].content}")
    return [*messages[:last], question, *messages[last + 1 :]]
