"""Configuration of a project, read once: what stands on every page, from categories to the rubric.

`Project.revision` changes whenever one of them does, and every request reads the project's
row. So what is kept here under a revision is what that revision says, in every process.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from cachetools import LRUCache, cached
from django.db.models import Q
from django.db.models.signals import post_delete, post_save
from django.utils import timezone
from django.utils.safestring import SafeString

from annotation.choices import Purpose, WithholdingState
from annotation.models import (
    Assignment,
    Category,
    Comparison,
    Completion,
    Criterion,
    Guideline,
    Project,
    ProjectQuestion,
    Prompt,
    QuestionVersion,
    RepeatedQuestion,
    Rubric,
    RubricVersion,
    User,
)
from annotation.record.questions import Choice, Condition, Question
from annotation.text.identity import text_hash
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
    questions: tuple[Question, ...] = ()
    """The project's own, in their newest version, the archived too."""
    has_repeated: bool = False
    """True if a question or a split category waited to be answered again when this was read."""

    @cached_property
    def asked_questions(self) -> tuple[Question, ...]:
        """The questions that annotators answer."""
        return tuple(question for question in self.questions if not question.is_archived)

    @cached_property
    def must_answer(self) -> bool:
        """True if a question has to be answered on every screen."""
        return any(
            question.is_required and not question.shown_when and not question.can_be_missing
            for question in self.asked_questions
        )

    @cached_property
    def asked_categories(self) -> tuple[Category, ...]:
        """The categories that annotators may choose."""
        return tuple(category for category in self.categories if not category.is_archived)

    @cached_property
    def split_categories(self) -> frozenset[int]:
        """Ids of the categories that have sub-categories: of their spans one of these is asked."""
        return frozenset(row.parent_id for row in self.asked_categories if row.parent_id is not None)

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
    categories = tuple(
        Category.objects.filter(project=project).select_related("parent").order_by("position", "id")
    )
    parts = parts_of(categories)
    questions = tuple(
        question_in(row, versions[0], parts)
        for row in ProjectQuestion.objects.filter(project=project)
        .select_related("shown_when")
        .prefetch_related("versions")
        .order_by("position", "id")
        if (versions := row.versions.all())
    )
    repeated = RepeatedQuestion.objects.filter(
        Q(question__project=project) | Q(category__project=project), answered_at__isnull=True
    )
    may_repeat = bool(questions) or any(category.parent_id for category in categories)
    return Configuration(
        categories=categories,
        criteria=tuple(Criterion.objects.filter(project=project).order_by("position", "id")),
        guideline=Guideline.objects.filter(project=project).order_by("-version").first(),
        rubric=_asked_rubric(project),
        questions=questions,
        has_repeated=may_repeat and repeated.exists(),
    )


def in_groups(categories: Iterable[Category]) -> list[Category]:
    """Return categories with their sub-categories behind them, else in their order."""
    rows = list(categories)
    places = {row.pk: place for place, row in enumerate(rows)}
    return sorted(
        rows, key=lambda row: (places.get(row.parent_id or 0, places[row.pk]), row.parent_id in places)
    )


def parts_of(categories: Iterable[Category]) -> dict[str, list[str]]:
    """Return key of a category → keys of its sub-categories."""
    rows = list(categories)
    keys = {row.pk: row.key for row in rows}
    parts: dict[str, list[str]] = {}
    for row in rows:
        if row.parent_id is not None:
            parts.setdefault(keys[row.parent_id], []).append(row.key)
    return parts


def question_in(
    row: ProjectQuestion, version: QuestionVersion, parts: Mapping[str, Sequence[str]] | None = None
) -> Question:
    """Return a question in one of its versions.

    parts: sub-categories, as `parts_of` gives them; with them a category stands for its own, too.
    """
    condition = None
    if row.shown_when is not None:
        condition = Condition(question=row.shown_when.key, values=tuple(row.shown_values))
    return Question(
        key=row.key,
        kind=row.kind,
        subject=row.subject,
        version=version.number,
        text=version.text,
        help_text=row.help_text,
        is_required=row.is_required,
        is_archived=row.is_archived,
        choices=tuple(
            Choice(key=choice["key"], label=choice["label"], shortcut=row.shortcuts.get(choice["key"], ""))
            for choice in version.choices
        ),
        unit=version.unit,
        least=version.least,
        most=version.most,
        shown_when=condition,
        categories=tuple(
            dict.fromkeys(key for each in row.categories for key in (each, *(parts or {}).get(each, ())))
        ),
    )


