"""The first-run page: who sees it, what it offers, and the demo's progress as a worker records it."""

import io
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from annotation.models import Project, User
from tests import factories
from tests.refusals import refused
from webapp.demo import pages
from webapp.demo.pages import DemoState
from webapp.demo.project import STEPS

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks that were sent; the demo's file does not outlive the test."""
    tasks: list[str] = []
    monkeypatch.setattr(pages, "send", lambda task, *args: tasks.append(task))
    path = Path(settings.RONDO_HOME) / "demo.json"
    path.unlink(missing_ok=True)
    monkeypatch.setattr(pages, "_file", lambda: path)
    return tasks


@pytest.fixture
def browser(admin: User) -> Client:
    client = Client()
    client.force_login(admin)
    return client


class Process:
    """A demo that says these lines and ends with this status."""

    def __init__(self, lines: list[str], status: int) -> None:
        self.stdout = io.StringIO("".join(f"{line}\n" for line in lines))
        self._status = status

    def wait(self) -> int:
        return self._status


def demo_that_says(monkeypatch: pytest.MonkeyPatch, lines: list[str], status: int = 0) -> None:
    def popen(command: list[str], **options: Any) -> Process:
        assert command == [sys.executable, "-m", "django", "demo"]
        return Process(lines, status)

    monkeypatch.setattr(subprocess, "Popen", popen)


def test_an_empty_installation_offers_all_three(browser: Client, sent: list[str]):
    page = browser.get("/start/").content.decode()
    assert "Create the demo" in page
    assert "Create the starter" in page
    assert "/projects/new/" in page
    assert "/start/" in browser.get("/").content.decode()


def test_the_starter_is_created_and_opened(browser: Client, sent: list[str]):
    assert browser.post("/start/starter/").headers["Location"] == "/projects/first-project/"
    assert "Open First project" in browser.get("/start/").content.decode()


def test_beside_other_projects_no_starter_is_created(browser: Client, sent: list[str]):
    factories.make_project(slug="ours")
    assert "Create the starter" not in browser.get("/start/").content.decode()
    assert browser.post("/start/starter/").headers["Location"] == "/start/"
    assert [project.slug for project in Project.objects.all()] == ["ours"]


def test_the_demo_is_asked_for_once(browser: Client, sent: list[str]):
    assert browser.post("/start/demo/").status_code == 302
    assert "Waiting for a worker" in browser.get("/start/").content.decode()
    page = browser.post("/start/demo/", follow=True).content.decode()
    assert "being created" in page
    assert sent == [pages.TASK]


def test_a_worker_records_each_step(sent: list[str], monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    tell = pages._tell

    def noted(now: Any) -> None:
        seen.append(now)
        tell(now)

    monkeypatch.setattr(pages, "_tell", noted)
    pages.request_demo()
    demo_that_says(monkeypatch, ["project, prompts and people", "round 1: responses"])
    pages.write_demo()
    assert [(entry.state, entry.step, entry.message) for entry in seen] == [
        (DemoState.WAITING, 0, ""),
        (DemoState.RUNNING, 1, "project, prompts and people"),
        (DemoState.RUNNING, 2, "round 1: responses"),
        (DemoState.FINISHED, STEPS, ""),
    ]
    # Its project was deleted since: it can be created again.
    assert pages.progress().state == DemoState.NONE


def test_a_second_message_starts_no_second_demo(sent: list[str], monkeypatch: pytest.MonkeyPatch):
    def popen(*command: object, **options: object) -> None:
        raise AssertionError("started twice")

    monkeypatch.setattr(subprocess, "Popen", popen)
    pages.write_demo()


def test_a_refusal_is_shown_and_the_demo_can_be_tried_again(
    browser: Client, sent: list[str], monkeypatch: pytest.MonkeyPatch
):
    pages.request_demo()
    demo_that_says(monkeypatch, ["CommandError: These accounts exist already: demo-ada."], status=1)
    pages.write_demo()
    page = browser.get("/start/").content.decode()
    assert "The demo could not be created." in page
    assert " These accounts exist already: demo-ada." in page
    assert "CommandError" not in page
    pages.request_demo()
    assert pages.progress().state == DemoState.WAITING


def test_an_interrupted_demo_says_so(sent: list[str]):
    pages.request_demo()
    values = json.loads(pages._file().read_text())
    pages._file().write_text(json.dumps(values | {"state": "running", "updated_at": time.time() - 400}))
    assert pages.progress().state == DemoState.FAILED
    assert "interrupted" in pages.progress().message
    pages._file().write_text("{")
    assert pages.progress().state == DemoState.NONE


def test_a_demo_that_exists_is_offered_to_be_opened(browser: Client, sent: list[str]):
    factories.make_project(slug="demo")
    assert 'href="/projects/demo/"' in browser.get("/start/").content.decode()
    with refused("demo_exists"):
        pages.request_demo()
