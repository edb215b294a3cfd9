"""Import of files: upload, preview, correct, import."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse, QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from annotation.choices import ImportState, Role, Split, Verdict
from annotation.errors import Refusal
from annotation.exchange.file_exports import (
    COMPARISONS,
    TYPES,
    ExportFilters,
    count_export,
    export_of,
    file_name,
    pieces_of,
    require_known,
)
from annotation.exchange.formats.columns import LEAVE_OUT, MANY, METADATA, TARGETS
from annotation.exchange.formats.plans import ColumnAccount
from annotation.exchange.formats.registry import READERS, WRITERS
from annotation.exchange.uploads import (
    BUSY,
    Preview,
    accounts_of,
    contents_of,
    correct_plan,
    discard_upload,
    preview_of,
    receive_upload,
    request_undo,
    start_import,
    why_not_undoable,
)
from annotation.forms import offer
from annotation.forms.statistics import rounds_of
from annotation.models import FileImport, Project
from annotation.selectors.cached_counts import cached
from annotation.selectors.jobs import imports_ahead
from annotation.selectors.judged import who_judged
from annotation.views.access import Request, project_page

# The form of an uploaded file: a choice for each of its columns, and for each value of the winner.
#
# Fields: `format`; for column N `name-N`, `role-N` and, where it can only be left out, `leave-N`; for a
# value
# of the winner `value-N` and `meaning-N`.

_NUMBERED_ROLES = 4
_EXAMPLES = 2
"""Values of the first rows that stand beside a column."""
_VERDICTS = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE)


class ColumnChoices:
    """Choices of a person for the columns of a file; columns that it does not have are ignored."""

    def __init__(self, posted: Mapping[str, str], account: Sequence[ColumnAccount], format_name: str) -> None:
        self.format_name = posted.get("format", "")
        self.mapping: dict[str, str | list[str]] = {}
        self.leave_out: list[str] = []
        self.meanings: dict[str, str] = {}
        columns = {column.name: column for column in account}
        is_same_format = self.format_name in ("", format_name)
        for number in count():
            name = posted.get(f"name-{number}")
            if name is None:
                break
            column = columns.get(name)
            if column is None:
                continue
            role = posted.get(f"role-{number}", "")
            if posted.get(f"leave-{number}") or role == LEAVE_OUT:
                self.leave_out.append(name)
            elif role and (is_same_format or role != _role_shown(column)):
                # Another format guesses again what nobody has chosen.
                self._give(role, name)
        for number in count():
            value = posted.get(f"value-{number}")
            if value is None:
                break
            if meaning := posted.get(f"meaning-{number}", ""):
                self.meanings[value] = meaning

    def _give(self, role: str, name: str) -> None:
        if role in MANY or role.startswith("rating_"):
            names = self.mapping.setdefault(role, [])
            if isinstance(names, list):
                names.append(name)
        elif role in self.mapping:
            # Refused by the plan, which names both.
            self.mapping[role] = [str(self.mapping[role]), name]
        else:
            self.mapping[role] = name


def _role_shown(column: ColumnAccount) -> str:
    if column.kind in ("metadata", "left_out"):
        return METADATA if column.kind == "metadata" else LEAVE_OUT
    return "" if column.kind == "question" and not column.role else column.role


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownColumn:
    """One column of the file with the choices that there are for it."""

    number: int
    account: ColumnAccount
    examples: list[str]
    groups: list[tuple[str, list[tuple[str, str, bool]]]]
    """Label of the group → value, label, and whether it is chosen."""
    is_part: bool
    """True for what stands inside the rows of a nested format: it can only be left out."""
    values: list[tuple[int, str, int, list[tuple[str, str, bool]]]]
    """Of a winner: number of the field, value, rows, and the meanings to choose from."""

    @property
    def remark(self) -> str:
        """What the chosen role does not say: the reading of a format's own column, a rule, or a question."""
        account = self.account
        if account.kind == "read" and account.role:
            return account.reading.partition(": ")[2] or account.reading.partition(", ")[2]
        return account.reading


