"""Single values of a row: checked, or refused with the field and what to do.

Every reader of a format stands on these, so that the same fault is told in the same words.
"""

import ast
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from annotation.text.chat import MOST_TURNS

_LONGEST_WORDS = 1_000
"""Characters of a message: a name of the file may be megabytes long."""
ROLES = ("system", "user", "assistant")
_ROLES = {"human": "user", "prompter": "user", "gpt": "assistant", "bot": "assistant", "developer": "system"}
"""Names of roles in other formats → ours."""
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


class FieldError(ValueError):
    """A row that cannot be taken: the field that is wrong, and what to do."""

    def __init__(self, field: str | None, remedy: str) -> None:
        field, remedy = field and _printable(field), _printable(remedy)
        super().__init__(f"field {field}: {remedy}" if field else remedy)
        self.field = field


def _printable(words: str) -> str:
    """The words with what no page and no database can hold spelled out, and cut off where they are long."""
    clean = words.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    return clean if len(clean) <= _LONGEST_WORDS else f"{clean[:_LONGEST_WORDS]}…"


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, for a message to a person."""
    return _KINDS.get(type(value), type(value).__name__)


def text(value: Any, where: str, *, empty: bool = False) -> str:
    """A text that can be stored. Refuses another kind, NUL, half a surrogate pair, and nothing but space."""
    if not isinstance(value, str):
        raise FieldError(where, f"a text is expected, not {kind_of(value)}")
    # Cheap questions first: an import asks them of every text.
    if not empty and (not value or value.isspace()):
        raise FieldError(where, "is empty; write a text or take the field away")
    if "\x00" in value:
        raise FieldError(
            where, f"character {value.index(chr(0))} is NUL, which cannot be stored; take it out"
        )
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            where,
            f"character {error.start} is half a surrogate pair (\\u{ord(value[error.start]):04x}); "
            "write both halves or the character itself",
        ) from None
    return value


def optional_text(value: Any, where: str) -> str:
    """A text, or "" for null and for what is not there."""
    return "" if value is None else text(value, where, empty=True)


def items_of(value: Any, where: str) -> list[Any]:
    """A list; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise FieldError(where, f"a list is expected, not {kind_of(value)}")
    return value


