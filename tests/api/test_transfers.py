"""Files in and out by way of the API: uploaded, looked through, corrected, brought in; and downloaded."""

import json
from typing import Any

import pyarrow.parquet
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from pytest_django import Settings

from annotation.choices import Verdict
from annotation.exchange import uploads
from annotation.models import FileImport, Judgment, Project, User
from tests import factories
from tests.api.scene import Asker

IMPORTS = "/projects/tea/imports/"
VOTES = (
    "asked,response_a,response_b,verdict_of_rater\n"
    "How long should tea steep?,Two minutes.,Ten hours.,A\n"
    "Is coffee a tea?,No.,Yes.,B\n"
)


@pytest.fixture(autouse=True)
def own_folder(settings: Settings, tmp_path) -> None:
    settings.RONDO_IMPORTS = tmp_path / "imports"


def upload(asker: Asker, text: str = VOTES, name: str = "votes.csv") -> Any:
    file = SimpleUploadedFile(name, text.encode())
    return asker.client.post(f"/api/v1{IMPORTS}", {"file": file}, headers=asker.headers)


def test_a_file_is_looked_through_corrected_and_brought_in(project: Project, as_carol: Asker):
    made = upload(as_carol)
    assert made.status_code == 201
    address = f"{IMPORTS}{made.json()['id']}/"
    assert (made.json()["state"], made.json()["name"]) == ("uploaded", "votes.csv")
    before = as_carol.get(f"{address}preview/").json()
    assert before["columns"] == ["asked", "response_a", "response_b", "verdict_of_rater"]
    assert before["rows"][0]["answer_1"] == "Two minutes."
    assert "prompt" not in before["rows"][0]
    mapping = {"prompt": "asked", "winner": "verdict_of_rater"}
    corrected = as_carol("PATCH", address, {"format": made.json()["format"], "mapping": mapping})
    assert corrected.status_code == 200
    assert corrected.json()["mapping"]["prompt"] == "asked"
    assert as_carol.get(f"{address}preview/").json()["rows"][1]["prompt"] == "Is coffee a tea?"
    started = as_carol.post(f"{address}start/", {"skip_bad": True})
    assert (started.status_code, started.json()["state"]) == (202, "waiting")
    # What is on its way cannot be looked through, corrected or deleted.
    assert as_carol.get(f"{address}preview/").status_code == 404
    assert as_carol("PATCH", address, {}).status_code == 422
    assert as_carol("DELETE", address).status_code == 422
    uploads.do_import(made.json()["id"])
    done = as_carol.get(address).json()
    assert (done["state"], done["counts"]["judgments"], done["errors"]) == ("finished", 2, [])
    assert as_carol.get(f"{IMPORTS}?state=finished").json()["results"] == [done]
    assert as_carol.get(f"{IMPORTS}?state=failed").json()["results"] == []
    assert Judgment.objects.count() == 2
    # The file is in, and nothing of it is left to start.
    assert as_carol.post(f"{address}start/").status_code == 404
    # The same file again is the same row and adds nothing.
    again = upload(as_carol)
    assert again.json()["id"] == done["id"]


def test_a_column_that_may_be_a_verdict_is_placed_before_the_import_starts(project: Project, as_carol: Asker):
    made = upload(
        as_carol, "prompt,response_a,response_b,winner,expert\nTea?,Yes.,No.,5,A\nMate?,Yes.,No.,1,B\n"
    )
    record, address = made.json(), f"{IMPORTS}{made.json()['id']}/"
    kinds = {column["name"]: column["kind"] for column in record["columns"]}
    assert kinds == dict.fromkeys(("prompt", "response_a", "response_b"), "read") | dict.fromkeys(
        ("winner", "expert"), "question"
    )
    refused = as_carol.post(f"{address}start/")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "columns"
    # Somebody says that the numbers are degrees, what a column is, and what is not wanted.
    plan = {"mapping": {"winner": "winner", "metadata": ["expert"]}}
    corrected = as_carol("PATCH", address, plan).json()
    assert corrected["mapping"] == {
        "answer_1": "response_a",
        "answer_2": "response_b",
        "winner": "winner",
        "metadata": ["expert"],
    }
    left_out = as_carol("PATCH", address, {"mapping": {"winner": "winner"}, "leave_out": ["expert"]}).json()
    assert left_out["leave_out"] == ["expert"]
    assert [column["kind"] for column in left_out["columns"]][-1] == "left_out"
    assert as_carol.post(f"{address}start/").status_code == 202
    uploads.do_import(record["id"])
    assert as_carol.get(address).json()["state"] == "finished"
    assert list(Judgment.objects.order_by("pk").values_list("strength", flat=True)) == [2, 2]
    comparison = as_carol.get("/projects/tea/comparisons/").json()["results"][0]
    assert comparison["metadata"] == {}
    undone = as_carol.post(f"{address}undo/")
    assert (undone.status_code, undone.json()["state"]) == (202, "undoing")
    uploads.do_import(record["id"])
    assert as_carol.get(address).json()["state"] == "undone"
    assert not Judgment.objects.exists()