def shown_columns(preview: Preview) -> list[ShownColumn]:
    """Return the columns of a file as the page shows them."""
    in_rows = {name for row in preview.rows for name in row}
    answers = _answers(preview.account)
    numbers = count()
    shown = []
    for number, column in enumerate(preview.account):
        examples = [row[column.name] for row in preview.rows if row.get(column.name)][:_EXAMPLES]
        is_part = "." not in column.name and column.name not in in_rows and not column.role and bool(in_rows)
        is_part = is_part and column.kind in ("read", "question", "left_out", "not_read") and not examples
        values = []
        if column.role == "winner":
            values = [
                (next(numbers), value, rows, _meanings(answers, meaning))
                for value, rows, meaning in column.values
            ]
        shown.append(
            ShownColumn(
                number=number,
                account=column,
                examples=examples or ([column.example] if column.example else []),
                groups=_groups(column, len(answers)),
                is_part=is_part,
                values=values,
            )
        )
    return shown


def _answers(account: Sequence[ColumnAccount]) -> list[str]:
    named = {column.role: column.name for column in account if column.role.startswith("answer_")}
    return [named[f"answer_{number}"] for number in range(1, len(named) + 1) if f"answer_{number}" in named]


def _meanings(answers: Sequence[str], meaning: str) -> list[tuple[str, str, bool]]:
    name, _colon, strength = meaning.partition(":")
    choices = []
    for answer in answers:
        chosen = meaning if answer == name and strength else answer
        choices.append((chosen, f"{answer} ({strength})" if chosen != answer else answer, answer == name))
    choices += [(str(verdict), str(verdict.label), str(verdict) == meaning) for verdict in _VERDICTS]
    return choices


def _groups(column: ColumnAccount, answers: int) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    chosen = _role_shown(column)
    most = max(_NUMBERED_ROLES, answers)
    listed = [role for role in TARGETS if role != "label" and _number(role) <= most]
    if chosen and chosen not in listed:
        listed.append(chosen)
    first = [("", _("as the format reads it") if column.kind == "read" else _("choose"), not chosen)]

    def options(roles: Sequence[str]) -> list[tuple[str, str, bool]]:
        return [(role, _role_label(role), role == chosen) for role in roles]

    numbered = [role for role in listed if _number(role)]
    return [
        ("", [*first, *options([METADATA, LEAVE_OUT])]),
        (_("Prompt"), options([role for role in _PROMPT if role in listed])),
        (_("Responses"), options([r for r in (*_RESPONSES, *numbered) if r in listed])),
        (_("Annotation"), options([role for role in _ANNOTATION if role in listed])),
    ]


_PROMPT = ("prompt", "messages", "system", "history", "input", "context", "reference", "tag")
_RESPONSES = ("completion", "chosen", "rejected", "source_chosen", "source_rejected")
_ANNOTATION = ("winner", "strength", "rating", "annotator", "comment", "created_at", "seconds")


def _number(role: str) -> int:
    number = role.rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def _role_label(role: str) -> str:
    """The name of a role in words."""
    stem, _separator, number = role.rpartition("_")
    if number.isdigit():
        return {
            "answer": _("response %(number)s"),
            "source": _("model of response %(number)s"),
            "rank": _("rank of response %(number)s"),
            "score": _("score of response %(number)s"),
            "rating": _("rating of response %(number)s"),
        }[stem] % {"number": number}
    return {
        "prompt": _("prompt"),
        "messages": _("conversation"),
        "system": _("system message"),
        "history": _("earlier turns"),
        "input": _("second part of the prompt"),
        "context": _("context passage"),
        "reference": _("reference answer"),
        "tag": _("tag"),
        "completion": _("response"),
        "chosen": _("better response"),
        "rejected": _("other response"),
        "source_chosen": _("model of the better response"),
        "source_rejected": _("model of the other response"),
        "winner": _("preference"),
        "strength": _("strength of the preference"),
        "rating": _("rating"),
        "annotator": _("annotator"),
        "comment": _("comment"),
        "created_at": _("time"),
        "seconds": _("seconds spent"),
        METADATA: _("keep as metadata"),
        LEAVE_OUT: _("leave out"),
    }.get(role, role)


