"""`/metrics` for Prometheus: counts of the web processes, and the current state of the work.

Readable with RONDO_METRICS_TOKEN, from this machine if no proxy is in front of Rondo, and by administrators.
The model server has its own /metrics.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hmac import compare_digest

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from annotation.services import job_runs
from training.choices import RunState
from training.models import Run
from training.selectors.runs import machine_of
from webapp.operations import reach, requests, work
from webapp.operations.health import OverdueError, within

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOOPBACK = ("127.0.0.1", "::1")
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_OF_A_PROXY = (
    "HTTP_X_FORWARDED_FOR",
    "HTTP_FORWARDED",
    "HTTP_X_REAL_IP",
    "HTTP_VIA",
    "HTTP_X_FORWARDED_PROTO",
)
_BROKER_SECONDS = 2.0


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return all metrics. For administrators, and for programs with the token or on this machine."""
    if not may_scrape(request) and not request.user.is_superuser:
        raise PermissionDenied
    return HttpResponse(page(), headers={"Content-Type": CONTENT_TYPE})


def may_scrape(request: HttpRequest) -> bool:
    """Return True for a request with the token or from this machine, without a session."""
    scheme, _, credentials = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if credentials:
        token = str(settings.RONDO_METRICS_TOKEN)
        is_token = compare_digest(credentials.strip().encode(), token.encode())
        return bool(token) and scheme.lower() == "bearer" and is_token
    return _is_this_machine(request)


def _is_this_machine(request: HttpRequest) -> bool:
    """Return True if the request comes from a local process; always False behind a proxy."""
    if settings.RONDO_HTTPS or settings.ALLAUTH_TRUSTED_PROXY_COUNT:
        return False
    if any(name in request.META for name in _OF_A_PROXY):
        return False
    # DNS rebinding: a browser here that another site's name led to us sends that name.
    name, _ = split_domain_port(request.META.get("HTTP_HOST", ""))
    return request.META.get("REMOTE_ADDR") in _LOOPBACK and name in _LOOPBACK_NAMES


