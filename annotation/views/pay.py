"""Pay of a project's annotators: a period, a basis, everybody's rate, and a file of it. For managers."""

import csv
from datetime import timedelta
from io import StringIO
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import PayBasis, Role
from annotation.models import Membership, Project
from annotation.selectors.pay import Pay, pay_of
from annotation.services.projects.invitations import change_allotment
from annotation.views.access import Request, project_page, refusals_shown

_YEARS = range(2000, 3000)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class PayForm(forms.Form):
    """The period and the basis of pay; by default this month, by hour."""

    since = forms.DateField(
        label=gettext_lazy("From"), widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    )
    until = forms.DateField(
        label=gettext_lazy("To"), widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d")
    )
    by = forms.ChoiceField(choices=PayBasis.choices, label=gettext_lazy("Basis"))

    def __init__(self, data: Any, project: Project) -> None:
        today = timezone.localdate(timezone=timezone.get_default_timezone())
        by_item = project.hourly_wage is None and project.item_pay is not None
        usual = {
            "since": today.replace(day=1).isoformat(),
            "until": today.isoformat(),
            "by": PayBasis.ITEM if by_item else PayBasis.HOUR,
        }
        super().__init__({name: data.get(name) or value for name, value in usual.items()})

    def clean(self) -> dict[str, Any]:
        """Refuse a period that ends before it begins."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        since, until = values.get("since"), values.get("until")
        if since and since.year not in _YEARS:
            self.add_error("since", _("Choose a day from 2000 to 2999."))
        elif since and until and not since <= until <= since + timedelta(days=3660):
            self.add_error("until", _("Choose a day from the first one on, within ten years."))
        return values


class RateForm(forms.Form):
    """A rate of one person."""

    rate = forms.DecimalField(required=False, min_value=0, max_digits=8, decimal_places=2)
    by = forms.ChoiceField(choices=PayBasis.choices)


@require_safe
@project_page(role=Role.MANAGER)
def pay(request: Request, project: Project) -> HttpResponse:
    """Show what everybody's work in a period is paid. For managers."""
    return _page(request, project, PayForm(request.GET, project))


@require_safe
@project_page(role=Role.MANAGER)
def pay_file(request: Request, project: Project) -> HttpResponse:
    """Download the pay of a period as CSV. For managers."""
    form = PayForm(request.GET, project)
    if not form.is_valid():
        return _page(request, project, form)
    values = form.cleaned_data
    out = StringIO()
    table = csv.writer(out)
    table.writerow(
        [
            *("username", "name", "since", "until", "annotations", "measured", "unmeasured"),
            *("active_seconds", "basis", "rate", "amount"),
        ]
    )
    for row in _rows(project, form):
        table.writerow(
            [
                *(plain(row.user.username), plain(str(row.user)), values["since"], values["until"]),
                *(row.annotations, row.measured, row.unmeasured, row.seconds, values["by"]),
                *("" if row.rate is None else row.rate, "" if row.amount is None else row.amount),
            ]
        )
    answer = HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")
    name = f"{project.slug}-pay-{values['since']}-{values['until']}.csv"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


@require_POST
@project_page(role=Role.MANAGER)
def pay_rate(request: Request, project: Project, pk: int) -> HttpResponse:
    """Give a member a rate of their own, or the project's again. For managers."""
    membership = get_object_or_404(
        Membership.objects.select_related("user", "project"), pk=pk, project=project
    )
    form = RateForm(request.POST)
    if not form.is_valid():
        messages.error(
            request, _("A rate is 0 or more, with two decimals. Leave it empty for the project's.")
        )
    else:
        field = "hourly_wage" if form.cleaned_data["by"] == PayBasis.HOUR else "item_pay"
        with refusals_shown(request):
            change_allotment(
                membership=membership, changes={field: form.cleaned_data["rate"]}, changed_by=request.user
            )
            messages.success(request, _("Saved."))
    shown = PayForm(request.POST, project)
    query = dict(shown.data) if shown.is_valid() else None
    return redirect(reverse("pay", args=[project.slug], query=query))


def _page(request: Request, project: Project, form: PayForm) -> HttpResponse:
    rows = _rows(project, form)
    amounts = [row.amount for row in rows if row.amount is not None]
    context = {
        "project": project,
        "form": form,
        "rows": rows,
        "by_hour": form["by"].value() != PayBasis.ITEM,
        "total": sum(amounts) if amounts else None,
        "annotations": sum(row.annotations for row in rows),
        "seconds": sum(row.seconds for row in rows),
        "unmeasured": sum(row.unmeasured for row in rows),
        "rate": project.item_pay if form["by"].value() == PayBasis.ITEM else project.hourly_wage,
        "query": form.data,
        "file_query": urlencode(form.data),
    }
    return render(request, "annotation/annotators/pay.html", context, status=200 if form.is_valid() else 422)


def _rows(project: Project, form: PayForm) -> list[Pay]:
    if not form.is_valid():
        return []
    values = form.cleaned_data
    return pay_of(project, since=values["since"], until=values["until"], basis=PayBasis(values["by"]))


def plain(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
