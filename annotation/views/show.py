"""The labelling screen as HTML: from its template, or from a stencil of it where nothing was entered yet.

Nearly every screen is an untouched one, and of its 30 KB only the texts, the names of fields and a
few numbers are its own. The rest is rendered once for each project, language and set of keys.
"""

from collections.abc import Hashable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final

from django.http import HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import get_script_prefix
from django.utils.safestring import SafeString
from django.utils.translation import get_language

from annotation.forms import Entered, MissingRow
from annotation.kept import Kept
from annotation.known_answers import Feedback
from annotation.models import Project
from annotation.own_work import announced_guideline
from annotation.rendering import render_markdown
from annotation.views.access import Request
from annotation.views.screen import Screen
from annotation.views.screen_parts import CandidateOnScreen
from annotation.views.stencil import Gaps, Stencil

_TEMPLATE: Final = "annotation/screen.html"
_CSRF_TOKEN: Final = "csrf_token"  # noqa: S105 - a name
_OF_A_CANDIDATE: Final = ("token", "markup", "edited", "truncated_badge")
_stencils: Kept[Hashable, Stencil] = Kept(128)


def show(
    request: Request, screen: Screen, *, status: int = 200, feedback: Feedback | None = None
) -> HttpResponse:
    """The labelling screen: the fragment for htmx, else the page around it."""
    announced = announced_guideline(screen.project, request.membership)
    if screen.is_untouched and announced is None and feedback is None:
        markup = from_stencil(screen, csrf_token=get_token(request))
    else:
        context = {
            "project": screen.project,
            "screen": screen,
            "announced": announced,
            "feedback": feedback,
            "explanation": render_markdown(feedback.explanation) if feedback else "",
        }
        markup = render_to_string(_TEMPLATE, context, request)
    if request.htmx:
        response = HttpResponse(markup, status=status)
    else:
        context = {"project": screen.project, "screen_markup": markup}
        response = render(request, "annotation/label.html", context, status=status)
    # A page from the browser's cache would show a comparison that may be long gone.
    response["Cache-Control"] = "no-store"
    return response


def from_stencil(screen: Screen, *, csrf_token: str) -> SafeString:
    """The fragment of an untouched screen, the same to the letter as from its template."""
    stencil = _stencils.get(_shape(screen), lambda: _cut(screen))

    def value(name: str) -> Any:
        if name == _CSRF_TOKEN:
            return csrf_token
        number, _space, of_a_candidate = name.partition(" ")
        if of_a_candidate:
            return getattr(screen.candidates[int(number)], of_a_candidate)
        return attrgetter(name)(screen)

    return stencil.filled(value)


def _shape(screen: Screen) -> Hashable:
    """All that the text between the gaps depends on."""
    return (
        get_language(),
        get_script_prefix(),
        # `revision` is among them: it stands for categories, criteria and rules.
        tuple(getattr(screen.project, field.attname) for field in Project._meta.concrete_fields),
        tuple(screen.keys.items()),
        *(screen.size, bool(screen.evidence), bool(screen.previous), bool(screen.progress.shown_total)),
        *(bool(screen.pace.today), screen.pace.median_seconds is None),
    )


def _cut(screen: Screen) -> Stencil:
    gaps = Gaps()
    blank = _blank(screen, gaps)
    context = {"project": screen.project, "screen": blank, "announced": None, "feedback": None}
    return Stencil.cut(render_to_string(_TEMPLATE, {**context, "csrf_token": gaps(_CSRF_TOKEN)}), gaps)


def _blank(screen: Screen, gaps: Gaps) -> Screen:
    """A screen with what its shape says, and gaps. Of the assignment and its annotator it knows nothing."""
    blank = object.__new__(Screen)
    shared = ("project", "guideline", "keys", "size")
    categories = ("span_categories", "categories_without_key", "missing_categories")
    pace = SimpleNamespace(
        today=gaps("pace.today") if screen.pace.today else 0,
        median_seconds=None if screen.pace.median_seconds is None else gaps("pace.median_seconds"),
        clock=gaps("pace.clock"),
    )
    progress = SimpleNamespace(
        shown_done=gaps("progress.shown_done"),
        shown_total=gaps("progress.shown_total") if screen.progress.shown_total else 0,
    )
    values: dict[str, Any] = {
        **{name: getattr(screen, name) for name in (*shared, *categories)},
        **dict.fromkeys(("form", "draft")),
        **{"entered": Entered(), "doubts": (), "is_revision": False, "stands_on": 0},
        **{"pace": pace, "progress": progress},
        "assignment": SimpleNamespace(pk=gaps("assignment.pk")),
        "previous": SimpleNamespace(pk=gaps("previous.pk")) if screen.previous else None,
        # What is said of each passage stands in the gaps `question` and `evidence_options`.
        "evidence": [None] if screen.evidence else [],
        "candidates": [_blank_candidate(one, number, gaps) for number, one in enumerate(screen.candidates)],
    }
    own = ("idempotency_key", "round_number", "position", "question", "evidence_options", "script_data")
    vars(blank).update(values, **{name: gaps(name) for name in own})
    return blank


def _blank_candidate(candidate: CandidateOnScreen, number: int, gaps: Gaps) -> CandidateOnScreen:
    blank = object.__new__(CandidateOnScreen)
    parts = {name: gaps(f"{number} {name}") for name in _OF_A_CANDIDATE}
    vars(blank).update(
        parts,
        letter=candidate.letter,
        ranks=candidate.ranks,
        missing=[MissingRow(candidate=parts["token"])],
        **{"rank": "", "missing_count": 0, "critique": "", "changes": ()},
    )
    return blank
