"""Whatever somebody stores is text on every page: nothing of it runs, loads, or lies over the page.

A scene with a row of everything gets the corpus (`payloads.py`) into every field that people or models fill;
then each page of the table of addresses, and each list of the admin, is opened in Chromium.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
from django.conf import settings
from django.contrib import admin as django_admin
from django.db import models
from django.test import Client
from django.urls import reverse
from playwright.sync_api import Browser, Error, Page
from pytest_django.live_server_helper import LiveServer

from annotation.models import (
    ApiToken,
    Category,
    Completion,
    CompletionSource,
    Guideline,
    Invitation,
    Judgment,
    Panel,
    PanelParticipant,
    Project,
    Prompt,
    Review,
    User,
    Withholding,
)
from annotation.services.audit import record
from annotation.text.identity import text_hash
from tests import factories
from tests.architecture.address_scene import parts_of
from tests.architecture.address_table import TABLE
from tests.browser.conftest import Gate
from tests.browser.payloads import payloads, short_payloads
from training.models import ArenaLink, Checkpoint, Judge, RoundStep, Run, SideBySide, SideBySideAnswer

CORPUS = payloads()

FIELDS: dict[type[models.Model], tuple[str, ...]] = {
    User: ("first_name", "last_name"),
    Project: ("name", "description"),
    Category: ("label", "description"),
    Judgment: ("comment",),
    Review: ("comment",),
    Invitation: ("note",),
    Panel: ("name", "consent", "code", "failed_code"),
    PanelParticipant: ("participant", "study", "session"),
    ApiToken: ("name",),
    Withholding: ("quote",),
    CompletionSource: ("name",),
    Run: ("name", "message", "error"),
    Checkpoint: ("notes",),
    RoundStep: ("message", "error"),
    ArenaLink: ("name",),
    Judge: ("name", "message", "error"),
}


FILES = ("category-colours",)
"""An address of neither a page nor a saved file: a style sheet."""


def test_the_corpus_is_as_large_as_it_says():
    assert len(CORPUS) == len(set(CORPUS)) >= 500


def past_manager(model: type[models.Model]) -> "models.QuerySet[Any]":
    """All rows of a model, those too that are written once."""
    return models.QuerySet(model)


@pytest.fixture
def parts(project: Project, alice: User, carol: User) -> dict[str, dict[str, Any]]:
    """The parts of every address, committed, so that the server of the browser reads them."""
    return parts_of(project, alice, carol)


@pytest.fixture(params=["a sixth", pytest.param("all", marks=pytest.mark.long)])
def corpus(request: pytest.FixtureRequest) -> list[str]:
    """All texts, or every sixth of them: their kinds lie side by side."""
    return CORPUS if request.param == "all" else CORPUS[::6]


@pytest.fixture
def stored(
    corpus: list[str],
    parts: dict[str, dict[str, Any]],
    alice: User,
    carol: User,
    admin: User,
    project: Project,
) -> None:
    """The corpus in every field that somebody fills."""
    # Each text a paragraph of its own. What a formula would swallow of it is no loss: each stands in other
    # fields too, and all of them as plain text on the pages that show the source.
    whole = "\n\n".join(corpus)
    # A queue of work too, with all of the corpus in four answers of one comparison.
    chunks = ["\n\n".join(CORPUS[number::4]) for number in range(4)]
    comparison = factories.make_comparison(project, chunks, question="\n\n".join(CORPUS[::3]), priority=9)
    for model, names in FIELDS.items():
        rows = past_manager(model)
        for name in names:
            longest = model._meta.get_field(name).max_length
            texts = cycle(short_payloads(longest)) if longest else cycle([whole])
            for number, pk in enumerate(rows.order_by("pk").values_list("pk", flat=True)):
                text = next(texts)
                # Names that must differ do so at their end.
                rows.filter(pk=pk).update(**{name: text if not longest else f"{text[: longest - 3]}{number}"})
    past_manager(Guideline).update(text=whole)
    for prompt in past_manager(Prompt).exclude(pk=comparison.prompt_id):
        messages = [{"role": "user", "content": whole}]
        context = [{"title": CORPUS[0], "sentences": CORPUS[:40]}]
        past_manager(Prompt).filter(pk=prompt.pk).update(messages=messages, context=context)
    for completion in past_manager(Completion).exclude(prompt=comparison.prompt_id):
        past_manager(Completion).filter(pk=completion.pk).update(text=whole, text_hash=text_hash(whole))
    for side_by_side in SideBySide.objects.all():
        SideBySide.objects.filter(pk=side_by_side.pk).update(messages=[{"role": "user", "content": whole}])
    SideBySideAnswer.objects.update(text=whole)
    for text in CORPUS[:60]:
        record(action="note", subject=text[:200], actor=alice, project=project, details={text[:60]: text})


def addresses(parts: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield person and address: for Alice her own pages, for the superuser the others and admin lists."""
    for name, (method, expected) in TABLE.items():
        if method != "GET" or name.startswith(("v1-", "api")) or name in FILES:
            continue
        address = reverse(name, kwargs=parts.get(name, {}))
        if expected[2] == 200 and expected[5] == 404:
            yield "alice", address
        elif expected[5] == 200:
            yield "admin", address
    yield "alice", reverse("label", kwargs={"slug": "tea"})
    for model in django_admin.site._registry:
        if model._meta.app_label in ("annotation", "training"):
            yield "admin", reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


