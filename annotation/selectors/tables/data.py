"""The tables of a project's data section. Managers see names of annotators and of models here."""

from collections.abc import Sequence
from typing import Any

from django.db.models import (
    Aggregate,
    Case,
    Count,
    F,
    Func,
    IntegerField,
    Min,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce, Concat, Left, Lower
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import Purpose, Verdict, WithholdingState
from annotation.models import (
    Candidate,
    Comparison,
    Completion,
    Judgment,
    Project,
    Prompt,
    RankedCompletion,
)
from annotation.selectors.annotator_work import shown_to_annotator
from annotation.selectors.tables.conditions import ColumnKind
from annotation.selectors.tables.search import matching
from annotation.selectors.tables.table import (
    BulkAction,
    Cell,
    Column,
    Filter,
    Table,
    agree_less,
    agreements,
    annotated_by,
    annotators,
    answers,
    calling,
    categories,
    in_state,
    kinds,
    lookup,
    of_kind,
    reserved_for,
    round_filter,
    sources,
    split_filter,
    states,
    tag_filter,
    tools,
    with_answer,
    with_category,
    with_response_of,
)

_TEXT_LENGTH = 120
_EXCERPT_LENGTH = 280


class _LastTurn(Func):
    """The text of a chat's last turn."""

    output_field = TextField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        return self.as_sql(
            compiler, connection, template="JSON_EXTRACT(%(expressions)s, '$[#-1].content')", **context
        )

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="(%(expressions)s #>> '{-1,content}')", **context)


class _Tags(Func):
    """Tags of a prompt with commas between."""

    output_field = TextField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        template = "(SELECT group_concat(value, ', ') FROM json_each(%(expressions)s))"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        template = "(SELECT string_agg(tag, ', ') FROM jsonb_array_elements_text(%(expressions)s) AS tag)"
        return self.as_sql(compiler, connection, template=template, **context)


def _letters(text: str | Func) -> Lower:
    """Return the beginning of a text, to sort by."""
    return Lower(Left(Coalesce(text, Value(""), output_field=TextField()), _TEXT_LENGTH))


def _short(text: str) -> str:
    return Truncator(" ".join(text.split())).chars(_TEXT_LENGTH) or _("(no text)")


def _comparison_address(project_slug: str, pk: int) -> str:
    return reverse("statistics-item", args=[project_slug, pk])


def _purpose(comparison: Comparison) -> Cell:
    if comparison.purpose == Purpose.WORK:
        return Cell(_("work"))
    return Cell(str(comparison.get_purpose_display()).split(":")[0], tone="warn")


def _number_of(rows: QuerySet[Any], path: str) -> Coalesce:
    """Return the number of `rows` that point to a row by `path`."""
    counted = (
        rows.filter(**{path: OuterRef("pk")})
        .order_by()
        .values(path)
        .annotate(number_=Count("pk"))
        .values("number_")
    )
    return Coalesce(Subquery(counted), 0)


def _newest_comparison(path: str) -> Subquery:
    newest = Candidate.objects.filter(**{path: OuterRef("pk")}).order_by("-comparison_id")
    return Subquery(newest.values("comparison_id")[:1])


def _prompt_rows(project: Project) -> QuerySet[Prompt]:
    return (
        Prompt.objects.filter(project=project)
        .select_related("project")
        .annotate(
            responses=_number_of(Completion.objects.filter(deleted_at__isnull=True), "prompt"),
            asked=_number_of(Comparison.objects.exclude(purpose=Purpose.DELETED), "prompt"),
        )
    )


def _prompt_cell(prompt: Any) -> Cell:
    return Cell(_short(prompt.last_question), reverse("prompt", args=[prompt.project.slug, prompt.pk]))


_DELETED = gettext_lazy(
    "They leave every list, the queue, statistics and later snapshots at once. For a day they can be brought "
    "back; then they are deleted for good, but for what snapshots and evaluations hold."
)

