"""Drawn requests to every operation, by people with and without the right to send them."""

from pathlib import Path

import pytest

from annotation.models import User
from tests.api.fuzzing.running import CHECKS, configuration, labels, run
from tests.api.scene import Scene

OF_MEMBERS = {"account", "labelling"}
"""Tags of operations that concern whoever asks: a superuser has no assignments here."""

pytestmark = [pytest.mark.slow, pytest.mark.django_db]


@pytest.mark.long
def test_a_member_meets_each_boundary_of_labelling_where_the_document_names_it(
    scene: Scene, people: dict[str, User], tmp_path: Path
):
    operations = labels(only=OF_MEMBERS)
    outcome = run(
        configuration(scene, people, tmp_path, who="member", phase="coverage", operations=operations)
    )
    assert "\n\n".join(outcome.faults) == ""
    assert set(outcome.sent) == operations
    assert {200, 204, 400, 401, 405, 415, 422} <= set(outcome.statuses)


@pytest.mark.parametrize(
    ("who", "examples", "meets"),
    [
        ("manager", 1, {200, 201, 422}),
        # tests/api/test_who_may.py asks for every operation as everybody.
        pytest.param("member", 1, {200, 403, 422}, marks=pytest.mark.long),
        pytest.param("outsider", 1, {200, 403, 404}, marks=pytest.mark.long),
        pytest.param("manager", 6, {200, 201, 422}, marks=pytest.mark.long),
    ],
)
def test_drawn_requests_of_anyone_get_what_the_document_says(
    scene: Scene, people: dict[str, User], tmp_path: Path, who: str, examples: int, meets: set[int]
):
    drawn = configuration(
        scene, people, tmp_path, who=who, phase="fuzzing", operations=labels(), examples=examples
    )
    outcome = run(drawn)
    assert "\n\n".join(outcome.faults) == ""
    assert outcome.checks == CHECKS
    assert set(outcome.sent) == labels()
    assert meets <= set(outcome.statuses)
