"""Files that look small, or lead elsewhere: refused before they fill memory, disk or somebody's evening."""

import gzip
import io
import json
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from pytest_django import Settings

from annotation.errors import Refusal
from annotation.exchange import uploads
from annotation.exchange.file_imports import digest_of
from annotation.exchange.formats import rows
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.rows import read_rows
from annotation.models import AuditEntry, FileImport, Judgment, Project, Prompt, User
from tests.refusals import refused

MEGABYTE = 1024**2
ROW = '{"prompt": "Tea?"}\n'


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """Three hundred megabytes in three hundred kilobytes."""
    path = tmp_path / "votes.jsonl.gz"
    # Members of a gzip file follow one another; all but the first are the same.
    member = gzip.compress(b"a" * 10 * MEGABYTE, compresslevel=6)
    path.write_bytes(gzip.compress(ROW.encode()) + 30 * member)
    assert path.stat().st_size < MEGABYTE
    return path


def read(path: Path) -> int:
    return sum(1 for _ in read_rows(path))


def test_a_bomb_of_gzip_is_refused_and_never_in_memory(bomb: Path):
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match=r"unpacks to more than 256 MB"):
            read(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A row may have 32 million characters; some copies of one are all that was ever there.
    assert peak < 200 * MEGABYTE


@pytest.mark.django_db
def test_a_bomb_imports_nothing_not_even_with_bad_rows_left_out(project: Project, bomb: Path):
    with refused("unpacks_too_large", CommandError):
        call_command("import_judgments", str(bomb), project=project.slug, skip_bad=True)
    assert not Prompt.objects.exists()


def test_a_bomb_in_the_dictionary_of_a_parquet_file_is_refused(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    # One text of a megabyte, a hundred thousand times: 100 GB in less than a megabyte.
    texts = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 100_000, pyarrow.int32()), pyarrow.array(["a" * MEGABYTE])
    )
    path = tmp_path / "votes.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"prompt": texts}), path, compression="zstd", store_schema=False
    )
    assert path.stat().st_size < MEGABYTE
    with pytest.raises(Refusal, match="unpacks to more than"):
        read(path)


def test_a_bomb_of_compressed_arrow_is_refused(tmp_path: Path):
    import pyarrow

    path = tmp_path / "votes.arrow"
    batch = pyarrow.record_batch({"prompt": ["a" * MEGABYTE] * 40})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_file(path, batch.schema, options=options) as file:
        for _ in range(10):
            file.write_batch(batch)
    assert path.stat().st_size < MEGABYTE
    with pytest.raises(Refusal, match="unpacks to more than"):
        read(path)


def test_a_file_that_compresses_well_is_read_all_the_same(tmp_path: Path):
    path = tmp_path / "votes.jsonl.gz"
    path.write_bytes(gzip.compress((ROW * 200_000).encode()))
    assert path.stat().st_size * rows.MOST_TIMES < len(ROW) * 200_000 < rows.FREE_BYTES
    assert read(path) == 200_000


def zipped(depth: int) -> bytes:
    content = b"0" * (20 * MEGABYTE)
    for _ in range(depth):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("../../../tmp/evil.jsonl", content)
        content = packed.getvalue()
    return content


@pytest.mark.django_db
@pytest.mark.parametrize("packed", ["zip", "zip in zip", "gzip", "parquet"])
def test_nothing_that_is_packed_is_unpacked_for_who_uploads_it(
    project: Project, carol: User, settings: Settings, tmp_path: Path, packed: str
):
    import pyarrow
    import pyarrow.parquet

    settings.RONDO_IMPORTS = tmp_path / "imports"
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["Tea?"]}), sink)
    content = {
        "zip": zipped(1),
        "zip in zip": zipped(2),
        "gzip": gzip.compress(b"a" * (20 * MEGABYTE)),
        "parquet": sink.getvalue(),
    }[packed]
    with pytest.raises(Refusal, match=r"is compressed|is an archive"):
        uploads.receive_upload(
            project=project, upload=SimpleUploadedFile("../../evil.jsonl", content), user=carol
        )
    assert list((tmp_path / "imports").iterdir()) == []
    assert not FileImport.objects.exists()


