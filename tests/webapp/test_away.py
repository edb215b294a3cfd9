"""While the database does not answer: 503, an invitation to try again, and nothing lost of what was sent."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.test import Client

from annotation.models import Judgment, Project, User
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.next import assign_next
from tests import factories

pytestmark = pytest.mark.django_db


@contextmanager
def away(error: Exception | None = None) -> Iterator[None]:
    """Every statement fails, as it does while a server is started again."""

    def refuse(*_: object) -> None:
        raise error or OperationalError("server closed the connection unexpectedly")

    with connection.execute_wrapper(refuse):
        yield


@pytest.fixture
def browser(alice: User) -> Client:
    """Alice's; what fails in the server is answered and not raised here."""
    client = Client(raise_request_exception=False)
    client.force_login(alice)
    return client


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_page_says_that_the_database_is_away_and_leads_to_itself(browser: Client, kind: type[Exception]):
    with away(kind("connection already closed")):
        answer = browser.get("/projects/?page=2")
    assert answer.status_code == 503
    assert int(answer["Retry-After"]) > 0
    assert answer["Cache-Control"] == "no-store"
    assert "'none'" in answer["Content-Security-Policy"]
    assert 'href="/projects/?page=2"' in answer.content.decode()


def test_a_judgment_that_was_sent_meanwhile_is_kept_on_the_page_and_stored_once_when_sent_again(
    browser: Client, project: Project, alice: User
):
    factories.make_comparison(project)
    page = browser.get(f"/projects/{project.slug}/label/").content.decode()
    assignment = assign_next(project=project, annotator=alice)
    address = f"/projects/{project.slug}/label/{assignment.pk}/submit/"
    assert address in page
    form = {
        "idempotency_key": re.search(r'name="idempotency_key" value="([^"]+)"', page)[1],
        "choice": f"win:{next(iter(tokens_of(assignment)))}:2",
        "comment": '"><script>alert(1)</script>\r\nand a second line',
        "span_flags": "[]",
        "active_seconds": "7",
    }
    with away():
        refused = browser.post(address, form)
    assert refused.status_code == 503
    html = refused.content.decode()
    assert "<script" not in html
    assert re.search(r'<form method="post" action="([^"]+)"', html)[1] == address
    again = {
        unescape(name): unescape(value)
        for name, value in re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', html)
    }
    assert again == form
    for _ in range(2):
        assert browser.post(address, again).status_code == 302
    judgment = Judgment.objects.get()
    assert (judgment.comment.splitlines(), judgment.strength) == (form["comment"].splitlines(), 2)


def test_a_password_that_was_sent_meanwhile_stands_on_no_page(db: None):
    browser = Client(raise_request_exception=False)
    with away():
        answer = browser.post("/login/", {"login": "alice", "password": factories.PASSWORD})
    assert answer.status_code == 503
    assert factories.PASSWORD not in answer.content.decode()


def test_programs_hear_it_in_their_own_words(alice: User):
    program = Client(raise_request_exception=False, headers={"Authorization": "Bearer rondo_x"})
    with away():
        problem = program.get("/api/v1/projects/")
        error = program.get("/v1/models")
    assert problem["Content-Type"] == "application/problem+json"
    assert (problem.status_code, problem.json()["status"]) == (503, 503)
    assert (error.status_code, error.json()["error"]["code"]) == (503, "database_unavailable")


def test_what_no_patience_mends_stays_a_failure_of_the_program(browser: Client):
    def failure(code: int) -> OperationalError:
        cause = sqlite3.OperationalError("no such table: annotation_project")
        cause.sqlite_errorcode = code
        error = OperationalError(*cause.args)
        error.__cause__ = cause
        return error

    with away(failure(sqlite3.SQLITE_ERROR)):
        assert browser.get("/projects/").status_code == 500
    with away(failure(sqlite3.SQLITE_BUSY_SNAPSHOT)):
        assert browser.get("/projects/").status_code == 503
    with away(ValueError("our own mistake")):
        assert browser.get("/projects/").status_code == 500


def test_an_error_of_the_program_is_told_to_programs_in_their_own_words(browser: Client):
    with away(ValueError("our own mistake")):
        problem, error = browser.get("/api/v1/projects/"), browser.get("/v1/models")
    assert problem["Content-Type"] == "application/problem+json"
    assert (problem.status_code, problem.json()["status"]) == (500, 500)
    assert (error.status_code, error.json()["error"]["code"]) == (500, "internal_error")
    assert "our own mistake" not in problem.content.decode() + error.content.decode()