PROMPTS = Table(
    name="prompts",
    title=gettext_lazy("Prompts"),
    empty=gettext_lazy("No prompts yet. Import a file, or write one."),
    rows=_prompt_rows,
    search=lambda rows, text: matching(rows, text, column="messages"),
    columns=(
        Column(
            name="prompt",
            sort=_letters(_LastTurn("messages")),
            value=_LastTurn("messages"),
            label=gettext_lazy("Prompt"),
            cell=_prompt_cell,
        ),
        Column(
            name="tags",
            sort=Cast("tags", TextField()),
            value=_Tags("tags"),
            label=gettext_lazy("Tags"),
            cell=lambda row: Cell(", ".join(map(str, row.tags)) or "—"),
        ),
        Column(
            name="split",
            sort=F("split"),
            label=gettext_lazy("Split"),
            cell=lambda row: Cell(row.get_split_display()),
        ),
        Column(
            name="responses",
            sort=F("responses"),
            label=gettext_lazy("Responses"),
            number=True,
            cell=lambda row: Cell(row.responses),
        ),
        Column(
            name="comparisons",
            sort=F("asked"),
            label=gettext_lazy("Comparisons"),
            number=True,
            cell=lambda row: Cell(row.asked),
        ),
        Column(
            name="created",
            sort=F("created_at"),
            kind=ColumnKind.DATE,
            label=gettext_lazy("Created"),
            cell=lambda row: Cell(date_format(row.created_at, "SHORT_DATE_FORMAT")),
            shown=False,
        ),
    ),
    filters=(split_filter("split"), tag_filter("pk")),
    actions=(
        BulkAction(name="tag", label=gettext_lazy("Add tag"), icon="plus", value=gettext_lazy("Tag")),
        BulkAction(name="untag", label=gettext_lazy("Remove tag"), icon="x", value=gettext_lazy("Tag")),
        BulkAction(name="similar", label=gettext_lazy("More like this"), icon="search"),
        BulkAction(name="delete", label=gettext_lazy("Delete"), icon="trash-2", about=_DELETED),
    ),
)


def _comparison_rows(project: Project) -> QuerySet[Comparison]:
    return (
        Comparison.objects.filter(project=project)
        .exclude(purpose__in=(Purpose.ARENA, Purpose.DELETED))
        .select_related("prompt", "project", "withholding")
        .prefetch_related("reserved_for")
        .annotate(annotations=_number_of(Judgment.objects.current(), "comparison"))
    )


def _response_excerpts(keys: Sequence[int]) -> dict[int, list[str]]:
    """Return the beginnings of the responses of comparisons, in the order of their numbers."""
    excerpts: dict[int, list[str]] = {key: [] for key in keys}
    shown = Candidate.objects.filter(comparison__in=keys).order_by("comparison_id", "index")
    texts = shown.values_list("comparison_id", Left("completion__text", 2 * _EXCERPT_LENGTH))
    for key, text in texts:
        excerpts[key].append(Truncator(" ".join(text.split())).chars(_EXCERPT_LENGTH) or _("(no text)"))
    return excerpts


def _state(comparison: Comparison) -> Cell:
    withholding = getattr(comparison, "withholding", None)
    if withholding is not None and withholding.state != WithholdingState.RELEASED:
        return Cell(_("quarantined"), tone="warn")
    return Cell(_("open"), tone="") if comparison.open_slots else Cell(_("closed"), tone="good")


_STATE = Case(
    When(~Q(withholding__state=WithholdingState.RELEASED), withholding__isnull=False, then=Value(2)),
    When(open_slots__gt=0, then=Value(0)),
    default=Value(1),
)
_STATE_NAME = Case(
    When(
        ~Q(withholding__state=WithholdingState.RELEASED), withholding__isnull=False, then=Value("quarantined")
    ),
    When(open_slots__gt=0, then=Value("open")),
    default=Value("closed"),
)
_RESERVED: QuerySet[Any] = Comparison.reserved_for.through.objects.filter(comparison=OuterRef("pk"))
_ASSIGNED = Coalesce(
    Subquery(
        _RESERVED.values("comparison").annotate(first_name_=Min("user__username")).values("first_name_")
    ),
    Value(""),
)
"""The first of the names that a comparison is reserved for."""