_LISTED = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def transfers(request: Request, project: Project) -> HttpResponse:
    """List file imports, with an upload form and the way to the export. For managers."""
    error = ""
    if request.method == "POST":
        upload = request.FILES.get("file")
        if upload is None:
            error = _("Choose a file.")
        else:
            try:
                record = receive_upload(project=project, upload=upload, user=request.user)
                return redirect("transfer", project.slug, record.pk)
            except Refusal as refusal:
                error = refusal.message
    context = {
        "project": project,
        "imports": project.file_imports.select_related("created_by")[:_LISTED],
        "error": error,
    }
    return render(request, "annotation/transfers/transfers.html", context, status=422 if error else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def transfer(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show an import: its plan, its first rows and its progress. For managers."""
    record = get_object_or_404(FileImport.objects.select_related("project"), pk=pk, project=project)
    error = ""
    if request.method == "POST":
        try:
            if (to := _execute(request, record)) is not None:
                return to
            error = _("Choose what to do with the file.")
        except Refusal as refusal:
            error = refusal.message
    if request.htmx and request.method == "GET":
        return render(request, "annotation/transfers/progress.html", _progress(project, record))
    try:
        preview = _preview_context(record)
    except Refusal as refusal:
        preview, error = {"readable": False}, error or refusal.message
    context = {**_progress(project, record), **preview, "error": error}
    return render(request, "annotation/transfers/transfer.html", context, status=422 if error else 200)


def _execute(request: Request, record: FileImport) -> HttpResponse | None:
    """Execute the action of the form; return None without one."""
    action = request.POST.get("action", "")
    slug = record.project.slug
    if action == "discard":
        discard_upload(record=record, user=request.user)
        messages.success(request, _("The file is deleted."))
        return redirect("transfers", slug)
    if action in ("correct", "start"):
        choices = ColumnChoices(request.POST, accounts_of(record.account), record.format)
        correct_plan(
            record=record,
            format_name=choices.format_name,
            mapping=choices.mapping,
            leave_out=choices.leave_out,
            meanings=choices.meanings,
            user=request.user,
        )
        record.refresh_from_db()
    if action == "undo":
        request_undo(record=record, user=request.user, deletes_used="deletes_used" in request.POST)
        return redirect("transfer", slug, record.pk)
    if action == "start":
        start_import(record=record, skip_bad="skip_bad" in request.POST, user=request.user)
    return redirect("transfer", slug, record.pk) if action in ("correct", "start") else None


def _progress(project: Project, record: FileImport) -> dict[str, Any]:
    is_undoable = record.state in (ImportState.FINISHED, ImportState.FAILED) and record.rows_done > 0
    return {
        "project": project,
        "record": record,
        "goes_on": record.state in BUSY,
        "ahead": imports_ahead(record),
        "finished": record.state == ImportState.FINISHED,
        **(
            {"undoable": True, "contents": contents_of(record), "used": why_not_undoable(record)}
            if is_undoable
            else {"undoable": False}
        ),
    }


def _preview_context(record: FileImport) -> dict[str, Any]:
    """Return the first rows, raw and as read, and the columns to choose from."""
    preview = preview_of(record)
    if preview is None:
        return {"readable": False, "columns": accounts_of(record.account)}
    return {
        "readable": True,
        "formats": [(name, reader.sentence) for name, reader in READERS.items()],
        "columns": shown_columns(preview),
        "questions": [column for column in preview.account if column.kind == "question"],
        "faults": preview.faults,
        "checked_rows": preview.checked_rows,
    }


# Export of annotations: choose format and filters, see the counts, download.

# Form of an export: format and filters, as a link can fill it, too.

_ANY = ("", gettext_lazy("all"))


class ExportForm(forms.Form):
    """Format and filters. A value that is not offered is an error: without it more would be exported."""

    format = forms.ChoiceField(label=gettext_lazy("Format"), required=False)
    round = forms.TypedMultipleChoiceField(
        label=gettext_lazy("Rounds"), required=False, coerce=int, widget=forms.CheckboxSelectMultiple
    )
    annotator = forms.ChoiceField(label=gettext_lazy("Annotator"), required=False)
    since = forms.DateField(
        label=gettext_lazy("From"), required=False, widget=forms.DateInput(attrs={"type": "date"})
    )
    until = forms.DateField(
        label=gettext_lazy("To"), required=False, widget=forms.DateInput(attrs={"type": "date"})
    )
    tag = forms.CharField(label=gettext_lazy("Prompt tag"), required=False, max_length=200)
    category = forms.ChoiceField(label=gettext_lazy("Span or missing category"), required=False)
    split = forms.ChoiceField(label=gettext_lazy("Split"), required=False, choices=[_ANY, *Split.choices])
    machines = forms.BooleanField(label=gettext_lazy("Include AI annotators"), required=False)
    comparisons = forms.RegexField(COMPARISONS, required=False, widget=forms.HiddenInput)

    def __init__(self, data: QueryDict, *, project: Project) -> None:
        super().__init__(data)
        self.project = project
        offer(self, "format", [(name, name) for name in WRITERS])
        offer(self, "round", [(number, str(number)) for number in rounds_of(project)])
        categories = project.categories.order_by("position", "pk").values_list("key", "label")
        offer(self, "category", [_ANY, *categories])
        people = cached(lambda: _annotators(project), "annotators to export", project.pk)
        offer(self, "annotator", [_ANY, *people])

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        try:
            require_known(project=self.project, filters=self.filters)
        except Refusal as refusal:
            self.add_error(refusal.field if refusal.field in self.fields else None, refusal.message)
        return cleaned

    @property
    def format_name(self) -> str:
        """The chosen format; the first one without a choice."""
        return self.cleaned_data.get("format") or next(iter(WRITERS))

    @property
    def comparison_ids(self) -> tuple[int, ...]:
        """The comparisons that were selected in their table; empty for all."""
        named = self.cleaned_data.get("comparisons", "")
        return tuple(int(number) for number in named.split(",") if number)

    @property
    def filters(self) -> ExportFilters:
        """The filters, of the fields that are valid."""
        values = self.cleaned_data
        return ExportFilters(
            rounds=values.get("round") or None,
            machines=values.get("machines", False),
            split=values.get("split", ""),
            annotator=values.get("annotator", ""),
            since=values.get("since"),
            until=values.get("until"),
            tag=values.get("tag", ""),
            category=values.get("category", ""),
            comparisons=self.comparison_ids,
        )


def _annotators(project: Project) -> list[tuple[str, str]]:
    """The annotators of a project under their pseudonyms, by name; AI annotators last."""
    ordered = sorted(who_judged(project), key=lambda user: (user.is_machine, str(user).casefold()))
    return [(str(UUID(str(user.pseudonym))), str(user)) for user in ordered]


@never_cache
@require_safe
@project_page(role=Role.MANAGER)
def export_choose(request: Request, project: Project) -> HttpResponse:
    """Choose format and filters, with counts; htmx gets the counts only. For managers."""
    form = ExportForm(request.GET, project=project)
    is_valid = form.is_valid()
    context: dict[str, Any] = {"project": project, "form": form, "writers": WRITERS.values()}
    # The page opens at once: counts of a large project arrive in a second request.
    if is_valid and (request.htmx or request.GET):
        context |= _counts(request, project, form)
    elif is_valid:
        context["chosen"] = form.format_name
    template = "annotation/exports/counts.html" if request.htmx else "annotation/exports/choose.html"
    # htmx swaps what it gets with a status of success only.
    status = 200 if is_valid or request.htmx else 422
    return render(request, template, context, status=status)


@never_cache
@require_safe
@project_page(role=Role.MANAGER)
def export(request: Request, project: Project, format_name: str) -> HttpResponseBase:
    """Download the current judgments in one format, filtered, streamed. For managers."""
    if format_name not in WRITERS:
        raise Http404
    form = ExportForm(_query(request, format_name), project=project)
    if not form.is_valid():
        # The page says what is wrong, beside the field.
        return redirect(
            f"{reverse('export-choose', args=[project.slug])}?{_query(request, format_name).urlencode()}"
        )
    made = export_of(project=project, format_name=format_name, filters=form.filters)
    answer = StreamingHttpResponse(pieces_of(made), content_type=TYPES[made.writer.container][0])
    answer["Content-Disposition"] = f'attachment; filename="{file_name(made)}"'
    return answer


def _counts(request: Request, project: Project, form: ExportForm) -> dict[str, Any]:
    made = export_of(project=project, format_name=form.format_name, filters=form.filters)
    query = _query(request, form.format_name)
    del query["format"]
    address = reverse("export", args=[project.slug, form.format_name])
    return {
        "counts": count_export(made),
        "chosen": form.format_name,
        "file_name": file_name(made),
        "download": f"{address}?{query.urlencode()}" if query else address,
    }


def _query(request: Request, format_name: str) -> QueryDict:
    """The query with a format, without empty fields."""
    query = QueryDict(mutable=True)
    for name, values in request.GET.lists():
        query.setlist(name, [value for value in values if value])
        if not query.getlist(name):
            del query[name]
    query["format"] = format_name
    return query
