"""The guide: pages and search, and whether its links, anchors, pictures and commands are true."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from gettext import GNUTranslations
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from django import forms
from django.core.management import get_commands, load_command_class
from django.test import Client
from django.urls import reverse
from django.utils.module_loading import import_string
from django.utils.translation import override

from annotation.exchange.formats.writers import Dropped, Scene
from annotation.models import Project, User
from tests.architecture.address_table import our_patterns
from tests.architecture.test_house import ROOT
from tests.architecture.test_house import rows_of as rows_of_reference
from tests.guide_blocks import block
from training.models import Round
from training.recipe.form import Group, Input, RecipeForm, flattened
from training.recipe.recipe import PRESETS, Recipe
from training.services.checkpoints import register_starter
from webapp.guide.library import (
    EXPLAINED_FORMS,
    FOLDER,
    KINDS,
    PAGE_OF,
    anchor_of,
    field_address,
    help_address,
    pages,
    render,
    shelves,
)
from webapp.guide.views import search

FILES = sorted(path for path in FOLDER.rglob("*.md"))
MOST_PICTURE_BYTES = 6_000_000


@cache
def anchors_of(path: Path) -> frozenset[str]:
    folder = "" if path.parent == FOLDER else path.parent.name
    sections = render(path.read_text(encoding="utf-8"), folder=folder).sections
    return frozenset(section.anchor for section in sections)


def without_code(path: Path) -> str:
    """The text of a page without its code, in which `[…](…)` is no link."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    text = re.sub(r"^ {4,}(?![-*\d]).*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def links_of(path: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", without_code(path))


# ── the pages as files ─────────────────────────────────────────────────────────────────


def test_the_index_lists_every_page_under_its_title():
    assert {page.path for page in pages().values()} == {
        path for path in FILES if path.name != "index.md" and not path.name.endswith(".de.md")
    }
    assert [shelf.kind for shelf in shelves()] == list(KINDS)
    for page in pages().values():
        first = page.path.read_text(encoding="utf-8").split("\n", 1)[0]
        assert first == f"# {page.rendered.sections[0].title}"
        assert page.summary, page.path


@pytest.mark.parametrize("path", [*FILES, ROOT / "README.md"], ids=lambda path: path.name)
def test_every_link_leads_to_a_page_and_an_anchor(path: Path):
    broken = []
    for link in links_of(path):
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (path.parent / parts.path).resolve() if parts.path else path
        if not target.exists() or (
            parts.fragment and target.suffix == ".md" and parts.fragment not in anchors_of(target)
        ):
            broken.append(link)
    assert broken == []


def test_every_picture_is_shown_with_a_text_and_exists_in_both_themes():
    shown = set()
    for path in FILES:
        for text, link in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", without_code(path)):
            assert text, link
            assert link.endswith(("-light.webp", "-light.svg"))
            shown.add((path.parent / link).resolve())
    # More than a reader wants to look through.
    assert 20 < len(shown) <= 60
    committed = set((ROOT / "static" / "guide").iterdir())
    assert committed == shown | {light.with_name(light.name.replace("-light.", "-dark.")) for light in shown}
    assert sum(picture.stat().st_size for picture in committed) < MOST_PICTURE_BYTES


def test_each_how_to_begins_with_what_one_has_at_its_end():
    pages = sorted((ROOT / "webapp" / "guide" / "how-to").glob("*.md"))
    first = {page.name: page.read_text(encoding="utf-8").split("\n\n")[1] for page in pages}
    assert len(first) > 30
    assert {name for name, text in first.items() if not text.startswith(("At the end ", "Am Ende "))} == set()


def test_labels_of_the_app_are_spelled_as_in_the_app():
    """Words in *italics* are labels of pages; titles of data that comes with Rondo are no messages."""
    with (ROOT / "webapp" / "locale" / "de" / "LC_MESSAGES" / "django.mo").open("rb") as stream:
        catalogue = GNUTranslations(stream)._catalog  # type: ignore[attr-defined]
    both = [(key[0] if isinstance(key, tuple) else key, german) for key, german in catalogue.items()]
    messages = {text.lower() for pair in both for text in pair}
    messages = {message.rpartition("\x04")[2] for message in messages} | {"first project"}
    unknown = [
        (path.name, label)
        for path in FILES
        for words in re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", without_code(path))
        for label in ([words] if words.lower() in messages else words.split(", "))
        if label.lower() not in messages
    ]
    assert unknown == []


def test_files_that_the_guide_names_exist():
    named = {
        (path.name, word)
        for path in FILES
        for word in re.findall(
            r"`((?:annotation|training|webapp|templates|tests|static|\.ci|\.deploy)/[\w./-]+)`",
            path.read_text(encoding="utf-8"),
        )
        if "CODE" not in word
    }
    assert len(named) > 15
    assert {pair for pair in named if not (ROOT / pair[1]).exists()} == set()


def test_the_static_site_is_built_without_a_warning(tmp_path: Path):
    pytest.importorskip("sphinx")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\t@\$\(BIN\)/python (-m sphinx .*) var/guide$", makefile, flags=re.M)
    command = [sys.executable, *shlex.split(line), str(tmp_path), "-d", str(tmp_path / "doctrees")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "reference" / "methods.html").read_text(encoding="utf-8")
    assert "<math" in page
    assert "https://" not in "".join(re.findall(r"<(?:script|link)[^>]*>", page))


# ── commands ───────────────────────────────────────────────────────────────────────────


def commands() -> set[str]:
    """Every row of the table of commands, and every line of code that runs make, manage.py or a module."""
    command_lines = set(rows_of_reference("commands"))
    for path in [*FILES, ROOT / "README.md"]:
        for line in path.read_text(encoding="utf-8").splitlines():
            code = re.sub(r"\s+#.*", "", line.strip())
            if line.startswith("    ") and re.match(
                r"(\S+=\S+ )*(make |\.venv/bin/python |python -m )", code
            ):
                command_lines.add(re.sub(r"^(\S+=\S+ )+", "", code))
    return command_lines


@cache
def options_of(command: str) -> frozenset[str]:
    if command in get_commands():
        parser = load_command_class(get_commands()[command], command).create_parser("manage.py", command)
        return frozenset(option for action in parser._actions for option in action.option_strings)
    # Its parser is read, not run: that would load torch for each.
    module = ROOT.joinpath(*command.split("."))
    source = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
    # Two commands of a package may share their options.
    sources = [
        source,
        *(path for path in (module / "startup.py", module.parent / "startup.py") if path.is_file()),
    ]
    options = (re.findall(r"\"(--[a-z-]+)\"", path.read_text(encoding="utf-8")) for path in sources)
    return frozenset(chain.from_iterable(options))


@pytest.mark.parametrize("line", sorted(commands()))
def test_every_command_of_the_guide_exists_with_its_options(line: str):
    words = shlex.split(line)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = [word for word in words[1:] if "=" not in word]
        assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.M)] == []
        return
    if words[1].startswith(".ci/"):
        assert (ROOT / words[1]).is_file()
        return
    command = words[2]
    options = {word.partition("=")[0] for word in words[3:] if word.startswith("--")}
    if words[1] == "manage.py":
        assert command in get_commands()
    else:
        assert words[1] == "-m"
        module = ROOT.joinpath(*command.split("."))
        assert (module / "__main__.py").is_file() or module.with_suffix(".py").is_file()
    assert not options or options <= options_of(command)


