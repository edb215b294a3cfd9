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

from annotation.exchange.formats.fields import (
    DECODER,
    ROLES,
    FieldError,
    kind_of,
    refuse_undecodable,
    refuse_unknown,
    text,
)
from annotation.exchange.formats.items import LONGEST_SOURCE, ImportedCompletion, ImportedItem, Reader

FIELDS = ("prompt", "context", "reference", "tags", "completions")
_COMPLETION_FIELDS = ("text", "source")
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
            None, f"not JSON at column {error.colno} ({error.msg}); write one object on one line"
        ) from None
    except RecursionError:
        raise FieldError(None, "nested too deeply to be a prompt") from None
    return parse_object(values)


def parse_object(values: Any) -> ImportedItem:
    """One prompt of one object. Raises `FieldError` for the first fault in it."""
    if not isinstance(values, dict):
        raise FieldError(None, f'an object like {{"prompt": "…"}} is expected, not {kind_of(values)}')
    refuse_unknown(values, FIELDS, "")
    if "prompt" not in values:
        raise FieldError("prompt", 'is missing; write {"prompt": "…"}')
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
        raise FieldError("prompt", f"a text or a list of messages is expected, not {kind_of(value)}")
    if not value:
        raise FieldError("prompt", "the list of messages is empty; write at least one user message")
    messages = [_message(item, f"prompt[{index}]") for index, item in enumerate(value)]
    for index, message in enumerate(messages):
        if message["role"] == "system" and index > 0:
            raise FieldError(f"prompt[{index}].role", "a system message can only be the first")
    if messages[-1]["role"] != "user":
        raise FieldError(
            f"prompt[{len(messages) - 1}].role",
            f"the last message must be the user's, which is what gets answered, "
            f"not {messages[-1]['role']!r}; move a given answer to 'reference'",
        )
    return messages


def _message(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise FieldError(where, f"an object with 'role' and 'content' is expected, not {kind_of(value)}")
    refuse_unknown(value, _MESSAGE_FIELDS, f"{where}.")
    for name in _MESSAGE_FIELDS:
        if name not in value:
            raise FieldError(f"{where}.{name}", "is missing")
    role = value["role"]
    if role not in ROLES:
        raise FieldError(f"{where}.role", f"{role!r} is not known; write one of {', '.join(ROLES)}")
    return {"role": role, "content": text(value["content"], f"{where}.content")}


def _context(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if isinstance(value, str):
        return [{"title": "", "sentences": [text(value, "context")]}]
    if not isinstance(value, list):
        raise FieldError("context", f"a text or a list of passages is expected, not {kind_of(value)}")
    return [_passage(item, f"context[{index}]") for index, item in enumerate(value)]


def _passage(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"title": "", "sentences": [text(value, where)]}
    if not isinstance(value, dict):
        raise FieldError(
            where, f"a text or an object with 'title' and 'text' is expected, not {kind_of(value)}"
        )
    refuse_unknown(value, _PASSAGE_FIELDS, f"{where}.")
    title = text(value.get("title", ""), f"{where}.title", empty=True)
    if ("text" in value) == ("sentences" in value):
        raise FieldError(where, "write either 'text' or 'sentences', and not both")
    if "text" in value:
        return {"title": title, "sentences": [text(value["text"], f"{where}.text")]}
    sentences = value["sentences"]
    if not isinstance(sentences, list) or not sentences:
        raise FieldError(f"{where}.sentences", "a list of at least one text is expected")
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
        raise FieldError("completions", "a list of at least one answer is expected; or take the field away")
    completions = tuple(_completion(item, f"completions[{index}]") for index, item in enumerate(value))
    if len(completions) > 1 and len(
        {(completion.text, completion.source) for completion in completions}
    ) != len(completions):
        raise FieldError("completions", "the same answer stands there twice; keep one")
    return completions


def _completion(value: Any, where: str) -> ImportedCompletion:
    if isinstance(value, str):
        return ImportedCompletion(text=text(value, where), source="")
    if not isinstance(value, dict):
        raise FieldError(
            where, f"a text or an object with 'text' and 'source' is expected, not {kind_of(value)}"
        )
    refuse_unknown(value, _COMPLETION_FIELDS, f"{where}.")
    if "text" not in value:
        raise FieldError(f"{where}.text", "is missing")
    source = "" if value.get("source") is None else text(value["source"], f"{where}.source")
    if len(source) > LONGEST_SOURCE:
        raise FieldError(f"{where}.source", f"is longer than {LONGEST_SOURCE} characters")
    return ImportedCompletion(text=text(value["text"], f"{where}.text"), source=source)


def _texts(value: Any, where: str, *, single: bool) -> list[str]:
    if value is None:
        return []
    if single and isinstance(value, str):
        return [text(value, where)]
    if not isinstance(value, list):
        expected = "a text or a list of texts" if single else 'a list of texts like ["easy"]'
        raise FieldError(where, f"{expected} is expected, not {kind_of(value)}")
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
