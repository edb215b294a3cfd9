"""Configuration of a project, read once: categories, criteria guidelines and rubric stand on every page.

`Project.revision` is drawn anew whenever one of them changes, and every request reads the project's
row. So what is kept here under a revision is what that revision says, in every process.
"""

import uuid
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from cachetools import LRUCache, cached
from django.db.models.signals import post_delete, post_save
from django.utils.safestring import SafeString

from annotation.models import Category, Criterion, Guideline, Project, Rubric, RubricVersion
from annotation.text.rendering import render_markdown

_KEPT = 128


@dataclass(frozen=True)
class Configuration:
    """The parts of a project that its pages show and its answers are checked against."""

    categories: tuple[Category, ...]
    """All of them, the archived too: annotations may use them."""
    criteria: tuple[Criterion, ...]
    """All of them, the archived too."""
    guideline: Guideline | None
    """The newest version of the rules."""
    rubric: RubricVersion | None
    """The published version that annotators rate by, with its criteria."""

    @cached_property
    def asked_categories(self) -> tuple[Category, ...]:
        """The categories that annotators may choose."""
        return tuple(category for category in self.categories if not category.is_archived)

    @cached_property
    def asked_criteria(self) -> tuple[Criterion, ...]:
        """The criteria that annotators rate by."""
        return tuple(criterion for criterion in self.criteria if not criterion.is_archived)

    @cached_property
    def guideline_markup(self) -> SafeString:
        """The newest rules, rendered."""
        return render_markdown(self.guideline.text if self.guideline else "")


@cached(LRUCache(_KEPT), key=lambda project: (project.pk, project.revision), lock=Lock())
def configuration_of(project: Project) -> Configuration:
    """The configuration of a project as its row was read. Asks the database once per revision."""
    return Configuration(
        categories=tuple(Category.objects.filter(project=project).order_by("position", "id")),
        criteria=tuple(Criterion.objects.filter(project=project).order_by("position", "id")),
        guideline=Guideline.objects.filter(project=project).order_by("-version").first(),
        rubric=_asked_rubric(project),
    )


def _asked_rubric(project: Project) -> RubricVersion | None:
    rubric = (
        Rubric.objects.filter(project=project, is_asked=True)
        .select_related("published__rubric")
        .prefetch_related("published__criteria")
        .first()
    )
    return rubric.published if rubric else None


def _changed(sender: Any, instance: Category | Criterion | Guideline | Rubric, **_: Any) -> None:
    """Whoever reads the project from now on reads its parts anew."""
    revision = uuid.uuid4()
    Project.objects.filter(pk=instance.project_id).update(revision=revision)
    if "project" in instance._state.fields_cache:
        instance.project.revision = revision


def listen() -> None:
    """Draw a new revision whenever a part of a project is written or deleted. Called once, at start."""
    for model in (Category, Criterion, Guideline, Rubric):
        for signal in (post_save, post_delete):
            signal.connect(_changed, sender=model, dispatch_uid=f"configuration of {model.__name__}")