def test_the_format_that_the_guide_adds_writes_pairs():
    program = block("how-to/add-a-format.md", "from annotation.exchange.formats.writers import")
    names: dict[str, Any] = {}
    exec(compile(program, "guide", "exec"), names)
    (writer,) = names["WRITERS"]
    completions = [{"id": "1", "text": "worse"}, {"id": "2", "text": "better"}, {"id": "3", "text": "tied"}]
    record = {"verdict": "ranked", "completions": completions, "ranks": {"1": 2, "2": 1, "3": 1}}
    rows = list(writer.rows(record, Scene(slug="tea")))
    assert rows[0] == {"good": "better", "bad": "worse"}
    assert [type(row) for row in rows].count(Dropped) == 1


def test_the_reward_that_the_guide_adds_is_a_reward():
    program = block("how-to/add-a-reward.md", "def politeness")
    names: dict[str, Any] = {}
    exec(compile(program, "guide", "exec"), names)
    assert names["politeness"]([[], []], ["Please sit.", "Sit."], [None, None]) == [1.0, 0.0]


# ── in the app ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def reader(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def test_every_page_is_shown_with_links_into_the_app(reader: Client):
    for page in pages().values():
        response = reader.get(reverse("guide-page", args=[page.kind, page.name]))
        assert response.status_code == 200
        html = response.content.decode()
        assert 'href="../' not in html
        assert ".md" not in re.sub(r"<code>.*?</code>|<p>.*?</p>", "", page.rendered.html)
    assert reader.get("/guide/how-to/nothing/").status_code == 404


