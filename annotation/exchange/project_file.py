"""Project files: YAML text in and out, with the line of every path, and bounds on what is read.

Read is the core of YAML 1.2: mappings, lists, texts, numbers, true, false and null. Anchors, aliases and
tags are refused, so that a small file stays small.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.selectors.project_file import Change
from annotation.services.projects import project_file
from annotation.services.projects.project_file import Content, state_of

MOST_BYTES = 1 << 20
MOST_NODES = 50_000
MOST_DEPTH = 32
MOST_DIGITS = 18
_MOST_SHOWN = 20

_NULL = re.compile(r"(?:~|null|Null|NULL|)")
_FLAG = re.compile(r"(?:true|True|TRUE|false|False|FALSE)")
_INTEGER = re.compile(rf"[-+]?[0-9]{{1,{MOST_DIGITS}}}")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

_Reader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectFile:
    """A file that was read and checked against the form; nothing of it is stored."""

    content: Content
    lines: Mapping[str, int]
    """The line of each path, from 1."""

    def compare(self, project: Project | None) -> list[Change]:
        """Return what applying would change. None: a new project."""
        with _Placed(self.lines):
            return project_file.compare(project=project, content=self.content)

    def apply(self, *, project: Project, by: User, state: str = "", rehearses: bool = False) -> list[Change]:
        """Apply it, all or nothing, and return what changed.

        state: of the project when the changes were looked at. Refuses a project that changed since.
        rehearses: only check whether it could be applied.
        """
        with _Placed(self.lines):
            return project_file.apply(
                project=project, content=self.content, by=by, state=state, rehearses=rehearses
            )

    def create(self, *, slug: str, name: str = "", by: User, rehearses: bool = False) -> Project:
        """Create a project and apply the file to it. name: where the file has none."""
        with _Placed(self.lines):
            return project_file.create(slug=slug, name=name, content=self.content, by=by, rehearses=rehearses)


def read(text: str | bytes) -> ProjectFile:
    """Read a file. Refuses one that is too large, no YAML of the kind above, or not of the form.

    Every refusal names the place: its path and its line.
    """
    data = text.encode(errors="replace") if isinstance(text, str) else text
    if len(data) > MOST_BYTES:
        raise Refusal(
            "project_file_too_large",
            _("A project file has at most %(most)s KiB. Leave out what belongs elsewhere."),
            most=MOST_BYTES >> 10,
        )
    try:
        written = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refusal(
            "project_file_not_readable", _("The file is no text in UTF-8. Save it as that.")
        ) from None
    lines: dict[str, int] = {}
    values = _values(written, lines)
    with _Placed(lines):
        return ProjectFile(content=project_file.decode_content(values), lines=lines)


def write(project: Project) -> str:
    """Return a project as a file. Equal projects give equal bytes."""
    return dumped(state_of(project))


def dumped(value: Any) -> str:
    """Return a value as YAML that `read` gives back as it was."""
    text: str = yaml.dump(
        value, Dumper=_Writer, sort_keys=False, allow_unicode=True, default_flow_style=False, width=math.inf
    )
    return text


def in_yaml(value: Any) -> str:
    """Return a value as a file holds it, for a list of changes; a text as it is."""
    return value if isinstance(value, str) else dumped(value).removesuffix("...\n").strip("\n")


# ── Lines of refusals ──


class _Placed:
    """Names path and line in every refusal that is raised within."""

    def __init__(self, lines: Mapping[str, int]) -> None:
        self._lines = lines

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if not isinstance(error, Refusal) or not isinstance(error, project_file.InPath):
            return
        shown = [
            _("%(path)s (line %(line)s): %(problem)s") % {"path": path, "line": line, "problem": problem}
            if (line := self._line(path))
            else f"{path}: {problem}"
            for path, problem in error.problems[:_MOST_SHOWN]
        ]
        if len(error.problems) > _MOST_SHOWN:
            shown.append("…")
        error.message = "\n".join(shown)
        error.args = (error.message,)

    def _line(self, path: str) -> int | None:
        """Return the line of a path, or of the nearest above it that the file has."""
        while path and path not in self._lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._lines.get(path)


# ── Reading ──


@dataclass(slots=True)
class _Open:
    """A mapping or list that is being read."""

    path: str
    value: Any
    key: str | None = None
    """Of a mapping: the key whose value comes next."""
    keys: set[str] = field(default_factory=set)

    def take(self, value: Any) -> None:
        """Add the next value."""
        if self.key is None:
            self.value.append(value)
        else:
            self.value[self.key] = value
            self.key = None


def _values(text: str, lines: dict[str, int]) -> dict[str, Any]:
    try:
        values = _composed(text, lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise Refusal(
            "project_file_not_readable",
            _("The file is no YAML: line %(line)s: %(problem)s. Correct it there."),
            line=mark.line + 1 if mark else 1,
            problem=getattr(error, "problem", None) or error,
        ) from None
    if not isinstance(values, dict):
        raise Refusal(
            "project_file_not_readable",
            _("The file holds no mapping. It begins with the line “rondo: 1”."),
        )
    return values


def _composed(text: str, lines: dict[str, int]) -> Any:
    """Return the values of the one document, and write down the line of every path."""
    root: list[Any] = []
    stack: list[_Open] = []
    for event, line in _events(text):
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
            continue
        _require_plain(event, line)
        parent = stack[-1] if stack else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            _take_key(parent, event, line, lines)
            continue
        path, value = _path(parent), _value(event)
        lines.setdefault(path, line)
        if parent is None:
            root.append(value)
        else:
            parent.take(value)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(stack) >= MOST_DEPTH:
                raise _refused(
                    line,
                    _("Line %(line)s: it is nested deeper than %(most)s levels. Write it flatter."),
                    most=MOST_DEPTH,
                )
            stack.append(_Open(path, value))
    return root[0] if root else None


def _events(text: str) -> Iterator[tuple[yaml.Event, int]]:
    """Yield the beginnings and ends of the values of one document, with their lines."""
    nodes = documents = 0
    for event in yaml.parse(text, Loader=_Reader):
        line = event.start_mark.line + 1  # type: ignore[union-attr]  # events of a parser have marks
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if documents > 1:
            raise _refused(line, _("Line %(line)s: there is a second document. Keep one."))
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
        if nodes > MOST_NODES:
            raise _refused(
                line,
                _("Line %(line)s: there are more than %(most)s values. Leave some out."),
                most=MOST_NODES,
            )
        if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            yield event, line


def _require_plain(event: Any, line: int) -> None:
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise _refused(line, _("Line %(line)s: anchors and aliases are not read. Write the values out."))
    tag = getattr(event, "tag", None)
    if tag not in (None, "!"):
        raise _refused(
            line, _("Line %(line)s: the tag %(tag)s is not read. Leave it out."), tag=str(tag)[:60]
        )


def _take_key(parent: _Open, event: Any, line: int, lines: dict[str, int]) -> None:
    if not isinstance(event, yaml.ScalarEvent):
        raise _refused(line, _("Line %(line)s: a key is a text. Write it in quotes."))
    key = event.value
    if key in parent.keys:
        raise _refused(
            line, _("Line %(line)s: the key “%(key)s” stands there twice. Keep one."), key=key[:60]
        )
    parent.keys.add(key)
    parent.key = key
    lines[_path(parent)] = line


def _path(parent: _Open | None) -> str:
    if parent is None:
        return ""
    if parent.key is not None:
        return f"{parent.path}.{parent.key}" if parent.path else parent.key
    return f"{parent.path}[{len(parent.value)}]"


def _value(event: Any) -> Any:
    if isinstance(event, yaml.MappingStartEvent):
        return {}
    if isinstance(event, yaml.SequenceStartEvent):
        return []
    text: str = event.value
    if "\x00" in text or (not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text)):
        raise _refused(
            event.start_mark.line + 1,
            _("Line %(line)s: a text holds a character that cannot be stored. Remove it."),
        )
    if not event.implicit[0]:
        return text
    if _NULL.fullmatch(text):
        return None
    if _FLAG.fullmatch(text):
        return text[0] in "tT"
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _refused(line: int, message: str, **params: Any) -> Refusal:
    return Refusal("project_file_not_readable", message, line=line, **params)


# ── Writing ──


class _Writer(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and in quotes what another reader could take for no text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_NOT_IN_A_BLOCK = re.compile("[\x85\u2028\u2029\ufeff]")


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if _NOT_IN_A_BLOCK.search(text) or _read_as_no_text(text):
        style = '"'
    elif "\n" in text and not text[0].isspace():
        # A block that begins with white space is not written as every reader reads it.
        style = "|"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _read_as_no_text(text: str) -> bool:
    return any(pattern.fullmatch(text) for pattern in (_NULL, _FLAG, _INTEGER, _NUMBER, _NOT_FINITE))


_Writer.add_representer(str, _text_node)
