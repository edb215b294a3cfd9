"""Prompts as JSON Lines: one object a line, read one line at a time.

    {"prompt": "What is tea?", "context": ["Tea is a drink."], "reference": "A drink.", "tags": ["easy"]}

| field       | value                                                                      |
|-------------|----------------------------------------------------------------------------|
| `prompt`    | a text, or a list of `{"role": "system" / "user" / "assistant", "content"}` |
| `context`   | optional: a text, a list of texts, or a list of `{"title", "text"}` or      |
|             | `{"title", "sentences": [...]}`                                            |
| `reference` | optional: a text or a list of texts                                        |
| `tags`      | optional: a list of texts                                                  |
| `completions` | optional: answers to be compared, as texts or as `{"text", "source"}`    |

A context passage given as one text is one sentence: nothing here guesses where sentences end.
"""

import json
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats.fields import (
    DECODER,
    ROLES,
    FieldError,
    excerpt,
    missing_field,
    object_of,
    refuse_undecodable,
    refuse_unknown,
    text,
    unknown_value,
)
from annotation.exchange.formats.items import LONGEST_SOURCE, ImportedCompletion, ImportedItem, Reader

FIELDS = ("prompt", "context", "reference", "tags", "completions")
_COMPLETION_FIELDS = ("text", "source", "metadata")
_PASSAGE_FIELDS = ("title", "text", "sentences")
_MESSAGE_FIELDS = ("role", "content")


def parse_line(line: str) -> ImportedItem | None:
    """Parse one line; None for a blank one. Raises `FieldError` for the first fault in it.

    Bytes that are no UTF-8 must have been decoded with `errors="surrogateescape"`.
    """
    line = line.rstrip("\r\n")
    if not line.strip():
        return None
    if not line.isascii():
        refuse_undecodable(line)
    try:
        values = DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise FieldError(
            "not_json",
            _("The row is not JSON at column %(column)s (%(error)s). Write one object on one line."),
            column=error.colno,
            error=error.msg,
        ) from None
    except RecursionError:
        raise FieldError("nested_too_deeply", _("The row is nested too deeply.")) from None
    return parse_object(values)


def parse_object(values: Any) -> ImportedItem:
    """One prompt of one object. Raises `FieldError` for the first fault in it."""
    if not isinstance(values, dict):
        raise FieldError(
            "object_expected",
            _('An object such as {"prompt": "…"} is expected, not %(value)s.'),
            value=excerpt(values),
        )
    refuse_unknown(values, FIELDS, "")
    if "prompt" not in values:
        raise FieldError("field_missing", _('The prompt is missing. Write {"prompt": "…"}.'), field="prompt")
    return ImportedItem(
        messages=_messages(values["prompt"]),
        context=_context(values.get("context")),
        references=_texts(values.get("reference"), "reference", single=True),
        tags=_texts(values.get("tags"), "tags", single=False),
        completions=_completions(values.get("completions")),
    )


def _messages(value: Any) -> list[dict[str, str]]:
    if isinstance(value, str):
        return [{"role": "user", "content": text(value, "prompt")}]
    if not isinstance(value, list):
        raise FieldError(
            "chat_expected",
            _("A text or a list of messages is expected, not %(value)s."),
            field="prompt",
            value=excerpt(value),
        )
    if not value:
        raise FieldError(
            "chat_empty",
            _("The list of messages is empty. Write at least one message of the user."),
            field="prompt",
        )
    messages = [_message(item, f"prompt[{index}]") for index, item in enumerate(value)]
    for index, message in enumerate(messages):
        if message["role"] == "system" and index > 0:
            raise FieldError(
                "system_not_first",
                _("A system message can only be the first."),
                field=f"prompt[{index}].role",
            )
    if messages[-1]["role"] != "user":
        raise FieldError(
            "chat_not_users",
            _(
                "The last message must be the user's: it is what gets answered. Its role is %(role)s. Put an "
                "answer that is there into the field reference."
            ),
            field=f"prompt[{len(messages) - 1}].role",
            role=excerpt(messages[-1]["role"]),
        )
    return messages