def test_bad_rows_are_told_by_their_number(project: Project, as_carol: Asker):
    made = upload(
        as_carol, 'prompt,answer_1,answer_2,winner\nTea?,Green.,Black.,nobody\n"","Hm.","Ah.",1\n'
    ).json()
    as_carol.post(f"{IMPORTS}{made['id']}/start/")
    uploads.do_import(made["id"])
    result = as_carol.get(f"{IMPORTS}{made['id']}/").json()
    assert (result["state"], result["errors_total"]) == ("failed", 2)
    assert [error[:5] for error in result["errors"]] == ["row 1", "row 2"]
    assert not Judgment.objects.exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (r'{"prompt": "a\ud800"}', "row 1, field prompt: Character 1 is half a surrogate pair (\\ud800)"),
        ('{"prompt": "a", "n": 1e999}', "row 1, field n: The number is too large"),
        ('{"prompt": NaN}', "row 1: NaN is not JSON"),
    ],
)
def test_a_value_that_no_preview_can_show_is_refused_with_row_and_field(
    project: Project, as_carol: Asker, row: str, message: str
):
    alone = upload(as_carol, row, name="votes.jsonl")
    assert alone.status_code == 422
    assert message in json.dumps(alone.json(), ensure_ascii=False).replace("\\\\", "\\")
    made = upload(as_carol, '{"prompt": "b"}\n' + row, name="votes.jsonl")
    assert made.status_code == 201
    shown = as_carol.get(f"{IMPORTS}{made.json()['id']}/preview/")
    assert (shown.status_code, shown.json()["rows"]) == (200, [{"prompt": "b"}])


def test_a_picture_is_refused_as_binary(project: Project, as_carol: Asker):
    file = SimpleUploadedFile("votes.csv", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00")
    refused = as_carol.client.post(f"/api/v1{IMPORTS}", {"file": file}, headers=as_carol.headers)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "file")
    assert "The file is binary (PNG), not text with rows." in json.dumps(refused.json())
    assert not FileImport.objects.exists()


@pytest.mark.parametrize(
    "body",
    [
        {"format": "nothing"},
        {"mapping": {"nothing": "asked"}},
        {"mapping": {"prompt": "no such column"}},
        {"mapping": {"prompt": "a\x00b"}},
        {"mapping": []},
    ],
)
def test_a_mapping_that_does_not_fit_is_refused(project: Project, as_carol: Asker, body: dict[str, Any]):
    address = f"{IMPORTS}{upload(as_carol).json()['id']}/"
    assert as_carol("PATCH", address, body).status_code == 422


def test_a_file_that_is_too_large_or_none_is_refused(project: Project, as_carol: Asker, settings: Settings):
    settings.RONDO_IMPORT_MAX_MB = 0
    refused = upload(as_carol)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "file")
    missing = as_carol.client.post(f"/api/v1{IMPORTS}", {}, headers=as_carol.headers)
    assert (missing.status_code, missing.json()["errors"][0]["field"]) == (422, "file")
    assert not FileImport.objects.exists()


