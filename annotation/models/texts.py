"""Prompts and completions. None of them ever changes."""

from django.db import models
from django.db.models import F, Q

from annotation.choices import FinishReason, SourceKind, Split, StepLabel, TraceStepKind
from annotation.models.written_once import WrittenOnce
from annotation.text.identity import shortened
from annotation.text.traces import is_agents


class PromptManager(models.Manager["Prompt"]):
    """Prompts that are not deleted."""

    def get_queryset(self) -> models.QuerySet["Prompt"]:
        return super().get_queryset().filter(deleted_at__isnull=True)


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
    deleted_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="A deleted prompt is in no list and in no new round."
    )

    objects = PromptManager()
    with_deleted = models.Manager["Prompt"]()

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
    metadata = models.JSONField(
        null=True, blank=True, help_text="Columns of its file about this response that nothing else reads."
    )
    deleted_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="A deleted response is in no list."
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


# Steps of agent traces and sessions, and the labels that annotators give them. None of them ever changes.


class TraceStep(WrittenOnce):
    """One step of a completion that is a trace: a message, reasoning, a tool call or a tool's result.

    Steps lie in the completion's text in the order of `index` and never overlap. The content of a step is
    the text itself; `arguments` repeats that of a tool call as JSON, so that it can be queried.
    """

    # No index of its own: `trace_step_once` begins with it.
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.CASCADE, related_name="steps", db_index=False
    )
    index = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=TraceStepKind)
    role = models.CharField(max_length=10, help_text="Who speaks: assistant, user, system or tool.")
    tool = models.CharField(
        max_length=120, blank=True, default="", help_text="The tool of a call or of its result."
    )
    call = models.CharField(
        max_length=120, blank=True, default="", help_text="The id that a result shares with its call."
    )
    is_error = models.BooleanField(default=False, help_text="Whether a tool reported a failure.")
    start = models.PositiveIntegerField(help_text="In code points of the completion.")
    body = models.PositiveIntegerField(help_text="Where the content begins, after the heading of the step.")
    end = models.PositiveIntegerField()
    arguments = models.JSONField(
        null=True, blank=True, help_text="Arguments of a tool call; none where they were no JSON."
    )

    class Meta:
        ordering = ["completion", "index"]
        constraints = [
            models.UniqueConstraint(fields=["completion", "index"], name="trace_step_once"),
            models.CheckConstraint(condition=Q(kind__in=TraceStepKind.values), name="trace_step_kind_known"),
            models.CheckConstraint(
                condition=Q(body__gte=F("start")) & Q(end__gte=F("body")) & Q(end__gt=F("start")),
                name="trace_step_in_order",
            ),
        ]
        indexes = [
            # For the filter by tool; messages have none.
            models.Index(fields=["tool", "completion"], condition=~Q(tool=""), name="trace_step_of_tool"),
        ]

    def __str__(self) -> str:
        return f"step {self.index + 1}: {self.kind} {self.tool}".rstrip()

    @property
    def is_agents(self) -> bool:
        """True if the agent took this step, so that it can be labelled."""
        return is_agents(self.kind, self.role)


class LabelledStep(WrittenOnce):
    """One step's label in one judgment: correct, wrong or unnecessary."""

    judgment = models.ForeignKey(
        "annotation.Judgment", on_delete=models.CASCADE, related_name="labelled_steps", db_index=False
    )
    step = models.ForeignKey(TraceStep, on_delete=models.PROTECT, related_name="labels")
    label = models.CharField(max_length=12, choices=StepLabel)

    class Meta:
        ordering = ["judgment", "step"]
        constraints = [
            models.UniqueConstraint(fields=["judgment", "step"], name="step_labelled_once"),
            models.CheckConstraint(condition=Q(label__in=StepLabel.values), name="step_label_known"),
        ]

    def __str__(self) -> str:
        return f"{self.step_id}: {self.label}"


# Acquisition: features of completions, and the figures of a project's last update.


class CompletionFeatures(models.Model):
    """Features of one completion: numbers that a reward is learned on after every few annotations."""

    completion = models.OneToOneField(
        "annotation.Completion", on_delete=models.CASCADE, primary_key=True, related_name="features"
    )
    space = models.CharField(
        max_length=100, help_text="What the features are; those of another are not compared."
    )
    values = models.BinaryField(help_text="The features as 32-bit floats, little-endian.")

    class Meta:
        verbose_name_plural = "completion features"

    def __str__(self) -> str:
        return f"{self.space} of completion {self.completion_id}"


class AcquisitionFigures(models.Model):
    """Figures of a project when comparisons were last chosen: learning curve, gain, numbers of rows."""

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.CASCADE, primary_key=True, related_name="acquisition_figures"
    )
    judgments = models.PositiveIntegerField(help_text="Rankings that the head had learned from.")
    comparisons = models.PositiveIntegerField(help_text="Comparisons of the newest round at that time.")
    figures = models.JSONField(
        default=dict, blank=True, help_text="Learning curve, worth of the next annotations, and gain."
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "acquisition figures"

    def __str__(self) -> str:
        return f"figures of {self.project_id} after {self.judgments} rankings"
