"""Watched folders and buckets: each file once, a changed one again, and nothing that the operator forbids."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import fsspec
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from annotation.choices import ImportState
from annotation.errors import NotAllowed
from annotation.exchange.sources import add_source, check_address, check_source, remove_source, set_source
from annotation.exchange.uploads import do_import
from annotation.models import ImportSource, Notification, Project, SourceFile, User
from tests.api.scene import Asker
from tests.refusals import refused

SignIn = Callable[[User], Client]
pytestmark = pytest.mark.django_db


@pytest.fixture
def folder(tmp_path: Path, settings: Settings) -> Path:
    """A folder that the operator allows, inside of one that they do not."""
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    settings.RONDO_SOURCES = [str(allowed)]
    return allowed


def write(path: Path, *questions: str) -> None:
    path.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in questions))


def check(source: ImportSource) -> ImportSource:
    """Check a source now, and do the imports that it starts."""
    ImportSource.objects.filter(pk=source.pk).update(next_check_at=timezone.now() - timedelta(hours=1))
    check_source(source.pk)
    for file in source.files.filter(file_import__isnull=False, error=""):
        do_import(file.file_import_id or 0)
    source.refresh_from_db()
    return source


def questions(project: Project) -> list[str]:
    return sorted(prompt.last_question for prompt in project.prompts.all())


@pytest.fixture
def source(project: Project, carol: User, folder: Path) -> ImportSource:
    return add_source(project=project, address=str(folder), skip_bad=False, added_by=carol)


def test_each_file_is_imported_once_and_a_changed_one_again(
    project: Project, source: ImportSource, folder: Path
):
    write(folder / "a.jsonl", "Tea?", "Coffee?")
    (folder / "below").mkdir()
    write(folder / "below" / "b.jsonl", "Milk?")
    write(folder / ".c.jsonl", "Being written?")
    (folder / "notes.md").write_text("No data.")
    check(source)
    assert questions(project) == ["Coffee?", "Milk?", "Tea?"]
    assert project.file_imports.count() == 2
    assert (source.error, source.checked_at is None) == ("", False)

    check(source)
    assert project.file_imports.count() == 2

    write(folder / "a.jsonl", "Tea?", "Coffee?", "Water, please?")
    write(folder / "copy.jsonl", "Milk?")
    check(source)
    assert questions(project) == ["Coffee?", "Milk?", "Tea?", "Water, please?"]
    assert project.file_imports.count() == 3
    assert source.files.get(path__endswith="copy.jsonl").file_import == (
        source.files.get(path__endswith="b.jsonl").file_import
    )


def test_it_waits_for_its_time_unless_it_is_asked_for_now(
    project: Project, carol: User, source: ImportSource, folder: Path
):
    check(source)
    write(folder / "a.jsonl", "Tea?")
    check_source(source.pk)
    assert not source.files.exists()
    set_source(source=source, active=True, changed_by=carol)
    check_source(source.pk)
    assert source.files.count() == 1
    set_source(source=source, active=False, changed_by=carol)
    write(folder / "b.jsonl", "Milk?")
    check(source)
    assert source.files.count() == 1


def test_a_file_that_cannot_be_read_is_listed_with_why_and_the_others_come_in(
    project: Project, source: ImportSource, folder: Path
):
    (folder / "a.jsonl").write_text("no JSON\n")
    write(folder / "b.jsonl", "Tea?")
    check(source)
    assert questions(project) == ["Tea?"]
    assert source.files.get(path__endswith="a.jsonl").error
    write(folder / "a.jsonl", "Milk?")
    check(source)
    assert questions(project) == ["Milk?", "Tea?"]
    assert source.files.get(path__endswith="a.jsonl").error == ""


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("{outside}", "source_not_allowed"),
        ("{allowed}x", "source_not_allowed"),
        ("{allowed}/../secret", "invalid_source"),
        ("allowed", "invalid_source"),
        ("file://{outside}", "source_not_allowed"),
        ("https://example.org/a", "source_not_allowed"),
        ("s3://bucket/other", "source_not_allowed"),
        ("s3://bucket/promptsx", "source_not_allowed"),
        ("nothing://bucket", "source_without_driver"),
    ],
)
def test_only_what_the_operator_allows_is_watched(folder: Path, settings: Settings, address: str, code: str):
    settings.RONDO_SOURCES = [str(folder), "s3://bucket/prompts", "nothing://bucket"]
    with refused(code):
        check_address(address.format(outside=folder.parent / "outside", allowed=folder))


def test_a_link_leads_out_of_no_folder(project: Project, source: ImportSource, folder: Path, carol: User):
    secret = folder.parent / "secret"
    secret.mkdir()
    write(secret / "a.jsonl", "Secret?")
    (folder / "link").symlink_to(secret)
    (folder / "b.jsonl").symlink_to(secret / "a.jsonl")
    check(source)
    assert questions(project) == []
    with refused("source_not_allowed"):
        add_source(project=project, address=str(folder / "link"), skip_bad=False, added_by=carol)


def test_what_is_allowed_no_longer_is_not_read_and_managers_hear_of_it_once(
    project: Project, source: ImportSource, folder: Path, settings: Settings
):
    write(folder / "a.jsonl", "Tea?")
    settings.RONDO_SOURCES = []
    check(source)
    check(source)
    assert source.error
    assert questions(project) == []
    assert Notification.objects.count() == 1
    settings.RONDO_SOURCES = [str(folder)]
    check(source)
    assert (source.error, questions(project)) == ("", ["Tea?"])


def test_only_managers_add_sources_and_each_once(
    project: Project, alice: User, carol: User, source: ImportSource, folder: Path
):
    with refused("manager_imports", NotAllowed):
        add_source(project=project, address=str(folder), skip_bad=False, added_by=alice)
    with refused("source_exists"):
        add_source(project=project, address=str(folder), skip_bad=False, added_by=carol)
    write(folder / "a.jsonl", "Tea?")
    check(source)
    remove_source(source=source, removed_by=carol)
    assert questions(project) == ["Tea?"]
    assert not SourceFile.objects.exists()


def test_a_bucket_is_imported_and_a_changed_object_again(
    project: Project, carol: User, s3_url: str, settings: Settings
):
    settings.RONDO_SOURCES = [s3_url]
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    files.pipe(f"{s3_url}/a.jsonl", b'{"prompt": "Tea?"}\n')
    source = add_source(project=project, address=s3_url, skip_bad=False, added_by=carol)
    check(source)
    assert questions(project) == ["Tea?"]
    files.pipe(f"{s3_url}/a.jsonl", b'{"prompt": "Cat?"}\n')
    check(source)
    check(source)
    assert questions(project) == ["Cat?", "Tea?"]
    assert project.file_imports.count() == 2


def test_the_page_and_the_api_add_pause_and_remove(
    project: Project, carol: User, client_of: SignIn, folder: Path
):
    client, address = client_of(carol), reverse("sources", args=[project.slug])
    assert client.post(address, {"address": "/etc"}).status_code == 422
    client.post(address, {"address": str(folder)})
    source = ImportSource.objects.get()
    write(folder / "a.jsonl", "Tea?")
    check(source)
    page = client.get(address).content.decode()
    assert "a.jsonl" in page
    assert reverse("transfer", args=[project.slug, source.files.get().file_import_id]) in page
    act = reverse("source-act", args=[project.slug, source.pk])
    client.post(act, {"action": "pause"})
    ask, below = Asker(carol), f"/projects/{project.slug}/sources/"
    [listed] = ask.get(below).json()["results"]
    assert (listed["is_active"], listed["address"]) == (False, str(folder))
    assert ask("PATCH", f"{below}{source.pk}/", {"is_active": True}).json()["is_active"] is True
    assert ask.get(f"{below}{source.pk}/files/").json()[0]["path"].endswith("a.jsonl")
    client.post(act, {"action": "remove"})
    assert not ImportSource.objects.exists()


def test_a_file_with_an_unclear_verdict_waits_for_a_person(
    project: Project, source: ImportSource, folder: Path
):
    row = {
        "prompt": "Tea?",
        "response_a": "Yes.",
        "response_b": "No.",
        "winner": "a",
        "human_preference": "b",
    }
    (folder / "a.jsonl").write_text(json.dumps(row) + "\n")
    check(source)
    [file] = source.files.all()
    assert file.file_import is not None
    assert (file.file_import.state, bool(file.error)) == (ImportState.UPLOADED, True)
    assert questions(project) == []
