"""Pastes of annotators: sums by annotator and by assignment, and the list."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Count, Q, QuerySet, Sum

from annotation.models import Comparison, PasteRecord, Project, User


@dataclass(frozen=True, kw_only=True, slots=True)
class PastedText:
    """Sums over pastes."""

    pastes: int
    characters: int
    elsewhere: int
    """Characters that neither the prompt nor a response on the screen held."""


def pasted_by_annotator(project: Project) -> Mapping[int, PastedText]:
    """Return the sums of every annotator who pasted. One query; none where the project does not record."""
    if not project.records_pastes:
        return {}
    return _sums(PasteRecord.objects.filter(assignment__comparison__project=project), "annotator")


def pasted_by_assignment(comparison: Comparison) -> Mapping[int, PastedText]:
    """Return the sums of every assignment of a comparison. One query; none where nothing is recorded."""
    if not comparison.project.records_pastes:
        return {}
    return _sums(PasteRecord.objects.filter(assignment__comparison=comparison), "assignment")


def pastes_in(project: Project, annotator: User | None = None) -> QuerySet[PasteRecord]:
    """Return the pastes in a project, of one annotator or all, newest first."""
    pastes = PasteRecord.objects.filter(assignment__comparison__project=project)
    if annotator is not None:
        pastes = pastes.filter(annotator=annotator)
    return pastes.select_related("assignment", "annotator").order_by("-pk")


def _sums(pastes: QuerySet[PasteRecord], by: str) -> dict[int, PastedText]:
    rows = (
        pastes.order_by()
        .values(by)
        .annotate(
            pastes=Count("pk"),
            whole=Sum("characters"),
            elsewhere=Sum("characters", filter=Q(is_on_screen=False), default=0),
        )
    )
    return {
        row[by]: PastedText(pastes=row["pastes"], characters=row["whole"], elsewhere=row["elsewhere"])
        for row in rows
    }
