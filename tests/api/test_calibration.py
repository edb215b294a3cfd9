"""A calibration session over the API: begun, answered blind, revealed, seen side by side, changed, closed."""

from typing import Any

import pytest

from annotation.models import CalibrationSession, Comparison, Project, User
from annotation.services.calibration import reveal_session
from tests import factories
from tests.annotation.test_calibration import FIRST, SECOND, answer, record_of, submit
from tests.api.scene import Asker

pytestmark = pytest.mark.django_db
ADDRESS = "/projects/tea/calibrations/"
MARKER = "zxqmarker"


@pytest.fixture
def pairs(project: Project) -> list[Comparison]:
    return [factories.make_comparison(project, question=f"Question {number}?") for number in range(2)]


@pytest.fixture
def begun(project: Project, pairs: list[Comparison], as_carol: Asker) -> dict[str, Any]:
    """A session of Alice and Bob, as the API returns it."""
    body = {
        "name": "Spring",
        "participants": ["alice", "bob"],
        "comparisons": [pair.pk for pair in pairs] + [10**9],
    }
    made = as_carol.post(ADDRESS, body)
    assert made.status_code == 201, made.content
    assert list(made.json()["skipped"].values()) == [1]
    # The session counts in it.
    project.refresh_from_db()
    session: dict[str, Any] = made.json()["session"]
    return session


def test_a_session_from_its_beginning_to_its_close(
    begun: dict[str, Any],
    project: Project,
    pairs: list[Comparison],
    alice: User,
    bob: User,
    as_alice: Asker,
    as_carol: Asker,
):
    here = f"{ADDRESS}{begun['id']}/"
    assert (begun["comparisons"], [row["annotator"] for row in begun["participants"]]) == (
        2,
        ["alice", "bob"],
    )
    (first, _second) = answer(project, alice, FIRST, SECOND, comment=MARKER)
    answer(project, bob, SECOND, SECOND)
    progress = as_alice.get(here).json()["participants"]
    assert [(row["answered"], row["skipped"], row["left"]) for row in progress] == [(2, 0, 0), (2, 0, 0)]

    revealed = as_carol.post(f"{here}reveal/").json()
    assert revealed["revealed_by"] == "carol"
    assert as_carol.post(f"{here}reveal/").json()["code"] == "calibration_revealed"
    item = as_alice.get(f"{here}items/0/").json()
    assert [row["answer"] for row in item["answers"]] == ["1", "2"]
    votes = {row["annotator"]: row for row in item["votes"]}
    assert votes["alice"]["now"]["ranks"] == {"1": 1, "2": 2}
    assert votes["alice"]["now"]["comment"] == MARKER
    assert votes["bob"]["now"]["ranks"] == {"1": 2, "2": 1}
    assert not any(row["changed"] for row in item["votes"])

    said = as_alice.post(f"{here}items/0/talk/", {"text": "You are right, @bob."})
    assert said.status_code == 201
    assert [row["author"] for row in as_carol.get(f"{here}items/0/talk/").json()["results"]] == ["alice"]
    submit(first, alice, record_of(pairs[0], SECOND))
    changed = {row["annotator"]: row for row in as_carol.get(f"{here}items/0/").json()["votes"]}["alice"]
    assert changed["changed"]
    assert (changed["before"]["ranks"]["1"], changed["now"]["ranks"]["1"]) == (1, 2)

    assert as_carol.post(f"{here}close/").json()["closed_at"]
    results = as_alice.get(f"{here}results/").json()
    # Values + − and − −: observed disagreement 2 / 4, expected 2 · 1 · 3 / (4 · 3) = 1 / 2, so α = 0.
    # Afterwards all four are −: there is one value alone, and no α.
    (preference,) = (row for row in results["alphas"] if row["before"]["items"])
    assert preference["before"]["value"] == pytest.approx(0.0)
    assert (preference["after"]["value"], preference["after"]["missing"]) == (None, "one-value")
    assert [(row["index"], row["before"], row["after"]) for row in results["items"]] == [
        (0, 0.0, 1.0),
        (1, 1.0, 1.0),
    ]
    assert {row["session"] for row in results["curve"]} == {begun["id"]}


def test_before_the_reveal_no_operation_of_a_session_has_a_vote(
    begun: dict[str, Any], project: Project, alice: User, bob: User, as_alice: Asker, as_carol: Asker
):
    answer(project, alice, FIRST, SECOND, comment=MARKER)
    here = f"{ADDRESS}{begun['id']}/"
    for asker in (as_alice, Asker(bob), as_carol):
        for address in (f"{here}results/", f"{here}items/0/", f"{here}items/0/talk/"):
            got = asker.get(address)
            assert (got.status_code, got.json()["code"]) == (422, "calibration_not_revealed"), address
        assert MARKER not in asker.get(here).content.decode()


def test_a_comparison_that_is_asked_again_shows_no_vote_until_the_retest_is_revealed(
    begun: dict[str, Any], project: Project, alice: User, bob: User, carol: User, as_carol: Asker
):
    for person in (alice, bob):
        answer(project, person, FIRST, FIRST, comment=MARKER)
    session = CalibrationSession.objects.get()
    session.project = project
    reveal_session(session=session, revealed_by=carol)
    made = as_carol.post(f"{ADDRESS}{session.pk}/retest/", {"same": True})
    assert (made.status_code, made.json()["session"]["retest_of"]) == (201, session.pk)
    item = as_carol.get(f"{ADDRESS}{session.pk}/items/0/").json()
    assert (item["sealed"], item["votes"]) == (True, [])


def test_who_cannot_take_part_is_named(pairs: list[Comparison], oscar: User, as_carol: Asker):
    body = {"name": "Spring", "participants": ["alice", "oscar"], "comparisons": [pairs[0].pk]}
    refused = as_carol.post(ADDRESS, body).json()
    assert (refused["code"], refused["errors"][0]["field"]) == (
        "calibration_participant_unknown",
        "participants.1",
    )
    assert not CalibrationSession.objects.exists()


def test_a_session_that_is_deleted_leaves_its_annotations(
    begun: dict[str, Any], project: Project, alice: User, as_carol: Asker
):
    answer(project, alice, FIRST, SECOND)
    assert as_carol("DELETE", f"{ADDRESS}{begun['id']}/").status_code == 204
    listed = as_carol.get("/projects/tea/judgments/").json()["results"]
    assert len(listed) == 2