@pytest.mark.django_db
def test_the_name_of_an_upload_chooses_no_place(
    project: Project, carol: User, settings: Settings, tmp_path: Path
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    upload = SimpleUploadedFile("x", ROW.encode())
    # Django takes the last part of a name; whatever sets it otherwise must not matter either.
    upload._name = "../../../evil.jsonl"  # type: ignore[attr-defined]
    record = uploads.receive_upload(project=project, upload=upload, user=carol)
    assert [path.parent.name for path in tmp_path.rglob("*.jsonl")] == ["imports"]
    assert "/" not in record.stored_as


def test_a_link_out_of_a_data_sets_folder_is_refused_wherever_it_is_read(tmp_path: Path):
    (tmp_path / "secret.jsonl").write_text('{"prompt": "the password"}\n')
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a.jsonl").write_text(ROW)
    assert read(folder) == 1
    (folder / "train" / "b.jsonl").symlink_to(tmp_path / "secret.jsonl")
    for way in (read, digest_of):
        with pytest.raises(Refusal, match=r"b.jsonl is a link that leads out of"):
            way(folder)
    # One that stays inside is a file like any other.
    (folder / "train" / "b.jsonl").unlink()
    (folder / "train" / "b.jsonl").symlink_to(folder / "train" / "a.jsonl")
    assert read(folder) == 2


def test_the_hubs_cache_is_made_of_links_and_is_read(tmp_path: Path):
    cache = tmp_path / "datasets--acme--votes"
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs" / "0a1b").write_text(ROW)
    revision = cache / "snapshots" / "c0ffee"
    revision.mkdir(parents=True)
    (revision / "train.jsonl").symlink_to(Path("../../blobs/0a1b"))
    assert read(revision) == 1
    (revision / "more.jsonl").symlink_to("/etc/hostname")
    with pytest.raises(Refusal, match="leads out of"):
        read(revision)


def test_a_folder_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text(ROW)
    with pytest.raises(Refusal, match="more than 3 files"):
        read(tmp_path)


def test_a_table_of_too_many_columns_is_refused(tmp_path: Path):
    path = tmp_path / "votes.csv"
    path.write_text(",".join(f"c{n}" for n in range(2_001)) + "\n")
    with pytest.raises(Refusal, match="more than 2000 columns"):
        read(path)
    path.write_text(",".join(f"c{n}" for n in range(2_000)) + "\n" + "x" + "," * 1_999 + "\n")
    assert read(path) == 1


@pytest.mark.parametrize("value", ["1" * 5_000, "[" * 100_000, '{"a":' * 100_000, "1e999999999"])
def test_a_row_that_is_hard_to_read_is_a_bad_row_and_no_crash(tmp_path: Path, value: str):
    path = tmp_path / "votes.jsonl"
    path.write_text(f'{{"prompt": {value}}}\n{ROW}')
    first, second = [row for _, row in read_rows(path)]
    assert isinstance(first, FieldError | dict)
    assert second == json.loads(ROW)
    whole = tmp_path / "votes.json"
    whole.write_text(f'[{{"prompt": {value}}}]')

    def rows() -> Iterator[Any]:
        yield from read_rows(whole)

    try:
        parsed_rows = list(rows())
    except Refusal:
        parsed_rows = []
    assert len(parsed_rows) <= 1


@pytest.mark.django_db
def test_one_person_uploads_so_many_files_a_minute_and_others_as_many(
    project: Project, carol: User, admin: User, settings: Settings, tmp_path: Path
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    settings.RONDO_UPLOADS_PER_MINUTE = 2

    def upload(user: User, number: int) -> None:
        file = SimpleUploadedFile("a.jsonl", f'{{"prompt": "Tea {number}?"}}\n'.encode())
        uploads.receive_upload(project=project, upload=file, user=user)

    upload(carol, 1)
    upload(carol, 2)
    with refused("too_many_uploads", most="2"):
        upload(carol, 3)
    upload(admin, 4)
    assert AuditEntry.objects.filter(action="import.upload", actor=carol).count() == 2
    assert FileImport.objects.count() == len(list((tmp_path / "imports").iterdir())) == 3
    assert not Judgment.objects.exists()


@pytest.mark.django_db
def test_files_that_nobody_imports_do_not_pile_up(
    project: Project, carol: User, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    monkeypatch.setattr(uploads, "MOST_KEPT", 1)
    first = uploads.receive_upload(
        project=project, upload=SimpleUploadedFile("a.jsonl", ROW.encode()), user=carol
    )
    again = SimpleUploadedFile("b.jsonl", b'{"prompt": "Coffee?"}\n')
    with refused("too_many_waiting_files", most="1"):
        uploads.receive_upload(project=project, upload=again, user=carol)
    uploads.discard_upload(record=first, user=carol)
    again.seek(0)
    uploads.receive_upload(project=project, upload=again, user=carol)
