"""The metrics of a model server for Prometheus, by name, and by labels where a metric has some."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.model_server import RunningServer


def figures(server: RunningServer) -> dict[str | tuple[str, ...], float]:
    """`figures(server)["rondo_queue_depth"]`, `figures(server)["rondo_tokens_total", "prompt"]`: labels as
    the page has them, by their names' alphabet."""
    request = urllib.request.Request(
        f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.key}"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        page = response.read().decode()
    return {
        (sample.name, *sample.labels.values()) if sample.labels else sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
