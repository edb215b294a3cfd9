"""Who may open which page of a project.

Everyone else learns nothing: an outsider gets 404 as if the project did not exist, a member
whose role is too low gets 403, and who is not signed in is sent to the sign-in page.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django_htmx.middleware import HtmxDetails

from annotation import selectors
from annotation.choices import Role
from annotation.models import Assignment, Membership, Project, User

View = Callable[..., HttpResponse]


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
        def guarded(request: Request, slug: str, **parts: Any) -> HttpResponse:
            project = get_object_or_404(selectors.projects_for(request.user), slug=slug)
            request.membership = selectors.membership_of(request.user, project)
            # What this request asks of the project from here on need not look it up again.
            project.visitor = request.user.pk, request.membership
            if not selectors.allows(request.user, request.membership, role):
                raise PermissionDenied
            return view(request, project, **parts)

        return guarded

    return guard


def own_assignment(request: Request, project: Project, pk: int) -> Assignment:
    """The assignment in the address, if it was given to this person; 404 for everyone else."""
    assignments = Assignment.objects.select_related("comparison__prompt")
    found = get_object_or_404(assignments, pk=pk, annotator=request.user, comparison__project=project)
    found.comparison.project = project
    return found