class _JoinedNames(Aggregate):
    """Texts with commas between."""

    output_field = TextField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="GROUP_CONCAT(%(expressions)s, ', ')", **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="STRING_AGG(%(expressions)s, ', ')", **context)


_ALL_ASSIGNED = Subquery(
    _RESERVED.values("comparison").annotate(names_=_JoinedNames("user__username")).values("names_")
)


COMPARISONS = Table(
    name="comparisons",
    title=gettext_lazy("Comparisons"),
    empty=gettext_lazy("No comparisons yet. They appear when a round has sampled responses."),
    rows=_comparison_rows,
    has_ways=True,
    excerpts=_response_excerpts,
    search=lambda rows, text: matching(rows, text, of=Prompt, column="messages", path="prompt"),
    columns=(
        Column(
            name="prompt",
            sort=_letters(_LastTurn("prompt__messages")),
            value=_LastTurn("prompt__messages"),
            label=gettext_lazy("Prompt"),
            cell=lambda row: Cell(
                _short(row.prompt.last_question), _comparison_address(row.project.slug, row.pk)
            ),
        ),
        Column(
            name="round",
            sort=F("round_number"),
            label=gettext_lazy("Round"),
            number=True,
            cell=lambda row: Cell(row.round_number),
        ),
        Column(
            name="responses",
            sort=F("size"),
            label=gettext_lazy("Responses"),
            number=True,
            cell=lambda row: Cell(row.size),
        ),
        Column(
            name="annotations",
            sort=F("annotations"),
            label=gettext_lazy("Annotations"),
            number=True,
            cell=lambda row: Cell(f"{row.annotations} / {row.overlap}"),
        ),
        Column(
            name="agreement",
            sort=Coalesce("agreement", Value(-1.0)),
            value=F("agreement"),
            label=gettext_lazy("Agreement"),
            number=True,
            cell=lambda row: Cell("—" if row.agreement is None else f"{row.agreement:.0%}"),
        ),
        Column(
            name="state",
            sort=_STATE,
            value=_STATE_NAME,
            label=gettext_lazy("State"),
            cell=_state,
        ),
        Column(name="purpose", sort=F("purpose"), label=gettext_lazy("Purpose"), cell=_purpose, shown=False),
        Column(
            name="assigned",
            sort=_ASSIGNED,
            value=_ALL_ASSIGNED,
            label=gettext_lazy("Assigned to"),
            cell=lambda row: Cell(", ".join(str(user) for user in row.reserved_for.all()) or _("everybody")),
            shown=False,
        ),
        Column(
            name="split",
            sort=F("prompt__split"),
            label=gettext_lazy("Split"),
            cell=lambda row: Cell(row.prompt.get_split_display()),
            shown=False,
        ),
        Column(
            name="tags",
            sort=Cast("prompt__tags", TextField()),
            value=_Tags("prompt__tags"),
            label=gettext_lazy("Tags"),
            cell=lambda row: Cell(", ".join(map(str, row.prompt.tags)) or "—"),
            shown=False,
        ),
    ),
    filters=(
        round_filter("round_number"),
        Filter(name="state", label=gettext_lazy("State"), choices=states, apply=in_state),
        Filter(name="agreement", label=gettext_lazy("Agreement"), choices=agreements, apply=agree_less),
        Filter(name="annotator", label=gettext_lazy("Annotator"), choices=annotators, apply=annotated_by),
        Filter(name="assigned", label=gettext_lazy("Assigned to"), choices=annotators, apply=reserved_for),
        Filter(name="source", label=gettext_lazy("Model"), choices=sources, apply=with_response_of),
        Filter(name="against", label=gettext_lazy("Other model"), choices=sources, apply=with_response_of),
        Filter(name="tool", label=gettext_lazy("Tool"), choices=tools, apply=calling),
        split_filter("prompt__split"),
        tag_filter("prompt"),
    ),
    actions=(
        BulkAction(
            name="requeue",
            label=gettext_lazy("Re-queue"),
            icon="repeat",
            about=gettext_lazy(
                "Each comparison is given to one more annotator who has not annotated it. Nobody is asked "
                "twice, annotations stay, and what a review decided is not opened again."
            ),
        ),
        BulkAction(
            name="overlap",
            label=gettext_lazy("Raise overlap"),
            icon="plus",
            value=gettext_lazy("Annotators per comparison"),
        ),
        BulkAction(
            name="priority",
            label=gettext_lazy("Set priority"),
            icon="arrow-right",
            value=gettext_lazy("Priority, higher comes first"),
        ),
        BulkAction(
            name="answer",
            label=gettext_lazy("Annotate"),
            icon="check",
            about=gettext_lazy(
                "Each is stored as an annotation of yours and marked as given in bulk; its time is not "
                "measured. You can revise single ones, and undo all of them for a day."
            ),
        ),
        BulkAction(name="close", label=gettext_lazy("Close"), icon="archive"),
        BulkAction(name="review", label=gettext_lazy("Send to review"), icon="list-checks"),
        BulkAction(name="calibrate", label=gettext_lazy("Calibration session"), icon="users"),
        BulkAction(name="quarantine", label=gettext_lazy("Quarantine"), icon="eye-off"),
        BulkAction(name="release", label=gettext_lazy("Release from quarantine"), icon="eye"),
        BulkAction(
            name="reserve",
            label=gettext_lazy("Assign"),
            icon="user",
            value=gettext_lazy("Members, or empty for everybody"),
        ),
        BulkAction(name="export", label=gettext_lazy("Export"), icon="download"),
        BulkAction(name="delete", label=gettext_lazy("Delete"), icon="trash-2", about=_DELETED),
    ),
)