def _asked_rubric(project: Project) -> RubricVersion | None:
    rubric = (
        Rubric.objects.filter(project=project, is_asked=True)
        .select_related("published__rubric")
        .prefetch_related("published__criteria")
        .first()
    )
    return rubric.published if rubric else None


_Part = Category | Criterion | Guideline | ProjectQuestion | Rubric


def draw_revision(project_id: int) -> uuid.UUID:
    """Make readers of a project read its parts again; return the new revision."""
    revision = uuid.uuid4()
    Project.objects.filter(pk=project_id).update(revision=revision)
    return revision


def _changed(sender: Any, instance: _Part, **_: Any) -> None:
    revision = draw_revision(instance.project_id)
    if "project" in instance._state.fields_cache:
        instance.project.revision = revision


def listen() -> None:
    """Draw a new revision whenever a part of a project is written or deleted. Called once, at start."""
    for model in (Category, Criterion, Guideline, ProjectQuestion, Rubric):
        for signal in (post_save, post_delete):
            signal.connect(_changed, sender=model, dispatch_uid=f"configuration of {model.__name__}")


# An example of work for the preview of the labelling screen. Nothing of it is stored, nobody holds it.

MOST_RESPONSES = 4
QUESTION = "How long should green tea steep, and does it matter how hot the water is?"
CONTEXT = [
    {
        "title": "Green tea",
        "sentences": [
            "Green tea is usually steeped for one to three minutes.",
            "Water of 70 to 80 °C keeps it from becoming bitter.",
        ],
    }
]
RESPONSES = (
    "Steep green tea for **one to three minutes** in water of 70 to 80 °C. Hotter water makes it bitter.",
    "About ten minutes. The temperature does not matter, and tea was invented in 1850.",
    "Two minutes are enough for most green teas:\n\n1. Let the boiling water cool for five minutes.\n"
    "2. Pour it over the leaves.\n3. Remove the leaves after two minutes.",
    "It depends on your taste. Tea is a drink. It is a drink that many people like.",
)


def example_of_work(*, project: Project, user: User, responses: int | None = None) -> Assignment:
    """Return an assignment that is no row: a comparison of the project, else an invented one.

    With a number of `responses` it is invented in any case. Its primary key is 0, which no row has.
    """
    comparison = None if responses else _newest(project)
    if comparison is None:
        comparison, completions = _invented(project, responses or 2)
    else:
        completions = [candidate.completion for candidate in comparison.candidates.order_by("index")]
    now = timezone.now()
    assignment = Assignment(
        pk=0,
        comparison=comparison,
        annotator=user,
        display_order=[completion.pk for completion in completions],
        leased_at=now,
        lease_expires_at=now,
    )
    assignment.fresh_completions = list(completions)
    return assignment


def _newest(project: Project) -> Comparison | None:
    held_back = [WithholdingState.PENDING, WithholdingState.DISCARDED]
    newest = (
        Comparison.objects.filter(project=project, purpose=Purpose.WORK)
        .exclude(withholding__state__in=held_back)
        .select_related("prompt")
        .prefetch_related("candidates__completion")
        .order_by("-round_number", "-pk")
        .first()
    )
    if newest is not None:
        newest.project = project
    return newest


def _invented(project: Project, responses: int) -> tuple[Comparison, Sequence[Completion]]:
    prompt = Prompt(project=project, messages=[{"role": "user", "content": QUESTION}], context=CONTEXT)
    comparison = Comparison(project=project, prompt=prompt, round_number=1, purpose=Purpose.WORK)
    completions = [
        Completion(pk=number, prompt=prompt, text=text, text_hash=text_hash(text))
        for number, text in enumerate(RESPONSES[: max(1, min(responses, MOST_RESPONSES))], start=1)
    ]
    return comparison, completions
