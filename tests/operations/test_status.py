"""The page and the command say what is wrong, in a sentence, with the remedy and the place."""

import io
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from annotation.choices import JobState
from annotation.models import FileImport, Project, User
from tests import factories
from tests.operations.conftest import MakeWorker
from training.choices import RoundState, StepState
from training.engine import EngineError
from training.models import DriftMeasurement, Round, RoundStep
from training.services.rounds.controls import open_first_round
from webapp.operations import health, reach, state, work
from webapp.operations.health import Level
from webapp.operations.state import look

pytestmark = pytest.mark.django_db


def texts(findings) -> list[str]:
    return [str(finding.says) for finding in (findings if isinstance(findings, list) else [findings])]


# ── Workers and queues ────────────────────────────────────────────────────────────────


def test_without_a_worker_something_is_wrong():
    (only,) = health.workers()
    assert only.is_wrong
    assert "No worker is at work" in str(only.says)


def test_a_worker_that_lives_says_what_it_takes(make_worker: MakeWorker):
    make_worker("box:1:abc", queues=["celery", "gpu"])
    assert texts(health.workers()) == ["Worker box:1:abc does 4 jobs at once from celery, gpu."]


def test_a_silent_worker_is_told_and_counts_for_nothing(make_worker: MakeWorker):
    make_worker(silent=125)
    findings = health.workers()
    assert [finding.level for finding in findings] == [Level.WRONG, Level.ATTENTION]
    assert "last heard of 12" in texts(findings)[1]


def test_a_queue_in_which_messages_wait_for_nobody_is_wrong(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
):
    make_worker(queues=["celery"])
    monkeypatch.setattr(work, "known_queues", lambda: {"celery", "gpu"})
    monkeypatch.setattr(work, "depths", lambda names, seconds: {"celery": 3, "gpu": 2})
    of_celery, of_gpu = health.waiting_messages()
    assert of_celery.level is Level.FINE
    assert str(of_celery.says) == "3 messages wait in the queue celery."
    assert of_gpu.is_wrong
    assert "--queues gpu" in str(of_gpu.remedy)


def test_a_broker_that_fails_leaves_the_rest_of_the_page(monkeypatch: pytest.MonkeyPatch):
    def refuse(names, seconds):
        raise ConnectionRefusedError

    monkeypatch.setattr(work, "depths", refuse)
    assert [finding.level for finding in health.waiting_messages()] == [Level.ATTENTION]


def test_a_worker_of_another_commit_is_told(make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "_commit", lambda: "a" * 40)
    make_worker("old:1:abc", version="b" * 40)
    make_worker("new:1:abc", version="a" * 40)
    assert texts(health.other_versions()) == ["Worker old:1:abc runs Rondo bbbbbbbbbbbb."]


# ── Jobs and leases ───────────────────────────────────────────────────────────────────


def test_jobs_that_failed_wait_or_fell_silent_are_told_with_their_list(project: Project):
    assert texts(health.jobs()) == ["No job failed in the last 24 hours, and none waits for long."]
    now = timezone.now()
    drift = DriftMeasurement.objects.create(project=project)
    DriftMeasurement.objects.update(created_at=now - timedelta(hours=1))
    (waits,) = health.jobs()
    assert "has waited for 1\xa0hour" in str(waits.says)
    assert waits.link == "/admin/training/driftmeasurement/?state__exact=waiting"

    DriftMeasurement.objects.update(state=JobState.RUNNING, heartbeat_at=now - timedelta(minutes=5))
    assert texts(health.jobs()) == [
        "Measurements of drift: 1 run by their row, but their worker has fallen silent."
    ]
    DriftMeasurement.objects.filter(pk=drift.pk).update(state=JobState.FAILED, finished_at=now)
    assert texts(health.jobs()) == ["Measurements of drift: 1 failed in the last 24 hours."]
    DriftMeasurement.objects.update(finished_at=now - timedelta(hours=25))
    assert [finding.level for finding in health.jobs()] == [Level.FINE]


