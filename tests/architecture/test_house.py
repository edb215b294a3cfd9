"""Templates keep to the content security policy, the admin has every model, and the reference is complete."""

import re
import subprocess
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import models
from packaging.requirements import Requirement

from webapp.environment.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "webapp" / "guide" / "reference"
OUR_MODELS = [
    model for label in ("annotation", "training") for model in apps.get_app_config(label).get_models()
]


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


def test_every_target_of_the_makefile_is_in_the_guide():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.M)) - {"install-dev"}
    assert {command.split()[1] for command in rows_of("commands") if command.startswith("make")} == targets


def test_every_file_that_the_makefile_runs_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    files = re.findall(r"(?:\.ci|tests)/[\w/]+\.py", makefile)
    files += [
        f"{module.replace('.', '/')}.py" for module in re.findall(r"-m ((?:tests|training)[\w.]+)", makefile)
    ]
    assert len(files) > 10
    assert [path for path in files if not (ROOT / path).is_file()] == []
