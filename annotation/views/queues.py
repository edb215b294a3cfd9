"""Managers' decisions about quarantined completions and gold items."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db.models import BigIntegerField
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Purpose, Role, Verdict
from annotation.errors import ImportErrors, Refusal
from annotation.exchange.gold import import_gold
from annotation.models import Comparison, GoldAnswer, Project, Withholding
from annotation.selectors.comparison import ComparisonPage
from annotation.selectors.known_answers import known_ranks
from annotation.selectors.queues import decided_withholdings, gold_candidates, known_items, withheld_texts
from annotation.services.quality import edit_gold_item, mark_as_gold, retire_gold_item
from annotation.services.texts import decide_withholding
from annotation.views.access import Request, project_page

_LISTED = 100


class _KnownForm(forms.Form):
    """Purpose and explanation of a known answer."""

    purpose = forms.ChoiceField(
        choices=[
            (Purpose.GOLD, gettext_lazy("gold: mixed in unseen")),
            (Purpose.QUALIFICATION, gettext_lazy("qualification: to be passed before real work")),
        ],
        initial=Purpose.GOLD,
        label=gettext_lazy("What for"),
    )
    explanation = forms.CharField(
        required=False,
        max_length=5000,
        label=gettext_lazy("Explanation of the known answer"),
        help_text=gettext_lazy("Shown to annotators after they submit, if the project gives feedback."),
        widget=forms.Textarea(attrs={"rows": 3}),
    )


class GoldForm(_KnownForm):
    """A judged comparison to make a gold item of."""

    comparison = forms.IntegerField(
        error_messages={
            "required": gettext_lazy("Choose a comparison."),
            "invalid": gettext_lazy("Choose a comparison."),
        }
    )


class GoldFileForm(forms.Form):
    """A file of known answers."""

    file = forms.FileField(
        label=gettext_lazy("File of annotations"),
        help_text=gettext_lazy(
            "One annotation for each comparison, in any import format; its comment is the explanation."
        ),
    )
    purpose = forms.ChoiceField(
        choices=[
            (Purpose.GOLD, gettext_lazy("gold")),
            (Purpose.QUALIFICATION, gettext_lazy("qualification")),
        ],
        label=gettext_lazy("What for"),
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        # The page has another form with a purpose.
        super().__init__(*args, **{"auto_id": "file-%s", **options})


class KnownAnswerForm(_KnownForm):
    """The known answer of a comparison, by the numbers of its responses."""

    # Cleaned in this order: a ranking is read with what `partial` says of the rest.
    partial = forms.BooleanField(required=False)
    choice = forms.CharField(required=False)
    field_order = ("partial", "choice", "purpose", "explanation")

    def __init__(
        self, data: Mapping[str, str] | None, *, comparison: Comparison, known: GoldAnswer | None
    ) -> None:
        candidates = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
        self._ids = {str(number): pk for number, pk in enumerate(candidates, start=1)}
        initial = {"explanation": known.explanation if known else "", "purpose": Purpose.GOLD}
        super().__init__(data, initial=initial)
        # An item keeps its purpose.
        self.fields["purpose"].required = known is None
        self._entered = data if data is not None else self._of(known)

    def _of(self, known: GoldAnswer | None) -> Mapping[str, str]:
        if known is None:
            return {}
        ranks = known_ranks(known)
        numbers = {pk: number for number, pk in self._ids.items()}
        if known.verdict != Verdict.RANKED:
            return {"choice": known.verdict}
        if len(self._ids) == 2:
            return {"choice": f"win:{numbers[min(ranks, key=lambda pk: ranks[pk])]}"}
        return {
            "choice": Verdict.RANKED,
            "partial": "yes" if len(ranks) < len(self._ids) else "",
            **{f"rank-{numbers[pk]}": str(rank) for pk, rank in ranks.items()},
        }

    @property
    def is_partial(self) -> bool:
        """Return True where the rest stays unordered."""
        return bool(self._entered.get("partial"))

    @property
    def choices(self) -> list[tuple[str, str, bool]]:
        """Return value, label and whether it is chosen of each choice."""
        chosen = self._entered.get("choice", "")
        return [(value, label, value == chosen) for value, label in self._values_and_labels()]

    @property
    def ranks(self) -> list[tuple[str, str, list[tuple[str, bool]]]]:
        """Return field, number and the ranks of each response of a ranking; none of a pair."""
        if len(self._ids) < 3:
            return []
        ranks = list(self._ids)
        return [
            (
                f"rank-{number}",
                number,
                [(rank, self._entered.get(f"rank-{number}") == rank) for rank in ranks],
            )
            for number in self._ids
        ]

    def clean_choice(self) -> tuple[str, dict[int, int]]:
        """Return the verdict with its ranks by completion id."""
        choice: str = self.cleaned_data["choice"]
        if choice not in dict(self._values_and_labels()):
            raise ValidationError(_("Choose the known answer."))
        if choice.startswith("win:"):
            winner = choice.removeprefix("win:")
            return Verdict.RANKED, {pk: 1 if number == winner else 2 for number, pk in self._ids.items()}
        if choice != Verdict.RANKED:
            return choice, {}
        ranks = {n: rank for n in self._ids if (rank := self.data.get(f"rank-{n}", ""))}
        if not ranks or (len(ranks) < len(self._ids) and not self.cleaned_data.get("partial")):
            raise ValidationError(_("Rank every response, or leave the rest unordered."))
        if not all(rank in self._ids for rank in ranks.values()):
            raise ValidationError(_("Ranks are whole numbers from 1, the best."))
        return Verdict.RANKED, {self._ids[number]: int(rank) for number, rank in ranks.items()}

    def _values_and_labels(self) -> list[tuple[str, str]]:
        ties = [
            (str(Verdict.EQUAL), _("Equal")),
            (str(Verdict.BOTH_GOOD), _("All good")),
            (str(Verdict.BOTH_BAD), _("All bad")),
            (str(Verdict.CANNOT_JUDGE), _("Cannot judge")),
        ]
        if len(self._ids) == 2:
            wins = [(f"win:{n}", _("Response %(number)s is better") % {"number": n}) for n in self._ids]
        else:
            wins = [(str(Verdict.RANKED), _("As ranked above"))]
        return [*wins, *ties]


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def withheld(request: Request, project: Project) -> HttpResponse:
    """List completions that seem to identify their model, to release or discard. For managers."""
    context = {
        "project": project,
        "waiting": withheld_texts(project),
        "decided": decided_withholdings(project)[:_LISTED],
    }
    return render(request, "annotation/queues/withheld.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def decide_withheld(request: Request, project: Project, pk: int) -> HttpResponse:
    """Release a withheld comparison to annotators, or discard it. For managers."""
    withholding = get_object_or_404(Withholding, pk=pk, comparison__project=project)
    decision = request.POST.get("decision", "")
    if decision not in ("release", "discard"):
        messages.error(request, _("Choose whether to release or to discard the text."))
        return redirect("withheld", project.slug)
    try:
        decide_withholding(withholding=withholding, decided_by=request.user, release=decision == "release")
    except Refusal as refusal:
        messages.warning(request, refusal.message)
    else:
        done = _("Released: annotators may get it now.") if decision == "release" else _("Discarded.")
        messages.success(request, done)
    return redirect("withheld", project.slug)


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def gold(request: Request, project: Project) -> HttpResponse:
    """List gold and qualification items with annotators' results, and a form for a new one. For managers."""
    return _show_gold(request, project, GoldForm(initial={"comparison": request.GET.get("comparison", "")}))


