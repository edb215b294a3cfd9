"""Celery tasks: each takes an id at most and calls one service. A message only says "look"."""

from celery import shared_task

from annotation.services import uploads
from annotation.services.webhooks import deliveries


@shared_task(name="annotation.tasks.do_import")
def do_import(import_id: int) -> None:
    """Bring an uploaded file in."""
    uploads.do_import(import_id)


@shared_task(name="annotation.tasks.sweep")
def sweep() -> None:
    """Look for uploaded files that nobody brings in, and for messages that are due."""
    uploads.sweep_imports()
    deliveries.sweep_webhooks()


@shared_task(name="annotation.tasks.deliver_webhooks")
def deliver_webhooks() -> None:
    """Send the messages to other programs that are due."""
    deliveries.deliver_due()
