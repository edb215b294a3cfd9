"""The labelling screen as HTML: the fragment for htmx, or the whole page."""

from django.http import HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from annotation.selectors.known_answers import Feedback
from annotation.selectors.own_work import announced_guideline
from annotation.text.rendering import render_markdown
from annotation.views.access import Request
from annotation.views.labelling.screen import Screen


def show(
    request: Request, screen: Screen, *, status: int = 200, feedback: Feedback | None = None
) -> HttpResponse:
    """Render the labelling screen: the fragment for htmx, else the whole page."""
    announced = announced_guideline(screen.project, request.membership)
    context = {
        "project": screen.project,
        "screen": screen,
        "announced": announced,
        "feedback": feedback,
        "explanation": render_markdown(feedback.explanation) if feedback else "",
    }
    markup = render_to_string("annotation/screen.html", context, request)
    if request.htmx:
        response = HttpResponse(markup, status=status)
    else:
        context = {"project": screen.project, "screen_markup": markup}
        response = render(request, "annotation/label.html", context, status=status)
    # A cached page would show a comparison that may be gone.
    response["Cache-Control"] = "no-store"
    return response
