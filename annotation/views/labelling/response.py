"""The labelling screen as HTML: the fragment for htmx, or the whole page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from annotation.models import Suggestion
from annotation.selectors.known_answers import Feedback
from annotation.selectors.own_work import announced_guideline
from annotation.text.rendering import render_markdown
from annotation.views.access import Request
from annotation.views.labelling.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Notice about the comparison before; false where there is nothing to show."""

    feedback: Feedback | None = None
    planted: Sequence[tuple[Suggestion, str]] = ()
    """Suggestions that were wrong on purpose, with the annotator's decisions."""

    def __bool__(self) -> bool:
        return self.feedback is not None or bool(self.planted)

    def context(self) -> dict[str, Any]:
        """Return what feedback.html and planted.html take."""
        explanation = render_markdown(self.feedback.explanation) if self.feedback else ""
        return {"feedback": self.feedback, "explanation": explanation, "planted": self.planted}


NOTHING = Notice()


def show(request: Request, screen: Screen, *, status: int = 200, notice: Notice = NOTHING) -> HttpResponse:
    """Render the labelling screen: the fragment for htmx, else the whole page."""
    announced = announced_guideline(screen.project, request.membership)
    context = {"project": screen.project, "screen": screen, "announced": announced, **notice.context()}
    markup = render_to_string("annotation/screen.html", context, request)
    if request.htmx:
        response = HttpResponse(markup, status=status)
    else:
        context = {"project": screen.project, "screen_markup": markup}
        response = render(request, "annotation/label.html", context, status=status)
    # A cached page would show a comparison that may be gone.
    response["Cache-Control"] = "no-store"
    return response
