"""Log fields of jobs (their id and that of the request that caused them), and worker heartbeats.

A Celery message carries the request's id in its headers; the worker logs under it. Loaded when the apps are
ready.
"""

from __future__ import annotations

from contextvars import Token
from typing import TYPE_CHECKING, Any

from celery.signals import before_task_publish, task_postrun, task_prerun, worker_ready, worker_shutdown

from training.contract import log_lines

if TYPE_CHECKING:
    from training.services.workers import WorkerHeartbeat

REQUEST_ID = "rondo_request_id"
_NAMED_AFTER = {
    "training.tasks.advance_round": ("round",),
    "training.tasks.score_project": ("project",),
    "training.tasks.prepare_arena": ("arena",),
    "training.tasks.prepare_openings": ("project",),
    "training.tasks.judge": ("judge",),
    "training.tasks.do_job": ("kind", "job"),
    "annotation.tasks.do_import": ("import",),
}
"""Names of the tasks' arguments as fields of their log lines."""

_entered: dict[str, Token[log_lines.Fields]] = {}


@before_task_publish.connect
def _send_along(headers: dict[str, Any] | None = None, **_: Any) -> None:
    request_id = log_lines.fields_now().get("request_id")
    if headers is not None and request_id:
        headers[REQUEST_ID] = request_id


@task_prerun.connect
def _enter(task_id: str, task: Any, args: Any = (), **_: Any) -> None:
    caused_by = getattr(task.request, REQUEST_ID, None)
    is_known = isinstance(caused_by, str) and log_lines.is_request_id(caused_by)
    named = dict(zip(_NAMED_AFTER.get(task.name, ()), map(str, args or ()), strict=False))
    # A scheduled task has no request: it gets an id of its own.
    request_id = caused_by if is_known else log_lines.new_request_id()
    _entered[task_id] = log_lines.enter(
        {"request_id": request_id, "task": task.name, "task_id": task_id, **named}
    )


@task_postrun.connect
def _leave(task_id: str, **_: Any) -> None:
    token = _entered.pop(task_id, None)
    if token is not None:
        log_lines.leave(token)


_heartbeats: list[WorkerHeartbeat] = []


@worker_ready.connect
def _begin_to_say_so(sender: Any, **_: Any) -> None:
    # Imported here because the web process, which loads this module too, does not need it.
    from training.services.workers import WorkerHeartbeat

    queues = list(sender.app.amqp.queues.consume_from)
    heartbeat = WorkerHeartbeat(queues=queues, concurrency=sender.controller.concurrency)
    heartbeat.start()
    _heartbeats.append(heartbeat)


@worker_shutdown.connect
def _end(**_: Any) -> None:
    while _heartbeats:
        _heartbeats.pop().stop()
