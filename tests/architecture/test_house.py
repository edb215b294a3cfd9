"""The first things that a newcomer sees: the top folder, the templates, the models, and a true reference."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management import get_commands
from django.db import models
from packaging.requirements import Requirement

from webapp.environment.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "webapp" / "guide" / "reference"
OUR_MODELS = [
    model for label in ("annotation", "training") for model in apps.get_app_config(label).get_models()
]

ALLOWED_AT_THE_TOP = {
    ".ci",
    ".deploy",
    ".editorconfig",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "annotation",
    "manage.py",
    "pyproject.toml",
    "requirements.txt",
    "static",
    "templates",
    "tests",
    "training",
    "webapp",
}


def tracked(*patterns: str) -> list[Path]:
    """Files that git knows or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).exists()]


def test_nothing_lies_about_at_the_top():
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= ALLOWED_AT_THE_TOP


@pytest.mark.parametrize("model", OUR_MODELS, ids=lambda model: model._meta.label)
def test_every_model_says_what_one_row_means(model: type[models.Model]):
    # Django writes "Name(field, field)" where nobody wrote anything.
    assert model.__doc__
    assert not model.__doc__.startswith(f"{model.__name__}(")


@pytest.mark.parametrize("model", OUR_MODELS, ids=lambda model: model._meta.label)
def test_every_model_is_in_the_admin_searchable_and_filterable(model: type[models.Model]):
    assert admin.site.is_registered(model), f"{model.__name__} is not in the admin"
    site = admin.site.get_model_admin(model)
    assert site.search_fields, f"{model.__name__} cannot be searched"
    assert site.list_filter, f"{model.__name__} cannot be filtered"


# Our Content-Security-Policy allows neither; the browser would silently leave them out.
INLINE = {
    "an inline script": re.compile(
        r"<script(?![^>]*\bsrc=)(?![^>]*type=.(?:application/json|text/plain))[^>]*>", re.I
    ),
    "an inline style": re.compile(r"<style\b", re.I),
    "a style attribute": re.compile(r"<[^>{}]*\sstyle\s*=", re.I),
    "an event handler": re.compile(r"<[^>{}]*\son[a-z]+\s*=", re.I),
    "an hx-on handler": re.compile(r"\shx-on[:-]", re.I),
    "a javascript: address": re.compile(r"javascript:", re.I),
}


def test_no_template_has_what_the_content_security_policy_forbids():
    comments = re.compile(r"{#.*?#}|{% comment %}.*?{% endcomment %}", re.S)
    violations = []
    for path in tracked("templates/*.html", "*/templates/*.html"):
        text = comments.sub("", path.read_text(encoding="utf-8"))
        if path.name == "evaluation_file.html":
            continue  # No page of ours: a file that is mailed, with a policy of its own.
        violations += [(str(path), what) for what, pattern in INLINE.items() if pattern.search(text)]
    assert violations == []


@pytest.mark.parametrize(
    ("markup", "what"),
    [
        ("<script>alert(1)</script>", "an inline script"),
        ("<p class='a' style='color: red'>", "a style attribute"),
        ('<button type="button" onclick="go()">', "an event handler"),
        ('<button hx-on:click="go()">', "an hx-on handler"),
        ("<style>p {}</style>", "an inline style"),
    ],
)
def test_the_patterns_for_inline_code_find_it(markup: str, what: str):
    assert INLINE[what].search(markup)
    assert not INLINE[what].search('<script src="/a.js" defer></script><p class="on">style = onclick=</p>')


def code_files() -> list[Path]:
    return [path for path in tracked("*.py") if "migrations" not in path.parts]


def test_no_work_is_left_as_a_note():
    """`TODO` in the code is work that nobody sees; an issue is work that somebody does."""
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    others = [path for path in code_files() if path != Path(__file__).resolve()]
    assert [str(path) for path in others if words.search(path.read_text(encoding="utf-8"))] == []


# ── the guide's reference ──────────────────────────────────────────────────────────────


def rows_of(page: str) -> list[str]:
    """The first cells of the table of a page of the guide's reference, without backquotes."""
    text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]+?) \|", text, flags=re.M)
    return [cell.strip("` ") for cell in cells if not set(cell) <= {"-"}][1:]


def test_the_guide_names_every_package_of_requirements_txt_and_no_other():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    required = {Requirement(line).name for line in lines if line.strip() and not line.startswith("#")}
    assert set(rows_of("packages")) == required


def test_the_guide_names_every_variable_that_settings_read():
    declared = {setting.name for setting in TABLE}
    assert len(declared) > 15
    assert set(rows_of("settings")) == declared


@pytest.mark.parametrize("command", rows_of("commands"))
def test_every_command_of_the_guide_exists(command: str):
    words = command.split()
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:.*## ", makefile, flags=re.M)
    elif words[1] == "manage.py":
        assert words[2] in get_commands()
        helped = subprocess.run(
            [sys.executable, "manage.py", words[2], "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert [option for option in re.findall(r"--[a-z-]+", command) if option not in helped] == []
    else:
        assert words[1] == "-m"
        module = ROOT.joinpath(*words[2].split("."))
        assert (module / "__main__.py").is_file() or module.with_suffix(".py").is_file()


def test_every_target_of_the_makefile_is_in_the_guide():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.M)) - {"install-dev"}
    assert {command.split()[1] for command in rows_of("commands") if command.startswith("make")} == targets