@require_POST
@project_page(role=Role.MANAGER)
def make_gold(request: Request, project: Project) -> HttpResponse:
    """Make a gold item of a judged comparison. For managers."""
    form = GoldForm(request.POST)
    if not form.is_valid():
        return _show_gold(request, project, form, status=422)
    comparison = get_object_or_404(Comparison, pk=form.cleaned_data["comparison"], project=project)
    try:
        mark_as_gold(
            comparison=comparison,
            created_by=request.user,
            explanation=form.cleaned_data["explanation"],
            purpose=Purpose(form.cleaned_data["purpose"]),
        )
    except Refusal as refusal:
        form.add_error(None, refusal.message)
        return _show_gold(request, project, form, status=422)
    messages.success(request, _("The item is made. The comparison and its votes stay as they were."))
    return redirect("gold", project.slug)


@require_POST
@project_page(role=Role.MANAGER)
def gold_file(request: Request, project: Project) -> HttpResponse:
    """Make gold items of the annotations in a file. For managers."""
    form = GoldFileForm(request.POST, request.FILES)
    if form.is_valid():
        try:
            outcome = import_gold(
                project=project,
                upload=form.cleaned_data["file"],
                created_by=request.user,
                purpose=Purpose(form.cleaned_data["purpose"]),
            )
        except ImportErrors as refusal:
            form.add_error("file", [refusal.headline, *refusal.errors])
        except Refusal as refusal:
            form.add_error("file", refusal.message)
        else:
            done = _("New gold items: %(made)s. There already: %(known)s.")
            messages.success(request, done % {"made": outcome.made, "known": outcome.known})
            return redirect("gold", project.slug)
    return _show_gold(request, project, GoldForm(), file_form=form, status=422)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def gold_answer(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a comparison and give its known answer, edit it, or retire the gold item. For managers."""
    comparisons = Comparison.objects.select_related("prompt", "gold_answer", "project")
    comparison = get_object_or_404(
        comparisons.exclude(purpose=Purpose.ARENA), pk=min(pk, BigIntegerField.MAX_BIGINT), project=project
    )
    comparison.project = project
    known = getattr(comparison, "gold_answer", None)
    form = KnownAnswerForm(request.POST or None, comparison=comparison, known=known)
    if request.method == "POST":
        if known is not None and ("retire" in request.POST or "restore" in request.POST):
            retire_gold_item(known=known, retired_by=request.user, retired="retire" in request.POST)
            return redirect("gold", project.slug)
        if form.is_valid() and _keep_known_answer(request, comparison, known, form):
            messages.success(request, _("Saved."))
            return redirect("gold", project.slug)
    page = ComparisonPage(comparison)
    context = {"project": project, "page": page, "known": known, "form": form}
    status = 422 if form.is_bound else 200
    return render(request, "annotation/queues/gold_answer.html", context, status=status)


def _keep_known_answer(
    request: Request, comparison: Comparison, known: GoldAnswer | None, form: "KnownAnswerForm"
) -> bool:
    verdict, ranks = form.cleaned_data["choice"]
    explanation = form.cleaned_data["explanation"]
    try:
        if known is not None:
            edit_gold_item(
                known=known,
                edited_by=request.user,
                verdict=verdict,
                ranks=ranks,
                explanation=explanation,
            )
        else:
            mark_as_gold(
                comparison=comparison,
                created_by=request.user,
                explanation=explanation,
                purpose=Purpose(form.cleaned_data["purpose"] or Purpose.GOLD),
                verdict=verdict,
                ranks=ranks,
            )
    except Refusal as refusal:
        form.add_error("choice", refusal.message)
        return False
    return True


def _show_gold(
    request: Request,
    project: Project,
    form: GoldForm,
    *,
    file_form: GoldFileForm | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "project": project,
        "items": known_items(project),
        "candidates": gold_candidates(project)[:_LISTED],
        "form": form,
        "file_form": file_form or GoldFileForm(),
        "chosen": str(form["comparison"].value() or ""),
    }
    return render(request, "annotation/queues/gold.html", context, status=status)
