"""Filters of the tables of a project's data: the values to choose from, and the rows that a value leaves."""

from collections.abc import Callable, Sequence
from typing import Any

from django.db import connection
from django.db.models import Exists, Max, Min, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import Purpose, Split, WithholdingState
from annotation.models import (
    Assignment,
    Candidate,
    Comparison,
    Completion,
    CompletionSource,
    Judgment,
    Project,
    Prompt,
    SpanFlag,
    TraceStep,
    User,
)
from annotation.selectors.allocation import reservations
from annotation.selectors.cached_counts import cached
from annotation.selectors.tables.search import few_of, is_common
from annotation.selectors.tables.table import Choice, Filter, never

_SMALL_ROUND = 50_000
"""Comparisons of a round of which all annotations are read for a page."""


def rounds(project: Project) -> Sequence[Choice]:
    """Return the rounds from the first with comparisons to the last."""
    # The ends are read from an index; listing all that occur reads every comparison.
    ends = Comparison.objects.filter(project=project).aggregate(
        first=Min("round_number"), last=Max("round_number")
    )
    if ends["first"] is None:
        return []
    numbers = range(ends["last"], ends["first"] - 1, -1)
    return [(str(number), _("Round %(number)s") % {"number": number}) for number in numbers]


def _splits(_project: Project) -> Sequence[Choice]:
    return list(Split.choices)


def _tags(project: Project) -> Sequence[Choice]:
    return [(tag, tag) for tag in tags_of(project)]


def tags_of(project: Project) -> list[str]:
    """Return the tags of the project's prompts in order; of a large project those of a while ago."""
    return cached(lambda: _tags_in_use(project), "tags of prompts", project.pk)


def _tags_in_use(project: Project) -> list[str]:
    tagged = Prompt.objects.filter(project=project).exclude(tags=[]).order_by()
    return sorted({str(tag) for tags in tagged.values_list("tags", flat=True).distinct() for tag in tags})


def annotators(project: Project) -> Sequence[Choice]:
    """Return the members of the project."""
    people = User.objects.filter(memberships__project=project).order_by("username").distinct()
    return [(str(person.pk), person.username) for person in people]


def sources(project: Project) -> Sequence[Choice]:
    """Return the models and sets that the project has responses of."""
    written = Completion.objects.filter(prompt__project=project).values("source")
    return [(str(source.pk), source.name) for source in CompletionSource.objects.filter(pk__in=written)]


def categories(project: Project) -> Sequence[Choice]:
    """Return the span categories."""
    return [(str(category.pk), category.label) for category in project.categories.all()]


def states(_project: Project) -> Sequence[Choice]:
    """Return the states of a comparison."""
    return [
        ("open", _("open")),
        ("annotated", _("annotated")),
        ("quarantined", _("quarantined")),
        ("flagged", _("flagged")),
    ]


def agreements(_project: Project) -> Sequence[Choice]:
    """Return the bounds of agreement."""
    return [("50", _("below 50 %")), ("75", _("below 75 %")), ("100", _("below 100 %"))]