def _message(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise FieldError(
            "object_expected",
            _("An object with role and content is expected, not %(value)s."),
            field=where,
            value=excerpt(value),
        )
    refuse_unknown(value, _MESSAGE_FIELDS, f"{where}.")
    for name in _MESSAGE_FIELDS:
        if name not in value:
            raise missing_field(f"{where}.{name}")
    role = value["role"]
    if role not in ROLES:
        raise unknown_value(role, ROLES, f"{where}.role")
    return {"role": role, "content": text(value["content"], f"{where}.content")}


def _context(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if isinstance(value, str):
        return [{"title": "", "sentences": [text(value, "context")]}]
    if not isinstance(value, list):
        raise FieldError(
            "list_expected",
            _("A text or a list of passages is expected, not %(value)s."),
            field="context",
            value=excerpt(value),
        )
    return [_passage(item, f"context[{index}]") for index, item in enumerate(value)]


def _passage(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"title": "", "sentences": [text(value, where)]}
    if not isinstance(value, dict):
        raise FieldError(
            "object_expected",
            _("A text or an object with title and text is expected, not %(value)s."),
            field=where,
            value=excerpt(value),
        )
    refuse_unknown(value, _PASSAGE_FIELDS, f"{where}.")
    title = text(value.get("title", ""), f"{where}.title", empty=True)
    if ("text" in value) == ("sentences" in value):
        raise FieldError(
            "text_and_sentences", _("Write either text or sentences, and not both."), field=where
        )
    if "text" in value:
        return {"title": title, "sentences": [text(value["text"], f"{where}.text")]}
    sentences = value["sentences"]
    if not isinstance(sentences, list) or not sentences:
        raise FieldError(
            "list_expected", _("A list of at least one text is expected."), field=f"{where}.sentences"
        )
    return {
        "title": title,
        "sentences": [
            text(sentence, f"{where}.sentences[{index}]") for index, sentence in enumerate(sentences)
        ],
    }


def _completions(value: Any) -> tuple[ImportedCompletion, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not value:
        raise FieldError(
            "list_expected",
            _("A list of at least one answer is expected. Where there is none, take the field away."),
            field="completions",
        )
    completions = tuple(_completion(item, f"completions[{index}]") for index, item in enumerate(value))
    if len(completions) > 1 and len(
        {(completion.text, completion.source) for completion in completions}
    ) != len(completions):
        raise FieldError(
            "same_twice", _("The same answer stands there twice. Keep one."), field="completions"
        )
    return completions


def _completion(value: Any, where: str) -> ImportedCompletion:
    if isinstance(value, str):
        return ImportedCompletion(text=text(value, where), source="")
    if not isinstance(value, dict):
        raise FieldError(
            "object_expected",
            _("A text or an object with text and source is expected, not %(value)s."),
            field=where,
            value=excerpt(value),
        )
    refuse_unknown(value, _COMPLETION_FIELDS, f"{where}.")
    if "text" not in value:
        raise missing_field(f"{where}.text")
    source = "" if value.get("source") is None else text(value["source"], f"{where}.source")
    if len(source) > LONGEST_SOURCE:
        raise FieldError(
            "text_too_long",
            _("The text is longer than %(most)s characters."),
            field=f"{where}.source",
            most=LONGEST_SOURCE,
        )
    return ImportedCompletion(
        text=text(value["text"], f"{where}.text"),
        source=source,
        metadata=object_of(value.get("metadata") or {}, f"{where}.metadata"),
    )


def _texts(value: Any, where: str, *, single: bool) -> list[str]:
    if value is None:
        return []
    if single and isinstance(value, str):
        return [text(value, where)]
    if not isinstance(value, list):
        if single:
            message = _("A text or a list of texts is expected, not %(value)s.")
        else:
            message = _('A list of texts such as ["easy"] is expected, not %(value)s.')
        raise FieldError("list_expected", message, field=where, value=excerpt(value))
    return [text(item, f"{where}[{index}]") for index, item in enumerate(value)]


READERS = (
    Reader(
        name="prompts",
        sentence="Prompts with context, references, tags, answers to be compared, as for import_prompts.",
        read=lambda row: (parse_object(dict(row)),),
        matches=lambda row: "prompt" in row and set(row) <= set(FIELDS),
        reads={
            "prompt": "the prompt",
            "context": "context passages",
            "reference": "reference answers",
            "tags": "tags of the prompt",
            "completions": "responses to be compared",
        },
        completion_fields=tuple(f"completions[{number}]" for number in range(26)),
    ),
)
