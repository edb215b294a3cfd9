"""Prometheus metrics at /metrics: current values, and counts and times since the start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from training.serving.startup import Startup
    from training.serving.worker import ServingJob, WorkerThread

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Metrics:
    """The figures of one model server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "rondo_requests",
            "Requests by route and by how they ended: answered, refused, cancelled, overdue or failed.",
            ["route", "outcome"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "rondo_request_seconds",
            "Seconds from a request's arrival to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._waited = Histogram(
            "rondo_queue_seconds",
            "Seconds that a request waited before it began.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )

    def watch(self, worker: WorkerThread, startup: Startup) -> None:
        """Tell also what these two have at the moment of asking."""
        self._registry.register(_ServerMetrics(worker, startup))

    def observe(self, job: ServingJob, outcome: str) -> None:
        """Count a job that has ended."""
        self._requests.labels(job.route, outcome).inc()
        if job.begun_at is not None:
            self._waited.labels(job.route).observe(job.begun_at - job.asked_at)
        if outcome == "answered":
            self._seconds.labels(job.route).observe(time.monotonic() - job.asked_at)

    def page(self) -> bytes:
        """Return all of them in Prometheus' text format."""
        return generate_latest(self._registry)


class _ServerMetrics(Collector):
    def __init__(self, worker: WorkerThread, startup: Startup) -> None:
        self._worker = worker
        self._startup = startup

    def collect(self) -> Iterator[Metric]:
        model = self._startup.loaded_model
        yield _gauge("rondo_ready", "Whether the model is loaded.", model is not None)
        yield _gauge("rondo_queue_depth", "Requests that have not begun.", self._worker.waiting)
        yield _gauge("rondo_running_requests", "Requests that are being answered.", self._worker.running)
        if model is None:
            return
        engine = model.engine
        yield _gauge("rondo_running_rows", "Answers that are being written.", engine.running)
        yield _gauge(
            "rondo_waiting_rows", "Answers of requests that have begun, without place.", engine.waiting
        )
        yield _gauge("rondo_adapters_loaded", "Checkpoints in memory.", len(model.shelf.loaded))
        tokens = CounterMetricFamily(
            "rondo_tokens",
            "Tokens of prompts that were read, of prompts that were known from earlier answers, and written.",
            labels=["kind"],
        )
        tokens.add_metric(["prompt"], engine.tokens_read)
        tokens.add_metric(["reused"], engine.tokens_reused)
        tokens.add_metric(["completion"], engine.tokens_written)
        yield tokens
        yield CounterMetricFamily(
            "rondo_step_seconds", "Seconds spent in passes over the model.", value=engine.seconds
        )


def _gauge(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help, value=float(value))