def object_of(value: Any, where: str) -> Mapping[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise FieldError(where, f"an object is expected, not {kind_of(value)}")
    return value


def whole_number(value: Any, where: str) -> int:
    """A whole number; one that a table wrote as 3.0 is 3."""
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise FieldError(where, f"a whole number is expected, not {kind_of(value)} ({str(value)[:40]!r})")


def number(value: Any) -> Any:
    """Return a number that a table holds as a text; anything else stays as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def truth(value: Any, where: str) -> bool:
    """True or false, also as 1 and 0, and as the words of a table."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in ("1", "1.0", "true", "yes", "t"):
        return True
    if word in ("0", "0.0", "false", "no", "f"):
        return False
    raise FieldError(where, f"true or false is expected, not {kind_of(value)} ({word[:40]!r})")


def person(value: Any, where: str) -> str:
    """Return the name of an annotator: 12, 12.0 and "12" are one, and an address is the same in any case."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FieldError(where, f"a name or a number is expected, not {kind_of(value)}")
    if isinstance(value, float):
        value = int(value) if value.is_integer() else value
    name = text(str(value), where, empty=True).strip()
    if re.fullmatch(r"\d{1,15}\.0", name):
        return name.removesuffix(".0")
    return name.lower() if "@" in name else name


_EPOCHS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (0, 1))
"""From so large a number on, a time counts so many units a second: nano-, micro-, milliseconds, seconds."""


def moment(value: Any, where: str) -> str:
    """Return a time as ISO 8601 with a time zone; "" for none.

    Takes ISO 8601, where one without a zone is UTC, and numbers since 1970 in seconds or smaller units.
    """
    if value is None or value == "":
        return ""
    stamp = number(value)
    try:
        if isinstance(stamp, (int, float)) and not isinstance(stamp, bool):
            unit = next(unit for least, unit in _EPOCHS if abs(stamp) >= least)
            return datetime.fromtimestamp(stamp / unit, UTC).isoformat()
        parsed = datetime.fromisoformat(str(value).strip().removesuffix(" UTC"))
    except (OverflowError, OSError, ValueError):
        raise FieldError(
            where, f"{str(value)[:40]!r} is no time; write it as ISO 8601, 2026-01-31T09:30:00Z"
        ) from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).isoformat()


def has_zone(value: Any) -> bool:
    """True for a time that says its zone, or that counts from 1970."""
    if isinstance(number(value), (int, float)):
        return True
    try:
        return datetime.fromisoformat(str(value).strip().removesuffix(" UTC")).tzinfo is not None
    except ValueError:
        return False


_CHAT = re.compile(r"\s*(?:\[\s*)?\{\s*[\"'](?:role|from|content|value)[\"']\s*:")
"""The beginning of a chat in a cell."""


def chat_in_text(value: Any) -> Any:
    """Return the chat that a cell holds as JSON or as Python writes a list; any other value stays as it is.

    A text that is JSON but no chat is a text: an answer may be a piece of JSON. Raises `FieldError` for what
    begins as a chat and cannot be read as one.
    """
    if not isinstance(value, str) or value[:1] not in "[{ \t\r\n" or not _CHAT.match(value):
        return value
    document = listed_in_text(value)
    messages = [document] if isinstance(document, dict) else document
    if not isinstance(messages, list):
        raise FieldError(None, "begins as a list of messages, but is neither JSON nor a list of Python's")
    is_chat = all(isinstance(m, dict) and ("role" in m or "from" in m) for m in messages)
    return messages if is_chat else value


def listed_in_text(value: Any) -> Any:
    """The list or object that a cell holds as JSON or as Python writes it; any other value stays as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        document = DECODER.decode(value.strip())
    except (ValueError, RecursionError):
        try:
            document = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return value
    return document if isinstance(document, (list, dict)) else value


def required(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field that must be there."""
    if row.get(name) is None:
        raise FieldError(name, "is missing")
    return row[name]


def messages(value: Any, where: str) -> list[dict[str, str]]:
    """A chat: a list of messages with `role` and `content`. A text is one message of the user."""
    value = chat_in_text(value)
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if isinstance(value, str):
        return [{"role": "user", "content": text(value, where)}]
    if not isinstance(value, list):
        raise FieldError(where, f"a text or a list of messages is expected, not {kind_of(value)}")
    if not value:
        raise FieldError(where, "the list of messages is empty; write at least one user message")
    if len(value) > MOST_TURNS:
        raise FieldError(where, f"a prompt has at most {MOST_TURNS} messages, not {len(value)}; shorten it")
    chat = [_message(item, f"{where}[{index}]") for index, item in enumerate(value)]
    for index, message in enumerate(chat):
        if message["role"] == "system" and index > 0:
            raise FieldError(f"{where}[{index}].role", "a system message can only be the first")
    return chat


def prompt(value: Any, where: str) -> list[dict[str, str]]:
    """A chat that is to be answered: its last message is the user's."""
    chat = messages(value, where)
    if chat[-1]["role"] != "user":
        raise FieldError(
            f"{where}[{len(chat) - 1}].role",
            f"the last message must be the user's, which is what gets answered, not {chat[-1]['role']!r}",
        )
    return chat


def answer(value: Any, where: str) -> str:
    """An answer: a text, or the one assistant message of a conversation."""
    value = chat_in_text(value)
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list):
        if len(value) != 1:
            raise FieldError(where, f"one message of the assistant is expected, not {len(value)}")
        message = _message(value[0], f"{where}[0]")
        if message["role"] != "assistant":
            raise FieldError(f"{where}[0].role", f"'assistant' is expected, not {message['role']!r}")
        return message["content"]
    return text(value, where)


def _message(value: Any, where: str) -> dict[str, str]:
    fields = object_of(value, where)
    role = fields.get("role", fields.get("from"))
    content = fields.get("content", fields.get("value"))
    if role is None:
        raise FieldError(f"{where}.role", "is missing")
    if isinstance(role, str):
        role = _ROLES.get(role, role)
    if role not in ROLES:
        raise FieldError(f"{where}.role", f"{role!r} is not known; write one of {', '.join(ROLES)}")
    if isinstance(content, list):
        content = _joined(content, f"{where}.content")
    return {"role": role, "content": text(content, f"{where}.content")}


def _joined(parts: list[Any], where: str) -> str:
    """The text of a message in parts. Refuses images and whatever else is no text."""
    texts = []
    for index, part in enumerate(parts):
        fields = object_of(part, f"{where}[{index}]")
        if fields.get("type", "text") != "text":
            raise FieldError(
                f"{where}[{index}].type", f"{fields['type']!r} is no text; Rondo compares texts alone"
            )
        texts.append(text(fields.get("text"), f"{where}[{index}].text"))
    return "\n".join(texts)


def refuse_unknown(values: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
    """Refuse a field that the format does not have, with the nearest that it has."""
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise FieldError(f"{prefix}{name}", f"is not known; {hint}")


def refuse_undecodable(line: str) -> None:
    """Refuse what was no UTF-8, in a text that was decoded with `errors="surrogateescape"`."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            None,
            f"byte 0x{ord(line[error.start]) - 0xDC00:02x} at column {error.start + 1} is not UTF-8; "
            "save the file in UTF-8",
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise FieldError(doubled, "is given twice in one object; keep one")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise FieldError(None, f"{name} is not JSON; write a number or null")


# Made once: `json.loads` would make one for every line.
DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
LENIENT_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)
"""Finds the end of a value that `DECODER` refuses, so that the rows after it can be read."""
