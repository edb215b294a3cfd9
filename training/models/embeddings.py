"""Vectors of prompts, for search by meaning, and the jobs that compute them."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from annotation.choices import JobState
from training.choices import WRITES_TEXT
from training.models.checkpoints import Checkpoint
from training.models.jobs import BackgroundJob


class PromptEmbedding(models.Model):
    """The vector of a prompt, by the model that the project used last. Written by `services.embeddings`.

    `alike` and `likeness` are links of a forest: at any threshold, prompts whose links reach it are one group
    of near-duplicates.
    """

    IS_DERIVED: ClassVar[bool] = True
    """It keeps no deleted prompt from going for good (`annotation.services.changes`)."""

    prompt = models.OneToOneField("annotation.Prompt", on_delete=models.CASCADE, related_name="embedding")
    model = models.CharField(max_length=150, help_text="Name of the checkpoint that read the prompt.")
    text_hash = models.CharField(max_length=64, help_text="SHA-256 of the text that it read.")
    vector = models.BinaryField(help_text="One signed byte per number.")
    scale = models.FloatField(help_text="What the bytes are multiplied by; the vector has length 1.")
    alike = models.ForeignKey(
        "annotation.Prompt",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="A prompt that says almost the same.",
    )
    likeness = models.FloatField(null=True, blank=True, help_text="Cosine with that prompt.")

    class Meta:
        ordering = ["prompt"]
        constraints = [
            models.CheckConstraint(condition=Q(scale__gt=0), name="embedding_scale_positive"),
        ]

    def __str__(self) -> str:
        return f"Prompt {self.prompt_id} by {self.model}"


class EmbeddingJob(BackgroundJob):
    """A job that embeds the prompts of a project that have no vector. Written by `services.embeddings`."""

    PAGE = "near-duplicates"

    project = models.ForeignKey("annotation.Project", on_delete=models.PROTECT, related_name="embedding_jobs")
    checkpoint = models.ForeignKey(
        Checkpoint,
        on_delete=models.PROTECT,
        related_name="+",
        limit_choices_to={"kind__in": WRITES_TEXT},
        help_text="The model that reads the prompts.",
    )
    embedded = models.PositiveIntegerField(default=0, help_text="Prompts that it read.")

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["project"],
                condition=Q(state__in=(JobState.WAITING, JobState.RUNNING)),
                name="embedding_going_on_once",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="embedding_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.project}, embeddings by {self.checkpoint}"