def test_every_list_that_a_finding_leads_to_opens(
    project: Project, admin: User, client_of: Callable[[User], Client]
):
    browser = client_of(admin)
    for job in work.jobs():
        for query in ("running", "waiting", "failed"):
            answer = browser.get(f"{job.link}?state__exact={query}")
            # The admin answers what it does not know with a redirect to the whole list.
            assert answer.status_code == 200, job.kind


def test_a_step_waits_since_the_one_before_it_ended(project: Project, monkeypatch: pytest.MonkeyPatch):
    round_ = open_first_round(project=project)
    round_.steps.all().delete()
    began = timezone.now() - timedelta(hours=3)
    Round.objects.update(state=RoundState.TRAINING_POLICY, started_at=began)
    ended = began + timedelta(hours=1)
    RoundStep.objects.create(
        round=round_, kind="freeze_snapshot", position=1, state=StepState.FINISHED, finished_at=ended
    )
    waiting = RoundStep.objects.create(round=round_, kind="train_policy", position=2)
    RoundStep.objects.create(round=round_, kind="evaluate", position=3)
    by_kind = {job.kind: job for job in work.jobs()}
    assert by_kind["step"].oldest_waiting == ended
    assert by_kind["step"].states["waiting"] == 2
    # The third waits for the second, not for a worker.
    waiting.state, waiting.worker, waiting.heartbeat_at = StepState.RUNNING, "w", timezone.now()
    waiting.save()
    assert {job.kind: job for job in work.jobs()}["step"].oldest_waiting is None


def test_leases_are_counted_and_those_that_ran_out_told(project: Project, alice: User, bob: User):
    for user in (alice, bob):
        factories.lease_to(factories.make_comparison(project), user)
    assert texts(health.leases()) == ["Annotators hold 2 items."]
    alice.assignments.update(lease_expires_at=timezone.now() - timedelta(hours=1))
    assert work.leases().overdue == 1
    assert 3590 < work.leases().oldest_overdue_seconds < 3700
    assert "1 lease has run out" in texts(health.leases())[0]


def test_an_import_that_waits_is_a_job(project: Project):
    FileImport.objects.create(project=project, name="tea.jsonl", digest="0" * 64, state="waiting")
    assert {job.kind: job.states["waiting"] for job in work.jobs()}["import"] == 1


# ── Clocks, settings, back-ups ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.5, Level.FINE), (-3.0, Level.ATTENTION), (31.0, Level.WRONG)]
)
def test_clocks_that_part_are_told(ahead: float, level: Level, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "clock_ahead", lambda: ahead)
    assert [finding.level for finding in health.clock()] == [level]


def test_a_workers_clock_is_looked_at_too(make_worker: MakeWorker):
    make_worker(clock_ahead=-12.25)
    assert texts(health.clock()) == [
        "The clock of worker box:1:abc is 12.2 seconds off that of the database."
    ]


def test_what_the_deployment_checks_complain_of_stands_there_once_others_reach_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    # Tests in a browser set it for their process; Django complains of it without a hint.
    monkeypatch.delenv("DJANGO_ALLOW_ASYNC_UNSAFE", raising=False)
    assert [finding.level for finding in health.deployment()] == [Level.FINE]
    settings.ALLOWED_HOSTS = ["rondo.example.org"]
    # A process looks once.
    health._complaints.cache_clear()
    findings = health.deployment()
    health._complaints.cache_clear()
    assert any(
        finding.is_wrong and "cross the network in the clear" in str(finding.says) for finding in findings
    )
    assert all(finding.remedy for finding in findings if finding.is_wrong)


@pytest.mark.parametrize("as_list", [False, True])
def test_the_age_of_the_last_backup_is_told(rondo_home: Path, as_list: bool):
    assert "No back-up was ever made" in texts(health.backups())[0]
    stamp = rondo_home / "backups.json"
    for age, level in ((timedelta(hours=3), Level.FINE), (timedelta(days=3), Level.ATTENTION)):
        backup = {"time": (timezone.now() - age).isoformat(), "files": 3}
        stamp.write_text(json.dumps([{"time": "2020-01-01T00:00:00+00:00"}, backup] if as_list else backup))
        assert health.backups().level is level
    stamp.write_text("no JSON")
    assert health.backups().level is Level.ATTENTION


# ── The page ──────────────────────────────────────────────────────────────────────────


