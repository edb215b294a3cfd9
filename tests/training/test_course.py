"""Lessons: run on request, checked against their claim, with progress for each learner and a class."""

import ast
import json
import math
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from annotation.choices import JobState, Polarity
from annotation.errors import Refusal
from annotation.models import Judgment, SpanFlag
from annotation.services.jobs import Heartbeat
from tests import factories
from training.contract.course import BY_SLUG, LESSONS, ROOT, Claim, Stated, mean_interval
from training.models import LessonRun
from training.selectors.course import class_of, lesson_view
from training.services import course

pytestmark = pytest.mark.django_db

DPO = BY_SLUG["dpo"]


def run_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    train = course.train
    monkeypatch.setattr(course, "train", lambda lesson, **rest: train(lesson, **rest, short=True))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_lesson_keeps_its_claim_and_breaks_it_when_broken():
    out = StringIO()
    call_command("course", "--check", stdout=out)
    assert out.getvalue().count("passed") == len(LESSONS)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)
def test_a_lesson_shows_the_source_as_it_stands_in_the_file(lesson):
    for shown in lesson.shown:
        line, text = shown.source()
        lines = (ROOT / shown.file).read_text().splitlines()
        assert text.splitlines() == lines[line - 1 : line - 1 + len(text.splitlines())]
        ast.parse("if True:\n" + text if text.startswith(" ") else text)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.slug)
def test_the_stated_figure_keeps_the_claim_and_has_a_day(lesson):
    stated = lesson.claim.stated
    assert stated.low <= stated.mean <= stated.high
    assert lesson.claim.holds({lesson.claim.figure: stated.mean})
    assert len(stated.measured) == len("2026-11-29")


def test_a_claim_holds_within_its_bounds_alone():
    stated = Stated(mean=1, low=1, high=1, measured="")
    claim = Claim(figure="x", sentence="", least=1.0, most=2.0, stated=stated)
    assert [claim.holds({"x": value}) for value in (0.99, 1.0, 2.0, 2.01, math.nan)] == [
        *(False, True, True, False, False)
    ]


def test_the_interval_of_a_mean_by_hand():
    # 1, 2, 3: mean 2, deviation 1, t(2) = 4.303, 4.303 / √3 = 2.484.
    assert mean_interval([1, 2, 3]) == pytest.approx((2, 2 - 2.4843, 2 + 2.4843), abs=1e-4)


def test_a_lesson_trains_on_request_and_its_check_can_fail(alice, monkeypatch):
    run_shortly(monkeypatch)
    run = course.request_run(lesson=DPO, learner=alice, broken=False)
    course.do_run(run.pk)
    run.refresh_from_db()
    assert run.state == JobState.FINISHED
    # Three steps of DPO do not reach the best policy.
    assert (run.is_kept, run.figures["distance"] > 0.05) == (False, True)
    assert all(later[0] > earlier[0] for earlier, later in pairwise(run.points))
    view = lesson_view(DPO, alice)
    assert view.passed_at is None
    assert view.plain.plot is not None
    assert [step for step, _values in view.plain.rows] == [point[0] for point in run.points]


def finished(learner, lesson=DPO, **fields) -> LessonRun:
    run = course.request_run(lesson=lesson, learner=learner, broken=fields.pop("broken", False))
    values = {"state": JobState.FINISHED, "is_kept": True, "figures": {lesson.claim.figure: 0.01}, **fields}
    LessonRun.objects.filter(pk=run.pk).update(**values, finished_at="2026-11-01T10:00Z")
    return run


def test_a_lesson_is_passed_by_a_plain_run_that_keeps_the_claim(alice):
    finished(alice, broken=True)
    finished(alice, is_kept=False)
    assert lesson_view(DPO, alice).passed_at is None
    finished(alice)
    assert lesson_view(DPO, alice).passed_at is not None


def test_runs_of_a_learner_go_on_one_at_a_time_and_have_seeds_in_order(alice, bob):
    first = course.request_run(lesson=DPO, learner=alice, broken=False)
    with pytest.raises(Refusal) as refused:
        course.request_run(lesson=DPO, learner=alice, broken=False)
    assert refused.value.code == "lesson_under_way"
    course.request_run(lesson=DPO, learner=bob, broken=False)
    LessonRun.objects.filter(pk=first.pk).update(state=JobState.FINISHED)
    assert course.request_run(lesson=DPO, learner=alice, broken=False).seed == first.seed + 1


def test_a_waiting_run_is_stopped_at_once_and_a_running_one_by_its_worker(alice, monkeypatch):
    waiting = course.request_run(lesson=DPO, learner=alice, broken=False)
    course.stop_runs(lesson=DPO, learner=alice)
    waiting.refresh_from_db()
    assert waiting.state == JobState.FAILED

    running = course.request_run(lesson=DPO, learner=alice, broken=True)

    def stopped(*_: object, beat: Heartbeat, **__: object) -> None:
        course.stop_runs(lesson=DPO, learner=alice)
        beat.write()

    monkeypatch.setattr(course, "train", stopped)

    course.do_run(running.pk)
    running.refresh_from_db()
    assert (running.state, running.is_kept) == (JobState.FAILED, None)


def test_a_line_that_is_not_whole_yet_is_left_out(tmp_path: Path):
    out = tmp_path / "out.jsonl"
    assert course.read_lines(out).points == []
    out.write_text(json.dumps({"step": 1, "values": {"x": 2.0}}) + '\n{"step": 2, "val')
    assert course.read_lines(out).points == [[1, {"x": 2.0}]]


