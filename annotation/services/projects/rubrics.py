"""Rubrics of a project: save a version, publish it, and have annotators rate by it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.utils.text import slugify
from django.utils.translation import gettext as _

from annotation.choices import RatingScale
from annotation.errors import Refusal
from annotation.models import Criterion, Project, Rubric, RubricCriterion, RubricVersion, User
from annotation.selectors import access
from annotation.services import audit
from annotation.services.projects.questions import set_criterion

MOST_CRITERIA = 20
MOST_CHARACTERS = 1000
"""Of the text, and of the levels, of one criterion."""
MOST_WEIGHT = 1000.0
_LONGEST_NAME = 80
_LONGEST_KEY = 60
_AFTER_OTHERS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class RubricCriterionInput:
    """One criterion of a new version, as a manager writes it."""

    name: str
    text: str = ""
    levels: str = ""
    scale: str = RatingScale.FIVE
    weight: float = 1.0


def save_rubric(
    *,
    project: Project,
    name: str,
    criteria: Sequence[RubricCriterionInput],
    saved_by: User,
    rubric: Rubric | None = None,
) -> RubricVersion:
    """Save a rubric as a new version, which nothing uses before it is published.

    rubric: the one to edit; None makes one. An edit without a difference returns the newest version. Refuses
    who does not manage the project, a name that is in use, and criteria that break a limit.
    """
    access.refuse_unless_manager(saved_by, project, "manager_writes_rubrics")
    name = _plain(name)
    if not name or len(name) > _LONGEST_NAME:
        raise Refusal(
            "rubric_name_missing",
            _("Give the rubric a name of at most %(most)s characters."),
            field="name",
            most=_LONGEST_NAME,
        )
    rows = _checked(criteria)
    with transaction.atomic():
        # Two who save at once get numbers and keys of their own.
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        namesakes = project.rubrics.filter(name__iexact=name)
        if (namesakes.exclude(pk=rubric.pk) if rubric else namesakes).exists():
            raise Refusal(
                "rubric_name_in_use",
                _("A rubric of this project has this name. Choose another."),
                field="name",
            )
        if rubric is None:
            rubric = Rubric.objects.create(project=project, name=name)
        elif rubric.name != name:
            rubric.name = name
            rubric.save(update_fields=["name"])
        newest = rubric.versions.prefetch_related("criteria").first()
        if newest is not None and _inputs(newest) == rows:
            return newest
        version = RubricVersion.objects.create(
            rubric=rubric, number=newest.number + 1 if newest else 1, created_by=saved_by
        )
        RubricCriterion.objects.bulk_create(_criteria(project, version, rows))
        audit.record(
            action="rubric.save",
            subject=rubric,
            actor=saved_by,
            project=project,
            details={"version": version.number, "criteria": [row.name for row in rows]},
        )
    return version


def publish_rubric(*, version: RubricVersion, published_by: User) -> Rubric:
    """Put a version into use: judges and rewards may be set to it, and annotators rate by it where asked."""
    rubric = version.rubric
    access.refuse_unless_manager(published_by, rubric.project, "manager_writes_rubrics")
    with transaction.atomic():
        rubric = Rubric.objects.select_for_update(no_key=True).select_related("project").get(pk=rubric.pk)
        if rubric.published_id == version.pk:
            return rubric
        before = rubric.published
        rubric.published = version
        rubric.save(update_fields=["published"])
        _write_criteria(version, is_asked=rubric.is_asked, by=published_by)
        if rubric.is_asked and before is not None:
            _archive(before, but=version)
        audit.record(
            action="rubric.publish",
            subject=rubric,
            actor=published_by,
            project=rubric.project,
            details={"version": version.number},
        )
    return rubric


def ask_rubric(*, rubric: Rubric, is_asked: bool, by: User) -> Rubric:
    """Have annotators rate each response by the published criteria, or no longer.

    One rubric of a project is asked: another one gives way. Refuses one without a published version.
    """
    access.refuse_unless_manager(by, rubric.project, "manager_writes_rubrics")
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=rubric.project_id)
        rubric = Rubric.objects.select_related("project", "published").get(pk=rubric.pk)
        if rubric.is_asked == is_asked:
            return rubric
        if rubric.published is None:
            raise Refusal("rubric_not_published", _("Publish a version of the rubric first."))
        for other in rubric.project.rubrics.filter(is_asked=True).select_related("published"):
            other.is_asked = False
            other.save(update_fields=["is_asked"])
            if other.published is not None:
                _archive(other.published)
        if is_asked:
            rubric.is_asked = True
            rubric.save(update_fields=["is_asked"])
            _write_criteria(rubric.published, is_asked=True, by=by)
        audit.record(
            action="rubric.ask" if is_asked else "rubric.stop",
            subject=rubric,
            actor=by,
            project=rubric.project,
        )
    rubric.is_asked = is_asked
    return rubric


def _checked(criteria: Sequence[RubricCriterionInput]) -> list[RubricCriterionInput]:
    """Return the criteria as they are stored. Refuses what breaks a limit, naming the criterion."""
    rows = [
        RubricCriterionInput(
            name=_plain(row.name),
            text=_plain(row.text),
            levels=_plain(row.levels),
            scale=row.scale,
            weight=float(row.weight),
        )
        for row in criteria
    ]
    if not 1 <= len(rows) <= MOST_CRITERIA:
        raise Refusal(
            "invalid_criteria_count", _("Write 1 to %(most)s criteria."), field="criteria", most=MOST_CRITERIA
        )
    for number, row in enumerate(rows, start=1):
        if problem := _problem(row):
            raise Refusal(
                "invalid_criterion",
                _("Criterion %(number)s: %(problem)s"),
                field="criteria",
                number=number,
                problem=problem,
            )
    if len({row.name.casefold() for row in rows}) < len(rows):
        raise Refusal(
            "criterion_named_twice", _("Two criteria have the same name. Rename one."), field="criteria"
        )
    return rows


def _problem(row: RubricCriterionInput) -> str:
    if not row.name or len(row.name) > _LONGEST_NAME:
        return _("write a name of at most %(most)s characters.") % {"most": _LONGEST_NAME}
    if max(len(row.text), len(row.levels)) > MOST_CHARACTERS:
        return _("write at most %(most)s characters.") % {"most": MOST_CHARACTERS}
    if row.scale not in RatingScale.values:
        return _("choose one of the scales.")
    if not (math.isfinite(row.weight) and 0 < row.weight <= MOST_WEIGHT):
        return _("the weight is above 0 and at most %(most)s.") % {"most": f"{MOST_WEIGHT:g}"}
    return ""


def _plain(text: str) -> str:
    return text.replace("\x00", "").replace("\r\n", "\n").strip()


def _inputs(version: RubricVersion) -> list[RubricCriterionInput]:
    return [
        RubricCriterionInput(
            name=row.name, text=row.text, levels=row.levels, scale=row.scale, weight=row.weight
        )
        for row in version.criteria.all()
    ]


def _criteria(
    project: Project, version: RubricVersion, rows: Sequence[RubricCriterionInput]
) -> list[RubricCriterion]:
    """Return the rows of a version: a criterion of the same name, text and scale keeps its key."""
    earlier = RubricCriterion.objects.filter(version__rubric=version.rubric_id).order_by("version__number")
    known = {(row.name, row.text, row.scale): row.key for row in earlier}
    used_keys = set(project.criteria.values_list("key", flat=True))
    used_keys |= set(
        RubricCriterion.objects.filter(version__rubric__project=project).values_list("key", flat=True)
    )
    made = []
    for position, row in enumerate(rows, start=1):
        key = known.get((row.name, row.text, row.scale)) or _free_key(row.name, used_keys)
        used_keys.add(key)
        made.append(
            RubricCriterion(
                version=version,
                position=position,
                key=key,
                name=row.name,
                text=row.text,
                levels=row.levels,
                scale=row.scale,
                weight=row.weight,
            )
        )
    return made


def _free_key(name: str, used_keys: set[str]) -> str:
    base = slugify(name)[: _LONGEST_KEY - 4].strip("-_") or "criterion"
    key, number = base, 1
    while key in used_keys:
        number += 1
        key = f"{base}-{number}"
    return key


def _write_criteria(version: RubricVersion, *, is_asked: bool, by: User) -> None:
    """Write the project's criteria by which ratings of this version are stored."""
    for row in version.criteria.all():
        set_criterion(
            project=version.rubric.project,
            key=row.key,
            values={
                "label": row.name,
                "description": "\n".join(filter(None, (row.text, row.levels))),
                "scale": row.scale,
                "is_archived": not is_asked,
                # In the rubric's order, after the project's other criteria.
                "position": _AFTER_OTHERS + row.position,
            },
            changed_by=by,
        )


def _archive(version: RubricVersion, *, but: RubricVersion | None = None) -> None:
    """Ask no more by the criteria of a version that another one does not have."""
    other_keys = but.criteria.values_list("key", flat=True) if but else ()
    keys = version.criteria.exclude(key__in=list(other_keys)).values_list("key", flat=True)
    for row in Criterion.objects.filter(
        project=version.rubric.project_id, key__in=list(keys), is_archived=False
    ):
        row.is_archived = True
        row.save(update_fields=["is_archived"])
