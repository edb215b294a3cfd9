"""A worker that reports its machine."""

from typing import Any

from django.db.models.functions import Now

from training.models import Worker


def report(
    name: str = "trainer-host:17:abc", *, queues: tuple[str, ...] = ("celery",), **machine: Any
) -> Worker:
    """A live worker of these queues whose machine is so."""
    return Worker.objects.create(
        name=name, queues=list(queues), concurrency=1, machine=machine, started_at=Now(), heartbeat_at=Now()
    )
