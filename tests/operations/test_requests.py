"""Every request has an id that goes along: into its lines, its answer, and the jobs that it causes."""

import json
import logging
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from celery.signals import before_task_publish, task_postrun, task_prerun
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.utils.functional import SimpleLazyObject

from annotation.models import Project, User
from training.contract import log_lines
from webapp.operations.requests import RequestLine

ROOT = Path(__file__).resolve().parents[2]


class Lines(logging.Handler):
    """Keeps what each line bore, as the formatter finds it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, object]] = []
        self.setFormatter(log_lines.formatter("json"))

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(json.loads(self.format(record)))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Lines of other tests bear nothing of a request that no server finished."""
    yield
    log_lines.forget()


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_an_answer_bears_an_id_of_its_own(client: Client):
    first, second = (client.get("/health/live").headers["X-Request-ID"] for _ in range(2))
    assert log_lines.is_request_id(first)
    assert first != second


def test_a_well_formed_id_of_a_proxy_is_kept(client: Client):
    sent = str(uuid.uuid4())
    assert client.get("/health/live", headers={"X-Request-ID": sent}).headers["X-Request-ID"] == sent


@pytest.mark.parametrize("sent", ["short", "two words are no id", "x" * 200, "a;DROP-TABLE"])
def test_any_other_id_is_replaced(client: Client, sent: str):
    got = client.get("/health/live", headers={"X-Request-ID": sent}).headers["X-Request-ID"]
    assert got != sent
    assert log_lines.is_request_id(got)


def test_a_line_names_request_person_and_route_and_no_name(
    project: Project, oscar: User, client_of: Callable[[User], Client], lines: Lines
):
    answer = client_of(oscar).get("/projects/tea/", headers={"X-Request-ID": "from-the-proxy-1"})
    assert answer.status_code == 404
    line = next(entry for entry in lines.found if entry["logger"] == "django.request")
    assert (line["request_id"], line["user"], line["route"]) == ("from-the-proxy-1", oscar.pk, "project")
    assert "oscar" not in json.dumps(line)


def test_after_the_request_lines_bear_nothing_of_it(db: None, client: Client, lines: Lines):
    client.get("/nowhere/")
    logging.getLogger("tests").warning("afterwards")
    assert "request_id" not in lines.found[-1]


def test_a_line_is_no_reason_to_look_up_who_asks(lines: Lines):
    def answer(request: HttpRequest) -> HttpResponse:
        logging.getLogger("tests").warning("early")
        assert request.user.pk == 7
        logging.getLogger("tests").warning("late")
        return HttpResponse()

    line_counts: list[int] = []

    def look_up() -> User:
        line_counts.append(len(lines.found))
        return User(pk=7)

    request = RequestFactory().get("/")
    request.user = cast(User, SimpleLazyObject(look_up))
    RequestLine(answer)(request)
    # Who it is was looked up after the first line, and not for it.
    assert line_counts == [1]
    assert ["user" in line for line in lines.found] == [False, True]


def test_a_slow_request_has_a_line(monkeypatch: pytest.MonkeyPatch, lines: Lines):
    times = iter([10.0, 12.5])
    monkeypatch.setattr("webapp.operations.requests.perf_counter", lambda: next(times))
    RequestLine(lambda request: HttpResponse(status=204))(RequestFactory().get("/"))
    assert lines.found[-1]["message"] == "GET took 2.5 s, status 204"


# ── Jobs ──────────────────────────────────────────────────────────────────────────────


def published(request_id: str | None) -> dict[str, object]:
    """The headers of a message that is sent while a request with this id is answered."""
    headers: dict[str, object] = {}
    with log_lines.bearing(request_id=request_id):
        before_task_publish.send(sender="training.tasks.advance_round", headers=headers, body=((), {}, {}))
    return headers


def test_a_message_takes_the_id_of_its_request_along():
    assert published("caused-by-this")["rondo_request_id"] == "caused-by-this"
    assert "rondo_request_id" not in published(None)


class Task:
    """A task as Celery's signals hand it over."""

    def __init__(self, name: str, **headers: object) -> None:
        self.name = name
        self.request = type("Context", (), headers)()


@pytest.mark.parametrize(
    ("name", "args", "fields"),
    [
        ("training.tasks.advance_round", (7,), {"round": "7"}),
        ("training.tasks.do_job", ("export", 3), {"kind": "export", "job": "3"}),
        ("annotation.tasks.do_import", (5,), {"import": "5"}),
        ("training.tasks.sweep", (), {}),
    ],
)
def test_a_jobs_lines_name_the_job_and_the_request_that_caused_it(name, args, fields, lines: Lines):
    task = Task(name, rondo_request_id="caused-by-this")
    task_prerun.send(sender=task, task_id="t-1", task=task, args=args, kwargs={})
    logging.getLogger("tests").warning("at work")
    task_postrun.send(
        sender=task, task_id="t-1", task=task, args=args, kwargs={}, retval=None, state="SUCCESS"
    )
    logging.getLogger("tests").warning("afterwards")
    at_work, afterwards = lines.found[-2:]
    assert {**at_work, **fields} == at_work
    assert (at_work["request_id"], at_work["task"], at_work["task_id"]) == ("caused-by-this", name, "t-1")
    assert "task" not in afterwards


def test_a_job_of_the_schedule_gets_an_id_of_its_own(lines: Lines):
    task = Task("training.tasks.sweep")
    task_prerun.send(sender=task, task_id="t-2", task=task, args=(), kwargs={})
    logging.getLogger("tests").warning("at work")
    task_postrun.send(sender=task, task_id="t-2", task=task, args=(), kwargs={}, retval=None, state="SUCCESS")
    assert log_lines.is_request_id(str(lines.found[-1]["request_id"]))


_ASK_A_WORKER = """
import logging, os, sys, threading
import django
django.setup()
from celery import shared_task
from celery.contrib.testing.worker import start_worker
from training.contract import log_lines
from webapp.celery import app

done = threading.Event()

@shared_task(name="training.tasks.advance_round_of_a_test")
def job(number):
    logging.getLogger("tests").warning("at work")
    done.set()

with start_worker(app, perform_ping_check=False, pool="solo", queues=["celery"]):
    with log_lines.bearing(request_id="through-the-broker"):
        app.send_task("training.tasks.advance_round_of_a_test", args=[7])
    assert done.wait(60)
"""


def test_the_id_goes_through_a_real_broker_into_a_real_workers_log(tmp_path: Path):
    finished = subprocess.run(
        [sys.executable, "-c", _ASK_A_WORKER],
        cwd=ROOT,
        env={
            "RONDO_HOME": str(tmp_path),
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "RONDO_LOG_FORMAT": "json",
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    entries = [json.loads(line) for line in finished.stderr.splitlines() if line.startswith("{")]
    at_work = next(line for line in entries if line["message"] == "at work")
    assert at_work["request_id"] == "through-the-broker"
    assert at_work["task"] == "training.tasks.advance_round_of_a_test"
