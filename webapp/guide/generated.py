"""Pages of the reference that follow from the code. `.ci/reference.py` writes them; a test compares them."""

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from django.utils.translation import override

from annotation.choices import WebhookEvent
from annotation.exchange.formats.items import Reader
from annotation.exchange.formats.registry import READERS, WRITERS
from annotation.services.people.shortcuts import ACTIONS, shown_key
from training.contract.methods import SETTINGS
from training.recipe.form import help_of
from training.recipe.recipe import Recipe
from webapp.environment import documentation
from webapp.guide.refusals import codes

FOLDER = Path(__file__).resolve().parent / "reference"
_NOTE = "This page is generated from the code; `.ci/reference.py` writes it.\n"


def documents() -> dict[Path, str]:
    """Return the text of each generated page by its file."""
    with override("en"):
        pages = {
            "settings": _settings(),
            "recipe": _recipe(),
            "keys": _keys(),
            "keys.de": _keys_in_german(),
            "events": _events(),
            "refusals": _refusals(),
            "format-list": _formats(),
        }
    return {FOLDER / f"{name}.md": text for name, text in pages.items()}


def _settings() -> str:
    return f"""# Settings

Every setting is an environment variable with a default that fits one machine. A wrong value stops the start:
the message names the variable, its value and what to write instead. A misspelt `RONDO_…` variable is
reported, too.

{_NOTE}
{documentation()}

`make` hands on `PYTHON`, the Python that `.venv` is made with, and every `PIP_…` variable. Tests read
`RONDO_TEST_POSTGRES` to find a PostgreSQL server other than the usual one, and `RONDO_CHROMIUM` to find a
browser.
"""


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _recipe() -> str:
    """Write every record of a recipe, each with its fields."""
    parts = [
        f"""# Recipe fields

A recipe is the settings of a round: sampling, training, evaluation and decision. The recipe page of a round
edits it as a form or as JSON; presets fill it in. The settings of the methods are also those of `spec.json`;
see [files](files.md). A wrong value is refused with the path of its field.

{_NOTE}"""
    ]
    for cls in _records(Recipe):
        summary = " ".join((inspect.getdoc(cls) or "").split())
        parts.append(f"## {cls.__name__}\n\n{summary}\n")
        method = getattr(cls, "method", None)
        rates = getattr(cls, "default_rates", None)
        if method in SETTINGS and rates:
            shown = ", ".join(f"{adapter}: {rate:g}" for adapter, rate in rates.items())
            parts.append(f"Method `{method}`. Default learning rate by adapter: {shown}.\n")
        parts.append(_table(("field", "default", "meaning"), _fields(cls)) + "\n")
    return "\n".join(parts)


def _records(cls: type[Any], seen: dict[type[Any], None] | None = None) -> list[type[Any]]:
    """Return a record and those of its fields, in the order in which they are met."""
    seen = {} if seen is None else seen
    if cls not in seen:
        seen[cls] = None
        for hint in typing.get_type_hints(cls).values():
            for leaf in _leaves(hint):
                if dataclasses.is_dataclass(leaf) and isinstance(leaf, type):
                    _records(leaf, seen)
    return list(seen)


