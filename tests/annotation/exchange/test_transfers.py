"""A manager uploads a file, sees what it is taken for, corrects it, and a worker brings it in."""

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils.translation import override
from pytest_django import DjangoCaptureOnCommitCallbacks

from annotation import tasks
from annotation.choices import ImportState, TaskName
from annotation.exchange import uploads
from annotation.models import AuditEntry, FileImport, Judgment, Project, User
from tests import factories

pytestmark = pytest.mark.django_db

VOTES = "asked,response_a,response_b,label\nTea?,Yes.,No.,A\nCoffee?,Yes.,No.,bothbad\n"


@pytest.fixture
def manager(project: Project, carol: User, client: Client) -> Client:
    client.force_login(carol)
    return client


def upload(client: Client, project: Project, content: str | bytes, name: str = "votes.csv") -> Any:
    body = content.encode() if isinstance(content, str) else content
    file = SimpleUploadedFile(name, body, content_type="image/png")
    return client.post(reverse("transfers", args=[project.slug]), {"file": file})


def stored_files() -> list[Path]:
    folder = Path(settings.RONDO_IMPORTS)
    return sorted(folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(autouse=True)
def imports_folder(settings: Any, tmp_path: Path) -> None:
    settings.RONDO_IMPORTS = tmp_path / "imports"


def test_a_file_is_looked_through_corrected_and_brought_in(
    manager: Client, project: Project, carol: User, sent: list[Any], django_capture_on_commit_callbacks
):
    assert upload(manager, project, VOTES).status_code == 302
    record = FileImport.objects.get()
    page = reverse("transfer", args=[project.slug, record.pk])
    text = manager.get(page).content.decode()
    assert "Coffee?" in text
    assert not Judgment.objects.exists()
    roles = {"asked": "prompt", "response_a": "answer_1", "response_b": "answer_2", "label": "winner"}
    corrected = {"format": "table"}
    for number, (name, role) in enumerate(roles.items()):
        corrected |= {f"name-{number}": name, f"role-{number}": role}
    assert manager.post(page, {**corrected, "action": "correct"}).status_code == 302
    record.refresh_from_db()
    assert record.mapping["prompt"] == "asked"
    with django_capture_on_commit_callbacks(execute=True):
        assert manager.post(page, {**corrected, "action": "start"}).status_code == 302
    assert sent == [(TaskName.DO_IMPORT, [record.pk])]
    assert AuditEntry.objects.get(action="import.start").actor == carol
    assert 'hx-trigger="every 2s"' in manager.get(page).content.decode()
    tasks.do_import(record.pk)
    record.refresh_from_db()
    assert (record.state, record.errors) == (ImportState.FINISHED, [])
    assert Judgment.objects.count() == 2
    assert stored_files() == []
    after = manager.get(page, headers={"HX-Request": "true"}).content.decode()
    assert "2 annotations and 2 prompts were added" in after
    assert "hx-trigger" not in after


def test_a_bad_row_is_told_on_the_page_and_the_file_stays_to_be_tried_again(
    manager: Client, project: Project, carol: User
):
    upload(manager, project, VOTES.replace("asked", "prompt") + "Water?,,No.,A\n")
    record = FileImport.objects.get()
    uploads.start_import(record=record, skip_bad=False, user=carol)
    tasks.do_import(record.pk)
    page = reverse("transfer", args=[project.slug, record.pk])
    assert "row 3, field response_a: The text is empty" in manager.get(page).content.decode()
    assert not Judgment.objects.exists()
    record.refresh_from_db()
    uploads.start_import(record=record, skip_bad=True, user=carol)
    tasks.do_import(record.pk)
    assert Judgment.objects.count() == 2


def test_a_worker_writes_the_faults_of_a_file_in_the_language_of_who_uploaded_it(
    manager: Client, project: Project, carol: User
):
    carol.language = "de"
    carol.save()
    upload(manager, project, VOTES.replace("asked", "prompt") + "Water?,,No.,A\n")
    record = FileImport.objects.get()
    uploads.start_import(record=record, skip_bad=False, user=carol)
    with override("en"):
        tasks.do_import(record.pk)
    record.refresh_from_db()
    assert record.errors == [
        "Zeile 3, Feld response_a: Der Text ist leer. Schreiben Sie einen Text oder lassen Sie das Feld weg."
    ]


def test_a_worker_says_in_the_language_of_who_uploaded_a_file_why_it_stopped(
    manager: Client, project: Project, carol: User
):
    carol.language = "de"
    carol.save()
    upload(manager, project, VOTES.replace("asked", "prompt"))
    record = FileImport.objects.get()
    uploads.start_import(record=record, skip_bad=False, user=carol)
    stored_files()[0].write_bytes(b"\n")
    with override("en"):
        tasks.do_import(record.pk)
    record.refresh_from_db()
    assert (record.state, record.errors) == (ImportState.FAILED, ["Die Datei hat keine Zeilen."])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b\x08\x00more", "is compressed"),
        (b"PAR1more", "is compressed"),
        (b"PK\x03\x04more", "is an archive"),
        (b"\n", "has no rows"),
    ],
)
def test_what_is_compressed_or_empty_is_refused_and_not_kept(
    manager: Client, project: Project, content: bytes, message: str
):
    answer = upload(manager, project, content, name="../../votes.jsonl")
    assert answer.status_code == 422
    assert message in answer.content.decode()
    assert (stored_files(), FileImport.objects.count()) == ([], 0)


