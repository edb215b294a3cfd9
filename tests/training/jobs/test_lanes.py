"""Lanes and caps: what people wait for never stands behind jobs of hours, nor behind one project's jobs."""

import pytest
from celery import current_app
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from annotation.choices import ImportState
from annotation.choices import TaskName as ShortTask
from annotation.models import FileImport, Project, User
from annotation.selectors.jobs import IMPORTS_AT_ONCE, imports_ahead
from annotation.services import jobs
from annotation.services.jobs import PROJECT_IS_FULL, claim
from annotation.services.judgments.submission import create_machine
from tests import factories
from training.choices import StepKind, TrainingTask
from training.models import DriftMeasurement, FeedbackSettings, Judge, Round, RoundStep
from training.services.checkpoints import register_starter
from webapp.supervision import programs

pytestmark = pytest.mark.django_db


def queue_of(task: str) -> str:
    return str(current_app.amqp.router.route({}, task)["queue"].name)


def queues_of(program: programs.Program) -> str:
    return program.command[program.command.index("--queues") + 1]


def make_import(project: Project, digest: str, state: ImportState = ImportState.WAITING) -> FileImport:
    return FileImport.objects.create(
        project=project, name=f"{digest}.jsonl", digest=digest, stored_as=digest, state=state
    )


def make_judge(project: Project, name: str) -> Judge:
    return Judge.objects.create(
        project=project, name=name, user=create_machine(name=name), checkpoint=register_starter()
    )


def make_step(project: Project) -> RoundStep:
    round_ = Round.objects.create(project=project, policy=register_starter(), recipe={})
    return RoundStep.objects.create(round=round_, position=0, kind=StepKind.ANSWER_PROMPTS)


@pytest.mark.parametrize("task", [*ShortTask, TrainingTask.SWEEP, TrainingTask.RETENTION])
def test_imports_mail_webhooks_and_sweeps_have_a_lane_that_no_long_job_enters(task: str):
    assert queue_of(task) == queues_of(programs.short_worker()) == "short"


@pytest.mark.parametrize("task", sorted({*TrainingTask} - {TrainingTask.SWEEP, TrainingTask.RETENTION}))
def test_jobs_of_hours_stay_out_of_the_short_lane(task: str):
    assert queue_of(task) == queues_of(programs.worker()) == "celery"


def test_a_worker_without_queues_takes_from_both_lanes():
    assert set(current_app.amqp.queues.consume_from) >= {"celery", "short"}


def test_a_project_has_so_many_judges_at_work_and_its_round_finds_room(project: Project, settings: Settings):
    settings.RONDO_JOBS_PER_PROJECT = 3
    judges = [make_judge(project, str(n)) for n in range(3)]
    step = make_step(project)
    assert claim(Judge.objects.all(), judges[0].pk)
    assert claim(Judge.objects.all(), judges[1].pk)
    assert claim(Judge.objects.all(), judges[2].pk) is None
    judges[2].refresh_from_db()
    assert (judges[2].worker, judges[2].message) == ("", PROJECT_IS_FULL)
    assert claim(RoundStep.objects.all(), step.pk)
    assert claim(DriftMeasurement.objects.all(), DriftMeasurement.objects.create(project=project).pk) is None


def test_a_full_project_keeps_no_other_project_waiting(project: Project, settings: Settings):
    settings.RONDO_JOBS_PER_PROJECT = 1
    other = factories.make_project(slug="another")
    first, second, third = make_judge(project, "1"), make_judge(project, "2"), make_judge(other, "1")
    assert claim(Judge.objects.all(), first.pk)
    assert claim(Judge.objects.all(), second.pk) is None
    assert claim(Judge.objects.all(), third.pk)


def test_a_job_whose_worker_is_dead_takes_no_place(project: Project, settings: Settings):
    settings.RONDO_JOBS_PER_PROJECT = 1
    settings.RONDO_STALE_SECONDS = 0
    first, second = make_judge(project, "1"), make_judge(project, "2")
    assert claim(Judge.objects.all(), first.pk)
    assert claim(Judge.objects.all(), second.pk)


def test_every_kind_of_job_with_a_cap_knows_its_project(project: Project, settings: Settings):
    # FeedbackSettings is a job whose row exists before any work.
    settings.RONDO_JOBS_PER_PROJECT = 1
    assert claim(Judge.objects.all(), make_judge(project, "1").pk)
    row = FeedbackSettings.objects.create(project=project)
    assert claim(FeedbackSettings.objects.all(), row.pk) is None


def test_imports_of_a_project_go_one_by_one_and_leave_room_for_mail(project: Project):
    first, second = make_import(project, "a"), make_import(project, "b")
    assert claim(FileImport.objects.all(), first.pk)
    assert claim(FileImport.objects.all(), second.pk) is None
    others = [
        make_import(factories.make_project(slug=f"project-{n}"), str(n)) for n in range(IMPORTS_AT_ONCE)
    ]
    claimed = [claim(FileImport.objects.all(), record.pk) for record in others]
    assert [bool(record) for record in claimed] == [True] * (IMPORTS_AT_ONCE - 1) + [False]
    command = programs.short_worker().command
    assert int(command[command.index("--concurrency") + 1]) > IMPORTS_AT_ONCE


def test_an_import_that_waits_says_how_many_it_waits_behind(project: Project, client: Client, carol: User):
    running = make_import(project, "a")
    FileImport.objects.filter(pk=running.pk).update(
        state=ImportState.RUNNING, worker="box:1", heartbeat_at=Now()
    )
    make_import(project, "b")
    last = make_import(project, "c")
    assert imports_ahead(last) == 2
    assert imports_ahead(FileImport.objects.get(pk=running.pk)) == 0
    client.force_login(carol)
    page = client.get(reverse("transfer", args=[project.slug, last.pk]), headers={"HX-Request": "true"})
    assert page.context["ahead"] == 2


def test_a_message_of_a_sweep_that_nobody_takes_is_dropped_and_sent_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, settings: Settings
):
    settings.RONDO_SWEEP_SECONDS = 5
    record, sent = make_import(project, "a"), []
    monkeypatch.setattr(jobs, "_quiet_until", 0.0)
    monkeypatch.setattr(
        "annotation.services.jobs.current_app.send_task",
        lambda task, **options: sent.append((task, options)),
    )
    jobs.sweep(FileImport.objects.all(), ShortTask.DO_IMPORT)
    assert sent == [(ShortTask.DO_IMPORT, {"args": [record.pk], "expires": 15})]
