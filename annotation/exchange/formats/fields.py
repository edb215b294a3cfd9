"""Single values of a row: checked, or refused with the field and what to do.

Every reader of a format stands on these, so that the same fault has the same words.
"""

import ast
import difflib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.record.judgment import MOST_SECONDS
from annotation.text.identity import MOST_TURNS

_LONGEST_WORDS = 1_000
"""Characters of a message: a name of the file may be megabytes long."""
ROLES = ("system", "user", "assistant")
_ROLES = {"human": "user", "prompter": "user", "gpt": "assistant", "bot": "assistant", "developer": "system"}
"""Names of roles in other formats → ours."""
_LONGEST_EXCERPT = 40
"""Characters of a value of the file in a message."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, skipkeys=True, default=str)


class FieldError(Refusal, ValueError):
    """A row that cannot be taken: the field that is wrong, a code, and a sentence on what to do.

    A `ValueError`, too, as is what else a decoder or a reader raises for a bad row.
    """

    def __init__(self, code: str, message: str, /, *, field: str | None = None, **params: object) -> None:
        super().__init__(code, message, field=field and _printable(field), **params)
        self.message = _printable(self.message)
        self.args = (self.message,)


def row_error(number: int, error: FieldError) -> str:
    """Return the fault of a row as a line for people."""
    if error.field:
        return _("row %(number)s, field %(field)s: %(fault)s") % {
            "number": number,
            "field": error.field,
            "fault": error.message,
        }
    return _("row %(number)s: %(fault)s") % {"number": number, "fault": error.message}


def missing_field(where: str) -> FieldError:
    """Return the refusal of a row without a field."""
    return FieldError("field_missing", _("This field is missing."), field=where)


def unknown_value(value: Any, known: Iterable[object], where: str) -> FieldError:
    """Return the refusal of a value that is none of those that are known."""
    return FieldError(
        "value_unknown",
        _("%(value)s is not known. Write one of these: %(known)s."),
        field=where,
        value=excerpt(value),
        known=", ".join(map(str, known)),
    )


def choice(value: Any, known: Collection[str], where: str) -> str:
    """Return one of the values that are known. Raises `FieldError` for any other."""
    if value not in known:
        raise unknown_value(value, known, where)
    return str(value)


def active_seconds(value: Any) -> int:
    """Return the whole seconds that a judgment took. Raises `FieldError` for any other value."""
    if not (type(value) is int and 0 <= value <= MOST_SECONDS):
        raise FieldError(
            "number_expected",
            _("A whole number of seconds from 0 on is expected, not %(value)s."),
            field="active_seconds",
            value=excerpt(value),
        )
    return value


def measured_seconds(value: Any) -> int | None:
    """Return a measured time as whole seconds; None where the value is no number from 0 on."""
    return active_seconds(int(value)) if isinstance(value, (int, float)) and value >= 0 else None


def out_of_range(value: Any, least: int, most: int, where: str) -> FieldError:
    """Return the refusal of a number that is not from `least` to `most`."""
    return FieldError(
        "number_out_of_range",
        _("%(value)s is not from %(least)s to %(most)s."),
        field=where,
        value=excerpt(value),
        least=least,
        most=most,
    )


def excerpt(value: Any) -> str:
    """Return the beginning of a value as JSON, for a message; no more of it is encoded."""
    if isinstance(value, str):
        is_cut = len(value) > _LONGEST_EXCERPT
        return _ENCODER.encode(f"{value[:_LONGEST_EXCERPT]}…" if is_cut else value)
    start = ""
    for part in _ENCODER.iterencode(value):
        start += part
        if len(start) > _LONGEST_EXCERPT:
            return f"{start[:_LONGEST_EXCERPT]}…"
    return start


def _printable(words: str) -> str:
    """The words with what no page and no database can hold spelled out, and cut off where they are long."""
    clean = words.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
    return clean if len(clean) <= _LONGEST_WORDS else f"{clean[:_LONGEST_WORDS]}…"


def text(value: Any, where: str, *, empty: bool = False) -> str:
    """A text that can be stored. Refuses another kind, NUL, half a surrogate pair, and nothing but space."""
    if not isinstance(value, str):
        raise FieldError(
            "text_expected", _("A text is expected, not %(value)s."), field=where, value=excerpt(value)
        )
    # Cheap questions first: an import asks them of every text.
    if not empty and (not value or value.isspace()):
        raise FieldError(
            "text_empty", _("The text is empty. Write a text, or take the field away."), field=where
        )
    if "\x00" in value:
        raise FieldError(
            "text_has_nul",
            _("Character %(place)s is NUL, which cannot be stored. Take it out."),
            field=where,
            place=value.index(chr(0)),
        )
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            "text_has_surrogate",
            _(
                "Character %(place)s is half a surrogate pair (%(character)s). Write both halves, or the "
                "character itself."
            ),
            field=where,
            place=error.start,
            character=f"\\u{ord(value[error.start]):04x}",
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
        raise FieldError(
            "list_expected", _("A list is expected, not %(value)s."), field=where, value=excerpt(value)
        )
    return value


def object_of(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(
            "object_expected", _("An object is expected, not %(value)s."), field=where, value=excerpt(value)
        )
    return value


def whole_number(value: Any, where: str) -> int:
    """A whole number; one that a table wrote as 3.0 is 3."""
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise FieldError(
        "number_expected", _("A whole number is expected, not %(value)s."), field=where, value=excerpt(value)
    )


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
    raise FieldError(
        "truth_expected", _("Write true or false, not %(value)s."), field=where, value=excerpt(value)
    )


def person(value: Any, where: str) -> str:
    """Return the name of an annotator: 12, 12.0 and "12" are one, and an address is the same in any case."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise FieldError(
            "name_expected",
            _("A name or a number is expected, not %(value)s."),
            field=where,
            value=excerpt(value),
        )
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
            "time_invalid",
            _("%(value)s is no time. Write it as ISO 8601: 2026-01-31T09:30:00Z."),
            field=where,
            value=excerpt(value),
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
        raise FieldError(
            "chat_unreadable",
            _("The text begins as a list of messages, but it is neither JSON nor a list in Python."),
        )
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
        raise missing_field(name)
    return row[name]


