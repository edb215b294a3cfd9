"""Access of signed-in users to the pages of a project.

Outsiders get 404 as if the project did not exist, members whose role is too low get 403, and anonymous
visitors are redirected to the sign-in page.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import BigIntegerField
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django_htmx.middleware import HtmxDetails

from annotation.choices import Purpose, Role
from annotation.errors import Refusal
from annotation.models import Assignment, Membership, Project, User
from annotation.selectors import access

View = Callable[..., HttpResponseBase]


class Request(HttpRequest):
    """A request of a signed-in user; LoginRequiredMiddleware refuses all others."""

    user: User
    htmx: HtmxDetails
    membership: Membership | None
    """The user's membership in the project of the address; None for a superuser without one."""


def project_page(*, role: Role) -> Callable[[View], View]:
    """Restrict a view to members of the project with `role` or a higher one, and to superusers.

    The view gets the project in place of its slug.
    """

    def guard(view: View) -> View:
        @wraps(view)
        def guarded(request: Request, slug: str, **parts: Any) -> HttpResponseBase:
            try:
                request.membership = Membership.objects.select_related("project").get(
                    user=request.user, project__slug=slug, project__is_incomplete=False
                )
                project = request.membership.project
            except Membership.DoesNotExist:
                request.membership = None
                project = get_object_or_404(access.projects_for(request.user), slug=slug)
            # Later permission checks of this request reuse the membership.
            project.visitor = request.user.pk, request.membership
            if not access.allows(request.user, request.membership, role):
                raise PermissionDenied
            response = view(request, project, **parts)
            # No cache between here and the browser keeps a page of members.
            response.headers.setdefault("Cache-Control", "private")
            return response

        return guarded

    return guard


@contextmanager
def refusals_shown(request: HttpRequest) -> Iterator[None]:
    """End the block at a refusal, which the next page shows as an error."""
    try:
        yield
    except Refusal as refusal:
        messages.error(request, refusal.message)


def own_assignment(request: Request, project: Project, pk: int) -> Assignment:
    """Return the user's assignment in the address; 404 for anyone else's."""
    # A larger number would be a database error.
    if pk > BigIntegerField.MAX_BIGINT:
        raise Http404
    assignment = get_object_or_404(
        Assignment.objects.select_related("comparison"), pk=pk, annotator=request.user
    )
    comparison = assignment.comparison
    # Arena assignments have revealed their sources, so they are never opened again.
    if comparison.project_id != project.pk or comparison.purpose == Purpose.ARENA:
        raise Http404
    comparison.project = project
    return assignment
