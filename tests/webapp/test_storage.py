"""Collected scripts import each other under names that change with their content."""

import re
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import override_settings

IMPORTED = re.compile(r"""(?:from|import\()\s*"(\./[^"]+)\"""")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which `collectstatic` has put everything, as `manage.py up` does."""
    folder = tmp_path_factory.mktemp("static")
    storages = {
        "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
        "staticfiles": {"BACKEND": "webapp.storage.HashedStorage"},
    }
    with override_settings(STATIC_ROOT=folder, STORAGES=storages):
        call_command("collectstatic", interactive=False, verbosity=0)
    return folder


def test_every_import_of_a_hashed_script_names_a_hashed_script_that_is_there(collected: Path):
    hashed = [
        path for path in (collected / "js").glob("label*.js") if re.search(r"\.[0-9a-f]{12}\.js$", path.name)
    ]
    imports = {
        (path.name.split(".")[0], name) for path in hashed for name in IMPORTED.findall(path.read_text())
    }
    # The screen imports its parts, and two of them only when they are needed.
    assert {importer for importer, _name in imports} >= {"label", "label-desk", "label-spans"}
    for _importer, name in imports:
        assert re.search(r"\.[0-9a-f]{12}\.js$", name), f"{name} is imported without its hash"
        assert (collected / "js" / name).is_file()