def messages(value: Any, where: str) -> list[dict[str, str]]:
    """A chat: a list of messages with `role` and `content`. A text is one message of the user."""
    value = chat_in_text(value)
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if isinstance(value, str):
        return [{"role": "user", "content": text(value, where)}]
    if not isinstance(value, list):
        raise FieldError(
            "chat_expected",
            _("A text or a list of messages is expected, not %(value)s."),
            field=where,
            value=excerpt(value),
        )
    if not value:
        raise FieldError(
            "chat_empty",
            _("The list of messages is empty. Write at least one message of the user."),
            field=where,
        )
    if len(value) > MOST_TURNS:
        raise FieldError(
            "chat_too_long",
            _("A prompt has at most %(most)s messages, not %(count)s. Shorten it."),
            field=where,
            most=MOST_TURNS,
            count=len(value),
        )
    chat = [_message(item, f"{where}[{index}]") for index, item in enumerate(value)]
    for index, message in enumerate(chat):
        if message["role"] == "system" and index > 0:
            raise FieldError(
                "system_not_first",
                _("A system message can only be the first."),
                field=f"{where}[{index}].role",
            )
    return chat


def prompt(value: Any, where: str) -> list[dict[str, str]]:
    """A chat that is to be answered: its last message is the user's."""
    chat = messages(value, where)
    if chat[-1]["role"] != "user":
        raise FieldError(
            "chat_not_users",
            _("The last message must be the user's: it is what gets answered. Its role is %(role)s."),
            field=f"{where}[{len(chat) - 1}].role",
            role=excerpt(chat[-1]["role"]),
        )
    return chat


def answer(value: Any, where: str) -> str:
    """An answer: a text, or the one assistant message of a conversation."""
    value = chat_in_text(value)
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list):
        if len(value) != 1:
            raise FieldError(
                "one_answer_expected",
                _("Exactly one message of the assistant is expected here; the list has %(count)s."),
                field=where,
                count=len(value),
            )
        message = _message(value[0], f"{where}[0]")
        if message["role"] != "assistant":
            raise FieldError(
                "role_not_assistant",
                _("The role must be assistant, not %(role)s."),
                field=f"{where}[0].role",
                role=excerpt(message["role"]),
            )
        return message["content"]
    return text(value, where)


def _message(value: Any, where: str) -> dict[str, str]:
    fields = object_of(value, where)
    role = fields.get("role", fields.get("from"))
    content = fields.get("content", fields.get("value"))
    if role is None:
        raise missing_field(f"{where}.role")
    if isinstance(role, str):
        role = _ROLES.get(role, role)
    if role not in ROLES:
        raise unknown_value(role, ROLES, f"{where}.role")
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
                "text_only",
                _("A part of the kind %(kind)s is no text. Rondo compares texts only."),
                field=f"{where}[{index}].type",
                kind=excerpt(fields["type"]),
            )
        texts.append(text(fields.get("text"), f"{where}[{index}].text"))
    return "\n".join(texts)


def refuse_unknown(values: Mapping[str, Any], known: Iterable[str], prefix: str) -> None:
    """Refuse a field that the format does not have, with the nearest that it has."""
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
            where = f"{prefix}{name}"
            if near:
                raise FieldError(
                    "field_unknown",
                    _("This field is not known. Did you mean %(name)s?"),
                    field=where,
                    name=near[0],
                )
            raise FieldError(
                "field_unknown",
                _("This field is not known. Known fields are %(known)s."),
                field=where,
                known=", ".join(known),
            )


