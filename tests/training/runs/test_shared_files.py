"""Machines without a common disk: what one makes, the others have from the store."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from annotation import tasks
from annotation.choices import JobState
from annotation.exchange import uploads
from annotation.models import FileImport, Judgment, Project, User
from tests.training.jobs.machines import Machines, files_in, machines_in
from tests.training.registry.registry_rows import make_trained
from tests.training.rounds.round_scenes import behave, states
from training.choices import StepKind
from training.contract.run import CHECKPOINT_FOLDER, STATE_FOLDER
from training.files import shared
from training.files import shared as shared_files
from training.files.shared import folder_of
from training.models import Checkpoint, CheckpointExport, Round, Run, Snapshot
from training.services.checkpoint_files import apply_retention, delete_files, expired_files
from training.services.checkpoints import register_checkpoint
from training.services.rounds.controls import start_round
from training.services.rounds.executor import advance_round
from training.services.runs import files
from training.store import Store, StoreUnreachableError

pytestmark = pytest.mark.django_db


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machines]:
    folder = tmp_path / "machines"
    folder.mkdir()
    yield from machines_in(folder, f"memory://{uuid.uuid4().hex}")


def begun(labelled: Round, carol: User, machine: Machines, name: str = "worker one") -> Path:
    home = machine(name)
    start_round(round_=labelled, started_by=carol)
    return home


def test_a_run_goes_on_on_another_machine_and_is_registered_on_a_third(
    labelled: Round, carol: User, machine: Machines, quick_trainer: None
):
    home_one = begun(labelled, carol, machine)
    behave(home_one, steps=3, interrupted_at=2)
    advance_round(labelled.pk)
    run = Run.objects.get()
    assert states(labelled)[1:3] == ["finished", "waiting"]
    assert (home_one / "runs" / run.name / STATE_FOLDER / "step").read_text() == "2"

    home_two = machine("worker two")
    behave(home_two, steps=3)
    assert files_in(home_two) == ["fake_trainer.json"]
    advance_round(labelled.pk)
    assert [step.error for step in labelled.steps.all()] == [""] * 7
    run.refresh_from_db()
    assert run.state == "finished"
    # Both trainers in turn: the second one went on after two steps.
    starts = (home_two / "runs" / run.name / "starts").read_text().splitlines()
    assert [line.split(" from ")[1] for line in starts] == ["0", "2"]
    assert not (home_one / "checkpoints").exists()

    home_three = machine("web")
    checkpoint = Checkpoint.objects.get(run=run)
    assert files_in(home_three) == []
    assert register_checkpoint(run=run) == checkpoint
    call_command("verify_checkpoints", checkpoint.name)
    assert files_in(home_three / "checkpoints") == sorted(
        f"{checkpoint.name}/{name}" for name in ("adapter_model.safetensors", "manifest.json")
    )


def test_the_trainer_is_told_where_base_and_parent_lie_on_its_own_machine(
    project: Project, machine: Machines, labelled: Round, carol: User, quick_trainer: None
):
    begun(labelled, carol, machine)
    advance_round(labelled.pk)
    run = Run.objects.exclude(method="reward").get()
    parent = Checkpoint.objects.get(run=run)
    Run.objects.filter(pk=run.pk).update(parent=parent)
    two = machine("worker two")
    spec = files.spec_here(Run.objects.get(pk=run.pk))
    assert spec.base_model == str(two / "models" / Path(run.spec["base_model"]).name)
    assert spec.parent == str(two / "checkpoints" / parent.name)
    assert spec.snapshot == run.spec["snapshot"]


def test_a_registered_checkpoint_comes_from_the_run_that_another_machine_trained(
    labelled: Round, carol: User, machine: Machines, quick_trainer: None
):
    begun(labelled, carol, machine)
    advance_round(labelled.pk)
    run = Run.objects.get(method="reward")
    two = machine("worker two")
    assert files.of_finished(run) == two / "runs" / run.name / CHECKPOINT_FOLDER
    assert f"{run.name}/{CHECKPOINT_FOLDER}/manifest.json" in files_in(two / "runs")
    # Nobody needs an optimiser's state to copy a checkpoint.
    assert not [name for name in files_in(two / "runs") if STATE_FOLDER in name.split("/")]


def test_while_the_store_is_away_a_step_waits_with_the_reason_and_nothing_is_lost(
    labelled: Round, carol: User, machine: Machines, quick_trainer: None, monkeypatch: pytest.MonkeyPatch
):
    home_one = begun(labelled, carol, machine)
    real = files.Sender.finish
    cut = pytest.MonkeyPatch()

    def finish_while_away(sender: Any, heartbeat: Any) -> None:
        def nobody(*_: Any) -> None:
            raise StoreUnreachableError("The cable is cut.")

        cut.setattr("training.store.Objects.write", nobody)
        real(sender, heartbeat)

    monkeypatch.setattr(files, "_WAITS", ())
    monkeypatch.setattr(files.Sender, "finish", finish_while_away)
    advance_round(labelled.pk)
    step = labelled.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    assert (step.state, step.message, step.error) == ("waiting", "The cable is cut.", "")
    run = Run.objects.get()
    assert run.state != "finished"
    assert (home_one / "runs" / run.name / CHECKPOINT_FOLDER / "manifest.json").is_file()

    cut.undo()
    monkeypatch.setattr(files.Sender, "finish", real)
    advance_round(labelled.pk)
    run.refresh_from_db()
    assert run.state == "finished"
    # The steps that were taken are not taken again.
    starts = (home_one / "runs" / run.name / "starts").read_text().splitlines()
    assert [line.split(" from ")[1] for line in starts] == ["0", "3"]


def test_a_damaged_snapshot_in_the_store_fails_the_step_in_plain_words(
    labelled: Round, carol: User, machine: Machines, quick_trainer: None
):
    home_one = begun(labelled, carol, machine)
    behave(home_one, interrupted_at=1)
    advance_round(labelled.pk)
    store, key = shared_files.shared(), f"snapshots/{Snapshot.objects.get().digest}"
    for piece in store._objects.sizes(f"pieces/{key}"):
        store._objects.write(f"pieces/{key}/{piece}", b"something else")
    machine("worker two")
    advance_round(labelled.pk)
    step = labelled.steps.get(kind=StepKind.TRAIN_REWARD_MODEL)
    assert step.state == "failed"
    assert f"of {key} is damaged in the store memory://" in step.error


def test_pages_of_another_machine_show_a_run_while_it_goes_on_and_when_it_has_ended(
    labelled: Round, carol: User, machine: Machines, quick_trainer: None, client: Client
):
    home_one = begun(labelled, carol, machine)
    behave(home_one, steps=3, interrupted_at=2)
    advance_round(labelled.pk)
    run = Run.objects.get()
    client.force_login(carol)
    web = machine("web")
    page = f"/api/v1/runs/{run.pk}/metrics/"
    assert [row["step"] for row in client.get(page).json()["rows"]] == [1, 2]
    assert STATE_FOLDER not in {name.split("/")[1] for name in files_in(web / "runs")}
    assert client.get(reverse("run", args=[run.pk])).status_code == 200

    two = machine("worker two")
    behave(two, steps=3)
    advance_round(labelled.pk)
    machine("web")
    assert [row["step"] for row in client.get(page).json()["rows"]] == [1, 2, 3]
    # Who takes everything away gets everything.
    answer: Any = client.get(reverse("run-download", args=[run.pk]))
    archive = b"".join(answer.streaming_content)
    assert b"adapter_model.safetensors" in archive


def test_a_page_shows_what_is_here_while_the_store_is_away_and_does_not_ask_at_every_look(
    labelled: Round, carol: User, machine: Machines, quick_trainer: None, monkeypatch: pytest.MonkeyPatch
):
    begun(labelled, carol, machine)
    advance_round(labelled.pk)
    run = Run.objects.get(method="reward")
    keys = []

    def nobody(self: Store, key: str) -> None:
        keys.append(key)
        raise StoreUnreachableError("The cable is cut.")

    monkeypatch.setattr(Store, "listing", nobody)
    web = machine("web")
    for _ in range(3):
        assert folder_of(run) == web / "runs" / run.name
    assert keys == [f"runs/{run.name}"]


def test_a_folder_in_which_a_trainer_works_is_never_overwritten(
    labelled: Round, carol: User, machine: Machines, quick_trainer: None
):
    import fcntl

    home_one = begun(labelled, carol, machine)
    behave(home_one, steps=3, interrupted_at=1)
    advance_round(labelled.pk)
    run = Run.objects.get()
    two = machine("worker two")
    behave(two, steps=3)
    advance_round(labelled.pk)

    machine("worker one")
    before = (run.path / "metrics.jsonl").read_text()
    with (run.path / "lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        folder_of(run)
        assert (run.path / "metrics.jsonl").read_text() == before
        with pytest.raises(shared_files.StoreAway, match="an earlier trainer has not ended"):
            shared.bring_run(run.path)
    shared.bring_run(run.path)
    assert (run.path / "metrics.jsonl").read_text() != before


def test_deleted_files_go_from_the_store_too_at_once_or_once_it_is_back(
    project: Project, carol: User, machine: Machines, django_capture_on_commit_callbacks: Any
):
    machine("web")
    gone, left, remaining = (make_trained(name, project) for name in ("gone", "left", "kept"))
    for checkpoint in (gone, left, remaining):
        shared_files.publish(checkpoint.path)
    with django_capture_on_commit_callbacks(execute=True):
        delete_files(checkpoint=gone, deleted_by=carol)
    store = shared_files.shared()
    assert store.names("checkpoints") == ["kept", "left"]
    # A store that was away at that moment is swept with the daily retention.
    Checkpoint.objects.filter(pk=left.pk).update(files_deleted_at=timezone.now())
    apply_retention()
    assert store.names("checkpoints") == ["kept"]


def test_states_of_finished_runs_go_from_the_store_wherever_retention_runs(
    project: Project, machine: Machines, settings: Settings
):
    machine("worker one")
    old, new = (make_trained(name, project).run for name in ("old", "new"))
    for run in (old, new):
        (run.path / STATE_FOLDER).mkdir()
        (run.path / STATE_FOLDER / "moments").write_bytes(b"m" * 100)
        (run.path / "log.txt").write_text("kept")
        shared_files.publish(run.path)
    settings.RONDO_KEEP_RUN_STATES = 1
    machine("worker two")
    assert [(expired.run, expired.size) for expired in expired_files()] == [(old, 100)]
    apply_retention()
    assert set(shared_files.shared().listing("runs/old").files) == {"log.txt"}
    assert set(shared_files.shared().listing("runs/new").files) == {"log.txt", f"{STATE_FOLDER}/moments"}
    assert expired_files() == []


def test_a_checkpoint_that_is_damaged_in_the_store_is_told(project: Project, machine: Machines, capsys: Any):
    machine("worker one")
    made = make_trained("made", project)
    shared_files.publish(made.path)
    store = shared_files.shared()
    weights = store.listing("checkpoints/made").files["adapter_model.safetensors"].pieces[0]
    store._objects.write(f"pieces/checkpoints/made/{weights}", b"bad")
    with pytest.raises(CommandError, match="Damaged: made"):
        call_command("verify_checkpoints", "made")
    assert "made: store: adapter_model.safetensors is changed" in capsys.readouterr().out
    machine("worker two")
    with pytest.raises(CommandError, match="Damaged: made"):
        call_command("verify_checkpoints", "made")
    assert "adapter_model.safetensors of checkpoints/made is damaged in the store" in capsys.readouterr().out


def test_an_upload_that_one_machine_received_is_brought_in_by_another(
    project: Project, carol: User, machine: Machines, monkeypatch: pytest.MonkeyPatch
):
    web = machine("web")
    votes = b"prompt,answer_1,answer_2,winner\nTea?,Yes.,No.,A\n"
    record = uploads.receive_upload(
        project=project, upload=SimpleUploadedFile("votes.csv", votes), user=carol
    )
    uploads.start_import(record=record, skip_bad=False, user=carol)
    assert len(files_in(web / "imports")) == 1

    worker = machine("worker one")
    tasks.do_import(record.pk)
    record.refresh_from_db()
    assert (record.state, record.errors) == ("finished", [])
    assert Judgment.objects.count() == 1
    assert files_in(worker) == []
    assert shared_files.shared().names("imports") == []


def test_an_import_waits_while_the_store_is_away_and_an_upload_is_refused(
    project: Project,
    carol: User,
    machine: Machines,
    monkeypatch: pytest.MonkeyPatch,
    client: Client,
):
    machine("web")
    votes = b"prompt,answer_1,answer_2,winner\nTea?,Yes.,No.,A\n"
    record = uploads.receive_upload(
        project=project, upload=SimpleUploadedFile("votes.csv", votes), user=carol
    )
    uploads.start_import(record=record, skip_bad=False, user=carol)
    machine("worker one")

    def nobody(self: Any, *_: Any) -> None:
        raise StoreUnreachableError("The cable is cut.")

    with monkeypatch.context() as patch:
        for name in ("read", "write", "sizes", "remove"):
            patch.setattr(f"training.store.Objects.{name}", nobody)
        tasks.do_import(record.pk)
        record.refresh_from_db()
        assert record.state == "waiting"
        client.force_login(carol)
        page = client.get(reverse("transfer", args=[project.slug, record.pk]))
        assert page.status_code == 200
        answer = client.post(
            reverse("transfers", args=[project.slug]), {"file": SimpleUploadedFile("more.csv", votes + b"\n")}
        )
        assert answer.status_code == 422
        assert "The cable is cut." in answer.content.decode()
    assert FileImport.objects.count() == 1
    tasks.do_import(record.pk)
    record.refresh_from_db()
    assert record.state == "finished"


def test_an_exported_folder_is_handed_out_by_another_machine(
    project: Project, carol: User, machine: Machines, client: Client
):
    worker = machine("worker one")
    made = make_trained("made", project)
    export = CheckpointExport.objects.create(checkpoint=made, state=JobState.FINISHED)
    out = worker / "exports" / str(export.pk) / "0a" / "made"
    out.mkdir(parents=True)
    (out / "adapter.bin").write_text("weights")
    shared_files.publish(out)
    CheckpointExport.objects.filter(pk=export.pk).update(
        folder=str(out.relative_to(worker)), finished_at=timezone.now()
    )
    machine("web")
    client.force_login(carol)
    answer: Any = client.get(reverse("checkpoint-export-download", args=["made", export.pk]))
    assert b"made/adapter.bin" in b"".join(answer.streaming_content)
    # And the store forgets it when its days are over.
    CheckpointExport.objects.update(finished_at=timezone.now() - timedelta(days=8))
    apply_retention()
    assert shared_files.shared().names("exports") == []


def test_without_a_store_nothing_is_asked_and_nothing_lies_beside_the_folders(
    labelled: Round, carol: User, quick_trainer: None, rondo_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Store, "__init__", lambda *_: pytest.fail("a store was made"))
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    assert Checkpoint.objects.filter(run__isnull=False).count() == 2
    for folder in ("runs", "checkpoints", "snapshots"):
        assert [p.name for p in (rondo_home / folder).iterdir() if p.name.startswith(".")] == []


def test_what_a_trainer_saved_is_sent_while_it_goes_on_so_that_nobody_needs_the_dead_workers_disk(
    labelled: Round,
    carol: User,
    machine: Machines,
    quick_trainer: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(files, "_SEND_EVERY_SECONDS", 0)
    home_one = begun(labelled, carol, machine)
    behave(home_one, steps=3, interrupted_at=1)
    advance_round(labelled.pk)
    run = Run.objects.get()
    store, key = shared_files.shared(), f"runs/{run.name}"

    def sent(text: str) -> bytes:
        (run.path / STATE_FOLDER / "step").write_text(text)
        sender.offer()
        assert sender._going is not None
        sender._going.exception()
        return store.read(key, f"{STATE_FOLDER}/step")

    with files.Sender(run) as sender:
        assert sent("2") == b"2"
        # A store that is away for a moment is told in the log, and holds nobody up.
        with monkeypatch.context() as patch:

            def nobody(*_: Any) -> None:
                raise StoreUnreachableError("The cable is cut.")

            patch.setattr("training.store.Objects.write", nobody)
            assert sent("3") == b"2"
        assert sent("4") == b"4"
        assert "is not in the store yet: The cable is cut." in caplog.text
    # Who left does not write over what comes after.
    (run.path / STATE_FOLDER / "step").write_text("5")
    with pytest.raises(shared_files.StoreAway, match="no longer holds it"):
        sender._send()
    two = machine("worker two")
    files.gather(run, lambda **_: True)  # type: ignore[arg-type]
    assert (two / "runs" / run.name / STATE_FOLDER / "step").read_text() == "4"


def test_an_installation_that_gets_a_store_sends_what_it_has(
    project: Project, machine: Machines, capsys: Any
):
    machine("web")
    made = make_trained("made", project)
    (made.run.path / "lock").touch()
    (made.run.path / "log.txt").write_text("kept")
    call_command("share_files")
    call_command("share_files")
    assert capsys.readouterr().out.splitlines() == ["2 folders sent.", "0 folders sent."]
    machine("worker one")
    call_command("verify_checkpoints", "made")
    assert set(shared_files.shared().listing("runs/made").files) == {"log.txt"}
