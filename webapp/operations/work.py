"""Jobs, leases and workers, for the status page and for Prometheus."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from celery import current_app
from django.conf import settings
from django.db.models import Count, Max, Min, Model, Q, QuerySet, Sum
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from kombu import Connection

from annotation.choices import AssignmentState, ImportState, JobState
from annotation.models import AnnotatorTally, Assignment, FileImport
from training.choices import TRAINS, RoundState, RunState, StepState
from training.models import (
    BaseModelAddition,
    CheckpointExport,
    DriftMeasurement,
    EmbeddingJob,
    Judge,
    LessonRun,
    LiveLearning,
    Round,
    RoundStep,
    RubricDraft,
    Run,
    SuggestionSource,
    Worker,
)

# Numbers of waiting messages by queue, for any broker.


@contextmanager
def open_broker(seconds: float) -> Iterator[Connection]:
    """Open a connection to the broker within `seconds`. Raise `OSError` or an error of the transport."""
    options = {
        **current_app.conf.broker_transport_options,
        "socket_connect_timeout": seconds,
        "socket_timeout": seconds,
        "max_retries": 0,
    }
    connection: Connection = current_app.connection_for_read(
        connect_timeout=seconds, transport_options=options
    )
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=math.ceil(seconds))
        # Redis connects only on the first command.
        connection.default_channel  # noqa: B018
        yield connection
    finally:
        connection.release()


def known_queues() -> set[str]:
    """Return the queues in this installation's settings."""
    routes = (current_app.conf.task_routes or {}).values()
    return set(current_app.amqp.queues) | {str(route["queue"]) for route in routes}


def depths(names: set[str], *, seconds: float) -> dict[str, int]:
    """Return waiting messages by queue; 0 for a queue that the broker does not know."""
    counts = {}
    with open_broker(seconds) as connection:
        for name in sorted(names):
            # Channels share an interface that kombu's types do not declare.
            channel: Any = connection.channel()
            try:
                counts[name] = int(channel.queue_declare(name, passive=True).message_count)
            except cast(tuple[type[Exception], ...], connection.channel_errors):
                # AMQP has closed the channel.
                counts[name] = 0
            else:
                channel.close()
    return counts


# ── Work ──

_IS_WAITING_FOR_WORKERS = (RoundState.SAMPLING, *TRAINS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Jobs:
    """A kind of job."""

    kind: str
    name: str | Promise
    """The plural, for people."""
    states: dict[str, int]
    """Number of jobs by state."""
    silent: int
    """Running jobs without a heartbeat for `RONDO_STALE_SECONDS`."""
    failed_lately: int
    """Failures of the last 24 hours."""
    oldest_waiting: datetime | None
    """Start of the longest wait of a job that a worker could take now."""
    link: str
    """URL of the list; `?state__exact=` may follow."""


def jobs() -> list[Jobs]:
    """Return every kind of job."""
    return [
        _jobs(RoundStep, "step", _("steps of rounds"), StepState, _oldest_step()),
        _jobs(BaseModelAddition, "base-model", _("additions of base models"), JobState),
        _jobs(CheckpointExport, "export", _("exports of checkpoints"), JobState),
        _jobs(DriftMeasurement, "drift", _("measurements of drift"), JobState),
        _jobs(LessonRun, "lesson", _("runs of lessons"), JobState),
        _jobs(RubricDraft, "draft", _("drafts of rubrics"), JobState),
        _jobs(EmbeddingJob, "embeddings", _("embeddings of prompts"), JobState),
        # A judge waits for new comparisons, which have no time of arrival.
        _jobs(Judge, "judge", _("AI judges"), JobState, None),
        # So do suggestions.
        _jobs(SuggestionSource, "suggestions", _("suggestions ahead"), JobState, None),
        # Live learning waits for judgments.
        _jobs(LiveLearning, "live", _("live learning"), JobState, None),
        _jobs(FileImport, "import", _("imports of files"), ImportState),
        # A run belongs to a step of a round, and the step is what waits.
        _jobs(Run, "run", _("training runs"), RunState, None),
    ]


_UNKNOWN: Any = object()


def _jobs(
    model: type[Model],
    kind: str,
    name: str | Promise,
    states: Any,
    oldest: datetime | None = _UNKNOWN,
) -> Jobs:
    rows: QuerySet[Model] = model._default_manager.all()
    silent_since = Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS)
    running = [states.RUNNING, *([RunState.STARTING] if states is RunState else [])]
    counts = rows.aggregate(
        silent=Count("pk", filter=Q(state__in=running, heartbeat_at__lt=silent_since)),
        failed=Count("pk", filter=Q(state=states.FAILED, finished_at__gt=Now() - timedelta(days=1))),
    )
    if oldest is _UNKNOWN:
        oldest = rows.filter(state=states.WAITING).aggregate(since=Min("created_at"))["since"]
    options = model._meta
    return Jobs(
        kind=kind,
        name=name,
        states=_by_state(rows, states),
        silent=counts["silent"],
        failed_lately=counts["failed"],
        oldest_waiting=oldest,
        link=reverse(f"admin:{options.app_label}_{options.model_name}_changelist"),
    )


