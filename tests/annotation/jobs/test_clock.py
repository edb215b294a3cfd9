"""A clock that jumps: no job waits for it to catch up, and none is done twice."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from annotation.choices import ImportState
from annotation.models import FileImport, Project
from annotation.services.jobs import ClaimLostError, claim, write

pytestmark = pytest.mark.django_db


@pytest.fixture
def record(project: Project) -> FileImport:
    """A file that waits for a worker."""
    return FileImport.objects.create(
        project=project, name="a.jsonl", digest="a", stored_as="a", state=ImportState.WAITING
    )


@pytest.mark.parametrize("jump", [timedelta(days=1), timedelta(days=-1)], ids=["forward", "back"])
def test_a_job_of_a_dead_worker_is_taken_over_after_the_clock_jumped(
    record: FileImport, jump: timedelta, settings: Settings
):
    late = claim(FileImport.objects.all(), record.pk)
    assert late is not None
    # The clock jumps: the last heartbeat now lies a day back, or a day ahead.
    FileImport.objects.update(heartbeat_at=Now() - jump)
    assert claim(FileImport.objects.all(), record.pk) is not None
    # The worker was alive after all: whatever it still writes is refused.
    with pytest.raises(ClaimLostError):
        write(late, rows_done=1)


def test_a_live_worker_keeps_its_job_once_it_has_written_after_the_jump(record: FileImport):
    holder = claim(FileImport.objects.all(), record.pk)
    assert holder is not None
    FileImport.objects.update(heartbeat_at=Now() + timedelta(days=1))
    write(holder)
    assert claim(FileImport.objects.all(), record.pk) is None