def test_the_page_shows_findings_remedies_and_places(
    project: Project,
    admin: User,
    client_of: Callable[[User], Client],
    make_worker: MakeWorker,
    model_server_answers: None,
):
    make_worker(silent=120)
    page = client_of(admin).get(reverse("status")).content.decode()
    assert "1 thing does not work." in page
    assert "No worker is at work" in page
    assert "celery --app webapp worker" in page
    assert 'href="/admin/training/worker/"' in page
    assert 'hx-trigger="every 15s"' in page
    assert 'hx-trigger="every 15s"' not in client_of(admin).get("/status/?still=1").content.decode()


def test_htmx_gets_only_what_changes(admin: User, client_of: Callable[[User], Client]):
    answer = client_of(admin).get(reverse("status"), headers={"HX-Request": "true"})
    assert answer.content.strip().startswith(b'<div id="findings"')
    assert "no-store" in answer.headers["Cache-Control"]


def test_the_page_costs_the_same_few_queries_however_much_there_is(
    project: Project, admin: User, make_worker: MakeWorker, django_assert_max_num_queries
):
    for number in range(20):
        make_worker(f"box:{number}:abc")
        FileImport.objects.create(project=project, name="x", digest=f"{number:064d}", state="failed")
    with django_assert_max_num_queries(50):
        look()


def test_a_worker_whose_name_is_a_script_is_text(
    admin: User, client_of: Callable[[User], Client], make_worker: MakeWorker
):
    make_worker("<script>alert(1)</script>")
    assert b"<script>alert(1)" not in client_of(admin).get(reverse("status")).content


# ── The command ───────────────────────────────────────────────────────────────────────


def doctor(*arguments: str) -> tuple[str, int]:
    out = io.StringIO()
    try:
        call_command("doctor", *arguments, stdout=out, no_color=True)
    except SystemExit as ending:
        return out.getvalue(), int(ending.code or 0)
    return out.getvalue(), 0


def test_the_doctor_says_the_same_and_ends_with_1_where_something_is_wrong(model_server_answers: None):
    output, status = doctor()
    assert status == 1
    assert output.startswith("WRONG No worker is at work")
    assert "      Start one: celery" in output
    assert all(str(finding.says) in output for finding in look().findings)


def test_the_doctor_ends_with_0_where_nothing_is_wrong(
    make_worker: MakeWorker, model_server_answers: None, monkeypatch: pytest.MonkeyPatch
):
    make_worker()
    output, status = doctor("--quiet")
    assert status == 0
    assert "WRONG" not in output
    assert "\nok" not in output


def test_without_the_database_the_rest_is_still_told(
    monkeypatch: pytest.MonkeyPatch, model_server_answers: None
):
    def refuse(*_: object) -> None:
        raise DatabaseError("connection refused; password=hunter2secret")

    monkeypatch.setattr(reach, "_asked_of_database", refuse)
    output, status = doctor()
    assert status == 1
    assert "The database is unavailable: connection refused" in output
    assert "hunter2secret" not in output
    assert "Workers, jobs and leases cannot be looked at." in output
    assert "No back-up was ever made" in output


def test_a_check_that_the_database_fails_in_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, model_server_answers: None
):
    def leases():
        raise DatabaseError("relation is gone")

    monkeypatch.setattr(state, "_NEEDS_THE_DATABASE", (leases,))
    assert any("asked about leases" in str(finding.says) for finding in look().findings)


@pytest.mark.postgres
def test_a_database_that_hangs_is_told_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reach, "SECONDS", 1)

    def sleep(database_connection):
        with database_connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr(reach, "_version_and_size", sleep)
    finding = reach.database()
    assert finding.is_wrong
    assert connection.vendor == "postgresql"


def test_a_model_server_with_another_key_is_a_finding(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> None:
        raise EngineError("Wrong or missing key. Send 'Authorization: Bearer KEY'.")

    monkeypatch.setattr(reach, "_ask_model_server", refuse)
    finding = reach.model_server()
    assert "cannot respond: Wrong or missing key" in str(finding.says)
    assert "RONDO_MODEL_SERVER_KEY" in str(finding.remedy)
