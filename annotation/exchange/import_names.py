"""The categories and criteria that a file names: found in the project, or made with it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from annotation.choices import CategoryScope, Granularity, Polarity, RatingScale
from annotation.errors import Refusal
from annotation.exchange.accepted import ImportScene
from annotation.exchange.formats.items import ImportedItem, NewCategory
from annotation.exchange.formats.trl import CORRECT_STEP
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
                            f"The file rates {rating.criterion!r} on two scales, {scale} and {rating.scale}. "
                            "Give them two names.",
                            field="ratings",
                        )
                    self.criteria[rating.criterion] = RatingScale.SEVEN
        if len(self.categories) > MOST_NAMES or len(self.criteria) > MOST_NAMES:
            raise Refusal(
                f"The file names more than {MOST_NAMES} categories or criteria; a column of texts was taken "
                "for one of labels. Correct the mapping.",
                field="map",
            )

    def _category(self, key: str, scope: CategoryScope, severity: int) -> None:
        known, steps = self.categories.get(key, (scope, 0))
        if known != scope:
            raise Refusal(
                f"The file uses the category {key!r} for marks and for what is missing. Give them two names.",
                field="category",
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
                f"The category {key!r} of {project} is for {category.get_scope_display()}, with "
                f"{category.severity_steps} steps of severity; the file has it for {scope.label}, with "
                f"{steps}. Import into another project.",
                field="category",
            )
    criteria = {criterion.key: criterion for criterion in project.criteria.all()}
    for key, scale in names.criteria.items():
        criterion = criteria.get(key)
        fits = criterion is None or scale in (criterion.scale, RatingScale.FIVE)
        if not fits or (criterion and criterion.scale == RatingScale.THUMBS != scale):
            raise Refusal(
                f"{project} rates {key!r} {RatingScale(criterion.scale).label}; the file rates it "  # type: ignore[union-attr]
                f"{RatingScale(scale).label}. Import into another project.",
                field="ratings",
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