def page() -> bytes:
    """Return all metrics in Prometheus' text format, without the unavailable ones; see `rondo_up`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now())
    return generate_latest(registry)


class _Now(Collector):
    """Metrics collected at the time of a scrape."""

    def collect(self) -> Iterator[Metric]:
        yield from requests.collect()
        up = GaugeMetricFamily(
            "rondo_up", "Whether a part answers: database, broker, model_server.", labels=["part"]
        )
        for part, collect_part in (
            ("database", _of_database),
            ("broker", _of_broker),
            ("model_server", _of_model_server),
        ):
            rows: list[Metric] = []
            is_up = _collected(collect_part, into=rows)
            up.add_metric([part], float(is_up))
            yield from rows
        disk = job_runs.free_bytes()
        if disk is not None:
            yield _gauge("rondo_disk_free_bytes", "Room left where Rondo keeps its files.", disk)
        yield up


def _collected(ask: Callable[[], Iterable[Metric]], *, into: list[Metric]) -> bool:
    """Append the metrics of a part. Return False if it does not answer."""
    try:
        into += ask()
    except Exception:  # a failing part must not hide the metrics of the others
        return False
    return True


def _of_database() -> list[Metric]:
    if reach.database().is_wrong:
        raise DatabaseError
    return [*_of_jobs(), *_of_labelling(), *_of_rounds(), *_of_workers(), *_of_training()]


def _of_broker() -> list[Metric]:
    names = work.known_queues() | work.served_queues()
    depths = within(_BROKER_SECONDS + 1, "queues", lambda: work.depths(names, seconds=_BROKER_SECONDS))
    depth = GaugeMetricFamily("rondo_queue_messages", "Messages that no worker took yet.", labels=["queue"])
    for name, count in depths.items():
        depth.add_metric([name], count)
    return [depth]


def _of_model_server() -> list[Metric]:
    if reach.model_server().is_wrong:
        raise OverdueError
    return []


def _of_jobs() -> Iterator[Metric]:
    states = GaugeMetricFamily("rondo_jobs", "Jobs by kind and state.", labels=["kind", "state"])
    silent = GaugeMetricFamily(
        "rondo_jobs_silent", "Running jobs whose worker was not heard of lately.", labels=["kind"]
    )
    oldest = GaugeMetricFamily(
        "rondo_job_oldest_waiting_seconds",
        "How long the first job that a worker could take has waited; 0 where none waits.",
        labels=["kind"],
    )
    now = timezone.now()
    for job in work.jobs():
        for state, count in job.states.items():
            states.add_metric([job.kind, state], count)
        silent.add_metric([job.kind], job.silent)
        waited = (now - job.oldest_waiting).total_seconds() if job.oldest_waiting else 0.0
        oldest.add_metric([job.kind], max(0.0, waited))
    yield from (states, silent, oldest)


def _of_labelling() -> Iterator[Metric]:
    leases = work.leases()
    yield _gauge("rondo_leases", "Items that annotators hold.", leases.held)
    yield _gauge("rondo_leases_overdue", "Of them, those whose lease has run out.", leases.overdue)
    yield _gauge("rondo_lease_oldest_seconds", "Age of the oldest lease that is held.", leases.oldest_seconds)
    yield CounterMetricFamily(
        "rondo_judgments",
        "Judgments that people submitted, without gold and retests.",
        value=work.judgments_submitted(),
    )


def _of_rounds() -> Iterator[Metric]:
    rounds = GaugeMetricFamily("rondo_rounds", "Rounds by state.", labels=["state"])
    for state, count in work.rounds_by_state().items():
        rounds.add_metric([state], count)
    yield rounds


def _of_workers() -> Iterator[Metric]:
    silent = GaugeMetricFamily(
        "rondo_worker_silent_seconds", "How long nothing was heard of a worker.", labels=["worker"]
    )
    labels = ["worker", "gpu", "name"]
    used = GaugeMetricFamily("rondo_gpu_memory_bytes", "Memory of a GPU in use.", labels=labels)
    total = GaugeMetricFamily("rondo_gpu_memory_total_bytes", "Memory of a GPU.", labels=labels)
    busy = GaugeMetricFamily("rondo_gpu_utilisation_ratio", "How busy a GPU is, 0 to 1.", labels=labels)
    for worker, seconds in work.workers_heard_of():
        silent.add_metric([worker.name], seconds)
        if work.is_silent(seconds):
            continue
        for gpu in worker.machine.get("gpus", ()):
            of_gpu = [worker.name, str(gpu["index"]), str(gpu["name"])]
            for family, figure in (
                (used, "memory_bytes"),
                (total, "memory_total_bytes"),
                (busy, "utilisation"),
            ):
                if gpu.get(figure) is not None:
                    family.add_metric(of_gpu, gpu[figure])
    yield from (silent, used, total, busy)


def _of_training() -> Iterator[Metric]:
    tokens = GaugeMetricFamily(
        "rondo_training_tokens_per_second", "Tokens that a run learns from in a second.", labels=["run"]
    )
    step = GaugeMetricFamily("rondo_training_step", "Step that a run has come to.", labels=["run"])
    memory = GaugeMetricFamily(
        "rondo_training_gpu_memory_bytes", "Memory of the GPU that a run holds.", labels=["run"]
    )
    for run in Run.objects.filter(state=RunState.RUNNING):
        step.add_metric([run.name], run.step)
        with suppress(OSError):
            use = machine_of(run)
            if use is not None and use.tokens_per_second is not None:
                tokens.add_metric([run.name], use.tokens_per_second)
            if use is not None and use.gpu_memory_bytes is not None:
                memory.add_metric([run.name], use.gpu_memory_bytes)
    yield from (tokens, step, memory)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=float(value))
