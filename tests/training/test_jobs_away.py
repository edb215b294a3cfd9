"""Background jobs while the database is away: for a moment nobody notices, for longer they wait."""

import pytest
from django.db import OperationalError, connection

from annotation.models import Project, User
from training.choices import JobState
from training.models import DriftMeasurement
from training.services import jobs

# Outside of a transaction of the test's own, which would be broken by the first statement that fails.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(project: Project, carol: User) -> DriftMeasurement:
    return DriftMeasurement.objects.create(project=project, created_by=carol)


def away(*_: object) -> None:
    raise OperationalError("server closed the connection unexpectedly")


def test_a_heartbeat_that_the_database_does_not_take_stops_no_job(
    job: DriftMeasurement, monkeypatch: pytest.MonkeyPatch, settings
):
    settings.RONDO_HEARTBEAT_SECONDS = 0.0

    def work(job: DriftMeasurement, pulse: jobs.JobPulse) -> str:
        with connection.execute_wrapper(away):
            pulse(current=1, total=3)
        pulse(total=2)
        return "done"

    assert jobs.carry_out(DriftMeasurement, job.pk, work)
    job.refresh_from_db()
    assert (job.state, job.current, job.total, job.message) == (JobState.FINISHED, 1, 2, "done")


def test_a_job_whose_database_stays_away_is_given_back_before_others_may_take_it(
    job: DriftMeasurement, settings
):
    settings.RONDO_HEARTBEAT_SECONDS = settings.RONDO_STALE_SECONDS = 0.0

    def work(job: DriftMeasurement, pulse: jobs.JobPulse) -> str:
        with connection.execute_wrapper(away):
            pulse(current=1)
        return "done"

    assert jobs.carry_out(DriftMeasurement, job.pk, work)
    job.refresh_from_db()
    assert (job.state, job.worker, job.error) == (JobState.WAITING, "", "")


def test_a_job_that_cannot_even_be_given_back_is_found_silent(job: DriftMeasurement, settings):
    def work(job: DriftMeasurement, pulse: jobs.JobPulse) -> str:
        raise OperationalError("server closed the connection unexpectedly")

    def only_claims(execute, sql, params, many, context):
        if '"message" =' in sql:
            raise OperationalError("server closed the connection unexpectedly")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(only_claims), pytest.raises(OperationalError):
        jobs.carry_out(DriftMeasurement, job.pk, work)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    settings.RONDO_STALE_SECONDS = 0.0
    assert jobs.carry_out(DriftMeasurement, job.pk, lambda job, pulse: "done")
    job.refresh_from_db()
    assert (job.state, job.message) == (JobState.FINISHED, "done")
