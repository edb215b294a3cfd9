"""What programs sent to models and received, as tools for tracing and evaluation store it: any JSON.

An input is a text, a chat (of OpenAI, LangChain or Open WebUI), or an object with one of them under a name
that says so; an output likewise. What else an object holds is kept as metadata.
"""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import chats, fields
from annotation.exchange.formats.columns import by_name
from annotation.exchange.formats.fields import FieldError, excerpt
from annotation.exchange.formats.tables import prompt_parts

_CHATS = ("messages", "chat_history", "conversation")
_OUTPUTS = (
    *("answer", "output", "response", "completion", "result", "generation", "reply", "prediction"),
    *("text", "content", "expected_output", "reference", "ground_truth", "expected", "label", "message"),
)
_LANGCHAIN = {"human": "user", "ai": "assistant", "system": "system", "HumanMessage": "user"}
_LANGCHAIN |= {"AIMessage": "assistant", "SystemMessage": "system"}


def prompt_in(value: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an input as fields of an item that belong to its prompt, and what else it holds."""
    value = fields.listed_in_text(value)
    if isinstance(value, list):
        return {"messages": fields.prompt(chat_in(value, where), where)}, {}
    if not isinstance(value, dict):
        return {"messages": fields.prompt(value, where)}, {}
    if "role" in value and "content" in value:
        return {"messages": fields.prompt([value], where)}, {}
    rest = dict(value)
    for name in _CHATS:
        if isinstance(value.get(name), list) and value[name]:
            chat = chat_in(rest.pop(name), f"{where}.{name}")
            return {"messages": fields.prompt(chat, f"{where}.{name}")}, rest
    shown, roles = by_name(value)
    if not any(name in shown for name in ("prompt", "messages")):
        texts = [name for name, text in value.items() if isinstance(text, str) and text.strip()]
        if len(texts) != 1:
            raise FieldError(
                "prompt_unclear",
                _("None of these fields alone can be the prompt: %(names)s. Keep one text."),
                field=where,
                names=excerpt(list(value)),
            )
        shown, roles = by_name({"prompt": rest.pop(texts[0])})
    known = ("prompt", "messages", "system", "history", "input", "context", "reference", "tag")
    rest = {name: each for name, each in rest.items() if roles.columns.get(name) not in known}
    return {"messages": chats.prompt_of(shown), **prompt_parts(shown)}, rest


def chat_in(value: list[Any], where: str) -> list[dict[str, str]]:
    """Return a chat whose messages may be those of LangChain, also inside a list of batches."""
    if len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return fields.messages([_message(message) for message in value], where)


def _message(message: Any) -> Any:
    if not isinstance(message, Mapping) or ("role" in message and "content" in message):
        return message
    data = message.get("data", message.get("kwargs", message))
    kind = message.get("type")
    if isinstance(message.get("id"), list) and message["id"]:
        kind = message["id"][-1]
    if kind in _LANGCHAIN and isinstance(data, Mapping):
        return {"role": _LANGCHAIN[str(kind)], "content": data.get("content")}
    return message


def text_in(value: Any, where: str) -> tuple[str, dict[str, Any]]:
    """Return an output as a text, and what else it holds. An output without a text is refused."""
    value = fields.listed_in_text(value)
    if isinstance(value, list) and len(value) == 1:
        return text_in(value[0], f"{where}[0]")
    if not isinstance(value, dict):
        return fields.answer(value, where), {}
    message = _message(value)
    if isinstance(message, dict) and "role" in message and "content" in message:
        return fields.answer(message, where), {}
    for name in ("generations", "choices", "messages"):
        listed = value.get(name)
        if isinstance(listed, list) and listed:
            rest = {key: each for key, each in value.items() if key != name}
            last = listed[-1] if name == "messages" else listed[0]
            return text_in(last, f"{where}.{name}")[0], rest
    name = next((each for each in _OUTPUTS if value.get(each) not in (None, "", {}, [])), "")
    if not name:
        texts = [key for key, each in value.items() if isinstance(each, str) and each.strip()]
        if len(texts) != 1:
            raise FieldError(
                "answer_unclear",
                _("None of these fields alone can be the response: %(names)s. Keep one text."),
                field=where,
                names=excerpt(list(value)),
            )
        name = texts[0]
    rest = {key: each for key, each in value.items() if key != name}
    return text_in(value[name], f"{where}.{name}")[0], rest


def flat(value: Any, name: str) -> dict[str, Any]:
    """Return an object of metadata with its own names; anything else under a name."""
    value = fields.listed_in_text(value)
    if isinstance(value, dict):
        return {str(key): each for key, each in value.items() if each not in (None, "", {}, [])}
    return {} if value in (None, "", []) else {name: value}