GOOD = {"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No."}
DIGITS = "1" * 6000
BAD_ROWS = [
    (r'{"prompt": "a\ud800"}', "field prompt: Character 1 is half a surrogate pair"),
    (r'{"prompt": "a", "notes": ["b\ud800"]}', "field notes[0]: Character 1 is half a surrogate pair"),
    (r'{"prompt": "a\u0000"}', "field prompt: Character 1 is NUL, which cannot be stored. Take it out."),
    ('{"prompt": "a", "more": {"score": 1e999}}', "field more.score: The number is too large"),
    ('{"prompt": NaN}', "NaN is not JSON. Write a number or null."),
    ('{"prompt": "a", "prompt": "b"}', "field prompt: This name stands twice in one object. Keep one."),
    (f'{{"prompt": {DIGITS}}}', "The row has a number of thousands of digits. Write it as a text."),
    (b'{"prompt": "caf\xe9"}', "Byte 0xe9 at column 16 is not UTF-8. Save the file in UTF-8."),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
@pytest.mark.parametrize("as_list", [False, True])
def test_a_bad_row_alone_is_refused_in_the_words_that_it_gets_among_others(
    manager: Client,
    project: Project,
    carol: User,
    row: str | bytes,
    message: str,
    as_list: bool,
):
    bad = row.encode() if isinstance(row, str) else row
    good = json.dumps(GOOD).encode()
    alone, among = (
        (b"[" + bad + b"]", b"[" + good + b", " + bad + b"]") if as_list else (bad, good + b"\n" + bad)
    )
    answer = upload(manager, project, alone, name="votes.json")
    assert answer.status_code == 422
    page = unescape(answer.content.decode())
    assert f"row 1, {message}" in page or f"row 1: {message}" in page
    assert "votes.json: nothing was imported, 1 error." in page
    assert not FileImport.objects.exists()

    assert upload(manager, project, among, name="votes.json").status_code == 302
    record = FileImport.objects.get()
    assert manager.get(reverse("transfer", args=[project.slug, record.pk])).status_code == 200
    uploads.start_import(record=record, skip_bad=False, user=carol)
    tasks.do_import(record.pk)
    record.refresh_from_db()
    assert record.state == ImportState.FAILED
    assert record.errors[0].startswith((f"row 2, {message}", f"row 2: {message}"))
    assert record.stored_as not in record.errors[0]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00", "votes.png", "The file is binary (PNG), not text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00", "votes.csv", "The file is binary (PNG), not text"),
        (bytes(range(256)), "votes.csv", "The file is binary, not text"),
        (VOTES.encode("utf-16"), "votes.csv", "The file is in UTF-16, not in UTF-8. Save it in UTF-8."),
        (VOTES.encode("utf-16-be"), "votes.csv", "The file is in UTF-16, not in UTF-8. Save it in UTF-8."),
        (b"prompt,a\ncaf\xe9,b\n", "votes.csv", "row 1: Byte 0xe9 at column 4 is not UTF-8"),
        (b"caf\xe9,a\nTea?,b\n", "votes.csv", "row 1: Byte 0xe9 at column 4 is not UTF-8"),
        (b'prompt,"a', "votes.csv", "row 1: Line 1 is no CSV (unexpected end of data)"),
        (b'prompt,a\n"Tea?,b', "votes.csv", "row 1: Line 2 is no CSV (unexpected end of data)"),
        (b'[{"prompt": ', "votes.json", "The file is not JSON after row 0"),
    ],
)
def test_a_file_that_is_no_text_with_rows_is_refused_as_what_it_is(
    manager: Client, project: Project, content: bytes, name: str, message: str
):
    answer = upload(manager, project, content, name=name)
    assert answer.status_code == 422
    assert message in unescape(answer.content.decode())
    assert (stored_files(), FileImport.objects.count()) == ([], 0)


