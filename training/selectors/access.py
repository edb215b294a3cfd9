"""Access to training pages whose address names no project."""

from django.core.exceptions import PermissionDenied
from django.http import Http404

from annotation.choices import Role
from annotation.models import Project, User
from annotation.selectors.access import may, membership_of, projects_for
from training.selectors.projects import managed_projects


def require_manager(user: User, project: Project | None) -> None:
    """Let managers of `project` through; where it is None, managers of any project and superusers.

    An outsider gets 404 as if there were no such page, a member whose role is too low gets
    403: pages that tell what wrote an answer are closed to those who judge it.
    """
    if project is None:
        if user.is_superuser or managed_projects(user).exists():
            return
        if projects_for(user).exists():
            raise PermissionDenied
        raise Http404
    if may(user, project, Role.MANAGER):
        return
    if membership_of(user, project):
        raise PermissionDenied
    raise Http404
