"""Export of annotations: choose format and filters, see the counts, download."""

from typing import Any

from django.http import Http404, HttpResponse, QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.exchange.file_exports import TYPES, count_export, export_of, file_name, pieces_of
from annotation.exchange.formats.registry import WRITERS
from annotation.models import Project
from annotation.views.access import Request, project_page
from annotation.views.export_form import ExportForm


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
