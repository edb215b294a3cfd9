"""Workers and their last heartbeats."""

from django.db import models


class Worker(models.Model):
    """A process that does jobs, with its last heartbeat. Deleted on a regular end.

    Written by `services.workers` alone, by the worker itself. Job assignment does not depend on it: claims
    have their own heartbeats.
    """

    name = models.CharField(max_length=120, unique=True, help_text="Host, process and a mark of its own.")
    queues = models.JSONField(help_text="Names of the queues that it takes messages from.")
    concurrency = models.PositiveIntegerField(help_text="How many jobs it does at once.")
    version = models.CharField(max_length=60, blank=True, help_text="The commit of Rondo that it runs.")
    machine = models.JSONField(
        default=dict, blank=True, help_text="Its processors' load, memory and GPUs, as it last told them."
    )
    clock_ahead = models.FloatField(
        default=0.0, help_text="Seconds that its clock is ahead of the database's; negative: behind."
    )
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
