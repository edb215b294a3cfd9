"""The row that makes somebody a member of a project. Reads only."""

from django.contrib.auth.models import AnonymousUser

from annotation.models import Membership, Project, User


def membership_of(user: User | AnonymousUser, project: Project) -> Membership | None:
    """The row that makes `user` a member of `project`, or None for an outsider."""
    if not user.is_authenticated:
        return None
    if project.visitor is not None and project.visitor[0] == user.pk:
        return project.visitor[1]
    return Membership.objects.filter(user=user, project=project).first()
