"""Pages of the reference that follow from the code. `.ci/reference.py` writes them; a test compares them."""

import ast
import dataclasses
import inspect
import re
import typing
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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

# The refusals of the program, read from its source: their codes and sentences.

ROOT = Path(__file__).resolve().parents[2]
_APPS = ("annotation", "training", "webapp")
_MANAGER_CHECK = "refuse_unless_manager"
_TRANSLATED = frozenset({"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"})


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusalCall:
    """One place that makes a refusal. code and message are None where the call has none."""

    callee: str
    code: ast.expr | None
    message: ast.expr | None
    params: Sequence[ast.keyword]
    function: ast.AST
    """The innermost function around the call, or the module."""


def is_translated(node: ast.AST) -> bool:
    """Return whether an expression is a sentence that is marked for translation."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TRANSLATED


@cache
def modules() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module of the program."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for app in _APPS
        for path in sorted((ROOT / app).rglob("*.py"))
        if "migrations" not in path.parts
    }


@cache
def refusal_classes() -> frozenset[str]:
    """Return the names of `Refusal` and of every class that inherits from it."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for module in modules().values()
        for node in _statements(module)
        if isinstance(node, ast.ClassDef)
    }
    names: set[str] = {"Refusal"}
    while new := {name for name, parents in bases.items() if parents & names} - names:
        names |= new
    return frozenset(names)


def refusal_calls(module: ast.AST) -> Iterator[RefusalCall]:
    """Yield the calls in a module that make a refusal, by a function of the module that takes a code, too."""
    starts = {_MANAGER_CHECK: 2} | {
        function.name: names.index("code")
        for function in _statements(module)
        if isinstance(function, ast.FunctionDef)
        for names in [[argument.arg for argument in function.args.args]]
        if "code" in names
    }
    for function, call in _calls(module, module):
        name = ast.unparse(call.func).rpartition(".")[2]
        is_constructor = name in refusal_classes() - _own_constructors()
        is_base_constructor = name == "__init__" and len(call.args) == 2 and _is_code(call.args[0])
        if is_constructor or is_base_constructor or (name in starts and _is_code(_at(call, starts[name]))):
            start = starts.get(name, 0)
            yield RefusalCall(
                callee=name,
                code=_at(call, start),
                message=_manager_sentence() if name == _MANAGER_CHECK else _at(call, start + 1),
                params=[keyword for keyword in call.keywords if keyword.arg != "field"],
                function=function,
            )


@cache
def _manager_sentence() -> ast.expr:
    """Return the sentence that `access.refuse_unless_manager` says, whatever the code."""
    access = modules()[ROOT / "annotation" / "selectors" / "access.py"]
    return next(
        node
        for function in ast.walk(access)
        if isinstance(function, ast.FunctionDef) and function.name == _MANAGER_CHECK
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and is_translated(node)
    )


def _at(call: ast.Call, index: int) -> ast.expr | None:
    return call.args[index] if len(call.args) > index else None


@cache
def _own_constructors() -> frozenset[str]:
    """Return the subclasses of `Refusal` that give their code themselves."""
    return frozenset(
        node.name
        for module in modules().values()
        for node in _statements(module)
        if isinstance(node, ast.ClassDef)
        and node.name in refusal_classes() - {"Refusal"}
        and any(
            isinstance(inner, ast.FunctionDef)
            and inner.name == "__init__"
            and "code" not in {argument.arg for argument in inner.args.posonlyargs}
            for inner in node.body
        )
    )


def _calls(node: ast.AST, function: ast.AST) -> Iterator[tuple[ast.AST, ast.Call]]:
    stack = [(node, function)]
    while stack:
        node, function = stack.pop()
        if isinstance(node, ast.Call):
            yield function, node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node
        stack += [(child, function) for child in reversed(list(ast.iter_child_nodes(node)))]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node. Most of a tree is expressions, which are not looked through."""
    stack = [node]
    while stack:
        for child in ast.iter_child_nodes(stack.pop()):
            if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
                yield child
                stack.append(child)


def _is_code(node: ast.expr | None) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.isidentifier()
        and node.value.islower()
    )


def sentences(call: RefusalCall) -> list[str]:
    """Return the sentences that a refusal may say; empty where they come from elsewhere."""
    if call.message is None:
        return []
    scope: list[ast.AST] = [call.message]
    if isinstance(call.message, ast.Name):
        scope = [
            node.value if isinstance(node, ast.Assign) else node.iter
            for node in ast.walk(call.function)
            if isinstance(node, ast.Assign | ast.For)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if any(isinstance(name, ast.Name) and name.id == call.message.id for name in ast.walk(target))
        ]
    return [
        argument.value
        for part in scope
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and is_translated(node)
        for argument in node.args[-2:-1] or node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def codes() -> dict[str, list[str]]:
    """Return every code with its sentences, sorted."""
    known: dict[str, dict[str, None]] = defaultdict(dict)
    for module in modules().values():
        for call in refusal_calls(module):
            if isinstance(call.code, ast.Constant) and isinstance(call.code.value, str):
                known[call.code.value].update(dict.fromkeys(sentences(call)))
    return {code: list(known[code]) for code in sorted(known)}


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