def test_a_drawing_keeps_its_shape():
    shown = render("![A](../../../static/guide/walk-judgment-light.svg)", folder="explanation").html
    text = (ROOT / "static" / "guide" / "walk-judgment-light.svg").read_text(encoding="utf-8")
    width, height = re.search(r'viewBox="0 0 (\d+) (\d+)"', text).groups()
    assert f'width="{width}" height="{height}"' in shown


def test_links_and_pictures_are_those_of_the_app():
    shown = render(
        "# A\n\n[b](../how-to/deploy.md#compose) [c](https://example.org/x.md)\n\n"
        "![Home](../../../static/guide/home-light.webp)\n\n## A\n\n<b>raw</b>",
        folder="tutorials",
    )
    assert 'href="/guide/how-to/deploy/#compose"' in shown.html
    assert 'href="https://example.org/x.md"' in shown.html
    assert re.search(r'guide__picture--dark" src="[^"]*guide/home-dark[^"]*webp" alt="Home"', shown.html)
    assert '<h2 id="a-1">' in shown.html
    assert "&lt;b&gt;raw" in shown.html


def test_labellers_read_their_pages_in_german(reader: Client, alice: User):
    User.objects.filter(pk=alice.pk).update(language="de")
    page = reader.get("/guide/how-to/label/").content.decode()
    assert '<article class="prose guide__text" lang="de"><h1 id="annotieren">Annotieren</h1>' in page
    assert 'lang="en"><h1 id="commands">' in reader.get("/guide/reference/commands/").content.decode()


def test_a_heading_has_the_anchor_of_the_repository():
    assert anchor_of("What each package is for, & why") == "what-each-package-is-for--why"


def test_a_search_finds_sections_by_all_words(reader: Client):
    sections = [(hit.page.name, hit.section.title) for hit in search("vllm adapter")]
    assert sections[0][0] == "sample-on-a-server"
    assert search("vllm zebra") == []
    assert search(" ") == []
    response = reader.get("/guide/", {"q": "BACK up"})
    assert "<mark>" in response.content.decode()
    part = reader.get("/guide/", {"q": "<script>"}, headers={"HX-Request": "true"}).content.decode()
    assert "&lt;script&gt;" in part
    assert "<html" not in part


def test_help_links_name_pages_that_there_are():
    names = {pattern.name for pattern in our_patterns()}
    assert {name for name in PAGE_OF if name not in names} == set()
    assert {tuple(page.split("/")) for page in PAGE_OF.values()} <= set(pages())
    assert help_address("label") == "/guide/how-to/label/"
    assert help_address("inbox") == "/guide/"


def test_every_page_of_the_sidebar_is_explained():
    from webapp.navigation.sections import SECTIONS

    shown = {page.url for section in SECTIONS for page in section.pages}
    assert shown - set(PAGE_OF) == set()


