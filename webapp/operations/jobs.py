"""Lines that a job writes bear the job, and the request that caused it; a worker says that it lives.

A message to the workers takes the request's id along in its headers; whoever carries it out writes under it.
Loaded when the apps are ready.
"""

from __future__ import annotations

from contextvars import Token
from typing import TYPE_CHECKING, Any

from celery.signals import before_task_publish, task_postrun, task_prerun, worker_ready, worker_shutdown

from training import log_lines

if TYPE_CHECKING:
    from training.services.workers import Pulse

REQUEST_ID = "rondo_request_id"
_NAMED_AFTER = {
    "training.tasks.advance_round": ("round",),
    "training.tasks.score_project": ("project",),
    "training.tasks.prepare_arena": ("arena",),
    "training.tasks.judge": ("judge",),
    "training.tasks.do_job": ("kind", "job"),
    "annotation.tasks.do_import": ("import",),
}
"""What the arguments of a task are; fields of its lines."""

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
    # A task of the schedule was caused by nobody: what it leads to is found by an id of its own.
    request_id = caused_by if is_known else log_lines.new_request_id()
    _entered[task_id] = log_lines.enter(
        {"request_id": request_id, "task": task.name, "task_id": task_id, **named}
    )


@task_postrun.connect
def _leave(task_id: str, **_: Any) -> None:
    token = _entered.pop(task_id, None)
    if token is not None:
        log_lines.leave(token)


_pulses: list[Pulse] = []


@worker_ready.connect
def _begin_to_say_so(sender: Any, **_: Any) -> None:
    # Not before: this module is loaded by the web process too, which needs nothing of it.
    from training.services.workers import Pulse

    pulse = Pulse(queues=list(sender.app.amqp.queues.consume_from), concurrency=sender.controller.concurrency)
    pulse.start()
    _pulses.append(pulse)


@worker_shutdown.connect
def _end(**_: Any) -> None:
    while _pulses:
        _pulses.pop().stop()
