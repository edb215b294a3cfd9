"""Pages of applications in every look, and the script on a page of another site under a strict policy."""

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.utils import timezone
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from annotation.models import Project, User
from annotation.services.people.accounts import create_token
from tests import factories
from tests.browser.conftest import Axe, Open
from training.models import ApplicationRequest, Feedback, FeedbackIncident, FeedbackKey, FeedbackSettings
from training.services.checkpoints import register_starter
from training.services.feedback.recording import NewFeedback, give_feedback
from training.services.feedback.settings import change_settings, create_key, opt_in

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def key(project: Project, carol: User) -> FeedbackKey:
    """A page of the project's application may send feedback; requests of Carol's token are stored."""
    changes = {"stores_requests": True, "patterns": [r"\d{4}"], "origins": ["https://app.example.org"]}
    change_settings(project=project, changes=changes, changed_by=carol)
    token = create_token(user=carol, name="shop", scopes=["generate", "feedback"]).token
    opt_in(project=project, token=token, opted_by=carol)
    create_token(user=carol, name="other", scopes=["generate"])
    return create_key(project=project, name="help centre", created_by=carol)


@pytest.fixture
def stored(project: Project, key: FeedbackKey) -> ApplicationRequest:
    """A request with hostile texts, feedback of every kind, and an incident."""
    starter = register_starter(name="starter")
    question = {"question": f"Why is tea hot? {HOSTILE}"}
    request = factories.make_application_request(project, starter, HOSTILE, key="chatcmpl-1", **question)
    factories.make_application_request(project, starter, "Heat.", key="chatcmpl-2", **question)
    for number in range(8):
        thumb = NewFeedback(completion="chatcmpl-1", kind="thumb", value=int(number > 2), user=f"u{number}")  # type: ignore[arg-type]
        give_feedback(source=key, new=thumb)
    for kind, values in (
        ("rating", {"value": 2, "scale": "five"}),
        ("rewrite", {"text": f"Because of heat. {HOSTILE}"}),
        ("alternative", {"alternative": "chatcmpl-2"}),
    ):
        give_feedback(source=key, new=NewFeedback(completion="chatcmpl-1", kind=kind, user="u1", **values))  # type: ignore[arg-type]
    now = timezone.now()
    for kind, included in (("burst", False), ("dominance", True)):
        incident = FeedbackIncident.objects.create(
            project=project,
            kind=kind,
            subject=f"user:{'0123456789abcdef' * 4}",
            started_at=now - timedelta(hours=3),
            ended_at=now,
            is_included=included,
        )
        incident.feedback.set(Feedback.objects.filter(kind="rating"))
    return request


def test_the_pages_of_applications_have_no_barrier_in_any_look(
    stored: ApplicationRequest, carol: User, open_as: Open, barriers: Axe
):
    page = open_as(carol, "/projects/tea/feedback/?has_feedback=on")
    expect(page.locator("tbody tr")).to_have_count(1)
    for path in ("", f"requests/{stored.pk}/", "figures/", "incidents/", "settings/"):
        page.goto(re.sub(r"/feedback/.*", f"/feedback/{path}", page.url))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert barriers(page) == [], path
    # No text of an application became an element.
    assert page.locator("img[src=x]").count() == 0


def test_patterns_are_tried_on_a_sample_as_one_types_and_an_incident_is_included_by_one_click(
    stored: ApplicationRequest, carol: User, open_as: Open
):
    page = open_as(carol, "/projects/tea/feedback/settings/")
    page.get_by_label("Sample text").press_sequentially("Born in 1984.")
    expect(page.locator("#pattern-result")).to_contain_text("Born in [redacted].")
    page.get_by_label("Redaction patterns").fill("(")
    expect(page.locator("#pattern-result")).to_contain_text("no regular expression")
    page.goto(page.url.replace("settings", "incidents"))
    page.get_by_role("button", name="Include").click()
    expect(page.get_by_role("button", name="Include")).to_have_count(0)
    assert FeedbackIncident.objects.get(kind="burst").is_included


@pytest.fixture
def site(live_server: LiveServer, key: FeedbackKey) -> Iterator[str]:
    """The address of another site, whose page lets nothing but Rondo's script and address in."""
    buttons = "".join(
        f'<button data-rondo-completion="chatcmpl-1" data-rondo-thumb="{way}">{way}</button>'
        for way in ("up", "down")
    )
    script = f'<script src="{live_server.url}/static/js/feedback.js" data-key="{key.key}" defer></script>'
    html = f'<!doctype html><link rel="icon" href="data:,"><title>Help</title>{script}{buttons}'
    policy = f"default-src 'none'; script-src {live_server.url}; connect-src {live_server.url}; img-src data:"

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        FeedbackSettings.objects.update(origins=[address])
        yield address
        server.shutdown()


def test_the_script_gives_feedback_from_another_site_under_a_strict_policy(
    stored: ApplicationRequest, key: FeedbackKey, open_as: Open, site: str
):
    Feedback.objects.all().delete()
    page = open_as(None, "/login/")
    page.goto(f"{site}/help")
    up, down = page.get_by_role("button", name="up"), page.get_by_role("button", name="down")
    up.click()
    expect(up).to_have_attribute("aria-pressed", "true")
    expect(down).to_have_attribute("aria-pressed", "false")
    down.click()
    expect(down).to_have_attribute("aria-pressed", "true")
    # One visitor, one thumb, which changed once.
    row = Feedback.objects.get()
    assert (row.value, row.changes, row.key) == (0, 1, key)
    assert page.evaluate("rondoFeedback('chatcmpl-1', { rating: 4 })") is True
    assert set(Feedback.objects.values_list("kind", "author")) == {
        ("thumb", row.author),
        ("rating", row.author),
    }
    assert page.evaluate("rondoFeedback('chatcmpl-1', { rating: 9 }, 'x', 0)") is False
