"""The demo's task."""

from celery import shared_task

from webapp.demo import pages


@shared_task(name=pages.TASK)
def write() -> None:
    """Create the demo project, if one was asked for."""
    pages.write_demo()