def agree_less(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons whose annotators agree less than the bound."""
    return rows.filter(agreement__lt=int(value) / 100)


def in_state(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons in a state."""
    if value == "open":
        return rows.filter(open_slots__gt=0)
    if value == "quarantined":
        return rows.filter(withholding__state=WithholdingState.PENDING)
    if value == "flagged":
        return rows.filter(Exists(Assignment.objects.filter(comparison=OuterRef("pk"), flags__isnull=False)))
    current = Judgment.objects.current().filter(comparison=OuterRef("pk"))
    return rows.filter(Exists(current), open_slots=0)


def lookup(path: str) -> Callable[[QuerySet[Any], Project, str], QuerySet[Any]]:
    """Return a filter that compares a field."""

    def apply(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
        return rows.filter(**{path: value})

    return apply


def annotated_by(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons that somebody annotated."""
    current = Judgment.objects.current().filter(comparison=OuterRef("pk"), annotator_id=int(value))
    return rows.filter(Exists(current))


def reserved_for(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons that are reserved for somebody."""
    return rows.filter(Exists(reservations().filter(user=int(value))))


def with_response_of(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons with a response of a model."""
    return rows.filter(
        Exists(Candidate.objects.filter(comparison=OuterRef("pk"), completion__source_id=int(value)))
    )


def tools(project: Project) -> Sequence[Choice]:
    """Return the tools that agents called; of a large project those of a while ago."""
    return [(tool, tool) for tool in cached(lambda: _tools_in_use(project), "tools of traces", project.pk)]


def _tools_in_use(project: Project) -> list[str]:
    called = TraceStep.objects.filter(completion__prompt__project=project).exclude(tool="")
    return list(called.order_by("tool").values_list("tool", flat=True).distinct())


def calling(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep comparisons with a trace in which a tool was called."""
    called = TraceStep.objects.filter(tool=value, completion__candidacies__comparison=OuterRef("pk"))
    return rows.filter(Exists(called))


def kinds(_project: Project) -> Sequence[Choice]:
    """Return what annotations are for; other pages count one or several of these."""
    return [
        ("work", _("work of people")),
        ("measuring", _("gold items, qualification and retests")),
        ("ai", _("AI annotators")),
        ("arena", _("votes in arenas")),
        ("unblinded", _("unblinded votes")),
    ]


def of_kind(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Return the annotations of a kind; each has one."""
    work = Q(comparison__purpose=Purpose.WORK, assignment__retest_of__isnull=True)
    arena, machine = Q(comparison__purpose=Purpose.ARENA), Q(annotator__is_machine=True)
    conditions = {
        "work": work & ~machine & Q(blind=True),
        "measuring": ~work & ~arena & ~machine,
        "ai": machine & ~arena,
        "arena": arena,
        "unblinded": work & ~machine & Q(blind=False),
    }
    return rows.filter(conditions[value])


def with_category(rows: QuerySet[Any], _project: Project, value: str) -> QuerySet[Any]:
    """Keep annotations with a span of a category."""
    return rows.filter(Exists(SpanFlag.objects.filter(judgment=OuterRef("pk"), category_id=value)))


def _tagged(path: str) -> Callable[[QuerySet[Any], Project, str], QuerySet[Any]]:
    def apply(rows: QuerySet[Any], project: Project, value: str) -> QuerySet[Any]:
        tagged = Prompt.objects.filter(project=project)
        if not connection.features.supports_json_field_contains:
            named = tagged.exclude(tags=[]).values_list("pk", "tags")
            return rows.filter(**{f"{path}__in": [pk for pk, tags in named if value in tags]})
        few = few_of(tagged.filter(tags__contains=[value]))
        if few is None:
            field = "tags" if path == "pk" else f"{path}__tags"
            return rows.filter(**{f"{field}__contains": [value]})
        return rows.filter(**{f"{path}__in": few})

    return apply


def round_filter(path: str) -> Filter:
    """Return the filter by round, whose number stands in `path`."""
    return Filter(
        name="round",
        label=gettext_lazy("Round"),
        choices=rounds,
        apply=lookup(path),
        collects=_is_small_round if "__" in path else never,
    )


def _is_small_round(project: Project, value: str) -> bool:
    comparisons = Comparison.objects.filter(project=project, round_number=value).order_by()
    return comparisons[: _SMALL_ROUND + 1].count() <= _SMALL_ROUND


def split_filter(path: str) -> Filter:
    """Return the filter by split."""
    return Filter(name="split", label=gettext_lazy("Split"), choices=_splits, apply=lookup(path))


def tag_filter(path: str) -> Filter:
    """Return the filter by tag of the prompt in `path`."""
    return Filter(
        name="tag", label=gettext_lazy("Tag"), choices=_tags, apply=_tagged(path), collects=_is_rare_tag
    )


def _is_rare_tag(_project: Project, value: str) -> bool:
    has_index = connection.features.supports_json_field_contains
    return has_index and not is_common(Prompt.objects.filter(tags__contains=[value]))
