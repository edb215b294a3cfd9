"""A project as the values of a project file, and the changes between two of them."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from annotation.models import (
    Category,
    ConversationTask,
    Criterion,
    Project,
    ProjectQuestion,
    Rubric,
    RubricCriterion,
    RubricVersion,
)
from annotation.record.project_file import (
    CategoryEntry,
    ConversationTaskEntry,
    CriterionEntry,
    QuestionEntry,
    RubricCriterionEntry,
    RubricEntry,
    SettingsEntry,
    plain,
)
from annotation.selectors.configuration import question_in

_NAMES = ("key", "name", "tag")
"""Fields by which entries of a list are the same, in this order of preference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One difference: what is at a path before and after. None: nothing."""

    kind: Literal["added", "changed", "removed"]
    path: str
    before: Any
    after: Any


def changes_between(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Yield what differs, entries of lists by their key or name."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys([*before, *after]):
            yield from changes_between(before.get(name), after.get(name), f"{path}.{name}".lstrip("."))
        return
    name = _name_of_entries(before, after)
    if name is None:
        kind: Literal["added", "changed", "removed"] = "changed"
        if before is None or after is None:
            kind = "added" if before is None else "removed"
        yield Change(kind=kind, path=path, before=before, after=after)
        return
    old = {str(entry[name]): entry for entry in before or ()}
    new = {str(entry[name]): entry for entry in after or ()}
    for key in dict.fromkeys([*new, *old]):
        yield from changes_between(old.get(key), new.get(key), f"{path}[{key}]")
    old_order, new_order = [key for key in old if key in new], [key for key in new if key in old]
    if old_order != new_order:
        yield Change(kind="changed", path=f"{path} (order)", before=old_order, after=new_order)


def _name_of_entries(before: Any, after: Any) -> str | None:
    """Return the field that names every entry of both lists; None where they are no such lists."""
    lists = [values for values in (before, after) if values is not None]
    if not lists or not all(isinstance(values, list) for values in lists):
        return None
    entries = [entry for values in lists for entry in values]
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    for name in _NAMES:
        if all(name in entry for entry in entries) and all(
            len({str(entry[name]) for entry in values}) == len(values) for values in lists
        ):
            return name
    return None


def entry_of(cls: type[Any], source: object, **values: Any) -> dict[str, Any]:
    """Return the fields of an entry that `source` has otherwise than by default, with `values` for some."""
    entry = {}
    for field in dataclasses.fields(cls):
        value = values[field.name] if field.name in values else getattr(source, field.name)
        if value != field.default or field.name in _NAMES:
            # A choice of the database is a text here.
            entry[field.name] = str(value) if isinstance(value, str) else plain(value)
    return entry


def settings_of(project: Project) -> dict[str, Any]:
    """Return the settings, all of them."""
    values = {field.name: getattr(project, field.name) for field in dataclasses.fields(SettingsEntry)}
    for name in ("hourly_wage", "item_pay"):
        values[name] = None if values[name] is None else float(values[name])
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}


def allocation_of(project: Project) -> list[dict[str, Any]] | None:
    """Return the rules of who gets what."""
    rules = [
        {"tag": rule["tag"], "skill": rule["skill"], **({"share": share} if share != 100 else {})}
        for rule in project.allocation
        for share in [rule.get("share", 100)]
    ]
    return rules or None


def guidelines_of(project: Project) -> str | None:
    """Return the newest version of the guidelines."""
    text: str | None = project.guidelines.order_by("-version").values_list("text", flat=True).first()
    return text


def categories_of(project: Project) -> list[dict[str, Any]] | None:
    """Return the categories that are asked."""
    rows = (
        Category.objects.filter(project=project, is_archived=False)
        .select_related("parent")
        .order_by("position", "id")
    )
    return [entry_of(CategoryEntry, row, parent=row.parent.key if row.parent else "") for row in rows] or None


def criteria_of(project: Project) -> list[dict[str, Any]] | None:
    """Return the criteria that are asked, without those of rubrics."""
    rows = own_criteria(project).filter(is_archived=False).order_by("position", "id")
    return [entry_of(CriterionEntry, row) for row in rows] or None


def own_criteria(project: Project) -> Any:
    """Return the criteria that no rubric writes."""
    of_rubrics = RubricCriterion.objects.filter(version__rubric__project=project).values("key")
    return Criterion.objects.filter(project=project).exclude(key__in=of_rubrics)


def questions_of(project: Project) -> list[dict[str, Any]] | None:
    """Return the additional questions that are asked, each in its newest version."""
    rows = (
        ProjectQuestion.objects.filter(project=project, is_archived=False)
        .select_related("shown_when")
        .prefetch_related("versions")
        .order_by("position", "id")
    )
    return [entry_of(QuestionEntry, question_in(row, row.versions.all()[0])) for row in rows] or None


def rubrics_of(project: Project) -> list[dict[str, Any]] | None:
    """Return the rubrics by name."""
    rows = project.rubrics.select_related("published").order_by("name")
    return [_rubric(row) for row in rows] or None


def content_of(rubric: Rubric) -> RubricVersion | None:
    """Return the version that a file holds: the published one, else the newest."""
    return rubric.published or rubric.versions.order_by("-number").first()


def _rubric(row: Rubric) -> dict[str, Any]:
    version = content_of(row)
    criteria = [
        entry_of(RubricCriterionEntry, criterion) for criterion in (version.criteria.all() if version else ())
    ]
    return entry_of(RubricEntry, row, is_published=row.published_id is not None, criteria=criteria)


def conversation_tasks_of(project: Project) -> list[dict[str, Any]] | None:
    """Return the opening tasks that are offered, by name."""
    rows = ConversationTask.objects.filter(project=project, archived_at__isnull=True).order_by("name")
    return [entry_of(ConversationTaskEntry, row) for row in rows] or None


def by_name(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return entries in the order of their names, which the database has no other order for."""
    return sorted(entries, key=lambda entry: str(entry["name"]))