def _annotation_rows(project: Project) -> QuerySet[Judgment]:
    return (
        Judgment.objects.current()
        .filter(comparison__project=project)
        .exclude(comparison__purpose=Purpose.DELETED)
        .select_related(
            "annotator", "assignment", "superseded_by", "comparison__prompt", "comparison__project"
        )
        .prefetch_related(Prefetch("ranks", queryset=RankedCompletion.objects.order_by("rank", "id")))
    )


def _decision(judgment: Judgment) -> Cell:
    text = shown_to_annotator(judgment).preference
    if judgment.strength:
        text += ", " + _("strength %(strength)s") % {"strength": judgment.strength}
    return Cell(text)


ANNOTATIONS = Table(
    name="annotations",
    title=gettext_lazy("Annotations"),
    empty=gettext_lazy("No annotations yet. Invite annotators, or label yourself."),
    about=gettext_lazy(
        "All current annotations. Rounds and the overview count the kind “work of people”; statistics count "
        "gold items, qualification and retests too."
    ),
    rows=_annotation_rows,
    search=lambda rows, text: matching(rows, text, column="comment"),
    columns=(
        Column(
            name="prompt",
            sort=_letters(_LastTurn("comparison__prompt__messages")),
            value=_LastTurn("comparison__prompt__messages"),
            label=gettext_lazy("Prompt"),
            cell=lambda row: Cell(
                _short(row.comparison.prompt.last_question),
                _comparison_address(row.comparison.project.slug, row.comparison_id),
            ),
        ),
        Column(
            name="annotator",
            sort=F("annotator__username"),
            label=gettext_lazy("Annotator"),
            cell=lambda row: Cell(row.annotator.username),
        ),
        Column(
            name="preference",
            sort=Concat("verdict", Value(" "), Cast("strength", TextField()), output_field=TextField()),
            value=F("verdict"),
            label=gettext_lazy("Preference"),
            cell=_decision,
        ),
        Column(
            name="round",
            sort=F("comparison__round_number"),
            label=gettext_lazy("Round"),
            number=True,
            cell=lambda row: Cell(row.comparison.round_number),
        ),
        Column(
            name="seconds",
            sort=Coalesce("active_seconds", Value(-1), output_field=IntegerField()),
            value=F("active_seconds"),
            label=gettext_lazy("Active seconds"),
            number=True,
            cell=lambda row: Cell("—" if row.active_seconds is None else row.active_seconds),
        ),
        Column(
            name="bulk",
            sort=F("in_bulk"),
            value=Case(When(in_bulk=True, then=Value("yes")), default=Value("no")),
            label=gettext_lazy("In bulk"),
            cell=lambda row: Cell(_("yes") if row.in_bulk else _("no")),
            shown=False,
        ),
        Column(
            name="submitted",
            sort=F("created_at"),
            kind=ColumnKind.DATE,
            label=gettext_lazy("Submitted"),
            cell=lambda row: Cell(date_format(row.created_at, "SHORT_DATETIME_FORMAT")),
        ),
        Column(
            name="comment",
            sort=_letters("comment"),
            value=F("comment"),
            label=gettext_lazy("Comment"),
            cell=lambda row: Cell(_short(row.comment) if row.comment else "—"),
            shown=False,
        ),
    ),
    filters=(
        round_filter("comparison__round_number"),
        Filter(
            name="annotator",
            label=gettext_lazy("Annotator"),
            choices=annotators,
            apply=lookup("annotator_id"),
        ),
        Filter(
            name="preference",
            label=gettext_lazy("Preference"),
            choices=lambda project: list(Verdict.choices),
            apply=lookup("verdict"),
        ),
        Filter(name="kind", label=gettext_lazy("Kind"), choices=kinds, apply=of_kind),
        Filter(name="category", label=gettext_lazy("Span category"), choices=categories, apply=with_category),
        Filter(name="answer", label=gettext_lazy("Answer"), choices=answers, apply=with_answer),
        split_filter("comparison__prompt__split"),
        tag_filter("comparison__prompt"),
    ),
)


