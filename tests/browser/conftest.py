"""A real Chromium against a live server; every page is held to the content security policy.

Playwright drives the Chromium that the system has (or the one in RONDO_CHROMIUM) and downloads none.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
from axe_playwright_python.sync_playwright import Axe as AxeCore
from django.conf import settings as django_settings
from django.contrib.staticfiles import handlers
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from annotation.choices import Polarity
from annotation.models import Project, User
from tests.browser.content import make_items
from tests.chromium import find_chromium

# Playwright's synchronous interface runs an event loop in this thread; the ORM is used beside it, not in it.
os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")

# Milliseconds. A slow machine is no failure; what is waited for comes at once on any other.
_PATIENCE = 60_000
expect.set_options(timeout=_PATIENCE)

_LONGEST = 4 * _PATIENCE // 1000
"""Seconds for one test."""

# What the browser reports although it is meant: a refused form, a conflict, a draft that comes after its
# submit, a network that a test took away.
_MEANT = (
    *("status of 422", "status of 409", "status of 410", "ERR_INTERNET_DISCONNECTED", "ERR_FAILED"),
    # A part of the page that was still loading when the page was left.
    *("htmx:sendAbort", "htmx:afterRequest"),
)

Open = Callable[..., Page]
Axe = Callable[[Page], list[str]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)
            if not (item.get_closest_marker("timeout") or item.get_closest_marker("slow")):
                # Some of Playwright's calls wait for ever for a page that does not react.
                item.add_marker(pytest.mark.timeout(_LONGEST))


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests here; each test gets a fresh context of it.

    It goes with the last of them: while Playwright is there, this thread counts as inside its event loop,
    and tests of other folders that begin one would be refused.
    """
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"],
        )
        yield chromium
        chromium.close()


class Gate:
    """Lets requests through one at a time while a test runs, and none in between.

    The threads of the live server share the test's one SQLite connection. Two transactions on it would
    mix, and what a closed page had still under way would mix with the emptying of the tables: a
    request may arrive as late as the next test.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False

    def before(self, application: WSGIApplication) -> WSGIApplication:
        """The application behind this gate: what it says, or 503."""

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            with self._lock:
                if self._is_open:
                    return application(environ, start_response)
            start_response("503 Service Unavailable", [])
            return []

        return answer

    def open(self) -> None:
        """Let requests through from now on."""
        with self._lock:
            self._is_open = True

    def shut(self) -> None:
        """Wait for the request that is under way; refuse all that come later."""
        with self._lock:
            self._is_open = False


@pytest.fixture(scope="session")
def gate_of_the_server() -> Gate:
    """The gate before the live server; other WSGI applications of this process do not pass through it."""
    gate = Gate()

    class GatedHandler(handlers.StaticFilesHandler):
        def __init__(self, application: WSGIApplication) -> None:
            super().__init__(gate.before(application))  # type: ignore[arg-type]  # any application will do

    # pytest-django takes the handler of its server from there.
    handlers.StaticFilesHandler = GatedHandler  # type: ignore[misc]
    return gate


@pytest.fixture(scope="session")
def live_server(gate_of_the_server: Gate, live_server: LiveServer) -> LiveServer:
    """pytest-django's live server, started once the gate is there."""
    return live_server


@pytest.fixture
def gate(gate_of_the_server: Gate) -> Iterator[Gate]:
    """The gate, open while the test runs."""
    gate_of_the_server.open()
    yield gate_of_the_server
    gate_of_the_server.shut()


@pytest.fixture
def open_as(browser: Browser, live_server: LiveServer, gate: Gate) -> Iterator[Open]:
    """`open_as(alice, "/projects/tea/")` is a page that Alice is signed in on; keywords go to the context.

    With `routed=True` requests of the page can be held back by `page.route` from its beginning.

    At the end no page may have written an error to the console: a violation of the content
    security policy is one, and so is an exception in a script.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(meant in message.text for meant in _MEANT):
            complaints.append(message.text)

    def open_page(user: User | None, path: str, *, routed: bool = False, **options: object) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        if user is not None:
            client = Client()
            client.force_login(user)
            session = client.cookies[django_settings.SESSION_COOKIE_NAME].value
            context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
        page = context.new_page()
        page.set_default_timeout(_PATIENCE)
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if routed:
            # Chromium hands requests over from the next page on: one sent right after a first `page.route`
            # may pass by it.
            page.route("**/never-asked-for/", lambda route: route.abort())
        page.goto(live_server.url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    gate.shut()
    assert not complaints


RULES_OF_COLOURS = ("color-contrast", "link-in-text-block")

LOOKS: tuple[tuple[Literal["light", "dark"], int, tuple[str, ...]], ...] = (
    ("light", 1400, ()),
    ("dark", 768, RULES_OF_COLOURS),
    ("light", 360, ()),
)
"""Colour schemes and widths in pixels that every page must be good in, and axe's rules in each; none for all.

