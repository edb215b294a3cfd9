"""Invitations: a link by which people become members of a project, made, used, revoked."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, MailState, Role, TaskName
from annotation.errors import NotAllowed, Refusal
from annotation.models import Assignment, Comparison, Invitation, Membership, Project, User
from annotation.services import audit
from annotation.services.assignments.leases import release_assignment
from annotation.services.audit import record
from annotation.services.jobs import send_after_commit
from annotation.services.projects.projects import add_member

# Members of a project: their roles, and their removal.


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


ALLOTMENT = ("daily_limit", "total_limit", "skills", "group", "hourly_wage", "item_pay")
"""Fields of a membership: how much work its member gets, of what kind, as one of which group, at what pay."""


@transaction.atomic
def change_allotment(
    *, membership: Membership, changes: Mapping[str, object], changed_by: User
) -> Membership:
    """Set a member's limits, skills, group and pay.

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
        # JSON has no decimals: the log keeps a rate of pay as it is written.
        details = {
            key: str(value) if isinstance(value, Decimal) else value
            for key, value in (("from", before), ("to", after))
        }
        _record(f"member.{name}", membership, changed_by, details)
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


MOST_USES = 1000
"""So many people may join by one link."""

MOST_DAYS = 90
"""So long does a link hold at most: one that was forgotten in a chat must not open a project for years."""

_RANKS = [Role.ANNOTATOR, Role.REVIEWER, Role.MANAGER]


@dataclass(frozen=True, slots=True)
class NewInvitation:
    """An invitation and its secret, which nothing tells again; the secret of one sent by e-mail is empty."""

    invitation: Invitation
    secret: str


def create_invitation(
    *,
    project: Project,
    created_by: User,
    role: str,
    days: int,
    most_uses: int = 1,
    note: str = "",
    email: str = "",
) -> NewInvitation:
    """Make a link by which up to `most_uses` people join `project` within `days`.

    Only the SHA-256 of its secret is stored. With an address a worker draws another link and sends it there:
    the result holds no secret then. Refuses an unknown role, days or uses out of bounds, and an
    address where no e-mail is configured.
    """
    if role not in Role.values:
        raise Refusal("unknown_role", _("Choose one of the roles."), field="role")
    if not 1 <= days <= MOST_DAYS:
        raise Refusal("invalid_days", _("Choose 1 to %(most)d days."), field="days", most=MOST_DAYS)
    if not 1 <= most_uses <= MOST_USES:
        raise Refusal("invalid_uses", _("Choose 1 to %(most)d people."), field="most_uses", most=MOST_USES)
    if email and not settings.RONDO_EMAIL:
        raise Refusal(
            "no_mail_sent", _("This Rondo sends no e-mail. Leave the address empty."), field="email"
        )
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        invitation = Invitation.objects.create(
            project=project,
            role=role,
            note=note.replace("\x00", "").strip()[:100],
            digest=digest_of(secret),
            most_uses=most_uses,
            expires_at=timezone.now() + timedelta(days=days),
            created_by=created_by,
            email=email,
            mail=MailState.WAITING if email else MailState.NONE,
        )
        if email:
            send_after_commit(TaskName.SEND_INVITATION, invitation.pk)
        record(
            action="invitation.create",
            subject=invitation,
            actor=created_by,
            project=project,
            details={"role": role, "most_uses": most_uses, "days": days},
        )
    return NewInvitation(invitation, "" if email else secret)


def find_invitation(*, secret: str, now: datetime | None = None) -> Invitation | None:
    """The invitation of this link; None where it opens nothing (any more)."""
    invitation = Invitation.objects.select_related("project").filter(digest=digest_of(secret)).first()
    return invitation if invitation is not None and invitation.is_good(now or timezone.now()) else None


def good_invitation(*, pk: int, now: datetime | None = None) -> Invitation | None:
    """The invitation of this key, if somebody may still join by it."""
    invitation = Invitation.objects.select_related("project").filter(pk=pk).first()
    return invitation if invitation is not None and invitation.is_good(now or timezone.now()) else None


def accept_invitation(*, invitation: Invitation, user: User, now: datetime | None = None) -> Membership:
    """Make `user` a member. Refuses a link that is used up, expired or revoked in the meantime.

    Who is a member already keeps the higher of the two roles, and uses nothing up when theirs is not lower.
    """
    moment = now or timezone.now()
    with transaction.atomic():
        member = Membership.objects.filter(project=invitation.project_id, user=user).first()
        if member is not None and _RANKS.index(Role(member.role)) >= _RANKS.index(Role(invitation.role)):
            return member
        # One guarded UPDATE: of two who follow the last use of a link at once, one joins.
        used = Invitation.objects.filter(
            pk=invitation.pk, revoked_at__isnull=True, expires_at__gt=moment, uses__lt=F("most_uses")
        ).update(uses=F("uses") + 1)
        if not used:
            raise Refusal(
                "invitation_not_usable",
                _("This invitation is used up, expired or revoked. Ask for another one."),
            )
        joined = add_member(project=invitation.project, user=user, role=Role(invitation.role))
        record(
            action="invitation.accept",
            subject=invitation,
            actor=user,
            project=invitation.project,
            details={"role": invitation.role, "new": member is None},
        )
    return joined


def revoke_invitation(*, invitation: Invitation, user: User) -> None:
    """Make a link worthless, for good; who joined by it stays. Revoking twice is revoking once."""
    if (
        not user.is_superuser
        and not invitation.project.memberships.filter(user=user, role=Role.MANAGER).exists()
    ):
        raise NotAllowed("manager_revokes_invitations", _("Managers of the project revoke its invitations."))
    with transaction.atomic():
        revoked = Invitation.objects.filter(pk=invitation.pk, revoked_at__isnull=True).update(
            revoked_at=timezone.now()
        )
        if revoked:
            record(action="invitation.revoke", subject=invitation, actor=user, project=invitation.project)
    invitation.refresh_from_db()


def digest_of(secret: str) -> str:
    """Return what is stored of a link's secret."""
    # 256 random bits: nobody guesses them from a fast hash, and the row is looked up by it.
    return hashlib.sha256(secret.encode()).hexdigest()
