"""The categories and criteria that a file names: found in the project, or made with it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from django.utils.translation import gettext as _

from annotation.choices import CategoryScope, Granularity, Polarity, RatingScale
from annotation.errors import Refusal
from annotation.exchange.formats.items import ImportedItem, NewCategory
from annotation.exchange.formats.trl import CORRECT_STEP
from annotation.exchange.item_imports import ImportScene
from annotation.models import Category, Criterion, Project

MOST_NAMES = 200


@dataclass(slots=True)
class NamesInFile:
    """Categories with their scope and their highest severity, and criteria with their scale, of a file."""

    categories: dict[str, tuple[CategoryScope, int]] = field(default_factory=dict)
    criteria: dict[str, str] = field(default_factory=dict)

    def add(self, item: ImportedItem) -> None:
        """Take note of an item's. Refuses a file that uses one name for two things."""
        for judgment in item.judgments:
            for span in judgment.spans:
                self._category(span.category, CategoryScope.SPAN, span.severity or 0)
            for missing in judgment.missing:
                self._category(missing.category, CategoryScope.MISSING, 0)
            for rating in judgment.ratings:
                scale = self.criteria.setdefault(rating.criterion, rating.scale)
                if scale != rating.scale:
                    # Five steps are among seven, where a format does not say which it has.
                    if {scale, rating.scale} != {RatingScale.FIVE, RatingScale.SEVEN}:
                        raise Refusal(
                            "criterion_has_two_scales",
                            _(
                                "The file rates %(criterion)r on two scales, %(scale)s and "
                                "%(other)s. Give them two names."
                            ),
                            field="ratings",
                            criterion=rating.criterion,
                            scale=scale,
                            other=rating.scale,
                        )
                    self.criteria[rating.criterion] = RatingScale.SEVEN
        if len(self.categories) > MOST_NAMES or len(self.criteria) > MOST_NAMES:
            raise Refusal(
                "too_many_names",
                _(
                    "The file names more than %(most)s categories or criteria; a column of texts "
                    "was taken for one of labels. Correct the mapping."
                ),
                field="map",
                most=MOST_NAMES,
            )

    def _category(self, key: str, scope: CategoryScope, severity: int) -> None:
        known, steps = self.categories.get(key, (scope, 0))
        if known != scope:
            raise Refusal(
                "category_has_two_scopes",
                _(
                    "The file uses the category %(key)r for marks and for what is missing. Give "
                    "them two names."
                ),
                field="category",
                key=key,
            )
        self.categories[key] = (scope, max(steps, severity))


def scene_for(
    *, project: Project, names: NamesInFile, defined: Sequence[NewCategory] = ()
) -> tuple[ImportScene, dict[str, list[int]]]:
    """The project with all categories and criteria that a file names, and the ids of those that were made.

    defined: the categories that the format itself defines, which are made in any case.

    Refuses one that the project uses for something else, before anything is written.
    """
    categories = {category.key: category for category in project.categories.all()}
    known = set(categories)
    used_categories = {new.key: (new.scope, 0) for new in defined} | names.categories
    for key, (scope, steps) in used_categories.items():
        category = categories.get(key)
        if category is not None and (category.scope != scope or category.severity_steps < steps):
            raise Refusal(
                "category_differs",
                _(
                    "The category %(key)r differs: in %(project)s its scope is “%(scope)s”, with "
                    "%(steps_here)s steps of severity; in the file it is “%(scope_there)s”, with %(steps)s. "
                    "Import into another project."
                ),
                field="category",
                key=key,
                project=project,
                scope=category.get_scope_display(),
                steps_here=category.severity_steps,
                scope_there=scope.label,
                steps=steps,
            )
    criteria = {criterion.key: criterion for criterion in project.criteria.all()}
    for key, scale in names.criteria.items():
        criterion = criteria.get(key)
        if criterion is None:
            continue
        fits = scale in (criterion.scale, RatingScale.FIVE)
        if not fits or criterion.scale == RatingScale.THUMBS != scale:
            raise Refusal(
                "criterion_scale_differs",
                _(
                    "The scale of %(key)r differs: it is “%(scale)s” in %(project)s and “%(scale_there)s” "
                    "in the file. Import into another project."
                ),
                field="ratings",
                project=project,
                key=key,
                scale=RatingScale(criterion.scale).label,
                scale_there=RatingScale(scale).label,
            )
    known_criteria = set(criteria)
    for new in defined:
        if new.key not in categories:
            categories[new.key] = Category.objects.create(
                project=project, position=project.categories.count() + 1, **asdict(new)
            )
    for key in [key for key in names.categories if key not in categories]:
        categories[key] = _category(project, key, *names.categories[key])
    for key in [key for key in names.criteria if key not in criteria]:
        criteria[key] = Criterion.objects.create(
            project=project, key=key, label=_label(key), scale=names.criteria[key], position=len(criteria) + 1
        )
    scene = ImportScene(
        project=project,
        categories={key: category.pk for key, category in categories.items()},
        criteria={key: criterion.pk for key, criterion in criteria.items()},
    )
    return scene, {
        "categories": [category.pk for key, category in categories.items() if key not in known],
        "criteria": [criterion.pk for key, criterion in criteria.items() if key not in known_criteria],
    }


def _category(project: Project, key: str, scope: CategoryScope, steps: int) -> Category:
    missing = scope == CategoryScope.MISSING
    return Category.objects.create(
        project=project,
        key=key,
        label=_label(key),
        scope=scope,
        granularity=Granularity.WHOLE if missing else Granularity.SENTENCE,
        polarity=Polarity.MERIT if key == CORRECT_STEP else Polarity.ERROR,
        severity_steps=steps,
        position=project.categories.count() + 1,
    )


def _label(key: str) -> str:
    return key.replace("-", " ").replace("_", " ").strip().capitalize()[:80]
