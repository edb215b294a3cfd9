"""Lines that a job writes bear the job, and the request that caused it. Loaded when the apps are ready.

A message to the workers takes the request's id along in its headers; whoever carries it out writes under it.
"""

from contextvars import Token
from typing import Any

from celery.signals import before_task_publish, task_postrun, task_prerun

from training import log_lines

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
