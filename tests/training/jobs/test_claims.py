"""Claims of every kind of background work: one worker at a time, and nothing lost or done twice."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from pytest_django import Settings

import annotation.tasks
import training.tasks
from annotation.choices import DeliveryState, ImportState
from annotation.errors import Refusal, Unavailable
from annotation.models import FileImport, Project, User, WebhookDelivery, WebhookMessage
from annotation.models.jobs import Claimable, Job
from annotation.services.job_runs import call_with_heartbeat, run_job
from annotation.services.jobs import (
    ClaimLostError,
    Heartbeat,
    claim,
    claimable,
    release,
    still_held,
    worker_is_stopping,
    write,
)
from annotation.services.judgments.submission import create_machine
from tests.annotation.webhooks.webhook_scene import make_webhook
from training.models import ArenaLink, CheckpointExport, DriftMeasurement, Judge, RoundStep
from training.services.checkpoints import register_starter
from training.services.rounds.controls import open_first_round

pytestmark = pytest.mark.django_db

MakeJob = Callable[[Project, User], Claimable]


def make_delivery(project: Project, manager: User) -> WebhookDelivery:
    endpoint = make_webhook(project, manager).endpoint
    message = WebhookMessage.objects.create(project=project, key="msg_1", event="webhook.test", body="{}")
    return WebhookDelivery.objects.create(
        message=message, endpoint=endpoint, next_attempt_at=timezone.now(), state=DeliveryState.WAITING
    )


def make_judge(project: Project, manager: User) -> Judge:
    return Judge.objects.create(
        project=project, user=create_machine(name="J"), name="J", checkpoint=register_starter(), template="?"
    )


KINDS: dict[str, MakeJob] = {
    "step": lambda project, manager: open_first_round(project=project).steps.get(),
    "export": lambda project, manager: CheckpointExport.objects.create(checkpoint=register_starter()),
    "drift": lambda project, manager: DriftMeasurement.objects.create(project=project),
    "judge": make_judge,
    "arena": lambda project, manager: ArenaLink.objects.create(
        project=project, name="A", prompts=1, sampling={}, created_by=manager
    ),
    "import": lambda project, manager: FileImport.objects.create(
        project=project, name="a.csv", digest="0" * 64, stored_as="a.csv", state=ImportState.WAITING
    ),
    "delivery": make_delivery,
}


@pytest.fixture(params=KINDS)
def job(request: pytest.FixtureRequest, project: Project, carol: User, rondo_home: object) -> Claimable:
    """A job of each kind that waits."""
    return KINDS[request.param](project, carol)


@pytest.fixture
def drift(project: Project) -> DriftMeasurement:
    return DriftMeasurement.objects.create(project=project)


def rows(job: Claimable):
    return type(job)._default_manager.all()


def fall_silent(job: Claimable, seconds: float) -> None:
    rows(job).filter(pk=job.pk).update(heartbeat_at=timezone.now() - timedelta(seconds=seconds))


def sweep() -> None:
    annotation.tasks.sweep()
    training.tasks.sweep()


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_that_claim_a_job_at_once_one_gets_it(job: Claimable):
    results: list[Claimable | None] = []
    start = threading.Barrier(4)

    def try_to_claim() -> None:
        start.wait()
        while True:
            try:
                results.append(claim(rows(job), job.pk))
                break
            except OperationalError:
                # The test's SQLite lives in memory, where a locked table is an error at once.
                continue
        connection.close()

    threads = [threading.Thread(target=try_to_claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    [winner] = filter(None, results)
    assert winner.worker == rows(job).get().worker != ""


def test_a_job_of_a_silent_worker_is_taken_over_and_what_the_loser_writes_late_is_refused(
    job: Claimable, settings: Settings
):
    late = claim(rows(job), job.pk)
    stale = max(settings.RONDO_STALE_SECONDS, job.MIN_STALE_SECONDS)
    fall_silent(job, stale - 10)
    assert claim(rows(job), job.pk) is None
    fall_silent(job, stale + 1)
    holder = claim(rows(job), job.pk)
    before = rows(job).values().get()
    settings.RONDO_HEARTBEAT_SECONDS = 0
    for write_late in (
        lambda: write(late),
        lambda: release(late),
        lambda: still_held(late).__enter__(),
        lambda: Heartbeat(late)(),
    ):
        with pytest.raises(ClaimLostError):
            write_late()
    assert rows(job).values().get() == before
    write(holder)
    ended = {} if isinstance(job, WebhookDelivery) else holder.end_values("waiting", "")
    release(holder, **ended)
    with pytest.raises(ClaimLostError):
        write(holder)
    assert rows(job).get().worker == ""


def test_a_lost_message_is_sent_again_by_the_sweep_and_a_doubled_one_claims_nothing(
    job: Claimable, sent: list[tuple[str, list[object]]]
):
    message = {
        RoundStep: ("training.tasks.advance_round", [getattr(job, "round_id", None)]),
        CheckpointExport: ("training.tasks.do_job", ["export", job.pk]),
        DriftMeasurement: ("training.tasks.do_job", ["drift", job.pk]),
        Judge: ("training.tasks.judge", [job.pk]),
        ArenaLink: ("training.tasks.prepare_arena", [job.pk]),
        FileImport: ("annotation.tasks.do_import", [job.pk]),
        WebhookDelivery: ("annotation.tasks.deliver_webhooks", []),
    }[type(job)]
    sent.clear()
    sweep()
    assert sent == [message]
    assert claim(rows(job), job.pk) is not None
    assert claim(rows(job), job.pk) is None
    sweep()
    assert len(sent) == 1
    fall_silent(job, 61)
    sweep()
    assert sent == [message] * 2


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (None, "finished", "done"),
        (Unavailable("away", "The cable is cut."), "waiting", "The cable is cut."),
        (OperationalError("server closed the connection"), "waiting", "waiting for a worker"),
        (Refusal("nothing", "There is nothing to do."), "failed", "There is nothing to do."),
        (OSError("The disk is full."), "failed", "The disk is full."),
        (ZeroDivisionError("x"), "failed", "ZeroDivisionError; see the log"),
    ],
)
@pytest.mark.parametrize("kind", ["export", "drift", "judge", "arena", "import"])
def test_how_a_job_ended_stands_in_its_row(
    kind: str, error: Exception | None, state: str, text: str, project: Project, carol: User
):
    job = KINDS[kind](project, carol)

    def work(job: Claimable, heartbeat: Heartbeat) -> str:
        if error is not None:
            raise error
        return "done"

    assert run_job(rows(job), job.pk, work)
    job.refresh_from_db()
    assert (job.worker, job.heartbeat_at) == ("", None)
    assert claimable(rows(job)).exists() == (state == "waiting")
    if isinstance(job, ArenaLink):
        assert job.progress == text
    elif isinstance(job, FileImport):
        assert (job.state, job.errors) == (state, [text] if state == "failed" else [])
    else:
        assert isinstance(job, Job)
        assert (job.state, job.error if state == "failed" else job.message) == (state, text)


def test_a_worker_that_stops_gives_its_job_back_and_the_next_one_does_it(drift: DriftMeasurement):
    worker_is_stopping.set()
    assert run_job(rows(drift), drift.pk, lambda job, heartbeat: str(heartbeat()))
    assert (rows(drift).get().state, rows(drift).get().worker) == ("waiting", "")
    worker_is_stopping.clear()
    assert run_job(rows(drift), drift.pk, lambda job, heartbeat: "done")
    assert run_job(rows(drift), drift.pk, lambda job, heartbeat: "again") is None
    assert (rows(drift).get().state, rows(drift).get().message) == ("finished", "done")


def test_a_worker_that_lost_its_job_says_nothing_of_its_end(drift: DriftMeasurement, settings: Settings):
    def work(job: DriftMeasurement, heartbeat: Heartbeat) -> str:
        fall_silent(job, settings.RONDO_STALE_SECONDS + 1)
        assert claim(rows(job), job.pk)
        return "too late"

    run_job(rows(drift), drift.pk, work)
    assert (rows(drift).get().state, rows(drift).get().message) == ("running", "")


# ── While the database does not answer ────────────────────────────────────────────────


def away(*_: object) -> None:
    raise OperationalError("server closed the connection unexpectedly")


# Outside of a transaction of the test's own, which would be broken by the first statement that fails.
@pytest.mark.django_db(transaction=True)
def test_a_heartbeat_that_the_database_does_not_take_stops_no_job(drift: DriftMeasurement):
    def work(job: DriftMeasurement, heartbeat: Heartbeat) -> str:
        with connection.execute_wrapper(away):
            assert not heartbeat(current=1, total=3)
        assert heartbeat(total=2)
        return "done"

    assert run_job(rows(drift), drift.pk, work)
    drift.refresh_from_db()
    assert (drift.state, drift.current, drift.total, drift.message) == ("finished", 1, 2, "done")


@pytest.mark.django_db(transaction=True)
def test_a_job_whose_database_stays_away_is_given_back_before_others_may_take_it(
    drift: DriftMeasurement, settings: Settings
):
    settings.RONDO_STALE_SECONDS = 0.0

    def work(job: DriftMeasurement, heartbeat: Heartbeat) -> str:
        with connection.execute_wrapper(away):
            heartbeat(current=1)
        return "done"

    assert run_job(rows(drift), drift.pk, work)
    drift.refresh_from_db()
    assert (drift.state, drift.worker, drift.error) == ("waiting", "", "")


@pytest.mark.django_db(transaction=True)
def test_a_job_that_cannot_even_be_given_back_is_found_silent(drift: DriftMeasurement, settings: Settings):
    def only_claims(execute, sql, params, many, context):
        if '"message" =' in sql:
            away()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(only_claims), pytest.raises(OperationalError):
        run_job(rows(drift), drift.pk, away)
    assert rows(drift).get().state == "running"
    settings.RONDO_STALE_SECONDS = 0.0
    assert run_job(rows(drift), drift.pk, lambda job, heartbeat: "done")
    assert rows(drift).get().message == "done"


def test_a_call_is_waited_for_with_heartbeats_and_its_own_timeout_is_an_error():
    ended = threading.Event()
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        if len(beats) == 2:
            ended.set()

    assert call_with_heartbeat(lambda: ended.wait(20), beat)
    assert len(beats) >= 2

    def times_out() -> None:
        raise TimeoutError("the server did not answer")

    with pytest.raises(TimeoutError, match="did not answer"):
        call_with_heartbeat(times_out, lambda: None)
