"""The course by the API: lessons, own runs and progress, and the class of a project."""

import pytest

from annotation.choices import JobState
from annotation.models import Project, User
from tests.api.scene import Asker
from training.contract.course import BY_SLUG, LESSONS
from training.models import LessonRun
from training.services.course import request_run

pytestmark = pytest.mark.django_db


def test_lessons_are_listed_with_their_claims_and_ones_own_progress(alice: User, bob: User):
    run = request_run(lesson=BY_SLUG["dpo"], learner=alice, broken=False)
    LessonRun.objects.filter(pk=run.pk).update(
        state=JobState.FINISHED, is_kept=True, finished_at="2026-11-01T10:00Z"
    )
    of_alice, of_bob = (
        {lesson["slug"]: lesson for lesson in Asker(user)("GET", "/lessons/").json()} for user in (alice, bob)
    )
    assert list(of_alice) == [lesson.slug for lesson in LESSONS]
    assert {slug for slug, lesson in of_alice.items() if lesson["passed_at"]} == {"dpo"}
    assert not any(lesson["passed_at"] for lesson in of_bob.values())
    claim = BY_SLUG["dpo"].claim
    assert (of_bob["dpo"]["claim"]["figure"], of_bob["dpo"]["claim"]["most"]) == (claim.figure, claim.most)
    assert of_bob["fine-grained-rewards"]["learns_from"] == "spans"


def test_a_run_is_started_read_and_stopped_by_its_learner_alone(alice: User, bob: User):
    ask, ask_as_bob = Asker(alice), Asker(bob)
    started = ask("POST", "/lessons/dpo/runs/", {"broken": True})
    assert started.status_code == 202
    run = LessonRun.objects.get()
    assert (run.pk, run.created_by, run.broken) == (started.json()["id"], alice, True)
    again = ask("POST", "/lessons/dpo/runs/", {"broken": True})
    assert (again.status_code, again.json()["code"]) == (422, "lesson_under_way")
    LessonRun.objects.filter(pk=run.pk).update(points=[[1, {"distance": 0.5}]], figures={"distance": 0.5})
    read = ask("GET", f"/lesson-runs/{run.pk}/").json()
    assert (read["state"], read["points"], read["figures"]) == (
        *("waiting", [[1, {"distance": 0.5}]]),
        {"distance": 0.5},
    )
    assert ask_as_bob("GET", f"/lesson-runs/{run.pk}/").status_code == 404
    assert ask_as_bob("GET", "/lessons/dpo/runs/").json()["results"] == []
    assert ask_as_bob("POST", "/lessons/dpo/stop/").status_code == 204
    assert ask("GET", "/lessons/dpo/runs/").json()["results"][0]["state"] == "waiting"
    ask("POST", "/lessons/dpo/stop/")
    run.refresh_from_db()
    assert run.state == JobState.FAILED
    assert ask("GET", "/lessons/no-such/runs/").status_code == 404


def test_a_token_that_reads_starts_nothing_and_a_participant_sees_no_lesson(alice: User):
    reader = Asker(alice, scopes=("read",))
    assert reader("GET", "/lessons/").status_code == 200
    assert reader("POST", "/lessons/dpo/runs/", {}).status_code == 403
    User.objects.filter(pk=alice.pk).update(is_participant=True)
    ask = Asker(alice)
    assert ask("GET", "/lessons/").status_code == 403
    assert ask("POST", "/lessons/dpo/runs/", {}).status_code == 403
    assert not LessonRun.objects.exists()


def test_the_class_names_members_and_the_lessons_they_passed(project: Project, alice: User, carol: User):
    run = request_run(lesson=BY_SLUG["dpo"], learner=alice, broken=False)
    LessonRun.objects.filter(pk=run.pk).update(
        state=JobState.FINISHED, is_kept=True, finished_at="2026-11-01T10:00Z"
    )
    rows = Asker(carol)("GET", f"/projects/{project.slug}/class/").json()
    assert (rows[0]["username"], rows[0]["passed"]) == ("alice", 1)
    assert {cell["lesson"]: (bool(cell["passed_at"]), cell["runs"]) for cell in rows[0]["lessons"]}[
        "dpo"
    ] == (*(True, 1),)
