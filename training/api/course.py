"""Lessons of the course: what they teach, the learner's own runs and progress, a project's class."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from training.contract.course import BY_SLUG, LESSONS, Lesson
from training.models import LessonRun
from training.selectors.course import LearnerRow, class_of, lessons_of
from training.services.course import request_run, stop_runs


class StatedSerializer(serializers.Serializer[Any]):
    """The figure of a claim over five seeds."""

    mean = fields.number()
    low = fields.number("Lower end of the mean's 95 % interval.")
    high = fields.number("Upper end of the mean's 95 % interval.")
    measured = fields.text("Day of the measurement.")


class ClaimSerializer(serializers.Serializer[Any]):
    """A figure of a run, and the bound that a plain run keeps and a broken one does not."""

    figure = fields.text("Its name among the figures of a run.")
    sentence = fields.text()
    least = fields.number("Lower bound; null where there is none.", allow_null=True)
    most = fields.number("Upper bound; null where there is none.", allow_null=True)
    stated = StatedSerializer()


class LessonSerializer(serializers.Serializer[Any]):
    """A lesson, and when you passed it."""

    slug = fields.text("Its name in addresses.")
    title = fields.text()
    idea = fields.text("What is learned.")
    equation = fields.text("LaTeX.")
    broken = fields.text("The setting that a broken run changes, and what that does.")
    learns_from = fields.text(
        "Annotations of yours that it learns from once there are enough: `votes`, `spans`, or empty."
    )
    claim = ClaimSerializer()
    passed_at = fields.time("End of your first plain run that keeps the claim; null before.", allow_null=True)


@fields.of(
    LessonRun,
    "id lesson broken seed state message error figures is_kept points created_at started_at finished_at",
)
class LessonRunSerializer(serializers.ModelSerializer[LessonRun]):
    """A run of a lesson."""

    message = fields.text("Says which data it learned from, where a lesson may learn from yours.")
    figures = serializers.DictField(help_text="By name; empty before the end.")
    points = fields.several(serializers.ListField(), "The curve so far: step, and the value of each line.")


class NewLessonRunSerializer(serializers.Serializer[Any]):
    """A run to start."""

    broken = fields.flag("With the setting changed that the lesson names.", default=False)


class ClassCellSerializer(serializers.Serializer[Any]):
    """One lesson of one member."""

    lesson = fields.text("Slug.")
    passed_at = fields.time(allow_null=True)
    runs = fields.integer("Plain runs so far.")


class ClassRowSerializer(serializers.Serializer[Any]):
    """A member of a project and the lessons."""

    username = fields.text()
    passed = fields.integer("Lessons passed.")
    lessons = ClassCellSerializer(many=True)


def learners(view: ApiView, *_row: object) -> None:
    """Refuse people of a panel, who are here for one task."""
    if view.user.is_participant:
        raise PermissionDenied


def _lesson(_view: ApiView, lesson: str) -> Lesson:
    if lesson not in BY_SLUG:
        raise Http404
    return BY_SLUG[lesson]


def _own_run(view: ApiView, pk: int) -> LessonRun:
    return get_object_or_404(LessonRun, created_by=view.user, pk=pk)


lessons = Resource(ApiView, "lessons/", tag="course")
lesson = lessons.item("<slug:lesson>/", find=_lesson)
lesson_run = Resource(ApiView, "lesson-runs/<int:pk>/", tag="course", find=_own_run)
lesson_class = Resource(ProjectView, f"{PROJECT}class/", tag="course")


@lessons.get(returns=[LessonSerializer], requires=learners)
def lessons_list(view: ApiView) -> list[Values]:
    """List the lessons, and when you passed them."""
    return [
        {
            "slug": row.slug,
            "title": _(row.title),
            "idea": _(row.idea),
            "equation": row.equation,
            "broken": _(row.broken),
            "learns_from": row.learns_from,
            "claim": {
                "figure": row.claim.figure,
                "sentence": _(row.claim.sentence),
                "least": row.claim.least,
                "most": row.claim.most,
                "stated": row.claim.stated,
            },
            "passed_at": passed_at,
        }
        for row, passed_at in lessons_of(view.user)
    ]


@lesson.get_list(LessonRunSerializer, "runs/", requires=learners)
def lesson_runs_list(view: ApiView, row: Lesson) -> QuerySet[LessonRun]:
    """List your runs of a lesson, newest first."""
    return LessonRun.objects.filter(created_by=view.user, lesson=row.slug)


@lesson.post(
    "runs/", takes=NewLessonRunSerializer, returns=LessonRunSerializer, status=202, requires=learners
)
def lesson_runs_start(view: ApiView, row: Lesson, values: Values) -> LessonRun:
    """Have a worker run a lesson, as it is or broken. 422 while a run of this form goes on."""
    return request_run(lesson=row, learner=view.user, broken=values["broken"])


@lesson.post("stop/", requires=learners)
def lesson_runs_stop(view: ApiView, row: Lesson) -> None:
    """Stop your runs of a lesson that go on. One that has ended stays as it is."""
    stop_runs(lesson=row, learner=view.user)


@lesson_run.get(returns=LessonRunSerializer)
def lesson_runs_read(view: ApiView, run: LessonRun) -> LessonRun:
    """Read a run of yours: its state, its curve so far, and at its end whether it keeps the claim."""
    return run


@lesson_class.get(returns=[ClassRowSerializer])
def class_read(view: ProjectView) -> list[Values]:
    """Read which member of a project has passed which lesson, who passed most first."""
    return [
        {"username": row.learner.username, "passed": row.passed, "lessons": _cells(row)}
        for row in class_of(view.project)
    ]


def _cells(row: LearnerRow) -> Sequence[Values]:
    return [
        {"lesson": each.slug, "passed_at": passed_at, "runs": runs}
        for each, (passed_at, runs) in zip(LESSONS, row.cells, strict=True)
    ]
