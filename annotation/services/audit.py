"""The audit log: who did what. Append-only."""

from collections.abc import Mapping
from typing import Any

from django.db.models import Model

from annotation.models import AuditEntry, Project, User


def record(
    *,
    action: str,
    subject: Model | str,
    actor: User | None = None,
    project: Project | None = None,
    details: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Record one action, in its transaction: what is rolled back was not done.

    action: what was done, as `round.start`. subject: to what. actor: None where Rondo did it by itself.
    """
    return AuditEntry.objects.create(
        actor=actor,
        project=project,
        action=action,
        subject=str(subject)[:200],
        subject_id=subject.pk if isinstance(subject, Model) else None,
        details=dict(details or {}),
    )
