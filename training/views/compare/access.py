"""Which project, and which stored page, a request of Compare is about."""

from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _

from annotation.models import Project
from annotation.views.access import Request
from training.models import SideBySide
from training.selectors import managed_projects
from training.views.access import require_manager


def asked_project(request: Request, slug: str | None) -> Project | None:
    """The project that was asked for, or the first that this person manages."""
    require_manager(request.user, None)
    if not slug:
        return managed_projects(request.user).first()
    found = Project.objects.filter(slug=slug).first()
    if found is None:
        raise Http404
    require_manager(request.user, found)
    return found


def stored(request: Request, slug: str) -> SideBySide:
    """The page with this address, for managers of its project."""
    shown = get_object_or_404(
        SideBySide.objects.select_related("project", "scorer", "continues", "judgment"), slug=slug
    )
    require_manager(request.user, shown.project)
    return shown


def trouble_of(error: Exception, *, hidden: bool) -> str:
    """Why answers could not be written. What a server says may name its model."""
    return _("An answer could not be written. Try again in a moment.") if hidden else str(error)
