"""A paste into a text of the labelling screen, as its script reports it."""

from django import forms
from django.http import HttpResponse
from django.views.decorators.http import require_POST

from annotation.choices import Role, WrittenIn
from annotation.errors import Refusal
from annotation.models import Project
from annotation.models.pastes import LONGEST_PASTE
from annotation.services.assignments.display_order import tokens_of
from annotation.services.pastes import record_paste
from annotation.views.access import Request, own_assignment, project_page


class PasteForm(forms.Form):
    """The report of the script: so many characters into this text."""

    key = forms.UUIDField()
    field = forms.ChoiceField(choices=WrittenIn.choices)
    response = forms.CharField(required=False, max_length=40)
    characters = forms.IntegerField(min_value=1, max_value=LONGEST_PASTE)
    is_on_screen = forms.BooleanField(required=False)


@require_POST
@project_page(role=Role.ANNOTATOR)
def paste(request: Request, project: Project, pk: int) -> HttpResponse:
    """Record a paste. For the annotator who has the comparison."""
    assignment = own_assignment(request, project, pk)
    form = PasteForm(request.POST)
    if not form.is_valid():
        return HttpResponse(status=422)
    values = form.cleaned_data
    try:
        record_paste(
            assignment=assignment,
            annotator=request.user,
            key=values["key"],
            field=WrittenIn(values["field"]),
            completion_id=tokens_of(assignment).get(values["response"]),
            characters=values["characters"],
            is_on_screen=values["is_on_screen"],
        )
    except Refusal as refusal:
        return HttpResponse(refusal.message, status=422, content_type="text/plain; charset=utf-8")
    return HttpResponse(status=204)