# Within whatever shows somebody's text: no element or attribute that does more than show.
LOOK = """() => {
  const faults = [];
  if (window.pwned) faults.push("a script ran");
  for (const element of document.querySelectorAll("*")) {
    for (const { name, value } of element.attributes) {
      if (name.startsWith("on") || name.startsWith("hx-on")) faults.push(`${element.tagName} ${name}`);
      if (["href", "src", "action", "formaction", "xlink:href", "data"].includes(name)
          && /^\\s*(javascript|vbscript|data:text|file|blob)/i.test(value)) faults.push(`${name}=${value}`);
    }
  }
  // The guide's pictures are Rondo's own.
  for (const box of document.querySelectorAll(".prose:not(.guide__text), .answer-text")) {
    const outer = box.getBoundingClientRect();
    for (const element of box.querySelectorAll("*")) {
      // Ours: static/js/copy.js puts it into blocks of code. No stored text keeps a class.
      if (element.matches("pre > button.copies:last-child")) continue;
      if (/^(SCRIPT|STYLE|IFRAME|OBJECT|EMBED|FORM|INPUT|BUTTON|LINK|META|BASE|IMG|VIDEO|AUDIO|SVG)$/i
          .test(element.tagName)) faults.push(`<${element.tagName}> in a text`);
      const style = getComputedStyle(element);
      if (/fixed|absolute|sticky/.test(style.position) && !element.closest("math")
          && !element.classList.contains("visually-hidden")) {
        faults.push(`${style.position} ${element.tagName}`);
      }
    }
    // What is wider than its box scrolls inside of it or is cut off; it never widens the page.
    if (outer.width > 0 && outer.right > document.documentElement.clientWidth + 1
        && !box.closest(".table-scroll")) faults.push(`a text reaches ${outer.right}px`);
  }
  return faults;
}"""


@pytest.fixture
def pages(
    browser: Browser, live_server: LiveServer, gate: Gate, alice: User, admin: User
) -> Iterator[dict[str, Page]]:
    """A page of each of the two, on which everything that may not happen is written down."""
    pages_by_user: dict[str, Page] = {}
    contexts = []
    for user in (alice, admin):
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        contexts.append(context)
        client = Client()
        client.force_login(user)
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
        pages_by_user[user.username] = context.new_page()
    yield pages_by_user
    for context in contexts:
        context.close()
    gate.shut()


def test_no_stored_text_runs_loads_or_leaves_its_box_on_any_page(stored, parts, pages, live_server):
    faults: list[str] = []
    here = [""]
    for page in pages.values():
        page.on("dialog", lambda dialog: faults.append(f"{here[0]}: a dialog: {dialog.message}"))
        page.on("request", lambda request: _note_request(faults, here[0], request.url, live_server.url))
        page.on("console", lambda message: _note(faults, here[0], message.text))
    seen = 0
    for who, address in addresses(parts):
        here[0] = address
        try:
            answer = pages[who].goto(live_server.url + address, wait_until="domcontentloaded")
        except Error as error:
            # What is saved as a file is shown on no page.
            if "Download is starting" in str(error):
                continue
            raise
        assert answer is not None
        assert answer.status == 200, (who, address, answer.status)
        faults += [f"{address}: {fault}" for fault in pages[who].evaluate(LOOK)]
        seen += 1
    assert faults == []
    assert seen > 80


@pytest.mark.parametrize(
    ("markup", "fault"),
    [
        ('<p class="prose"><b onclick="x()">x</b></p>', "B onclick"),
        ('<p><a href=" javascript:x()">x</a></p>', "href= javascript:x()"),
        ('<div class="answer-text"><img src="/x.png"></div>', "<IMG> in a text"),
        ('<div class="prose"><i class="over">x</i></div><style>.over {position: fixed}</style>', "fixed I"),
        (
            '<div class="prose"><pre class="wide">x</pre></div><style>.prose {width: 9999px}</style>',
            "a text reaches",
        ),
    ],
)
def test_the_look_at_a_page_finds_what_it_looks_for(browser: Browser, markup: str, fault: str):
    page = browser.new_page()
    page.set_content(markup)
    faults = page.evaluate(LOOK)
    page.close()
    assert any(line.startswith(fault) for line in faults), faults


def _note_request(faults: list[str], address: str, requested: str, ours: str) -> None:
    if not requested.startswith((ours, "about:")):
        faults.append(f"{address}: asked {requested[:100]}")


def _note(faults: list[str], address: str, text: str) -> None:
    # A violation of the policy means that something of the corpus came as far as the browser's last defence.
    if "Content Security" in text:
        faults.append(f"{address}: {text[:200]}")
