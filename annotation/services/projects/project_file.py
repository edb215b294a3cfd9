"""Project files: compare a project with what a file says, and apply the file, all or nothing.

A file has sections. One that it leaves out stays as it is; of one that it has, the file is the whole truth:
entries that it does not name are deleted, or archived where annotations use them. Other applications add
sections by `register`.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from pydantic import TypeAdapter

from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    Category,
    ConversationTask,
    Criterion,
    Project,
    ProjectQuestion,
    User,
)
from annotation.record.base import ContractError, Text, decode
from annotation.record.project_file import (
    VERSION,
    CategoryEntry,
    ConversationTaskEntry,
    CriterionEntry,
    QuestionEntry,
    RubricEntry,
    RuleEntry,
    SettingsEntry,
    plain,
)
from annotation.record.questions import Question
from annotation.selectors import access
from annotation.selectors import project_file as selectors
from annotation.selectors.project_file import Change, changes_between
from annotation.services import audit
from annotation.services.conversations import archive_task, save_task
from annotation.services.projects.project_questions import newest, save_question
from annotation.services.projects.projects import change_settings, create_project, publish_guideline
from annotation.services.projects.questions import (
    archive_question,
    delete_question,
    order_questions,
    set_category,
    set_criterion,
)
from annotation.services.projects.rubrics import RubricCriterionInput, ask_rubric, publish_rubric, save_rubric

Content = Mapping[str, Any]
"""What a file says, by section: values as `Section.decode` returns them."""
Problems = Sequence[tuple[str, str]]

_LONGEST_PROBLEM = 400
_ITEM = re.compile(r"item (\d+)")


class InPath(Refusal):
    """A refusal that names the paths in the file, each with what is wrong and what to do."""

    def __init__(self, code: str, problems: Problems) -> None:
        self.problems = [(path, message[:_LONGEST_PROBLEM]) for path, message in problems]
        lines = "\n".join(f"{path}: {message}" for path, message in self.problems)
        super().__init__(code, "%(lines)s", field=self.problems[0][0], lines=lines)


@contextmanager
def placed(path: str, names: Mapping[str, str] | None = None) -> Iterator[None]:
    """Name the path in the file in whatever is refused within.

    names: field of a refusal → that of the file.
    """
    try:
        yield
    except (NotAllowed, InPath):
        raise
    except Refusal as refusal:
        field = (names or {}).get(refusal.field or "", refusal.field)
        raise InPath(refusal.code, [(f"{path}.{field}" if field else path, refusal.message)]) from refusal


# ── Sections ──


@dataclass(frozen=True, kw_only=True)
class FileSection:
    """One key of a file: what it holds, how it is read from a project and written to one."""

    key: str
    hint: Any
    """Type of its value: a record, a tuple of records, or a text."""
    read: Callable[[Project], Any]
    """Return its values as a file holds them; None where the project has nothing of it."""
    write: Callable[[Project, Any, User], None]
    """Give the project the decoded value. Called in a transaction, and only where something differs."""
    decode: Callable[[Any], Any] | None = None
    """Check what a file holds and return the value; by default what `hint` says."""
    plain: Callable[[Any], Any] = plain
    """Return a decoded value as a file holds it, without defaults."""
    complete: Callable[[Any, Any], Any] = lambda _before, given: given or None
    """Return what stands once the given values are written over those before."""
    schema: Callable[[], dict[str, Any]] | None = None
    """Return its JSON Schema; by default that of `hint`."""

    def checked(self, values: Any) -> Any:
        """Return the decoded value. Refuses what is not of the form, naming every path."""
        try:
            return self.decode(values) if self.decode else decode(self.hint, values)
        except ContractError as error:
            problems = error.problems or (((), str(error)),)
            raise InPath(
                "project_file_invalid",
                [(_path(self.key, place), _sentence(problem)) for place, problem in problems],
            ) from None


_sections: dict[str, FileSection] = {}


def register(*sections: FileSection) -> None:
    """Let files have further sections, which are applied after those that are there."""
    for section in sections:
        _sections[section.key] = section


def state_of(project: Project) -> dict[str, Any]:
    """Return everything of a project that a file holds."""
    values = {key: section.read(project) for key, section in _sections.items()}
    return {"rondo": VERSION, **{key: value for key, value in values.items() if value is not None}}


def digest_of(project: Project) -> str:
    """Return a digest of the state, by which a change in between is noticed."""
    written = json.dumps(state_of(project), ensure_ascii=False, default=str)
    return hashlib.sha256(written.encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of files."""
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {"rondo": {"const": VERSION, "description": "Version of the form."}}
    for key, section in _sections.items():
        schema = section.schema() if section.schema else schema_of(section.hint)
        definitions |= schema.pop("$defs", {})
        properties[key] = schema
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rondo project file",
        "type": "object",
        "additionalProperties": False,
        "required": ["rondo"],
        "properties": properties,
        "$defs": dict(sorted(definitions.items())),
    }


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type."""
    return TypeAdapter(hint).json_schema(ref_template="#/$defs/{model}")


def decode_content(values: Mapping[str, Any]) -> Content:
    """Return what a file says. Refuses another version, unknown sections and wrong values, with paths."""
    if values.get("rondo") != VERSION or isinstance(values.get("rondo"), bool):
        raise InPath(
            "project_file_version",
            [
                (
                    "rondo",
                    _("This Rondo reads version %(version)s: write “rondo: %(version)s”.")
                    % {"version": VERSION},
                )
            ],
        )
    problems: list[tuple[str, str]] = []
    content: dict[str, Any] = {}
    for key in values:
        if key != "rondo" and key not in _sections:
            near = get_close_matches(key, _sections, n=1)
            known = ", ".join(_sections)
            message = (
                _("There is no such section. Did you mean %(near)s?") % {"near": near[0]}
                if near
                else _("There is no such section. There are %(known)s.") % {"known": known}
            )
            problems.append((key, message))
    for key, section in _sections.items():
        if key in values:
            try:
                content[key] = section.checked(values[key])
            except InPath as refusal:
                problems += refusal.problems
    problems += _named_twice(content)
    if problems:
        raise InPath("project_file_invalid", problems)
    return content


def _named_twice(content: Content) -> Iterator[tuple[str, str]]:
    """Yield the entries of lists whose key or name an entry before has."""
    for key, value in content.items():
        seen: set[str] = set()
        for index, entry in enumerate(value if isinstance(value, tuple) else ()):
            name = next((field for field in ("key", "name", "tag") if hasattr(entry, field)), None)
            if name is None:
                continue
            if getattr(entry, name) in seen:
                yield f"{key}[{index}].{name}", _("An entry before has the same. Rename or remove one.")
            seen.add(getattr(entry, name))


def _path(key: str, place: Sequence[str]) -> str:
    path = key
    for step in place:
        item = _ITEM.fullmatch(step)
        path += f"[{int(item[1]) - 1}]" if item else f".{step}"
    return path


def _sentence(problem: str) -> str:
    return f"{problem[:1].upper()}{problem[1:]}." if problem and problem[-1] not in ".?!" else problem


# ── Comparing and applying ──


def compare(*, project: Project | None, content: Content) -> list[Change]:
    """Return what applying the file would change, section by section. None: a new project."""
    changes: list[Change] = []
    for section, before, after in _differing(project, content):
        changes += changes_between(before, after, section.key)
    return changes


def apply(
    *, project: Project, content: Content, by: User, state: str = "", rehearses: bool = False
) -> list[Change]:
    """Apply a file and return what changed. All or nothing; a file that says what stands changes nothing.

    state: what `digest_of` returned when the changes were looked at; empty applies in any case. rehearses:
    check whether it could be applied, and take everything back. Refuses who does not manage the project, and
    what the services refuse, naming the path in the file.
    """
    access.refuse_unless_manager(by, project, "manager_applies_project_files")
    with transaction.atomic():
        # An instance of its own: what is taken back must not stay in that of the caller.
        locked = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        if state and state != digest_of(locked):
            raise Refusal(
                "project_changed_meanwhile",
                _("The project changed since you compared. Look at the changes again, then apply."),
                field="state",
            )
        changes = compare(project=locked, content=content)
        for section, _before, _after in list(_differing(locked, content)):
            with placed(section.key):
                section.write(locked, content[section.key], by)
        if changes:
            locked.refresh_from_db()
            _require_stored(locked, content)
            audit.record(
                action="project.apply_file",
                subject=locked,
                actor=by,
                project=locked,
                details={"changes": [f"{change.kind} {change.path}" for change in changes[:100]]},
            )
        if rehearses:
            transaction.set_rollback(True)
    if not rehearses:
        project.refresh_from_db()
    return changes


def create(*, slug: str, name: str, content: Content, by: User, rehearses: bool = False) -> Project:
    """Create a project from a file. Refuses as `create_project` and `apply` do.

    name: where the file has none. rehearses: check whether it could be created, and take it back.
    """
    with transaction.atomic():
        project = create_project(
            name=content.get("name") or name or slug, slug=slug, categories=(), created_by=by
        )
        apply(project=project, content=content, by=by)
        if rehearses:
            transaction.set_rollback(True)
    return project


def _differing(project: Project | None, content: Content) -> Iterator[tuple[FileSection, Any, Any]]:
    """Yield the sections that a file changes, with the values before and after."""
    for key, section in _sections.items():
        if key in content:
            before = section.read(project) if project else None
            after = section.complete(before, section.plain(content[key]))
            if before != after:
                yield section, before, after


def _require_stored(project: Project, content: Content) -> None:
    """Refuse a file that would change something again: a value that its entry cannot have."""
    problems = [
        (
            change.path,
            _("This cannot be stored here: leave it out. Stored would be: %(value)s.")
            % {"value": change.before},
        )
        for section, before, after in _differing(project, content)
        for change in changes_between(before, after, section.key)
    ]
    if problems:
        raise InPath("project_file_not_as_stored", problems)


# ── What the project is and asks ──


def _write_name(project: Project, value: str, by: User) -> None:
    change_settings(project=project, settings={"name": value}, changed_by=by)


def _write_description(project: Project, value: str, by: User) -> None:
    change_settings(project=project, settings={"description": value}, changed_by=by)


def _checked_settings(values: Any) -> dict[str, Any]:
    """Return the settings that a file has, checked one by one."""
    given = values if isinstance(values, Mapping) else {}
    fields = SettingsEntry.__dataclass_fields__
    defaults = {field.name: field.get_default() for field in Project._meta.fields if field.name in fields}
    whole = decode(SettingsEntry, {**defaults, **given} if values is given else values)
    return {name: getattr(whole, name) for name in fields if name in given}


def _write_settings(project: Project, value: Mapping[str, Any], by: User) -> None:
    settings = dict(value)
    for name in ("hourly_wage", "item_pay"):
        if settings.get(name) is not None:
            settings[name] = Decimal(str(settings[name])).quantize(Decimal("0.01"))
    change_settings(project=project, settings=settings, changed_by=by)


def _settings_schema() -> dict[str, Any]:
    schema = schema_of(SettingsEntry)
    schema.pop("required", None)
    return schema


def _write_allocation(project: Project, rules: Sequence[RuleEntry], by: User) -> None:
    allocation = [{"tag": rule.tag, "skill": rule.skill, "share": rule.share} for rule in rules]
    with placed("allocation", {"allocation": ""}):
        change_settings(project=project, settings={"allocation": allocation}, changed_by=by)


def _write_guidelines(project: Project, text: str, by: User) -> None:
    with placed("guidelines", {"text": ""}):
        publish_guideline(project=project, text=text, author=by)


# ── Categories and criteria ──


def _write_categories(project: Project, entries: Sequence[CategoryEntry], by: User) -> None:
    rows = {row.key: row for row in Category.objects.filter(project=project).select_related("parent")}
    wanted = {entry.key: entry for entry in entries}
    for key, row in rows.items():
        # Another category may get the key.
        loses_key = key not in wanted or wanted[key].shortcut != row.shortcut
        if row.shortcut and loses_key and not row.is_archived:
            set_category(project=project, key=key, values={"shortcut": ""}, changed_by=by)
        if row.parent is not None and (key not in wanted or wanted[key].parent != row.parent.key):
            # What was above it may go, or become a part itself.
            set_category(project=project, key=key, values={"parent": ""}, changed_by=by)
    _remove(Category, [row for row in rows.values() if key_is_free(row, wanted)], by)
    # The upper level first: parts name it.
    _write_parts(project, "categories", entries, by, set_category, only=lambda entry: not entry.parent)
    _write_parts(project, "categories", entries, by, set_category, only=lambda entry: bool(entry.parent))
    _order(Category, project, list(wanted), by)


def _write_criteria(project: Project, entries: Sequence[CriterionEntry], by: User) -> None:
    wanted = {entry.key: entry for entry in entries}
    _remove(Criterion, [row for row in selectors.own_criteria(project) if key_is_free(row, wanted)], by)
    _write_parts(project, "criteria", entries, by, set_criterion)
    _order(Criterion, project, list(wanted), by)


def key_is_free(row: Category | Criterion | ProjectQuestion, wanted: Mapping[str, object]) -> bool:
    """Return whether an entry that is asked is no longer wanted."""
    return not row.is_archived and row.key not in wanted


def _remove(kind: type[Any], rows: Sequence[Any], by: User) -> None:
    """Delete what nobody used, and archive the rest."""
    for row in rows:
        current = kind.objects.select_related("project").get(pk=row.pk)
        try:
            delete_question(question=current, deleted_by=by)
        except Refusal as refusal:
            if refusal.code not in ("question_in_use", "question_shows_another", "category_in_question"):
                raise
            archive_question(question=kind.objects.get(pk=row.pk), archived=True, changed_by=by)


def _write_parts(
    project: Project,
    section: str,
    entries: Sequence[Any],
    by: User,
    write: Callable[..., object],
    *,
    only: Callable[[Any], bool] = lambda _entry: True,
) -> None:
    before = {entry["key"]: entry for entry in _sections[section].read(project) or ()}
    for index, entry in enumerate(entries):
        if before.get(entry.key) == plain(entry) or not only(entry):
            continue
        values = {name: getattr(entry, name) for name in entry.__dataclass_fields__ if name != "key"}
        with placed(f"{section}[{index}]"):
            write(project=project, key=entry.key, values={**values, "is_archived": False}, changed_by=by)


def _order(kind: type[Any], project: Project, keys: Sequence[str], by: User) -> None:
    """Put the wanted entries in the order of the file, before the others, where they are not."""
    rows = kind.objects.filter(project=project).order_by("position", "id")
    current = list(rows.values_list("key", flat=True))
    if [key for key in current if key in keys] != list(keys):
        others = [key for key in current if key not in keys]
        order_questions(kind=kind, project=project, keys=[*keys, *others], changed_by=by)


# ── Additional questions ──


def _write_questions(project: Project, entries: Sequence[QuestionEntry], by: User) -> None:
    """Write the questions so that no step needs what a later one brings: conditions and keys of the keyboard
    are taken away first and given last.
    """
    rows = _questions(project)
    wanted = {entry.key: _question(entry) for entry in entries}
    asked = [row.key for row in rows.values() if not row.is_archived]
    moves = [key for key in asked if key in wanted] + [key for key in wanted if key not in asked] != list(
        wanted
    )
    loose = set(wanted) - set(asked)
    for row in rows.values():
        before = newest(row)
        after = wanted.get(row.key)
        loses_condition = before.shown_when is not None and (
            moves or not after or after.shown_when != before.shown_when
        )
        loses_keys = _shortcuts(before) not in ({}, _shortcuts(after) if after else {})
        if (after or not row.is_archived) and (loses_condition or loses_keys):
            loose.add(row.key)
            bare = tuple(replace(choice, shortcut="") for choice in before.choices)
            stripped = replace(before, shown_when=None, choices=bare if loses_keys else before.choices)
            save_question(project=project, question=stripped, saved_by=by)
    gone = [row for row in _questions(project).values() if key_is_free(row, wanted)]
    _remove(ProjectQuestion, gone[::-1], by)
    stood = {entry["key"]: entry for entry in selectors.questions_of(project) or ()}
    for index, entry in enumerate(entries):
        with placed(f"questions[{index}]", _QUESTION_FIELDS):
            stored = rows.get(entry.key)
            if stored is not None and stored.is_archived:
                archive_question(
                    question=ProjectQuestion.objects.get(pk=stored.pk), archived=False, changed_by=by
                )
            question = wanted[entry.key]
            if entry.key in loose:
                question = replace(question, shown_when=None)
            if stored is None or stored.is_archived or stood.get(entry.key) != plain(entry):
                save_question(project=project, question=question, saved_by=by)
    _order(ProjectQuestion, project, list(wanted), by)
    for index, entry in enumerate(entries):
        if entry.key in loose and entry.shown_when is not None:
            with placed(f"questions[{index}]", _QUESTION_FIELDS):
                save_question(project=project, question=wanted[entry.key], saved_by=by)


_QUESTION_FIELDS = {"shown_values": "shown_when.values"}


def _questions(project: Project) -> dict[str, ProjectQuestion]:
    rows = ProjectQuestion.objects.filter(project=project).select_related("shown_when", "project")
    return {row.key: row for row in rows.order_by("position", "id")}


def _question(entry: QuestionEntry) -> Question:
    values = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
    return Question(**values)


def _shortcuts(question: Question) -> dict[str, str]:
    return {choice.key: choice.shortcut for choice in question.choices if choice.shortcut}


# ── Rubrics and conversation tasks ──


def _complete_rubrics(before: Sequence[dict[str, Any]] | None, given: Sequence[dict[str, Any]]) -> Any:
    """Keep the rubrics that a file does not name, because scores refer to them, but ask by them no more."""
    named = {entry["name"] for entry in given}
    kept = [
        {name: value for name, value in entry.items() if name != "is_asked"}
        for entry in before or ()
        if entry["name"] not in named
    ]
    return selectors.by_name([*given, *kept]) or None


def _write_rubrics(project: Project, entries: Sequence[RubricEntry], by: User) -> None:
    rows = {row.name: row for row in project.rubrics.select_related("project", "published")}
    asked = {entry.name for entry in entries if entry.is_asked}
    for name, row in rows.items():
        if row.is_asked and name not in asked:
            ask_rubric(rubric=row, is_asked=False, by=by)
    for index, entry in enumerate(entries):
        with placed(f"rubrics[{index}]"):
            rubric = rows.get(entry.name)
            version = selectors.content_of(rubric) if rubric else None
            criteria = [_criterion_input(criterion) for criterion in entry.criteria]
            if rubric is not None and rubric.published_id is not None and not entry.is_published:
                raise Refusal(
                    "rubric_stays_published",
                    _("A published rubric stays published. Write true, and is_asked: false to stop asking."),
                    field="is_published",
                )
            if (
                version is None
                or [_criterion_input(criterion) for criterion in version.criteria.all()] != criteria
            ):
                version = save_rubric(
                    project=project, name=entry.name, criteria=criteria, saved_by=by, rubric=rubric
                )
            rubric = version.rubric
            if entry.is_published and rubric.published_id != version.pk:
                rubric = publish_rubric(version=version, published_by=by)
            if entry.is_asked and not rubric.is_asked:
                ask_rubric(rubric=rubric, is_asked=True, by=by)


def _write_conversation_tasks(project: Project, entries: Sequence[ConversationTaskEntry], by: User) -> None:
    rows = {
        row.name: row for row in ConversationTask.objects.filter(project=project).select_related("project")
    }
    wanted = {entry.name for entry in entries}
    for name, row in rows.items():
        if name not in wanted and row.archived_at is None:
            archive_task(task=row, actor=by)
    for index, entry in enumerate(entries):
        task = rows.get(entry.name)
        stands = task is not None and task.archived_at is None
        if stands and selectors.entry_of(ConversationTaskEntry, task) == plain(entry):
            continue
        values = {name: getattr(entry, name) for name in entry.__dataclass_fields__}
        with placed(f"conversation_tasks[{index}]"):
            save_task(project=project, actor=by, task=task, **values, archived_at=None)


def _criterion_input(criterion: Any) -> RubricCriterionInput:
    return RubricCriterionInput(
        name=criterion.name,
        text=criterion.text,
        levels=criterion.levels,
        scale=criterion.scale,
        weight=float(criterion.weight),
    )


register(
    FileSection(key="name", hint=Text, read=lambda project: project.name, write=_write_name),
    FileSection(
        key="description",
        hint=str,
        read=lambda project: project.description or None,
        write=_write_description,
    ),
    FileSection(
        key="settings",
        hint=SettingsEntry,
        read=selectors.settings_of,
        write=_write_settings,
        decode=_checked_settings,
        complete=lambda before, given: {**(before or {}), **given},
        schema=_settings_schema,
    ),
    FileSection(
        key="allocation",
        hint=tuple[RuleEntry, ...],
        read=selectors.allocation_of,
        write=_write_allocation,
    ),
    FileSection(key="guidelines", hint=str, read=selectors.guidelines_of, write=_write_guidelines),
    FileSection(
        key="categories",
        hint=tuple[CategoryEntry, ...],
        read=selectors.categories_of,
        write=_write_categories,
    ),
    FileSection(
        key="criteria",
        hint=tuple[CriterionEntry, ...],
        read=selectors.criteria_of,
        write=_write_criteria,
    ),
    FileSection(
        key="questions",
        hint=tuple[QuestionEntry, ...],
        read=selectors.questions_of,
        write=_write_questions,
    ),
    FileSection(
        key="rubrics",
        hint=tuple[RubricEntry, ...],
        read=selectors.rubrics_of,
        write=_write_rubrics,
        complete=_complete_rubrics,
    ),
    FileSection(
        key="conversation_tasks",
        hint=tuple[ConversationTaskEntry, ...],
        read=selectors.conversation_tasks_of,
        write=_write_conversation_tasks,
        complete=lambda _before, given: selectors.by_name(given) or None,
    ),
)
