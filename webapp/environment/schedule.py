"""The schedule of recurring tasks. It is these few lines, so the scheduler stores no state on disk."""

from typing import Any

from celery.schedules import crontab


def beat_schedule(*, sweep_seconds: float) -> dict[str, dict[str, Any]]:
    """Return the tasks that Celery's scheduler sends; clock times are those of CELERY_TIMEZONE."""
    # A sweep that was not executed in time expires: the next one covers the same rows.
    sweep = {"schedule": sweep_seconds, "options": {"expires": sweep_seconds}}
    return {
        "sweep_imports": {"task": "annotation.tasks.sweep", **sweep},
        "sweep": {"task": "training.tasks.sweep", **sweep},
        # Before working hours.
        "retention": {"task": "training.tasks.retention", "schedule": crontab(hour=3, minute=30)},
        "digests": {"task": "annotation.tasks.send_digests", "schedule": crontab(hour=6, minute=0)},
    }
