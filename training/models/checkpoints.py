"""Snapshots, runs and checkpoints.

Folders are stored relative to `RONDO_HOME`, so that an installation can be moved.
"""

from pathlib import Path, PurePath

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext as _

from annotation.models.jobs import Claimable
from training.choices import LIVE_LAUNCH, WRITES_TEXT, CheckpointKind, LaunchState, Method, RunState
from training.contract.checkpoint import CHECKPOINT_NAME


def validate_checkpoint_name(value: str) -> None:
    """Raise for a name that is not valid as a folder's name and a model id."""
    if not CHECKPOINT_NAME.fullmatch(value):
        raise ValidationError(
            _("%(value)r is no checkpoint name: use up to 100 letters, digits, dots, dashes and underscores.")
            % {"value": value}
        )


class Snapshot(models.Model):
    """An immutable export of a project's current judgments: the training data of runs.

    Written once by `freeze_snapshot`. The digest covers judgments and prompts, so equal ones are one
    snapshot.
    """

    project = models.ForeignKey("annotation.Project", on_delete=models.PROTECT, related_name="snapshots")
    digest = models.CharField(max_length=64, help_text="SHA-256 of judgments and prompts.")
    folder = models.CharField(max_length=200)
    rounds = models.JSONField(help_text="Numbers of the rounds whose judgments are in it.")
    counts = models.JSONField(help_text="Judgments, annotators, decided pairs by split.")
    judgments = models.ManyToManyField("annotation.Judgment", related_name="snapshots")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "digest"], name="snapshot_content_once"),
        ]

    def __str__(self) -> str:
        return f"{self.project}, snapshot {self.short_digest}"

    def get_absolute_url(self) -> str:
        return reverse("snapshot", args=[self.digest])

    @property
    def short_digest(self) -> str:
        """Return the part of the digest that is shown."""
        return self.digest[:12]

    @property
    def path(self) -> Path:
        """Return the snapshot's folder on this machine."""
        return Path(settings.RONDO_HOME) / self.folder


class Run(Claimable):
    """One training job in one folder.

    Name, method, snapshot, spec and parent are written when the run is created and never
    change. Tags and notes are people's. The rest mirrors `status.json` and the metrics, written by the worker
    that holds the claim on its step.
    """

    name = models.CharField(
        max_length=100,
        unique=True,
        validators=[validate_checkpoint_name],
        help_text="Name of the checkpoint to be, and of the run's folder.",
    )
    method = models.CharField(max_length=20, choices=Method)
    snapshot = models.ForeignKey(Snapshot, on_delete=models.PROTECT, related_name="runs")
    parent = models.ForeignKey(
        "training.Checkpoint",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="continued_by",
        help_text="The checkpoint whose adapter training continues; none starts from the base.",
    )
    spec = models.JSONField(help_text="What the trainer was told, every default written out.")
    resources = models.JSONField(
        default=dict,
        blank=True,
        db_default=models.Value({}, models.JSONField()),
        help_text="Launcher, nodes, GPUs and limits that the recipe asked for.",
    )
    folder = models.CharField(max_length=200)
    state = models.CharField(max_length=10, choices=RunState, default=RunState.WAITING)
    step = models.PositiveIntegerField(default=0)
    total_steps = models.PositiveIntegerField(default=0)
    seconds_left = models.FloatField(null=True, blank=True)
    message = models.TextField(blank=True, help_text="What the trainer is doing.")
    error = models.TextField(blank=True, help_text="Why it failed, and what to do.")
    summary = models.JSONField(
        null=True, blank=True, help_text="The last number of each metric; null before it was read."
    )
    tags = models.JSONField(
        default=list,
        blank=True,
        db_default=models.Value([], models.JSONField()),
        help_text="Words by which to find it.",
    )
    notes = models.TextField(
        blank=True, default="", db_default="", help_text="What people want to remember of it, in Markdown."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=RunState.values), name="run_state_known"),
            models.CheckConstraint(condition=Q(method__in=Method.values), name="run_method_known"),
        ]
        indexes = [models.Index(fields=["state", "heartbeat_at"], name="run_by_heartbeat")]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("run", args=[self.pk])

    @property
    def base_model(self) -> str:
        """Return the name of the base model that it trains: its folder's name."""
        return PurePath(str(self.spec.get("base_model", ""))).name

    @property
    def path(self) -> Path:
        """Return the run's folder on this machine."""
        return Path(settings.RONDO_HOME) / self.folder


