"""The labelling screen of a project with an example, for its managers."""

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.forms import Entered
from annotation.models import Project
from annotation.selectors.example import MOST_RESPONSES, example_of_work
from annotation.views.access import Request, project_page
from annotation.views.labelling.screen import Screen


@require_safe
@project_page(role=Role.MANAGER)
def project_preview(request: Request, project: Project) -> HttpResponse:
    """Show the labelling screen with an example; nothing is reserved or stored. For managers.

    `?responses=` asks for an invented example of so many responses instead of a comparison of the project.
    """
    requested = request.GET.get("responses", "")
    responses = (
        int(requested) if requested in {str(number) for number in range(1, MOST_RESPONSES + 1)} else None
    )
    assignment = example_of_work(project=project, user=request.user, responses=responses)
    screen = Screen(
        project=project, assignment=assignment, annotator=request.user, entered=Entered(), is_preview=True
    )
    context = {
        "project": project,
        "screen": screen,
        "sizes": range(1, MOST_RESPONSES + 1),
        "is_invented": assignment.comparison.pk is None,
    }
    response = render(request, "annotation/settings/preview.html", context)
    response["Cache-Control"] = "no-store"
    return response
