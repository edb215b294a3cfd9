"""An import is undone whole, or not at all where somebody builds on what it brought."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from annotation.choices import ImportState, TaskName
from annotation.errors import NotAllowed
from annotation.exchange import uploads
from annotation.exchange import uploads as undoing
from annotation.exchange.file_imports import import_file
from annotation.exchange.uploads import request_undo
from annotation.models import (
    Assignment,
    AuditEntry,
    BulkChange,
    Category,
    Comparison,
    Completion,
    Criterion,
    FileImport,
    Judgment,
    Project,
    Prompt,
    User,
)
from annotation.selectors.access import judgments_current
from annotation.services.assignments.next import assign_next
from annotation.services.changes import undo_change
from tests import factories
from tests.refusals import refused
from training.models import Snapshot

pytestmark = pytest.mark.django_db

MODELS = (Prompt, Completion, Comparison, Assignment, Judgment, Category, Criterion)


def counts() -> dict[str, int]:
    return {model.__name__: model.objects.count() for model in MODELS}


def brought_in(project: Project, folder: Path, *rows: dict[str, Any], name: str = "rows.jsonl") -> FileImport:
    path = folder / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return import_file(project=project, path=path)


def pair(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Tea {number}?", "answer_1": "Yes.", "answer_2": "No.", **more}


def undone(record: FileImport, user: User) -> FileImport:
    request_undo(record=record, user=user)
    uploads.do_import(record.pk)
    record.refresh_from_db()
    return record


def test_all_that_an_import_brought_goes_and_nothing_else(
    project: Project, carol: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(undoing, "_BATCH", 3)
    kept = brought_in(project, tmp_path, *(pair(n, winner="answer_1", annotator="kim") for n in range(3)))
    before = counts()
    overlaps = list(Comparison.objects.order_by("pk").values_list("overlap", flat=True))
    rows = [
        # A second judgment of what is there, one of new answers to an old prompt, and all that is new.
        *(pair(n, winner="answer_2", annotator="lee") for n in range(3)),
        {"prompt": "Tea 1?", "answer_1": "Maybe.", "answer_2": "No.", "winner": "answer_1"},
        *(pair(n, winner="answer_1", rating_1=5, rating_2=1, annotator="lee") for n in range(10, 20)),
        *(pair(n) for n in range(30, 35)),
    ]
    record = brought_in(project, tmp_path, *rows, name="more.jsonl")
    assert counts()["Judgment"] == 3 + 14
    assert undone(record, carol).state == ImportState.UNDONE
    assert counts() == before
    assert list(Comparison.objects.order_by("pk").values_list("overlap", flat=True)) == overlaps
    assert FileImport.objects.get(pk=kept.pk).state == ImportState.FINISHED
    assert AuditEntry.objects.get(action="import.undo").actor == carol
    # And the same file comes in again as if it had never been there.
    again = import_file(project=project, path=tmp_path / "more.jsonl")
    assert (again.pk, again.state, again.counts["judgments"]) == (record.pk, ImportState.FINISHED, 14)


def test_what_somebody_judged_or_holds_is_not_undone(
    project: Project, alice: User, carol: User, tmp_path: Path
):
    record = brought_in(project, tmp_path, pair(1))
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    before = counts()
    with refused("import_in_annotation") as refusal:
        request_undo(record=record, user=carol)
    assert refusal.value.field == "judgments"
    factories.make_judgment(assignment.comparison, alice)
    with refused("import_annotated") as refusal:
        request_undo(record=record, user=carol)
    assert refusal.value.field == "judgments"
    assert counts() == before | {"Judgment": 1}


def test_what_people_annotated_goes_only_where_it_is_asked_for_and_comes_back_for_a_day(
    project: Project, alice: User, carol: User, tmp_path: Path, client_of: Callable[[User], Client]
):
    record = brought_in(project, tmp_path, pair(1, winner="answer_1"), pair(2), pair(3))
    judged = Comparison.objects.filter(open_slots=1).order_by("pk")[0]
    factories.make_judgment(judged, alice)
    snapshot = Snapshot.objects.create(project=project, digest="0" * 64, folder="s", rounds=[1], counts={})
    snapshot.judgments.set(Judgment.objects.filter(annotator=alice))
    address = f"/projects/{project.slug}/transfers/{record.pk}/"
    page = client_of(carol).get(address).content.decode()
    for number, what in ((1, "annotations by people"), (1, "imported annotations"), (3, "prompts")):
        assert f'{what}: <strong class="number">{number}</strong>' in page
    assert client_of(carol).post(address, {"action": "undo"}).status_code == 422
    client_of(carol).post(address, {"action": "undo", "deletes_used": "1"})
    uploads.do_import(record.pk)
    record.refresh_from_db()
    assert record.state == ImportState.UNDONE
    assert not Prompt.objects.exists()
    assert not judgments_current(project).exists()
    assert snapshot.judgments.count() == 1
    for change in BulkChange.objects.all():
        undo_change(change=change, undone_by=carol)
    assert Prompt.objects.count() == 3
    assert judgments_current(project).count() == 2


def test_a_response_that_was_added_later_keeps_the_import(project: Project, carol: User, tmp_path: Path):
    record = brought_in(project, tmp_path, pair(1))
    factories.make_completions(Prompt.objects.get(), "Perhaps.")
    with refused("import_has_responses") as refusal:
        request_undo(record=record, user=carol)
    assert refusal.value.field == "prompts"


def test_what_a_snapshot_holds_is_not_undone(project: Project, carol: User, tmp_path: Path):
    record = brought_in(project, tmp_path, pair(1, winner="answer_1"))
    snapshot = Snapshot.objects.create(project=project, digest="0" * 64, folder="s", rounds=[1], counts={})
    snapshot.judgments.set(Judgment.objects.all())
    with refused("import_in_use") as refusal:
        request_undo(record=record, user=carol)
    assert refusal.value.field == "used"
    assert Judgment.objects.exists()


def test_a_worker_that_was_cut_off_goes_on_with_the_undoing(
    project: Project, carol: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[Any]
):
    monkeypatch.setattr(undoing, "_BATCH", 2)
    record = brought_in(project, tmp_path, *(pair(n, winner="answer_1") for n in range(6)))
    request_undo(record=record, user=carol)
    beats = iter([None, None])

    class Cut(BaseException):
        pass

    def beat() -> None:
        if next(beats, "end") == "end":
            raise Cut

    record.refresh_from_db()
    with pytest.raises(Cut):
        undoing.undo(record, beat)
    assert 0 < Judgment.objects.count() < 6
    assert record.pk in FileImport.objects.filter(FileImport.UNFINISHED).values_list("pk", flat=True)
    uploads.sweep_imports()
    assert (TaskName.DO_IMPORT, [record.pk]) in sent
    uploads.do_import(record.pk)
    record.refresh_from_db()
    assert (record.state, counts()["Judgment"], counts()["Prompt"]) == (ImportState.UNDONE, 0, 0)


def test_only_a_manager_undoes_and_only_what_is_in(
    project: Project, alice: User, carol: User, tmp_path: Path
):
    record = brought_in(project, tmp_path, pair(1))
    with refused("manager_imports", NotAllowed):
        request_undo(record=record, user=alice)
    undone(record, carol)
    with refused("import_not_ended") as refusal:
        request_undo(record=record, user=carol)
    assert refusal.value.field == "state"