def _by_state(rows: "QuerySet[Any]", states: Any) -> dict[str, int]:
    counted = dict(rows.order_by().values_list("state").annotate(Count("pk")))
    return {str(state): counted.get(state, 0) for state in states.values}


def _oldest_step() -> datetime | None:
    """Return the earliest time since which a step could run: the end of the previous step, or the start of
    its round."""
    going_on = Round.objects.filter(state__in=_IS_WAITING_FOR_WORKERS, pause_requested=False)
    with_work = going_on.filter(steps__state=StepState.WAITING).exclude(steps__state=StepState.RUNNING)
    since = [
        ended or round_.started_at or round_.created_at
        for round_, ended in ((row, row.steps.aggregate(at=Max("finished_at"))["at"]) for row in with_work)
    ]
    return min(since, default=None)


def rounds_by_state() -> dict[str, int]:
    """Return the number of rounds by state."""
    return _by_state(Round.objects.all(), RoundState)


# ── Annotators ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class Leases:
    """Leases held by annotators."""

    held: int
    overdue: int
    """Expired leases, released when somebody asks for work."""
    oldest_overdue_seconds: float
    oldest_seconds: float
    """Age of the oldest lease."""


def leases() -> Leases:
    """Return the leases held now."""
    now = timezone.now()
    totals = Assignment.objects.filter(state=AssignmentState.LEASED).aggregate(
        held=Count("pk"),
        overdue=Count("pk", filter=Q(lease_expires_at__lt=now)),
        first_end=Min("lease_expires_at"),
        first=Min("leased_at"),
    )
    return Leases(
        held=totals["held"],
        overdue=totals["overdue"],
        oldest_overdue_seconds=max(0.0, _seconds_since(totals["first_end"], now)),
        oldest_seconds=_seconds_since(totals["first"], now),
    )


def judgments_submitted() -> int:
    """Return the number of judgments by people, without gold and retest items."""
    return int(AnnotatorTally.objects.aggregate(sum=Sum("submitted"))["sum"] or 0)


def _seconds_since(moment: datetime | None, now: datetime) -> float:
    return (now - moment).total_seconds() if moment else 0.0


# ── Workers ───────────────────────────────────────────────────────────────────────────


def workers_heard_of() -> Iterator[tuple[Worker, float]]:
    """Yield every worker that has not shut down, with the seconds since its heartbeat."""
    # The database's clock wrote the heartbeats.
    now = Worker.objects.order_by().values_list(Now()).first()
    for worker in Worker.objects.all():
        yield worker, max(0.0, (now[0] - worker.heartbeat_at).total_seconds()) if now else 0.0


def served_queues() -> set[str]:
    """Return the queues that live workers consume."""
    alive = (worker for worker, silent in workers_heard_of() if not is_silent(silent))
    return {str(queue) for worker in alive for queue in worker.queues}


def is_silent(seconds: float) -> bool:
    """Return True if a worker silent for `seconds` counts as dead."""
    return seconds > float(settings.RONDO_STALE_SECONDS)
