"""Runs of lessons: requested, trained in a process of their own, checked against the claim, stopped."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from annotation.choices import JobState, Polarity, Purpose
from annotation.errors import Refusal
from annotation.models import Judgment, SpanFlag, User
from annotation.services.job_runs import run_job
from annotation.services.jobs import Heartbeat, send_after_commit, sweep, write
from training.choices import JobKind, TrainingTask
from training.contract.course import BY_SLUG, Lesson
from training.models import LessonRun
from training.services.runs.launcher import refuse_failed, run_process, trainer_environment

MOST_SECONDS = 600.0
"""After so long a run of a lesson is ended."""
VOTES_NEEDED, MARKED_NEEDED, MOST_OWN = 30, 10, 300
"""Own votes, and own responses with marked errors, from which a lesson takes them; how many it looks at."""


def request_run(*, lesson: Lesson, learner: User, broken: bool) -> LessonRun:
    """Have a worker run a lesson. Each run of a learner has the next seed, the first one seed 0.

    Refuses a second run of the same form while one goes on.
    """
    seed = LessonRun.objects.filter(created_by=learner, lesson=lesson.slug, broken=broken).count()
    try:
        with transaction.atomic():
            run = LessonRun.objects.create(
                lesson=lesson.slug,
                broken=broken,
                seed=seed,
                created_by=learner,
                message="waiting for a worker",
            )
            send_after_commit(TrainingTask.DO_JOB, JobKind.LESSON, run.pk)
    except IntegrityError:
        raise Refusal("lesson_under_way", _("This lesson is running already. Wait for it.")) from None
    return run


def stop_runs(*, lesson: Lesson, learner: User) -> None:
    """Stop the runs of a lesson that a learner has going on. One that has ended stays as it is."""
    going_on = LessonRun.objects.filter(
        lesson=lesson.slug, created_by=learner, state__in=(JobState.WAITING, JobState.RUNNING)
    )
    going_on.filter(worker="").update(state=JobState.FAILED, error=_("Stopped."), finished_at=Now())
    going_on.update(cancel_requested=True)


def do_run(pk: int) -> None:
    """Carry out a run, unless another worker has it."""
    run_job(LessonRun.objects.all(), pk, _run)


def sweep_runs() -> None:
    """Send a message for every run that nobody works on."""
    sweep(LessonRun.objects.all(), TrainingTask.DO_JOB, JobKind.LESSON)


class _RunHeartbeat(Heartbeat):
    """The heartbeat of a lesson, which also brings the curve so far and news of a stop."""

    job: LessonRun

    def __init__(self, job: LessonRun, out: Path) -> None:
        super().__init__(job)
        self._out = out

    def _write(self, progress: dict[str, object]) -> None:
        points = read_lines(self._out).points
        write(self.job, **progress, points=points, current=len(points))

    def _check(self) -> None:
        if LessonRun.objects.filter(pk=self.job.pk, cancel_requested=True).exists():
            raise Refusal("lesson_stopped", _("Stopped."))


def _run(run: LessonRun, heartbeat: Heartbeat) -> str:
    lesson = BY_SLUG.get(run.lesson)
    if lesson is None:
        raise Refusal("lesson_unknown", _("There is no lesson %(name)s any more."), name=run.lesson)
    message = ""
    with tempfile.TemporaryDirectory() as folder:
        out, own = Path(folder) / "lesson.jsonl", None
        if lesson.learns_from:
            rows, message = _own_data(lesson, run.created_by)
            if rows:
                own = Path(folder) / "own.json"
                own.write_text(json.dumps(rows), encoding="utf-8")
        beat = _RunHeartbeat(run, out)
        beat(message=message)
        result = train(lesson, seed=run.seed, broken=run.broken, out=out, beat=beat, own=own)
    write(run, points=result.points, figures=result.figures, is_kept=lesson.claim.holds(result.figures))
    return message


def _own_data(lesson: Lesson, learner: User) -> tuple[Sequence[object], str]:
    """Return a learner's annotations for a lesson, none where they are too few, and what to say of it."""
    if lesson.learns_from == "votes":
        votes = votes_of(learner)
        if len(votes) >= VOTES_NEEDED:
            return votes, _("Trained on your votes.")
        message = _("Trained on the packaged votes. You have %(own)s of the %(needed)s votes needed.")
        return (), message % {"own": len(votes), "needed": VOTES_NEEDED}
    marked = marked_responses_of(learner)
    if len(marked) >= MARKED_NEEDED:
        return marked, _("Trained on your spans.")
    message = _(
        "Trained on simulated spans. You marked errors in %(own)s of the %(needed)s responses needed."
    )
    return (), message % {"own": len(marked), "needed": MARKED_NEEDED}


