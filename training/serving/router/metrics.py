"""Metrics of several bases as one page for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from training.serving.router.process import BaseProcess


def merged_page(pages: Mapping[str, str], processes: Sequence[BaseProcess]) -> bytes:
    """Return the metrics of every base with the base as a label, and those of the router.

    pages: by base, as its server writes them.
    """
    registry = CollectorRegistry()
    registry.register(_Merged(pages, processes))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, pages: Mapping[str, str], processes: Sequence[BaseProcess]) -> None:
        self._pages, self._processes = pages, processes

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for base, text in self._pages.items():
            for family in text_string_to_metric_families(text):
                metric = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    metric.samples.append(sample._replace(labels={**sample.labels, "base": base}))
        yield from families.values()
        yield from self._of_router()

    def _of_router(self) -> Iterator[Metric]:
        awake = GaugeMetricFamily("rondo_base_awake", "Whether the base has a server.", labels=["base"])
        memory = GaugeMetricFamily("rondo_base_memory_bytes", "Memory of its server.", labels=["base"])
        flight = GaugeMetricFamily("rondo_base_in_flight", "Requests that it has.", labels=["base"])
        for process in self._processes:
            awake.add_metric([process.name], float(process.is_running))
            memory.add_metric([process.name], float(process.memory_bytes))
            flight.add_metric([process.name], float(process.in_flight))
        yield from (awake, memory, flight)
