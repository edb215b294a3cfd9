"""Memberships: a person's row in a project, and the groups of its annotators. Reads only."""

from collections import Counter
from collections.abc import Iterable

from django.contrib.auth.models import AnonymousUser

from annotation.models import Membership, Project, User


def membership_of(user: User | AnonymousUser, project: Project) -> Membership | None:
    """The row that makes `user` a member of `project`, or None for an outsider."""
    if not user.is_authenticated:
        return None
    if project.visitor is not None and project.visitor[0] == user.pk:
        return project.visitor[1]
    return Membership.objects.filter(user=user, project=project).first()


FEWEST_IN_GROUP = 3
"""Annotators of a group from which on training data name it: of fewer it would be a person's taste."""


def groups_of_annotators(project: Project, annotators: Iterable[int]) -> dict[int, str]:
    """Return the group of each of these annotators, by id, where enough of them are in it."""
    groups = dict(
        Membership.objects.filter(project=project, user__in=set(annotators), user__is_machine=False)
        .exclude(group="")
        .values_list("user_id", "group")
    )
    sizes = Counter(groups.values())
    return {annotator: group for annotator, group in groups.items() if sizes[group] >= FEWEST_IN_GROUP}
