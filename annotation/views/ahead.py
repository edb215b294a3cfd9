"""The comparison that comes next, leased and rendered while one still works on the one before."""

from django.http import HttpResponse
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.forms import Entered
from annotation.models import Project
from annotation.services.assignments import assign_ahead
from annotation.views.access import Request, own_assignment, project_page
from annotation.views.screen import Screen, draft_of
from annotation.views.show import show


@require_safe
@project_page(role=Role.ANNOTATOR)
def label_ahead(request: Request, project: Project) -> HttpResponse:
    """The screen that follows the assignment in `?after=`; 204 where none does. For annotators."""
    wanted = request.GET.get("after", "")
    if not wanted.isdecimal():
        return HttpResponse(status=204)
    after = own_assignment(request, project, int(wanted))
    assignment = assign_ahead(project=project, annotator=request.user, after=after)
    if assignment is None:
        return HttpResponse(status=204)
    draft = draft_of(assignment)
    entered = Entered.from_draft(draft) if draft else Entered()
    screen = Screen(
        project=project, assignment=assignment, annotator=request.user, entered=entered, after=after
    )
    return show(request, screen)
