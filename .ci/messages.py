"""Keep the translations in step with the sources; needs no gettext tools.

    .venv/bin/python .ci/messages.py            collect marked strings into .po files, compile .mo files
    .venv/bin/python .ci/messages.py --check    only say what is missing, fuzzy or out of step

Strings of Python, of templates and of settings are in the domain django, strings of scripts in djangojs. A
new string comes into the .po file without a translation; write it there and run this again.
"""

import argparse
import io
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from gettext import GNUTranslations
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import DEFAULT_KEYWORDS, extract
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parent.parent
LOCALE = ROOT / "webapp" / "locale"
PYTHON_KEYWORDS = {
    **DEFAULT_KEYWORDS,
    "gettext_lazy": None,
    "gettext_noop": None,
    "ngettext_lazy": (1, 2),
    "pgettext_lazy": ((1, "c"), 2),
}
SCRIPT_KEYWORDS = {"translate": None, "translateCount": (1, 2)}
NOISE = re.compile(
    rb'^"(?:POT-Creation-Date|PO-Revision-Date|Last-Translator|Language-Team|Report-Msgid-Bugs-To'
    rb"|Generated-By): .*\n",
    re.M,
)
PLACEHOLDER = re.compile(r"%\(\w+\)[.\d]*[sdrfg]|%[sd]|\{\w*\}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail where something is wrong")
    check = parser.parse_args().check
    faults: list[str] = []
    for folder in sorted(LOCALE.glob("*/LC_MESSAGES")):
        for domain, marked in (("django", _python_and_templates), ("djangojs", _scripts)):
            path = folder / f"{domain}.po"
            if not check:
                _update(path, marked())
            faults += [f"{path.relative_to(ROOT)}: {fault}" for fault in _faults(path, marked())]
    if faults:
        sys.exit("\n".join(faults))


Marked = tuple[str, int, str | tuple[str, ...], str | None]


def _python_and_templates() -> Iterator[Marked]:
    for app in ("annotation", "training", "webapp"):
        for path in sorted((ROOT / app).rglob("*.py")):
            if "migrations" not in path.parts:
                yield from _extracted(path, "python", path.read_text(encoding="utf-8"), PYTHON_KEYWORDS)
    yield from _of_settings()
    for path in sorted((ROOT / "templates").rglob("*.html")):
        blanked = templatize(path.read_text(encoding="utf-8"), origin=str(path))
        # What is left of the template stands as X's; its indentation would be taken for Python's.
        lines = "\n".join(line.lstrip() for line in blanked.split("\n"))
        yield from _extracted(path, "python", lines, PYTHON_KEYWORDS)


def _of_settings() -> Iterator[Marked]:
    """The sentences under the fields of settings, which the form of a recipe shows: they are docstrings."""
    sys.path.insert(0, str(ROOT))
    from training.recipe.form import sentences

    for path, sentence in sentences():
        yield str(path.relative_to(ROOT)), 0, sentence, None


def _scripts() -> Iterator[Marked]:
    for path in sorted((ROOT / "static" / "js").glob("*.js")):
        yield from _extracted(path, "javascript", path.read_text(encoding="utf-8"), SCRIPT_KEYWORDS)


def _extracted(path: Path, method: str, text: str, keywords: dict[str, object]) -> Iterator[Marked]:
    stream = io.BytesIO(text.encode())
    for _line, message, _comments, context in extract(method, stream, keywords=keywords):
        # The file without the line: a moved line is no change of a translation.
        yield str(path.relative_to(ROOT)), 0, message, context


def _catalog_of(marked: Iterator[Marked]) -> Catalog:
    catalog = Catalog()
    for path, line, message, context in marked:
        catalog.add(message, None, [(path, line)], context=context)
    return catalog


def _read(path: Path) -> Catalog:
    with path.open("rb") as stream:
        return read_po(stream, locale=path.parts[-3])


def _update(path: Path, marked: Iterator[Marked]) -> None:
    catalog = _read(path)
    catalog.update(_catalog_of(marked), no_fuzzy_matching=True)
    catalog.obsolete.clear()
    written = io.BytesIO()
    write_po(written, catalog, width=100, include_lineno=False)
    # Dates and names that change with every run would be all that a change of the file shows.
    path.write_bytes(NOISE.sub(b"", written.getvalue()))
    # The compiled file changes when a message does, not with each day.
    catalog.creation_date = catalog.revision_date = datetime(2026, 1, 1, tzinfo=UTC)
    with path.with_suffix(".mo").open("wb") as stream:
        write_mo(stream, catalog)


def _faults(path: Path, marked: Iterator[Marked]) -> list[str]:
    catalog = _read(path)
    wanted = {(_first(message.id), message.context) for message in _catalog_of(marked) if message.id}
    had = {(_first(message.id), message.context): message for message in catalog if message.id}
    faults = [f"not collected: {key[0]!r}" for key in sorted(wanted - set(had), key=str)]
    faults += [f"no longer used: {key[0]!r}" for key in sorted(set(had) - wanted, key=str)]
    for message in had.values():
        faults += _faults_of(message)
    with path.with_suffix(".mo").open("rb") as stream:
        compiled = GNUTranslations(stream)
    for message in had.values():
        if all(_strings(message)) and _compiled(compiled, message) != _strings(message)[0]:
            faults.append(f"the .mo file says something else for {_first(message.id)!r}; run .ci/messages.py")
    return faults


def _faults_of(message: Message) -> Iterator[str]:
    name = repr(_first(message.id))
    if message.fuzzy:
        yield f"fuzzy: {name}"
    if not all(_strings(message)):
        yield f"not translated: {name}"
        return
    sources = message.id if isinstance(message.id, tuple) else (message.id,)
    allowed = set(PLACEHOLDER.findall(" ".join(sources)))
    for text in _strings(message):
        found = set(PLACEHOLDER.findall(text))
        if not found <= allowed or (len(sources) == 1 and found != allowed):
            yield f"placeholders differ: {name}"


def _first(identity: str | tuple[str, ...]) -> str:
    return identity[0] if isinstance(identity, tuple) else identity


def _strings(message: Message) -> list[str]:
    return list(message.string) if isinstance(message.string, tuple) else [message.string]


def _compiled(compiled: GNUTranslations, message: Message) -> str:
    first = _first(message.id)
    if isinstance(message.id, tuple):
        return compiled.ngettext(first, message.id[1], 1)
    return compiled.pgettext(message.context, first) if message.context else compiled.gettext(first)


if __name__ == "__main__":
    main()