def test_a_file_that_can_no_longer_be_read_is_told_on_its_page(
    manager: Client, project: Project, sent: list[Any]
):
    upload(manager, project, VOTES)
    stored_files()[0].write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00")
    page = manager.post(
        reverse("transfer", args=[project.slug, FileImport.objects.get().pk]), {"action": "start"}
    )
    assert page.status_code == 422
    assert not sent
    assert "The file is binary (PNG)" in page.content.decode()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("x"), "The import stopped because of an error in Rondo (KeyError). Start it again"),
        (MemoryError(), "The server ran out of memory while it read the file."),
        (FileNotFoundError(), "The uploaded file is no longer on the server. Upload it again."),
    ],
)
def test_an_import_that_stops_for_no_fault_of_the_file_tells_the_manager_what_to_do(
    manager: Client,
    project: Project,
    carol: User,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
):
    upload(manager, project, VOTES.replace("asked", "prompt"))
    record = FileImport.objects.get()
    uploads.start_import(record=record, skip_bad=False, user=carol)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(uploads, "import_rows", fail)
    tasks.do_import(record.pk)
    record.refresh_from_db()
    assert record.state == ImportState.FAILED
    assert message in record.errors[0]
    assert message in manager.get(reverse("transfer", args=[project.slug, record.pk])).content.decode()


def test_a_broken_row_is_named_before_the_import_and_a_sound_file_has_none(manager: Client, project: Project):
    rows = [{"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No.", "winner": "A"} for _ in range(8)]
    rows[6] = {**rows[6], "winner": "maybe"}
    lines = "".join(
        json.dumps({**row, "prompt": f"{row['prompt']} {n}"}) + "\n" for n, row in enumerate(rows)
    )
    upload(manager, project, lines, name="votes.jsonl")
    record = FileImport.objects.get()
    address = reverse("transfer", args=[project.slug, record.pk])
    page = unescape(manager.get(address).content.decode())
    assert "The import will refuse these rows (8 rows checked)" in page
    assert "row 7" in page
    assert "row 6" not in page
    preview = manager.get(f"/api/v1/projects/{project.slug}/imports/{record.pk}/preview/").json()
    assert (len(preview["faults"]), preview["checked_rows"]) == (1, 8)
    upload(manager, project, VOTES.replace("asked", "prompt"), name="sound.csv")
    sound = manager.get(reverse("transfer", args=[project.slug, FileImport.objects.latest("pk").pk]))
    assert "No faults in the first 2 rows" in sound.content.decode()


def test_a_file_is_no_larger_than_the_settings_say(
    manager: Client, project: Project, carol: User, settings: Any
):
    settings.RONDO_IMPORT_MAX_MB = 0
    assert "larger than 0 MB" in upload(manager, project, VOTES).content.decode()
    settings.RONDO_IMPORT_MAX_MB = 1
    settings.RONDO_IMPORT_MAX_ROWS = 1
    upload(manager, project, VOTES)
    record = FileImport.objects.get()
    uploads.start_import(record=record, skip_bad=False, user=carol)
    tasks.do_import(record.pk)
    record.refresh_from_db()
    assert (record.state, "more than 1 rows" in record.errors[0]) == (ImportState.FAILED, True)


def test_a_name_is_shown_and_never_a_path(manager: Client, project: Project):
    upload(manager, project, VOTES, name="../<b>x</b>.csv")
    (path,) = stored_files()
    assert path.parent == Path(settings.RONDO_IMPORTS)
    assert path.name == FileImport.objects.get().stored_as
    assert "<b>x</b>" not in manager.get(reverse("transfers", args=[project.slug])).content.decode()


def test_a_file_that_is_not_wanted_is_deleted(
    manager: Client,
    project: Project,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
):
    upload(manager, project, VOTES)
    page = reverse("transfer", args=[project.slug, FileImport.objects.get().pk])
    with django_capture_on_commit_callbacks(execute=True):
        assert manager.post(page, {"action": "discard"}).status_code == 302
    assert (stored_files(), FileImport.objects.count()) == ([], 0)


def test_every_format_is_a_download(manager: Client, project: Project, alice: User):
    factories.make_judgment(factories.make_comparison(project, ["=1", "No."]), alice)
    rows = {}
    for name in ("jsonl", "csv", "openrlhf", "label-studio"):
        answer: Any = manager.get(reverse("export", args=[project.slug, name]))
        assert answer.status_code == 200
        assert f'filename="tea-{name}.' in answer["Content-Disposition"]
        rows[name] = b"".join(answer.streaming_content)
    assert json.loads(rows["jsonl"])["verdict"] == "ranked"
    assert ",'=1," in rows["csv"].decode()
    assert rows["openrlhf"][:4] == b"PAR1"
    assert manager.get(reverse("export", args=[project.slug, "no-such"])).status_code == 404
