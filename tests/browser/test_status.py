"""The status page: no barrier in either theme, narrow and wide; it looks again and leaves the focus."""

import pytest
from playwright.sync_api import expect

from annotation.models import FileImport, Project, User
from tests.browser.conftest import Axe, Open
from training.models import Worker
from webapp.operations import health, reach
from webapp.operations.health import fine


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "model_server", lambda: fine("model_server", "It answers."))
    monkeypatch.setattr(health, "_LOOPBACK", (*health._LOOPBACK, "testserver", "localhost"))


def test_the_page_has_no_barrier(project: Project, admin: User, open_as: Open, barriers: Axe):
    FileImport.objects.create(project=project, name="x", digest="0" * 64, state="waiting")
    FileImport.objects.update(created_at="2026-01-01T00:00:00Z")
    page = open_as(admin, "/status/")
    expect(page.get_by_role("heading", name="Does not work")).to_be_visible()
    expect(page.get_by_role("heading", name="Warning")).to_be_visible()
    assert barriers(page) == []


def test_it_looks_again_without_taking_the_focus(project: Project, admin: User, open_as: Open):
    page = open_as(admin, "/status/")
    expect(page.get_by_text("No worker is at work")).to_be_visible()
    page.get_by_role("link", name="Annotators hold 0 items.").focus()
    Worker.objects.create(
        name="box:1:abc",
        queues=["celery"],
        concurrency=4,
        started_at="2026-01-01T00:00:00Z",
        heartbeat_at="2999-01-01T00:00:00Z",
    )
    page.evaluate("htmx.ajax('GET', '/status/', {target: '#findings', swap: 'outerHTML'})")
    expect(page.get_by_text("Worker box:1:abc does 4 jobs at once")).to_be_visible()
    expect(page.get_by_text("No worker is at work")).to_have_count(0)
    expect(page.get_by_role("link", name="Annotators hold 0 items.")).to_be_focused()


def test_it_can_be_kept_still(admin: User, open_as: Open):
    page = open_as(admin, "/status/")
    page.get_by_role("link", name="Pause refresh").click()
    expect(page.get_by_role("link", name="Look again every 15 seconds")).to_be_visible()
    assert page.locator("main [hx-trigger]").count() == 0
