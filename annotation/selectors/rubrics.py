"""Rubrics of a project: the published ones, and the difference between two versions."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F, QuerySet

from annotation.models import Project, Rubric, RubricCriterion, RubricVersion
from annotation.text.edits import DiffPiece, pieces


def rubrics_of(project: Project) -> QuerySet[Rubric]:
    """Return a project's rubrics by name, each with its published version."""
    return project.rubrics.select_related("project", "published").order_by("name")


def published_versions(project: Project) -> QuerySet[RubricVersion]:
    """Return the version in use of each published rubric of a project."""
    return (
        RubricVersion.objects.filter(rubric__project=project, pk=F("rubric__published"))
        .select_related("rubric")
        .order_by("rubric__name")
    )


def published_version(project: Project, pk: int) -> RubricVersion | None:
    """Return a project's rubric version that is or was in use: later ones are drafts of a manager."""
    return (
        RubricVersion.objects.filter(
            pk=pk, rubric__project=project, number__lte=F("rubric__published__number")
        )
        .select_related("rubric")
        .first()
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CriterionChange:
    """One criterion in two versions; None where a version does not have it."""

    before: RubricCriterion | None
    after: RubricCriterion | None
    texts: tuple[tuple[DiffPiece, ...], ...] = ()
    """The texts that differ, in pieces."""

    @property
    def facts_differ(self) -> bool:
        """Return whether weight or scale differ."""
        before, after = self.before, self.after
        return bool(before and after and (before.weight, before.scale) != (after.weight, after.scale))


def changes_between(before: RubricVersion, after: RubricVersion) -> list[CriterionChange]:
    """Return the criteria that differ: in the order of `after`, then those that it lacks.

    Criteria are the same by key; of the others, those of one name are a rewording.
    """
    old, new = list(before.criteria.all()), list(after.criteria.all())
    partners = _partners(old, new)
    changes = [change for row in new if (change := _change(partners.get(row.pk), row)) is not None]
    matched = {row.pk for row in partners.values()}
    return changes + [CriterionChange(before=row, after=None) for row in old if row.pk not in matched]


def _partners(old: Sequence[RubricCriterion], new: Sequence[RubricCriterion]) -> dict[int, RubricCriterion]:
    """Return the old row of each new one that has one, by the new one's id."""
    by_key = {row.key: row for row in old}
    partners = {row.pk: by_key[row.key] for row in new if row.key in by_key}
    matched = {row.pk for row in partners.values()}
    by_name = {row.name.casefold(): row for row in old if row.pk not in matched}
    for row in new:
        if row.pk not in partners and (partner := by_name.pop(row.name.casefold(), None)):
            partners[row.pk] = partner
    return partners


def _change(before: RubricCriterion | None, after: RubricCriterion) -> CriterionChange | None:
    if before is None:
        return CriterionChange(before=None, after=after)
    texts = tuple(
        pieces(old, new)
        for old, new in (
            (before.name, after.name),
            (before.text, after.text),
            (before.levels, after.levels),
        )
        if old != new
    )
    change = CriterionChange(before=before, after=after, texts=texts)
    return change if texts or change.facts_differ else None
