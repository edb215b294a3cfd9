"""Base models of the installation, the jobs that add them, and the one that a project chose."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse

from annotation.choices import JobState
from training.choices import BaseOrigin, CheckpointKind
from training.models.checkpoints import Checkpoint, validate_checkpoint_name
from training.models.jobs import BackgroundJob


class BaseModel(models.Model):
    """A base model that was added whole: its files are in `RONDO_HOME/models`, or another server has it.

    Written by `services.base_models`. Its checkpoint of kind starter bears the same name.
    """

    name = models.CharField(
        max_length=100,
        unique=True,
        validators=[validate_checkpoint_name],
        help_text="Also its folder's name and its model id on the model server.",
    )
    origin = models.CharField(max_length=10, choices=BaseOrigin)
    repository = models.CharField(max_length=200, blank=True, help_text="Its id on the hub.")
    revision = models.CharField(max_length=64, blank=True, help_text="The commit on the hub.")
    licence = models.CharField(max_length=200, blank=True, help_text="As its card on the hub names it.")
    licence_url = models.CharField(max_length=500, blank=True)
    facts = models.JSONField(
        default=dict, blank=True, help_text="Architecture, sizes, tokenizer and chat template; empty before."
    )
    files = models.JSONField(default=list, blank=True, help_text="Name, size and SHA-256 of every file.")
    tokenizer_digest = models.CharField(
        max_length=64, blank=True, help_text="SHA-256 of tokenizer.json: equal ones share their tokens."
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(origin__in=BaseOrigin.values), name="base_model_origin_known"),
            models.CheckConstraint(
                condition=~Q(origin=BaseOrigin.HUB) | (~Q(repository="") & ~Q(revision="")),
                name="base_model_of_hub_has_revision",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("base-model", args=[self.name])

    @property
    def path(self) -> Path:
        """Return its folder on this machine."""
        return Path(settings.RONDO_MODELS) / self.name

    @property
    def has_files(self) -> bool:
        """Return whether it is a folder here, which can be trained from."""
        return self.origin != BaseOrigin.SERVER

    @property
    def is_inspected(self) -> bool:
        """Return whether its files were read."""
        return bool(self.files)

    @property
    def size(self) -> int:
        """Return the bytes of its files."""
        return sum(int(file["size"]) for file in self.files)

    @property
    def starter(self) -> Checkpoint:
        """Return the checkpoint that answers with the base model as it came."""
        return self.checkpoints.get(kind=CheckpointKind.STARTER)


class BaseModelAddition(BackgroundJob):
    """A base model that is being added, or was refused.

    Files lie in a folder of their own until all are there and inspected; then they move at once.
    """

    # An administrator adds it, for all projects.
    CAP = ""

    name = models.CharField(max_length=100, validators=[validate_checkpoint_name])
    origin = models.CharField(max_length=10, choices=BaseOrigin)
    folder = models.CharField(max_length=1000, blank=True, help_text="The folder on the server.")
    repository = models.CharField(max_length=200, blank=True)
    revision = models.CharField(max_length=64, blank=True)
    licence = models.CharField(max_length=200, blank=True, help_text="The licence that was accepted.")
    server_url = models.CharField(max_length=200, blank=True)
    server_model = models.CharField(max_length=200, blank=True)
    server_key = models.CharField(max_length=100, blank=True, help_text="Name of the variable with the key.")
    cancel_requested = models.BooleanField(default=False)
    base = models.ForeignKey(
        BaseModel,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="additions",
        help_text="What was added, or is inspected again.",
    )

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["name"],
                condition=Q(state__in=(JobState.WAITING, JobState.RUNNING)),
                name="base_model_added_once",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="base_addition_state_known"),
            models.CheckConstraint(
                condition=Q(origin__in=BaseOrigin.values), name="base_addition_origin_known"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def claim_values(cls) -> dict[str, Any]:
        """Return the columns of a running job; a download that goes on keeps its progress."""
        values = super().claim_values()
        del values["current"]
        return values

    @property
    def staging(self) -> Path:
        """Return the folder in which its files are gathered."""
        return Path(settings.RONDO_MODELS) / f".adding-{self.pk}"


class ProjectBase(models.Model):
    """The base model that a project's next round begins from; a project without a row takes the default."""

    project = models.OneToOneField("annotation.Project", on_delete=models.CASCADE, related_name="base_choice")
    base = models.ForeignKey(BaseModel, on_delete=models.PROTECT, related_name="projects")
    chosen_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    chosen_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.project}, {self.base}"
