"""Single values of a row: checked, or refused with the field and what to do.

Every reader of a format stands on these, so that the same fault is told in the same words.
"""

import ast
import difflib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.record.judgment import MOST_SECONDS
from annotation.text.chat import MOST_TURNS

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
    """An object."""
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