def refuse_undecodable(line: str) -> None:
    """Refuse what was no UTF-8, in a text that was decoded with `errors="surrogateescape"`."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            "not_utf8",
            _("Byte %(byte)s at column %(column)s is not UTF-8. Save the file in UTF-8."),
            byte=f"0x{ord(line[error.start]) - 0xDC00:02x}",
            column=error.start + 1,
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _value in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise FieldError("name_twice", _("This name stands twice in one object. Keep one."), field=doubled)
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise FieldError("not_json", _("%(value)s is not JSON. Write a number or null."), value=name)


# Made once: `json.loads` would make one for every line.
DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
LENIENT_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)
"""Finds the end of a value that `DECODER` refuses, so that the rows after it can be read."""


# Values of a row that no database and no JSON can hold: refused with the path of the field.

DEEPEST = 200
"""Levels of objects and lists in one row: more than any tree of messages has, fewer than Python can print."""

_At = tuple["_At", str] | None
"""A path, as its parent and its last part: spelled out for a faulty value alone."""


def refuse_unstorable(row: Mapping[str, Any]) -> None:
    """Refuse NUL, half a surrogate pair, a number too large for JSON, and deep nesting, wherever it stands.

    Raises `FieldError` for the first such value, with the path to it, also in columns that nobody reads: the
    preview shows them all.
    """
    waiting: list[tuple[Any, _At, int]] = [(row, None, 0)]
    while waiting:
        value, at, depth = waiting.pop()
        if isinstance(value, str):
            _refuse_text(value, at)
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise FieldError(
                    "number_too_large",
                    _("The number is too large. Write one below 1.8e308, or write it as a text."),
                    field=_spelled(at),
                )
        elif isinstance(value, (dict, list)):
            if depth == DEEPEST:
                raise FieldError(
                    "nested_too_deeply",
                    _("The row is nested too deeply. It may have at most %(most)s levels."),
                    most=DEEPEST,
                )
            inner = list(_inner(value, at))
            waiting += ((part, path, depth + 1) for part, path in reversed(inner))


def _inner(value: dict[str, Any] | list[Any], at: _At) -> Iterator[tuple[Any, _At]]:
    if isinstance(value, list):
        yield from ((part, (at, f"[{number}]")) for number, part in enumerate(value))
        return
    for name, item in value.items():
        path = (at, f".{name}")
        _refuse_text(name, path)
        yield item, path


def _refuse_text(value: str, at: _At) -> None:
    # Cheap questions first: an import asks them of every text.
    if "\x00" in value or not value.isascii():
        text(value, _spelled(at), empty=True)


def _spelled(at: _At) -> str:
    parts = []
    while at is not None:
        at, part = at
        parts.append(part)
    return "".join(reversed(parts)).removeprefix(".")


# The chat that is answered, from all parts of a row that belong to it. Every reader makes its prompt here.
#
# | column       | becomes                                                                              |
# |--------------|--------------------------------------------------------------------------------------|
# | `system`     | the first message, unless the chat has a system message of its own                    |
# | `history`    | earlier turns: a list of [question, answer], or messages                              |
# | `prompt`     | a text, a chat, or JSON of a chat                                                     |
# | `messages`   | a chat, in place of `prompt`                                                          |
# | `input`      | more of a prompt that is a text (Alpaca, LLaMA-Factory): it follows after a line feed |

PARTS = ("system", "history", "prompt", "messages", "input")


def prompt_of(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the chat of a row, which ends with the user. Raises `FieldError` where there is none."""
    chat = chat_of(row)
    if chat[-1]["role"] != "user":
        name = "prompt" if row.get("prompt") is not None else "messages"
        return prompt(chat, name)
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
    chat = messages(value, name)
    if more := optional_text(row.get("input"), "input").strip("\n"):
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
    system = optional_text(value, "system").strip()
    if not system or chat[0]["role"] == "system":
        return chat
    return [{"role": "system", "content": system}, *chat]


def is_plain(chat: Any) -> bool:
    """True for messages that are texts: a chat in which somebody acts is a trace (`trace_messages`)."""
    return isinstance(chat, list) and not any(map(_acts, chat))


def is_answered(chat: Any) -> bool:
    """True for a plain chat of two messages or more that the assistant ends."""
    last = chat[-1] if isinstance(chat, list) and len(chat) > 1 else None
    role = last.get("role", last.get("from")) if isinstance(last, Mapping) else None
    return role in ("assistant", "gpt", "bot") and is_plain(chat)


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
    value = listed_in_text(value)
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
            return messages(value, "history")
        if not isinstance(turn, list) or len(turn) != 2:
            raise FieldError("pairs_expected", _("A pair of question and answer is expected."), field=where)
        question, answer = (text(side, where) for side in turn)
        chat += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return chat


def answer_value(value: Any, where: str) -> str | int | float | tuple[str, ...]:
    """Return the value of an answer to an additional question: a text, a number, or a list of texts."""
    if isinstance(value, list):
        return tuple(text(entry, where) for entry in value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return text(value, where)