def test_formats_are_listed_with_the_columns_that_may_be_mapped(project: Project, as_carol: Asker):
    formats = as_carol.get("/formats/").json()
    assert {"jsonl", "csv", "trl-preference"} <= {entry["name"] for entry in formats["outgoing"]}
    assert "argilla" in " ".join(entry["name"] for entry in formats["incoming"])
    assert "prompt" in formats["columns"]


@pytest.fixture
def judged(project: Project, alice: User, bob: User) -> Project:
    """A pair that is decided, and one in another round on which both answers are bad."""
    factories.make_judgment(factories.make_comparison(project, ["Two minutes.", "Ten hours."]), alice)
    second = factories.make_comparison(project, ["Hm.", "Ah."], round_number=2)
    factories.make_judgment(second, bob, (), verdict=Verdict.BOTH_BAD)
    return project


def content(answer: Any) -> bytes:
    return b"".join(answer.streaming_content)


def test_judgments_are_downloaded_by_round_in_the_format_that_is_asked_for(judged: Project, as_carol: Asker):
    whole = as_carol.get("/projects/tea/exports/jsonl/", Accept="application/jsonl")
    assert (whole.status_code, whole["Content-Type"]) == (200, "application/jsonl")
    assert 'filename="tea-jsonl.jsonl"' in whole["Content-Disposition"]
    rows = [json.loads(line) for line in content(whole).splitlines()]
    assert {row["verdict"] for row in rows} == {"ranked", "both_bad"}
    second = content(as_carol.get("/projects/tea/exports/jsonl/?rounds=2"))
    assert [json.loads(line)["verdict"] for line in second.splitlines()] == ["both_bad"]
    assert len(content(as_carol.get("/projects/tea/exports/jsonl/?rounds=1,2")).splitlines()) == 2
    assert content(as_carol.get("/projects/tea/exports/jsonl/?rounds=3")) == b""


def test_an_export_is_narrowed_by_annotator_day_and_tag(judged: Project, as_carol: Asker):
    address = "/projects/tea/exports/jsonl/"

    def rows(query: str) -> int:
        return len(content(as_carol.get(f"{address}?{query}")).splitlines())

    annotators = [json.loads(line)["annotator"] for line in content(as_carol.get(address)).splitlines()]
    assert rows(f"annotator={annotators[0]}") == annotators.count(annotators[0])
    assert (rows("since=2001-01-01"), rows("until=2001-01-01"), rows("tag=nothing")) == (2, 0, 0)


def test_a_parquet_file_comes_whole(judged: Project, as_carol: Asker, tmp_path):
    answer = as_carol.get("/projects/tea/exports/openrlhf/")
    assert answer["Content-Type"] == "application/vnd.apache.parquet"
    path = tmp_path / "pairs.parquet"
    path.write_bytes(content(answer))
    assert pyarrow.parquet.read_table(path).num_rows == 1


def test_what_a_format_cannot_carry_is_counted_and_listed(judged: Project, as_carol: Asker):
    address = "/projects/tea/exports/trl-preference/"
    manifest = as_carol.get(f"{address}manifest/").json()["manifest"]
    assert (manifest["judgments"], manifest["rows"], sum(manifest["dropped"].values())) == (2, 1, 1)
    assert manifest["filters"]["rounds"] == "all"
    [line] = content(as_carol.get(f"{address}dropped/")).splitlines()
    assert "both bad" in json.loads(line)["reason"]
    assert content(as_carol.get(f"{address}dropped/?rounds=1")) == b""


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("nothing/", 404),
        ("nothing/manifest/", 404),
        ("nothing/dropped/", 404),
        ("jsonl/?rounds=one", 422),
        ("jsonl/?split=half", 422),
        ("jsonl/?round=1", 422),
        ("jsonl/dropped/?rounds=x", 422),
        ("jsonl/?since=yesterday", 422),
        ("jsonl/?since=2026-03-05&until=2026-03-01", 422),
        ("jsonl/?category=nonsense", 422),
        ("jsonl/?annotator=alice", 422),
        ("jsonl/?annotator=00000000-0000-0000-0000-000000000000", 422),
    ],
)
def test_what_cannot_be_exported_is_told_as_a_problem(
    judged: Project, as_carol: Asker, address: str, status: int
):
    answer = as_carol.get(f"/projects/tea/exports/{address}")
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