def _leaves(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in typing.get_args(hint):
        yield from _leaves(argument)


def _fields(cls: Any) -> Iterator[tuple[str, ...]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    sentences = help_of(cls)
    for entry in dataclasses.fields(cls):
        meaning = sentences.get(entry.name, "")
        if choices := _choices(hints[entry.name]):
            meaning = f"{meaning} One of {', '.join(f'`{choice}`' for choice in choices)}."
        yield f"`{entry.name}`", _default(entry), meaning


def _choices(hint: Any) -> list[str]:
    """Return the values of a field that takes a few."""
    return [
        str(value)
        for leaf in _leaves(hint)
        if typing.get_origin(leaf) is Literal
        for value in typing.get_args(leaf)
    ]


def _default(entry: dataclasses.Field[Any]) -> str:
    value = entry.default
    if value is dataclasses.MISSING and entry.default_factory is not dataclasses.MISSING:
        value = entry.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return f"a [{type(value).__name__}](#{type(value).__name__.lower()})"
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value) or "empty"
    if isinstance(value, dict):
        return "empty"
    return f"`{value}`" if value != "" else "empty"


def _key_rows(place: tuple[bool, bool]) -> Iterator[tuple[str, ...]]:
    for action in ACTIONS:
        if action.place == place:
            yield str(action.label), " ".join(f"`{sign}`" for sign in shown_key(action.default))


def _keys_in_german() -> str:
    head = ("Aktion", "Taste")
    with override("de"):
        return f"""# Tasten beim Annotieren

Unter *Ihr Konto, Tasten* kann jede Person andere Tasten wählen. Die Ziffern und die Buchstaben A bis I sind
fest: mit ihnen wird gewählt und gereiht. Die Taste einer Kategorie legt das Projekt fest. `?` zeigt alle
Tasten auf der Seite selbst.

Diese Seite wird aus dem Code erzeugt; `.ci/reference.py` schreibt sie.

## Überall auf der Seite

{_table(head, _key_rows((False, False)))}

## Solange eine Textstelle den Fokus hat

{_table(head, _key_rows((True, False)))}

## Solange ein Vorschlag den Fokus hat

{_table(head, _key_rows((False, True)))}
"""


def _keys() -> str:
    head = ("action", "key")
    return f"""# Keys of the labelling screen

Everyone may choose other keys under *Your account, Keys*. The digits and the letters A to I are fixed:
they choose and rank responses. The key of a span category is set by the project. `?` shows all
keys on the screen itself.

{_NOTE}
## Anywhere on the screen

{_table(head, _key_rows((False, False)))}

## While a span has the focus

{_table(head, _key_rows((True, False)))}

## While a suggestion has the focus

{_table(head, _key_rows((False, True)))}
"""


def _events() -> str:
    rows = ((f"`{event.value}`", _sentence(str(event.label))) for event in WebhookEvent)
    return f"""# Events

Webhooks send these events; see [receive webhooks](../how-to/receive-webhooks.md). Imports send none.

{_NOTE}
{_table(("event", "sent when"), rows)}

A body has `type`, `timestamp` and `data`. `data` names the project, the numbers of what changed and the path
of the API that tells the rest. It holds no text and no person:

    {{"type": "round.promoted", "timestamp": "2026-11-25T10:00:00Z",
     "data": {{"project": "tea", "round": 3, "state": "promoted", "path": "/api/v1/projects/tea/rounds/3/"}}}}
"""


def _refusals() -> str:
    rows = (
        (f"`{code}`", "<br>".join(map(_placeholders, sentences)) or "depends on the request")
        for code, sentences in codes().items()
    )
    return f"""# Codes of refusals

What a person may not do, or what cannot be done now, is refused with a sentence and a code. In the API both
are in the problem details: `detail` is the sentence, in the language of the person, and `code` the reason for
programs. A code keeps its meaning; sentences may change. See [use the API](../how-to/use-the-api.md).

{_NOTE}
{_table(("code", "sentences"), rows)}

## Codes of requests

These come from the request itself and have no sentence of their own above.

| code | status |
|---|---|
| `invalid_values` | 422: values of the body are wrong; `errors` names each with a code of its own |
| `not_found` | 404: it does not exist, or you may not see it |
| `not_allowed` | 403: your role does not allow it |
| `permission_denied` | 403: a token or a page of this origin may not do it |
| `not_authenticated`, `authentication_failed` | 401: no token, or a wrong one |
| `changed_since_read` | 412: read it again, then decide |
| `body_too_large` | 413: send less |
| `request_not_readable`, `parse_error`, `invalid_page_size` | 400: the request is malformed |
| `method_not_allowed`, `not_acceptable`, `unsupported_media_type` | 405, 406, 415 |
| `throttled` | 429: `Retry-After` names the seconds to wait |
| `unknown_url`, `invalid_value` | 404, 400 |
| `disk_full`, `database_unavailable`, `internal_error` | 503, 503, 500 |
"""


def _placeholders(sentence: str) -> str:
    """Return a sentence with its placeholders as `{name}`."""
    return _sentence(re.sub(r"%\((\w+)\)[.\d]*[a-z]", r"{\1}", sentence).replace("%%", "%"))


def _formats() -> str:
    readers = (
        (
            f"`{reader.name}`",
            _sentence(str(reader.sentence)),
            _readings(reader),
            reader.loses,
        )
        for reader in READERS.values()
    )
    writers = (
        (f"`{writer.name}`", _sentence(str(writer.sentence)), writer.carries, writer.loses)
        for writer in WRITERS.values()
    )
    return f"""# List of formats

[File formats](formats.md) tells how files are read and what becomes of their columns.

{_NOTE}
## In

`manage.py import_judgments --format NAME`; without `--format` it is detected, in this order. Columns that a
format does not have are kept as metadata.

{_table(("format", "what it is", "reads", "does not read"), readers)}

## Out

`manage.py export_judgments --format NAME`; `dataset` writes a folder for `datasets.load_dataset` with a data
card. `FILE.dropped.jsonl` lists what a file could not carry.

{_table(("format", "what it is", "carries", "does not carry"), writers)}
"""


def _readings(reader: Reader) -> str:
    """Return what a reader reads, each once: of the numbered columns of responses one."""
    words = (re.sub(r"response \d+", "each response", reading) for reading in reader.reads.values())
    return "; ".join(dict.fromkeys(words))


def _sentence(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