def _work_of(learner: User) -> QuerySet[Judgment]:
    """Return a learner's annotations of work, made without knowing the models."""
    current = Judgment.objects.current()
    return current.filter(annotator=learner, blind=True, comparison__purpose=Purpose.WORK)


def marked_responses_of(learner: User) -> list[dict[str, object]]:
    """Return the newest responses in which a learner marked errors: text, and spans with severities."""
    flags = (
        SpanFlag.objects.filter(
            judgment__in=_work_of(learner),
            category__polarity=Polarity.ERROR,
        )
        .select_related("completion")
        .order_by("-judgment", "completion", "start", "end", "pk")
    )
    responses: dict[int, tuple[str, list[tuple[int, int, int | None]]]] = {}
    for flag in flags.iterator(chunk_size=MOST_OWN):
        if flag.completion_id not in responses and len(responses) == MOST_OWN:
            break
        spans = responses.setdefault(flag.completion_id, (flag.completion.text, []))[1]
        spans.append((flag.start, flag.end, flag.severity))
    return [{"text": text, "spans": spans} for text, spans in responses.values()]


def votes_of(learner: User) -> list[dict[str, str]]:
    """Return the newest votes of a learner, one pair for each: the best response against the worst."""
    judgments = (
        _work_of(learner)
        .select_related("comparison__prompt")
        .prefetch_related("ranks__completion")
        .order_by("-pk")[:MOST_OWN]
    )
    votes = []
    for judgment in judgments:
        ranked = sorted(judgment.ranks.all(), key=lambda place: place.rank)
        if len(ranked) >= 2 and ranked[0].rank < ranked[-1].rank:
            votes.append(
                {
                    "prompt": judgment.comparison.prompt.messages[-1]["content"],
                    "chosen": ranked[0].completion.text,
                    "rejected": ranked[-1].completion.text,
                }
            )
    return votes


@dataclass(frozen=True, slots=True)
class LessonResult:
    """What a lesson's process has written so far."""

    points: list[list[Any]]
    figures: dict[str, float]


def train(
    lesson: Lesson,
    *,
    seed: int,
    broken: bool,
    out: Path,
    beat: Callable[[], object] = lambda: None,
    short: bool = False,
    own: Path | None = None,
) -> LessonResult:
    """Run a lesson in a process of its own. Refuses with the process's last line where it fails."""
    options: Sequence[str] = [
        *(["--broken"] if broken else []),
        *(["--short"] if short else []),
        *([] if own is None else ["--own", str(own)]),
    ]
    ended = run_process(
        [
            *(sys.executable, "-m", "training.rlhf.course", lesson.slug),
            *("--out", str(out), "--seed", str(seed), *options),
        ],
        environment=trainer_environment(os.environ),
        beat=beat,
        seconds=MOST_SECONDS,
    )
    refuse_failed(ended.code, ended.last_line)
    return read_lines(out)


def read_lines(out: Path) -> LessonResult:
    """Return the points and figures that a lesson's process wrote, without a line that is not whole yet."""
    points: list[list[Any]] = []
    figures: dict[str, float] = {}
    if out.is_file():
        for line in out.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                if "figures" in row:
                    figures = row["figures"]
                else:
                    points.append([row["step"], row["values"]])
    return LessonResult(points, figures)
