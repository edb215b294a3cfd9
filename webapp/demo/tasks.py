"""The demo's task."""

from celery import shared_task

from webapp.demo import starting


@shared_task(name=starting.TASK)
def write() -> None:
    """Create the demo project, if one was asked for."""
    starting.write_demo()
