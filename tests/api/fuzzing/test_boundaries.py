"""Every value and omission that the document distinguishes, sent by somebody who may do everything."""

from pathlib import Path

import pytest

from annotation.models import User
from tests.api.fuzzing.exceptions import REFUSALS
from tests.api.fuzzing.running import CHECKS, configuration, labels, run
from tests.api.fuzzing.test_people import OF_MEMBERS
from tests.api.scene import Scene


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db
def test_a_superuser_meets_each_boundary_where_the_document_names_it(
    scene: Scene, people: dict[str, User], tmp_path: Path
):
    operations = labels(without=OF_MEMBERS)
    outcome = run(
        configuration(scene, people, tmp_path, who="superuser", phase="coverage", operations=operations)
    )
    assert "\n\n".join(outcome.faults) == ""
    assert outcome.checks == CHECKS
    assert set(outcome.sent) == operations
    # Had every request been refused at the door, nothing would have been looked at.
    assert {200, 201, 202, 204, 400, 401, 404, 405, 415, 422} <= set(outcome.statuses)


def test_only_operations_of_the_document_are_excepted():
    assert labels() >= set(REFUSALS)