def test_own_votes_are_the_best_response_against_the_worst(labelled, alice, bob):
    assert course.votes_of(bob) == []
    judgments = list(Judgment.objects.current().filter(annotator=alice))
    votes = course.votes_of(alice)
    pairs = set()
    for judgment in judgments:
        places = sorted(judgment.ranks.all(), key=lambda place: place.rank)
        if places and places[0].rank < places[-1].rank:
            pairs.add((places[0].completion.text, places[-1].completion.text))
    assert pairs
    assert {(vote["chosen"], vote["rejected"]) for vote in votes} == pairs


@pytest.mark.parametrize(
    ("lesson", "reader", "needed"),
    [("thirty-votes", "votes_of", 30), ("fine-grained-rewards", "marked_responses_of", 10)],
)
def test_a_lesson_says_whether_it_took_own_annotations(alice, monkeypatch, lesson, reader, needed):
    given = []

    def trained(lesson, *, own, **_):
        given.append(None if own is None else json.loads(own.read_text()))
        return course.LessonResult([], {lesson.claim.figure: 0.7})

    monkeypatch.setattr(course, "train", trained)
    messages = []
    for count in (needed - 1, needed):
        rows = [{"text": "a"}] * count
        monkeypatch.setattr(course, reader, lambda _, rows=rows: rows)
        run = course.request_run(lesson=BY_SLUG[lesson], learner=alice, broken=False)
        course.do_run(run.pk)
        run.refresh_from_db()
        messages.append(run.message)
    assert given == [None, rows]
    assert str(needed - 1) in messages[0]
    assert messages[0] != messages[1]


def test_own_marked_responses_are_those_with_errors_by_the_learner(project, alice, bob):
    merit = factories.make_category(project, "vivid", polarity=Polarity.MERIT)
    comparison = factories.make_comparison(project, ["Ten hours. Then drink it.", "Two minutes."])
    wrong, right = comparison.completions.order_by("pk")
    judgment = factories.make_judgment(comparison, alice)
    error = project.categories.get(key="untruthful")
    for category, completion, start, end, severity in (
        (error, wrong, 0, 9, 2),
        (error, wrong, 16, 21, None),
        (merit, right, 0, 3, None),
    ):
        SpanFlag.objects.create(
            judgment=judgment,
            completion=completion,
            category=category,
            start=start,
            end=end,
            quote=completion.text[start:end],
            severity=severity,
        )
    assert course.marked_responses_of(bob) == []
    assert course.marked_responses_of(alice) == [{"text": wrong.text, "spans": [(0, 9, 2), (16, 21, None)]}]


def test_the_class_counts_members_of_the_project_alone(project, alice, bob, oscar):
    finished(alice)
    finished(bob, broken=True)
    finished(oscar)
    rows = {row.learner.username: row.passed for row in class_of(project)}
    assert rows["alice"] == 1
    assert rows["bob"] == 0
    assert "oscar" not in rows


def test_the_pages_show_runs_of_the_reader_alone(alice, bob, client_of):
    finished(alice, points=[[1, {"distance": 0.5, "reward": 0.1}], [2, {"distance": 0.01, "reward": 0.2}]])
    page = reverse("lesson", args=["dpo"])
    curve = 'curve__line--0" points'
    assert curve in client_of(alice).get(page).content.decode()
    assert curve not in client_of(bob).get(page).content.decode()
    assert "<math" in client_of(bob).get(page).content.decode()
    assert client_of(bob).get(reverse("lesson", args=["no-such"])).status_code == 404


def test_a_form_starts_and_stops_a_run(alice, client_of):
    client = client_of(alice)
    client.post(reverse("lesson-run", args=["dpo"]), {"form": "broken"})
    run = LessonRun.objects.get()
    assert (run.created_by, run.broken, run.state) == (alice, True, JobState.WAITING)
    assert "every 2s" in client.get(reverse("lesson-live", args=["dpo"]), {"form": "broken"}).content.decode()
    client.post(reverse("lesson-stop", args=["dpo"]))
    run.refresh_from_db()
    assert run.state == JobState.FAILED


def test_the_command_lists_lessons_and_fails_where_a_claim_does_not_hold(monkeypatch):
    out = StringIO()
    call_command("course", "--list", stdout=out)
    assert [line.split()[0] for line in out.getvalue().splitlines()] == [lesson.slug for lesson in LESSONS]
    with pytest.raises(CommandError):
        call_command("course", "--check", "no-such")

    figures = {False: {"distance": 0.01}, True: {"distance": 0.2}}

    def trained(_lesson, *, broken, **_):
        return course.LessonResult([], figures[broken])

    monkeypatch.setattr("training.management.commands.course.train", trained)
    call_command("course", "--check", "dpo", stdout=out)
    # A lesson whose broken run keeps the claim shows nothing.
    figures[True] = {"distance": 0.01}
    with pytest.raises(CommandError):
        call_command("course", "--check", "dpo", stdout=out)


def test_the_check_runs_lessons_in_processes_of_their_own():
    out = StringIO()
    call_command("course", "--check", "dpo", "--seeds", "2", "--short", stdout=out)
    (line,) = out.getvalue().splitlines()
    assert line.split()[0] == "dpo"
    assert "ran" in line
    assert "distance" in line