class Checkpoint(models.Model):
    """Adapter and heads on a base model, or the base model itself (kind starter).

    Written once by `register_checkpoint`, after every file was checked against the manifest.
    """

    name = models.CharField(
        max_length=100,
        unique=True,
        validators=[validate_checkpoint_name],
        help_text="Also its folder's name and its model id on the model server.",
    )
    kind = models.CharField(max_length=10, choices=CheckpointKind)
    project = models.ForeignKey(
        "annotation.Project",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="checkpoints",
        help_text="Whose judgments made it; none for a starter model.",
    )
    base_model = models.CharField(max_length=200, help_text="The base model's name.")
    base = models.ForeignKey(
        "training.BaseModel",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="checkpoints",
        help_text="The base model that it stands on; none where that was never added here.",
    )
    parent = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="children"
    )
    run = models.OneToOneField(
        Run, on_delete=models.PROTECT, null=True, blank=True, related_name="checkpoint"
    )
    folder = models.CharField(max_length=200)
    digest = models.CharField(max_length=64, blank=True, help_text="SHA-256 of manifest.json.")
    manifest = models.JSONField(default=dict, blank=True)
    source = models.OneToOneField(
        "annotation.CompletionSource",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="checkpoint",
        help_text="Under which its answers are recorded; none for a reward model.",
    )
    tags = models.JSONField(default=list, blank=True, help_text="Words by which to find it.")
    notes = models.TextField(blank=True, help_text="What people want to remember of it, in Markdown.")
    server_url = models.CharField(
        max_length=200,
        blank=True,
        help_text="An OpenAI-compatible server that answers for it; empty asks the own model server.",
    )
    server_model = models.CharField(
        max_length=200, blank=True, help_text="Its name on that server, where it has another."
    )
    server_key = models.CharField(
        max_length=100,
        blank=True,
        help_text="Name of the environment variable that holds that server's key.",
    )
    provider = models.ForeignKey(
        "training.ModelProvider",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="checkpoints",
        help_text="Whose server it is and whose key is sent; `server_url` is then the provider's address.",
    )
    files_deleted_at = models.DateTimeField(
        null=True, blank=True, help_text="When its files were deleted; its record stays."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=CheckpointKind.values), name="checkpoint_kind_known"),
            models.CheckConstraint(
                condition=Q(kind__in=WRITES_TEXT, source__isnull=False)
                | Q(kind=CheckpointKind.REWARD, source__isnull=True),
                name="checkpoint_source_where_it_writes",
            ),
            models.CheckConstraint(
                condition=Q(kind=CheckpointKind.STARTER, run__isnull=True)
                | (~Q(kind=CheckpointKind.STARTER) & Q(run__isnull=False) & ~Q(digest="")),
                name="checkpoint_trained_has_run",
            ),
            models.CheckConstraint(
                condition=~Q(server_url="") | Q(server_model="", server_key=""),
                name="checkpoint_server_has_address",
            ),
            models.CheckConstraint(
                condition=Q(provider__isnull=True) | (~Q(server_url="") & Q(server_key="")),
                name="checkpoint_of_provider_has_its_address",
            ),
            models.UniqueConstraint(
                fields=["base"],
                condition=Q(kind=CheckpointKind.STARTER),
                name="checkpoint_starter_of_base_once",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("checkpoint", args=[self.name])

    @property
    def path(self) -> Path:
        """Return the checkpoint's folder on this machine."""
        return Path(settings.RONDO_HOME) / self.folder


# Jobs of launchers, and GPUs in use.


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
