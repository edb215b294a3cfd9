"""Prompts and completions. None of them ever changes."""

from django.db import models

from annotation.choices import FinishReason, SourceKind, Split
from annotation.models.written_once import WrittenOnce
from annotation.text.shortening import shortened


class Prompt(models.Model):
    """One chat to be answered. Its content, and so its hash and its split, never change."""

    # No index of its own: `prompt_content_once` begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="prompts", db_index=False
    )
    messages = models.JSONField(help_text="A list of objects with `role` and `content`.")
    context = models.JSONField(
        default=list, blank=True, help_text="Passages: objects with `title` and `sentences`."
    )
    references = models.JSONField(default=list, blank=True, help_text="Reference answers, as texts.")
    tags = models.JSONField(default=list, blank=True)
    metadata = models.JSONField(
        null=True, blank=True, help_text="Columns of the file it came in with that nothing else reads."
    )
    file_import = models.ForeignKey(
        "annotation.FileImport",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="prompts",
        help_text="The import that brought it; none for any other.",
    )
    content_hash = models.CharField(max_length=64, help_text="SHA-256 of messages and context.")
    split = models.CharField(max_length=10, choices=Split)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "content_hash"], name="prompt_content_once"),
            models.CheckConstraint(condition=models.Q(split__in=Split.values), name="prompt_split_known"),
        ]
        indexes = [models.Index(fields=["project", "split"], name="prompt_by_split")]

    def __str__(self) -> str:
        return shortened(self.last_question)

    @property
    def last_question(self) -> str:
        """The last user turn: what the answers answer."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")


class CompletionSource(models.Model):
    """Source of completions: a checkpoint, an imported set, a person. Annotators never see it."""

    name = models.CharField(max_length=120, unique=True)
    kind = models.CharField(max_length=12, choices=SourceKind)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Completion(WrittenOnce):
    """One answer to one prompt, with how it came to be. Spans count on its text never changing."""

    # No index of its own: `completion_once_per_seed` begins with it.
    prompt = models.ForeignKey(Prompt, on_delete=models.CASCADE, related_name="completions", db_index=False)
    source = models.ForeignKey(CompletionSource, on_delete=models.PROTECT, related_name="completions")
    text = models.TextField()
    text_hash = models.CharField(max_length=64, help_text="SHA-256 of the text in UTF-8.")
    sampling = models.JSONField(
        default=dict, blank=True, help_text="Sampling parameters: temperature, top_p, max_tokens, …"
    )
    seed = models.BigIntegerField(null=True, blank=True, help_text="The same seed gives the same text again.")
    finish_reason = models.CharField(max_length=10, choices=FinishReason, blank=True, default="")
    token_count = models.PositiveIntegerField(null=True, blank=True)
    step_count = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Steps of an agent trace or a session; 0 for a plain response."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            # A repeated or resumed sampling job adds nothing twice.
            models.UniqueConstraint(fields=["prompt", "source", "seed"], name="completion_once_per_seed"),
        ]

    def __str__(self) -> str:
        return self.text[:80]


class CompletionScore(models.Model):
    """A reward head's score of one completion. Written from outside; `annotation` only reads it.

    Several scorers of one completion are the members of an ensemble.
    """

    completion = models.ForeignKey(Completion, on_delete=models.CASCADE, related_name="scores")
    scorer = models.CharField(max_length=150, help_text="Name of the checkpoint, and of its head if several.")
    value = models.FloatField()
    created_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["completion", "scorer"], name="completion_scored_once"),
        ]

    def __str__(self) -> str:
        return f"{self.scorer}: {self.value:.3f}"