Between the widest and the narrowest page only colours and overflow differ.
"""


@pytest.fixture(scope="session")
def barriers(axe: Callable[..., list[str]]) -> Axe:
    """`barriers(page)` is what axe-core finds, and how much the page is too wide, in every one of `LOOKS`.

    The page is not loaded again for each: it follows its window and the theme, as it does for people.
    """

    def in_every_look(page: Page) -> list[str]:
        faults: list[str] = []
        for scheme, width, rules in LOOKS:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.set_viewport_size({"width": width, "height": 900})
            if folder := os.environ.get("PICTURES"):
                name = re.sub(r"\W+", "-", page.url.split("/", 3)[3]).strip("-") or "home"
                page.screenshot(path=f"{folder}/{name}-{scheme}-{width}.png", full_page=True)
            faults += [f"{scheme}, {width} px: {line}" for line in axe(page, rules)]
            wider = page.evaluate("document.documentElement.scrollWidth") - width
            if wider > 0:
                faults.append(f"{scheme}, {width} px: {wider} px too wide")
        return faults

    return in_every_look


def until(page: Page, condition: str, argument: object = None) -> None:
    """Wait until a JavaScript function tells true of the page.

    Playwright's own `wait_for_function` polls by evaluating a string, which the pages' policy forbids.
    """
    deadline = time.monotonic() + _PATIENCE / 1000
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def until_loaded(page: Page) -> None:
    """Wait until a page is there with the parts that it asks for by itself, and is drawn.

    Playwright's own "networkidle" looks on for half a second each time.
    """
    drawn = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.evaluate(drawn)
    until(page, "() => document.readyState === 'complete' && !document.querySelector('.htmx-request')")
    page.evaluate(drawn)


ANIMATIONS_END = """async () => {
    const runs = (animation) => animation.playState === "running"
        && Number.isFinite(animation.effect.getComputedTiming().endTime);
    while (document.getAnimations().some(runs)) await new Promise((resolve) => setTimeout(resolve, 20));
}"""
"""Waits for every transition and animation of a page that comes to an end.

Asked again and again: Chromium does not always keep the promise `finished` of a transition that ended.
"""


@pytest.fixture(scope="session")
def axe() -> Callable[..., list[str]]:
    """`axe(page)` is what axe-core finds wrong with it, one line per rule and element.

    `rules` names those to apply; without it, all.
    """
    engine = AxeCore()

    def violations(page: Page, rules: Collection[str] = ()) -> list[str]:
        # A button that was just enabled fades to its colour: axe would measure the middle of the way.
        page.evaluate(ANIMATIONS_END)
        if not page.evaluate("typeof axe === 'object'"):
            page.evaluate(engine.axe_script)
        # Off by default in axe-core, as it came with WCAG 2.2.
        options: dict[str, object] = {
            "resultTypes": ["violations"],
            "rules": {"target-size": {"enabled": True}},
        }
        if rules:
            options["runOnly"] = {"type": "rule", "values": list(rules)}
        broken = page.evaluate("options => axe.run(options).then(({ violations }) => violations)", options)
        return [
            f"{rule['id']}: {rule['help']} at {node['target']}: {node.get('failureSummary', '')}"
            for rule in broken
            for node in rule["nodes"]
            # Below what stands at the window's edge: one scrolls it into view.
            if not (rule["id"] == "target-size" and "partially obscured" in node["failureSummary"])
        ]

    return violations


@pytest.fixture(scope="session")
def both_themes(axe: Callable[..., list[str]]) -> Axe:
    """`both_themes(page)` is what axe-core finds in the light theme, and of colours in the dark one."""

    def in_both(page: Page) -> list[str]:
        faults: list[str] = []
        for scheme, rules in (("light", ()), ("dark", RULES_OF_COLOURS)):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            faults += [f"{scheme}: {line}" for line in axe(page, rules)]
        return faults

    return in_both


@pytest.fixture
def items(project: Project):
    """A pair that comes first and a ranking of four after it, with context passages.

    Marks blame nobody: of a winner with marks one would be asked, and who wins is drawn here.
    """
    for category in project.categories.all():
        category.polarity = Polarity.NEUTRAL
        category.save()
    return make_items(project)
