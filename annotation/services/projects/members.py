"""Members of a project: their roles, and their removal."""

from collections.abc import Mapping

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Role
from annotation.errors import Refusal
from annotation.models import Assignment, Comparison, Membership, User
from annotation.services import audit
from annotation.services.assignments.leases import release_assignment


@transaction.atomic
def change_role(*, membership: Membership, role: Role, changed_by: User) -> Membership:
    """Give a member another role. Refuses to leave the project without a manager."""
    if membership.role == role:
        return membership
    _require_another_manager(membership)
    before, membership.role = membership.role, role
    membership.save(update_fields=["role"])
    _record("member.role", membership, changed_by, {"from": before, "to": role})
    return membership


ALLOTMENT = ("daily_limit", "total_limit", "skills", "group")
"""Fields of a membership that say how much work its member gets, of what kind, and as one of which group."""


@transaction.atomic
def change_allotment(
    *, membership: Membership, changes: Mapping[str, object], changed_by: User
) -> Membership:
    """Set how many comparisons a member may submit a day and in all, what they can judge, and their group.

    Fields that are not named stay. Refuses a value that a field does not accept, naming the field.
    """
    for name in (name for name in ALLOTMENT if name in changes):
        before, after = getattr(membership, name), changes[name]
        if before == after:
            continue
        setattr(membership, name, after)
        try:
            membership.clean_fields(exclude=_OTHER_FIELDS - {name})
        except ValidationError as error:
            raise Refusal("invalid_member", " ".join(error.message_dict[name]), field=name) from None
        membership.save(update_fields=[name])
        _record(f"member.{name}", membership, changed_by, {"from": before, "to": after})
    return membership


@transaction.atomic
def remove_member(*, membership: Membership, removed_by: User) -> None:
    """Remove a member: their leases go back to the queue, their judgments stay.

    Refuses to leave the project without a manager.
    """
    _require_another_manager(membership)
    held = Assignment.objects.filter(
        annotator=membership.user, comparison__project=membership.project, state=AssignmentState.LEASED
    )
    for assignment in held:
        release_assignment(assignment=assignment, annotator=membership.user)
    # What was reserved for them alone is everybody's again.
    Comparison.reserved_for.through.objects.filter(
        comparison__project=membership.project, user=membership.user
    ).delete()
    _record("member.remove", membership, removed_by, {"role": membership.role})
    membership.delete()


_OTHER_FIELDS = {field.name for field in Membership._meta.get_fields()}


def _require_another_manager(membership: Membership) -> None:
    if membership.role != Role.MANAGER:
        return
    # Two managers who remove each other at once wait here for each other.
    managers = Membership.objects.select_for_update().filter(project=membership.project_id, role=Role.MANAGER)
    if not [manager for manager in managers if manager.pk != membership.pk]:
        raise Refusal(
            "last_manager", _("A project needs a manager. Make another member a manager first."), field="role"
        )


def _record(action: str, membership: Membership, actor: User, details: Mapping[str, object]) -> None:
    audit.record(
        action=action,
        subject=membership.user,
        actor=actor,
        project=membership.project,
        details=details,
    )
