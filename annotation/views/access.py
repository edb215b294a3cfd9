"""Who may open which page of a project.

Everyone else learns nothing: an outsider gets 404 as if the project did not exist, a member
whose role is too low gets 403, and who is not signed in is sent to the sign-in page.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField, CharField
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django_htmx.middleware import HtmxDetails

from annotation import selectors
from annotation.choices import Purpose, Role
from annotation.models import Assignment, Membership, Project, User
from annotation.prepared import Prepared

View = Callable[..., HttpResponseBase]

_MEMBER = Prepared(
    lambda p: Membership.objects.select_related("project").filter(
        user=p("user"), project__slug=p("slug", CharField())
    )
)
_OWN = Prepared(
    lambda p: (
        Assignment.objects.select_related("comparison__prompt")
        .filter(pk=p("pk", BigIntegerField()), annotator=p("annotator"), comparison__project=p("project"))
        # What an arena asked has been revealed since: it is never opened again.
        .exclude(comparison__purpose=Purpose.ARENA)
    )
)


class Request(HttpRequest):
    """A request of someone who is signed in; LoginRequiredMiddleware lets no other through."""

    user: User
    htmx: HtmxDetails
    membership: Membership | None
    """The row that makes them a member of the project in the address; a superuser needs none."""


def project_page(*, role: Role) -> Callable[[View], View]:
    """For members of the project in the address with `role` or one that includes it; superusers always.

    The view gets the project in place of its slug.
    """

    def guard(view: View) -> View:
        @wraps(view)
        def guarded(request: Request, slug: str, **parts: Any) -> HttpResponseBase:
            request.membership = _MEMBER.first(user=request.user.pk, slug=slug)
            if request.membership is not None:
                project = request.membership.project
            else:
                project = get_object_or_404(selectors.projects_for(request.user), slug=slug)
            # What this request asks of the project from here on need not look it up again.
            project.visitor = request.user.pk, request.membership
            if not selectors.allows(request.user, request.membership, role):
                raise PermissionDenied
            return view(request, project, **parts)

        return guarded

    return guard


def own_assignment(request: Request, project: Project, pk: int) -> Assignment:
    """The assignment in the address, if it was given to this person; 404 for everyone else."""
    # An address may hold any number; the database knows none that is larger.
    found = (
        _OWN.first(pk=pk, annotator=request.user.pk, project=project.pk)
        if pk <= BigIntegerField.MAX_BIGINT
        else None
    )
    if found is None:
        raise Http404
    found.comparison.project = project
    return found
