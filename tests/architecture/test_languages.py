"""Rondo in German: every marked string, every page, and who decides which language is spoken."""

import functools
import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ahocorasick_rs import AhoCorasick
from babel.messages.pofile import read_po
from django.http import HttpResponse
from django.template import Context, Engine
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import translation
from django.views import defaults

from annotation.models import User
from annotation.statistics.plots import Dot, Line, scatter
from tests.architecture.address_table import ROLES, TABLE
from tests.architecture.test_house import ROOT, tracked

GERMAN = ROOT / "webapp" / "locale" / "de" / "LC_MESSAGES"


@pytest.fixture
def alice(scene, db: None) -> User:
    """Alice of the scene, whom the database of this module holds already."""
    return User.objects.get(username="alice")


def test_no_german_message_is_missing_fuzzy_or_out_of_step_with_what_is_compiled():
    checked = subprocess.run(
        [sys.executable, ".ci/messages.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, f"{checked.stderr}\nRun .ci/messages.py, translate, run it again."


# ── Nothing unmarked ──────────────────────────────────────────────────────────────────

COMMENT = re.compile(r"{% comment %}.*?{% endcomment %}|{#.*?#}", re.S)
MARKED = re.compile(r"{% blocktranslate .*?{% endblocktranslate %}", re.S)
CODE = re.compile(r"<(kbd|code|svg)\b.*?</\1>", re.S)
SPOKEN = re.compile(r'\b(?:aria-label|aria-description|title|placeholder|alt)="([^"]*)"')
WORD = re.compile(r"[A-Za-z]{2}")
NAMES = re.compile(r"\bRondo\b|&\w+;")


def unmarked(template: str) -> Iterator[str]:
    """Yield the phrases of a template that are not marked for translation."""
    text = MARKED.sub("", COMMENT.sub("", template))
    text = NAMES.sub("", re.sub(r"{%.*?%}|{{.*?}}", "", text, flags=re.S))
    for phrase in (*SPOKEN.findall(text), *re.sub(r"<[^>]*>", "\n", CODE.sub("", text)).split("\n")):
        if WORD.search(phrase):
            yield phrase.strip()


@pytest.mark.parametrize(
    "path", tracked("templates/*.html"), ids=lambda path: str(path.relative_to(ROOT / "templates"))
)
def test_every_word_of_a_template_is_marked_for_translation(path: Path):
    assert list(unmarked(path.read_text(encoding="utf-8"))) == []


# ── Every page ────────────────────────────────────────────────────────────────────────


@functools.cache
def english_sentences() -> AhoCorasick:
    """Find texts that no German page may show: messages of three words and more, up to a placeholder.

    Thousands, in one reading of a page.
    """
    with (GERMAN / "django.po").open("rb") as stream:
        catalog = read_po(stream, locale="de")
    sources = (form for message in catalog if message.id for form in _forms(message.id))
    beginnings = (re.split(r"%\(|<", source)[0].strip() for source in sources)
    return AhoCorasick({beginning for beginning in beginnings if len(beginning.split()) >= 3})


def _forms(identity: Any) -> tuple[str, ...]:
    return identity if isinstance(identity, tuple) else (identity,)


ENGLISH = re.compile(r"<(p|span|pre|article)\b[^>]* lang=\"en\"[^>]*>.*?</\1>", re.S)


def assert_german(answer: HttpResponse) -> None:
    page = answer.content.decode()
    assert '<html lang="de"' in page
    # Data for scripts holds both languages.
    page = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    # What is English on purpose says so, for screen readers too: the sentences of a trainer's settings.
    page = html.unescape(ENGLISH.sub("", page))
    assert english_sentences().find_matches_as_strings(page) == []


def readers(name: str) -> list[str]:
    """Return for whom a page is rendered: one of each kind, as a superuser sees all that managers do."""
    # What 403 and 404 show is the same everywhere: each is asked for below.
    responses = dict(zip(ROLES, TABLE[name][1], strict=True))
    return [role for role in ("anonymous", "alice", "admin") if responses[role] not in (302, 403, 404)]


@pytest.mark.django_db
@pytest.mark.parametrize("name", [name for name in TABLE if readers(name)])
def test_every_page_answers_in_german(name: str, parts, everybody):
    User.objects.update(language="de")
    method, expected = TABLE[name]
    address = reverse(name, kwargs=parts.get(name, {}))
    for role in readers(name):
        answer = everybody[role].generic(
            method,
            address,
            content_type="application/x-www-form-urlencoded",
            headers={"Accept-Language": "de-AT,de;q=0.9,en;q=0.8"},
        )
        assert answer.status_code == expected[ROLES.index(role)]
        assert answer.headers.get("Content-Language", "de") == "de"
        if not answer.streaming and b"<html" in answer.content:
            assert_german(answer)


@pytest.mark.parametrize("code", ["400", "403", "404", "500"])
def test_every_error_page_is_there_in_german(code: str, rf: RequestFactory):
    views: dict[str, tuple[Any, list[Exception]]] = {
        "400": (defaults.bad_request, [Exception()]),
        "403": (defaults.permission_denied, [Exception()]),
        "404": (defaults.page_not_found, [Exception()]),
        "500": (defaults.server_error, []),
    }
    view, arguments = views[code]
    with translation.override("de"):
        answer = view(rf.get("/"), *arguments)
    assert answer.status_code == int(code)
    assert_german(answer)


def test_a_plot_is_drawn_with_points_whatever_the_language_writes():
    drawn = scatter([Line(kind=0, dots=(Dot(x=1.0, y=0.25), Dot(x=4.0, y=0.5), Dot(x=2.5, y=0.75)))])
    with translation.override("de"):
        page = render_to_string("training/scatter.html", {"plot": drawn, "label": "Plot"})
    (points,) = re.findall(r'points="([^"]*)"', page)
    assert points == "0.0,160.0 320.0,80.0 160.0,0.0"
    assert 'd="M160.0,0.0h0"' in page


# ── Who decides ───────────────────────────────────────────────────────────────────────


def language_of(client: Client, **headers: str) -> str:
    page = client.get(reverse("projects"), headers=headers, follow=True).content.decode()
    return re.search(r'<html lang="(\w+)"', page)[1]


@pytest.mark.django_db
def test_the_language_that_a_person_chose_goes_before_the_browsers(client: Client, alice: User):
    client.force_login(alice)
    assert language_of(client) == "en"
    assert language_of(client, accept_language="de-DE,de;q=0.9") == "de"
    assert language_of(client, accept_language="fr,de;q=0.5,en;q=0.2") == "de"
    answer = client.post(reverse("language"), {"language": "en"}, headers={"Referer": "http://testserver/x/"})
    assert (answer.status_code, answer["Location"]) == (302, "http://testserver/x/")
    assert language_of(client, accept_language="de-DE") == "en"
    client.post(reverse("language"), {"language": "de"})
    assert language_of(client, accept_language="en") == "de"
    client.post(reverse("language"), {"language": ""})
    assert language_of(client, accept_language="en") == "en"


@pytest.mark.django_db
def test_who_is_not_signed_in_reads_the_browsers_language(client: Client):
    assert language_of(client, accept_language="de") == "de"
    assert language_of(client, accept_language="fr") == "en"


@pytest.mark.django_db
def test_a_language_that_rondo_does_not_speak_is_refused(client: Client, alice: User):
    client.force_login(alice)
    assert client.post(reverse("language"), {"language": "tlh"}).status_code == 400
    alice.refresh_from_db()
    assert alice.language == ""


@pytest.mark.django_db
def test_choosing_a_language_leads_to_no_other_site(client: Client, alice: User):
    client.force_login(alice)
    answer = client.post(
        reverse("language"), {"language": "de"}, headers={"Referer": "https://evil.example/"}
    )
    assert answer["Location"] == reverse("projects")


@pytest.mark.django_db
def test_each_language_says_its_own_name_in_the_account_menu(client: Client, alice: User):
    client.force_login(alice)
    client.post(reverse("language"), {"language": "de"})
    menu = client.get(reverse("projects")).content.decode()
    assert '<button type="submit" name="language" value="en" lang="en" aria-pressed="false">English<' in menu
    assert '<button type="submit" name="language" value="de" lang="de" aria-pressed="true">Deutsch<' in menu


# ── Scripts ───────────────────────────────────────────────────────────────────────────

# A string that begins like a sentence, and what may stand around one: a translation, a comment.
SENTENCE = re.compile(r"""["`'][A-Z][a-z]* [a-z$][^"`'\n]*""")
TRANSLATED = re.compile(
    r"""translate(?:Count)?\((?:\s*"(?:[^"\\]|\\.)*",?)+|/\*.*?\*/|(?<!:)//[^\n]*""", re.S
)


@pytest.mark.parametrize("path", tracked("static/js/*.js"), ids=lambda path: path.name)
def test_every_sentence_of_a_script_is_translated(path: Path):
    rest = TRANSLATED.sub("", path.read_text(encoding="utf-8"))
    assert [match[0] for match in SENTENCE.finditer(rest)] == []


def test_a_script_finds_its_words_in_a_german_page_and_none_in_an_english_one():
    engine = Engine(libraries={"words": "webapp.templatetags.rondo"})
    page = engine.from_string("{% load words %}{% script_words %}")
    with translation.override("en"):
        assert page.render(Context()) == ""
    with translation.override("de"):
        words = json.loads(
            re.search(r'<script id="words" type="application/json">(.*)</script>', page.render(Context()))[1]
        )
    assert words["Rank {letters} too."] == "Ordnen Sie auch {letters} ein."
    assert words["{count} draft"] == ["{count} Entwurf", "{count} Entwürfe"]
