"""Celery tasks: each takes an id at most and calls one service. A message only says "look"."""

from celery import shared_task

from annotation.agreement.records import Selection
from annotation.choices import TaskName
from annotation.exchange import sources, uploads
from annotation.services import changes, inbox, quality, webhooks
from annotation.services.assignments import online
from annotation.services.inbox import forget_notifications
from annotation.services.people import accounts
from annotation.services.projects import removal
from annotation.statistics.cached import compute_in_worker


@shared_task(name=TaskName.DO_IMPORT)
def do_import(import_id: int) -> None:
    """Bring an uploaded file in."""
    uploads.do_import(import_id)


@shared_task(name=TaskName.CHECK_SOURCE)
def check_source(source_id: int) -> None:
    """Import the new and changed files of a watched folder or bucket."""
    sources.check_source(source_id)


@shared_task(name=TaskName.RECORD_AGREEMENT)
def record_agreement(comparison_id: int) -> None:
    """Record how far the annotators of a comparison agree."""
    quality.record_agreement(comparisons=[comparison_id])


@shared_task(name=TaskName.COMPUTE_REPORT)
def compute_report(
    project_id: int,
    round_number: int | None,
    category_id: int | None,
    annotator_id: int | None,
    other_id: int | None,
) -> None:
    """Compute the statistics of a large project, or of a part of it."""
    selection = Selection(
        round_number=round_number, category_id=category_id, annotator_id=annotator_id, other_id=other_id
    )
    compute_in_worker(project_id=project_id, selection=selection)


@shared_task(name=TaskName.UPDATE_ACQUISITION)
def update_acquisition(project_id: int) -> None:
    """Learn from the newest annotations of a project and choose what is asked next."""
    online.update_acquisition(project_id)


@shared_task(name=TaskName.SWEEP)
def sweep() -> None:
    """Look for uploaded files that nobody brings in, messages and e-mails that are due, stale choices.

    And for what was deleted and can no longer be brought back.
    """
    uploads.sweep_imports()
    sources.sweep_sources()
    inbox.sweep_mail()
    webhooks.sweep_webhooks()
    online.sweep_acquisition()
    changes.forget_changes()
    removal.empty_bin()


@shared_task(name=TaskName.DELIVER_WEBHOOKS)
def deliver_webhooks() -> None:
    """Send the messages to other programs that are due."""
    webhooks.deliver_due()


@shared_task(name=TaskName.SEND_NOTIFICATION)
def send_notification(notification_id: int) -> None:
    """Send the e-mail of a notification."""
    inbox.send_notification(notification_id)


@shared_task(name=TaskName.SEND_INVITATION)
def send_invitation(invitation_id: int) -> None:
    """Send the e-mail of an invitation."""
    inbox.send_invitation(invitation_id)


@shared_task(name=TaskName.SEND_DIGESTS)
def send_digests() -> None:
    """Send the daily digests, and forget old notifications."""
    inbox.send_digests()
    forget_notifications()


@shared_task(name=TaskName.SEND_PASSWORD_RESET)
def send_password_reset(user_id: int) -> None:
    """Send the link to a new password."""
    accounts.send_password_reset(user_id)