def test_the_help_of_a_page_leads_to_its_explanation(reader: Client, project):
    html = reader.get(f"/projects/{project.slug}/my-work/").content.decode()
    assert 'href="/guide/how-to/label/"' in html


# ── help at settings ───────────────────────────────────────────────────────────────────


def rows_of(page: str) -> Sequence[str]:
    kind, _, name = page.partition("/")
    return pages()[kind, name].rendered.rows


@pytest.mark.parametrize("page", ["/".join(key) for key in pages()])
def test_every_setting_of_a_table_has_an_anchor_of_its_own(page: str):
    assert sorted(rows_of(page)) == sorted(set(rows_of(page)))


def test_a_row_of_settings_has_the_anchor_of_its_section_and_its_label():
    shown = render(
        "## Quality\n\n| setting | a |\n|---|---|\n| Lease time (minutes) | b |\n", folder="reference"
    )
    assert shown.rows == ("quality-lease-time",)
    assert '<tr id="quality-lease-time">' in shown.html
    assert render("## Q\n\n| role | a |\n|---|---|\n| annotator | b |\n", folder="how-to").rows == ()


@pytest.mark.parametrize("path", EXPLAINED_FORMS)
def test_every_field_of_a_settings_form_leads_to_the_row_that_explains_it(path: str):
    form: Any = import_string(path)
    made = form() if issubclass(form, forms.ModelForm) else forms.Form()
    if not isinstance(made, form):
        # Some forms want a project; labels do not depend on it.
        made.fields = dict(form.base_fields)
        made.__class__ = form
    with override("de"):
        fields = [field for field in made if not field.is_hidden]
        assert fields
        for field in fields:
            address = field_address(field)
            page, _, anchor = address.removeprefix("/guide/").partition("/#")
            assert anchor in rows_of(page), field.name


def test_every_field_of_every_recipe_leads_to_the_row_that_explains_it():
    rows = rows_of("reference/recipe")

    def walk(group: Group) -> Iterator[Input | Group]:
        for entry in group.inputs:
            if entry.kind != "hidden":
                yield entry
        for inner in group.groups:
            if not inner.label.isdecimal():
                yield inner
            yield from walk(inner)

    for _label, make in PRESETS.values():
        entries = list(walk(RecipeForm(flattened(Recipe(policy=make()))).whole))
        assert len(entries) > 100
        assert [entry.name for entry in entries if entry.guide not in rows] == []


SETTINGS_PAGES = (
    *("", "questions/", "categories/add/", "questions/add/", "conversations/", "conversations/tasks/add/"),
    *("../feedback/settings/", "../members/", "../allocation/", "../invitations/", "../webhooks/"),
    *(
        "../judges/",
        "../suggestions/",
        "../live/",
        "../rounds/1/recipe/",
        "../rubrics/new/",
        "../rubric-drafts/",
    ),
    *("/projects/new/", "/served-models/new/"),
    *("/account/tokens/", "/compare/?project=tea", "../arenas/"),
    *(f"/base-model-additions/new/?origin={origin}" for origin in ("hub", "folder", "server")),
)
"""Addresses below a project's settings, or of the whole application."""


def test_pages_of_settings_show_a_link_at_each_field(client: Client, project: Project, admin: User):
    User.objects.filter(pk=admin.pk).update(language="de")
    Round.objects.create(project=project, policy=register_starter())
    client.force_login(admin)
    for path in SETTINGS_PAGES:
        response = client.get(urljoin("/projects/tea/settings/", path))
        assert response.status_code == 200, path
        html = response.content.decode()
        links = re.findall(r'<a class="field__guide" href="/guide/([a-z/-]+)/#([^"]+)">(.*?)</a>', html)
        assert len(links) >= max(1, len(re.findall(r'class="field(?: [^"]*)?"', html))), path
        for page, anchor, text in links:
            assert anchor in rows_of(page), (path, anchor)
            assert re.search(r'<span class="visually-hidden">Hilfe: [^<]+</span>', text)