def _response_rows(project: Project) -> QuerySet[Completion]:
    return (
        Completion.objects.filter(
            prompt__project=project, deleted_at__isnull=True, prompt__deleted_at__isnull=True
        )
        .select_related("prompt__project", "source")
        .annotate(newest=_newest_comparison("completion"))
    )


def _response_text(completion: Any) -> Cell:
    address = (
        _comparison_address(completion.prompt.project.slug, completion.newest) if completion.newest else ""
    )
    return Cell(_short(completion.text), address)


RESPONSES = Table(
    name="responses",
    title=gettext_lazy("Responses"),
    empty=gettext_lazy("No responses yet. They appear when a round samples, or with an import."),
    rows=_response_rows,
    search=lambda rows, text: matching(rows, text, column="text"),
    columns=(
        Column(
            name="response",
            sort=_letters("text"),
            value=F("text"),
            label=gettext_lazy("Response"),
            cell=_response_text,
        ),
        Column(
            name="source",
            sort=F("source__name"),
            label=gettext_lazy("Model"),
            cell=lambda row: Cell(row.source.name),
        ),
        Column(
            name="prompt",
            sort=_letters(_LastTurn("prompt__messages")),
            value=_LastTurn("prompt__messages"),
            label=gettext_lazy("Prompt"),
            cell=lambda row: Cell(_short(row.prompt.last_question)),
            shown=False,
        ),
        Column(
            name="tokens",
            sort=Coalesce("token_count", Value(-1), output_field=IntegerField()),
            value=F("token_count"),
            label=gettext_lazy("Tokens"),
            number=True,
            cell=lambda row: Cell("—" if row.token_count is None else row.token_count),
        ),
        Column(
            name="ended",
            sort=F("finish_reason"),
            label=gettext_lazy("Ended by"),
            cell=lambda row: Cell(row.get_finish_reason_display() or _("unknown")),
        ),
    ),
    filters=(
        Filter(name="source", label=gettext_lazy("Model"), choices=sources, apply=lookup("source_id")),
        split_filter("prompt__split"),
        tag_filter("prompt"),
    ),
    actions=(BulkAction(name="delete", label=gettext_lazy("Delete"), icon="trash-2", about=_DELETED),),
)


TABLES: dict[str, Table] = {table.name: table for table in (PROMPTS, COMPARISONS, ANNOTATIONS, RESPONSES)}
