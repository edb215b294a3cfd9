"""Jobs of launchers, and GPUs in use."""

from django.db import models
from django.db.models import Q

from training.choices import LIVE_LAUNCH, LaunchState
from training.models.checkpoints import Run


class Launch(models.Model):
    """One submission of a run to Ray or by a command.

    Written by `services.runs.clusters`, by the worker that holds the claim on the run's step. The row is
    there before the job is: a worker that dies in between leaves a name by which the next one finds the job.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="launches")
    launcher = models.CharField(max_length=20)
    name = models.CharField(max_length=60, unique=True, help_text="Name of the job at the launcher.")
    handle = models.CharField(max_length=200, blank=True, help_text="What the launcher calls it.")
    state = models.CharField(max_length=12, choices=LaunchState, default=LaunchState.SUBMITTING)
    reason = models.TextField(blank=True, help_text="Why it waits or ended, in the launcher's words.")
    nodes = models.TextField(blank=True, help_text="Where it runs.")
    resources = models.JSONField(help_text="What was asked for.")
    script = models.TextField(blank=True, help_text="What was submitted.")
    exit_code = models.IntegerField(null=True, blank=True)
    submitted_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["run"], condition=Q(state__in=LIVE_LAUNCH), name="launch_of_a_run_once"
            ),
            models.CheckConstraint(condition=Q(state__in=LaunchState.values), name="launch_state_known"),
        ]

    def __str__(self) -> str:
        return self.name


class GpuLease(models.Model):
    """A GPU of a worker's host that a run trains on. Deleted at the end, or once its worker is silent.

    Written by `services.runs.launcher`. Two runs share a GPU only where `RONDO_JOBS_PER_GPU` allows: each has
    a slot of its own.
    """

    host = models.CharField(max_length=120)
    gpu = models.PositiveIntegerField(help_text="Its number on the host.")
    slot = models.PositiveIntegerField(default=0, help_text="Below RONDO_JOBS_PER_GPU.")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="gpu_leases")
    worker = models.CharField(max_length=120)
    leased_at = models.DateTimeField(auto_now_add=True)
    heartbeat_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["host", "gpu", "slot"]
        constraints = [
            models.UniqueConstraint(fields=["host", "gpu", "slot"], name="gpu_leased_once"),
        ]

    def __str__(self) -> str:
        return f"GPU {self.gpu} of {self.host}"
