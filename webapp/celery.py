"""The Celery application. A message only wakes a worker: the work is stored in the database."""

import os
import sys
from pathlib import Path
from typing import Any

from celery import Celery, bootsteps
from celery.beat import EmbeddedService
from click import Option

from webapp.environment import load_settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")


class BeatThread(bootsteps.StartStopStep):
    """The scheduler as a thread of the worker: `celery worker --beat-thread`.

    Celery's own `--beat` forks a process that survives a worker killed with SIGKILL: each restart would leave
    one more scheduler running.
    """

    conditional = True

    def __init__(self, parent: Any, beat_thread: bool = False, **options: Any) -> None:
        self.enabled = beat_thread
        super().__init__(parent, **options)

    def create(self, parent: Any) -> Any:
        return EmbeddedService(parent.app, thread=True, scheduler_cls=parent.app.conf.beat_scheduler)


# This module is imported everywhere; only Celery's own command reports wrong settings by itself.
if "celery" in Path(sys.argv[0]).parts[-2:]:
    load_settings_or_exit()
app = Celery("rondo")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.autodiscover_tasks(["webapp.demo"])
app.steps["worker"].add(BeatThread)
app.user_options["worker"].add(
    Option(("--beat-thread",), is_flag=True, help="Run the scheduler in a thread of this worker.")
)
