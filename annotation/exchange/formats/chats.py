"""The chat that is answered, from all parts of a row that belong to it. Every reader makes its prompt here.

| column       | becomes                                                                              |
|--------------|--------------------------------------------------------------------------------------|
| `system`     | the first message, unless the chat has a system message of its own                    |
| `history`    | earlier turns: a list of [question, answer], or messages                              |
| `prompt`     | a text, a chat, or JSON of a chat                                                     |
| `messages`   | a chat, in place of `prompt`                                                          |
| `input`      | more of a prompt that is a text (Alpaca, LLaMA-Factory): it follows after a line feed |
"""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError, excerpt

PARTS = ("system", "history", "prompt", "messages", "input")


def prompt_of(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the chat of a row, which ends with the user. Raises `FieldError` where there is none."""
    chat = chat_of(row)
    if chat[-1]["role"] != "user":
        name = "prompt" if row.get("prompt") is not None else "messages"
        return fields.prompt(chat, name)
    return chat


def chat_of(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the chat of a row, whoever speaks last. Raises `FieldError` where there is none."""
    name = "prompt" if row.get("prompt") not in (None, "") else "messages"
    value = row.get(name)
    if value is None:
        raise FieldError(
            "field_missing",
            _("The prompt is missing. Say which column is the prompt (--map prompt=COLUMN)."),
            field="prompt",
        )
    chat = fields.messages(value, name)
    if more := fields.optional_text(row.get("input"), "input").strip("\n"):
        if not isinstance(value, str) or len(chat) > 1 or chat[0]["role"] != "user":
            raise FieldError(
                "chat_and_input",
                _("The row also has a chat in %(name)s. Leave one of the two out."),
                field="input",
                name=name,
            )
        chat = [{"role": "user", "content": f"{chat[0]['content']}\n{more}"}]
    return with_system(row.get("system"), [*_history(row.get("history")), *chat])


def with_system(value: Any, chat: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return a chat after its system message; its own one goes before that of another column."""
    system = fields.optional_text(value, "system").strip()
    if not system or chat[0]["role"] == "system":
        return chat
    return [{"role": "system", "content": system}, *chat]


def is_plain(messages: Any) -> bool:
    """True for messages that are texts: a chat in which somebody acts is a trace (`trace_messages`)."""
    return isinstance(messages, list) and not any(map(_acts, messages))


def is_answered(messages: Any) -> bool:
    """True for a plain chat of two messages or more that the assistant ends."""
    last = messages[-1] if isinstance(messages, list) and len(messages) > 1 else None
    role = last.get("role", last.get("from")) if isinstance(last, Mapping) else None
    return role in ("assistant", "gpt", "bot") and is_plain(messages)


def _acts(message: Any) -> bool:
    if not isinstance(message, Mapping):
        return False
    content = message.get("content")
    blocks = content if isinstance(content, list) else ()
    return (
        bool(message.get("tool_calls"))
        or message.get("role") in ("tool", "function")
        or any(isinstance(block, Mapping) and block.get("type", "text") != "text" for block in blocks)
    )


def _history(value: Any) -> list[dict[str, str]]:
    if value in (None, "", [], "[]"):
        return []
    value = fields.listed_in_text(value)
    if not isinstance(value, list):
        raise FieldError(
            "pairs_expected",
            _(
                "A list of [question, answer] is expected, not %(value)s. If it is the whole prompt, map it: "
                "prompt=history."
            ),
            field="history",
            value=excerpt(value),
        )
    chat: list[dict[str, str]] = []
    for number, turn in enumerate(value):
        where = f"history[{number}]"
        if isinstance(turn, dict):
            return fields.messages(value, "history")
        if not isinstance(turn, list) or len(turn) != 2:
            raise FieldError("pairs_expected", _("A pair of question and answer is expected."), field=where)
        question, answer = (fields.text(text, where) for text in turn)
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return chat
