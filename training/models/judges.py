"""AI annotators, and the record of each of their judgments."""

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.urls import reverse

from annotation.choices import JobState
from annotation.models.written_once import WrittenOnce
from training.choices import WRITES_TEXT
from training.models.checkpoints import Checkpoint
from training.models.jobs import BackgroundJob


class Judge(BackgroundJob):
    """A checkpoint that judges a project's comparisons by its guidelines, as an additional annotator.

    The state is that of its work: finished means that nothing is left to judge for now. Counts are written by
    `services.judges` alone; they include every question, whatever its result.
    """

    PAGE = "judges"

    project = models.ForeignKey("annotation.Project", on_delete=models.PROTECT, related_name="judges")
    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="judge",
        help_text="In whose name it judges: a machine, which cannot sign in.",
    )
    name = models.CharField(max_length=100)
    checkpoint = models.ForeignKey(
        Checkpoint,
        on_delete=models.PROTECT,
        related_name="judges",
        limit_choices_to={"kind__in": WRITES_TEXT},
        help_text="What answers for it: one of the model server, or one that names another server.",
    )
    template = models.TextField(
        help_text="What it is asked, with {guidelines}, {conversation}, {answers}, {rubric}."
    )
    rubric = models.ForeignKey(
        "annotation.RubricVersion",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="judges",
        help_text="What it scores by, whose weighted sum decides the preference; empty: it ranks.",
    )
    round_number = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Whose comparisons it judges; empty for those of the newest round, whichever that is.",
    )
    max_tokens = models.PositiveIntegerField(default=512, help_text="Its reply is cut off after so many.")
    is_active = models.BooleanField(default=True, help_text="Whether it goes on when there is work.")
    most_judgments = models.PositiveIntegerField(
        null=True, blank=True, help_text="It stops after so many judgments; empty sets no limit."
    )
    most_tokens = models.PositiveBigIntegerField(
        null=True, blank=True, help_text="It stops once it read and wrote so many tokens; empty for no limit."
    )
    questions = models.PositiveBigIntegerField(default=0, help_text="How often it was asked.")
    prompt_tokens = models.PositiveBigIntegerField(default=0, help_text="How many tokens it read.")
    completion_tokens = models.PositiveBigIntegerField(default=0, help_text="How many tokens it wrote.")
    seconds = models.FloatField(default=0.0, help_text="How long its replies took.")

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="judge_name_once"),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="judge_state_known"),
            models.CheckConstraint(condition=Q(max_tokens__gte=1), name="judge_may_write"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("judge", args=[self.project.slug, self.pk])

    @property
    def tokens(self) -> int:
        """Return the number of tokens read and written."""
        return self.prompt_tokens + self.completion_tokens


class RubricDraft(BackgroundJob):
    """Criteria that a model drafts from decided preference pairs. Written by `services.rubric_drafts`.

    Each criterion is checked on held-out pairs. Nothing uses a draft: a manager saves it as a rubric, edited.
    """

    PAGE = "rubric-drafts"

    project = models.ForeignKey("annotation.Project", on_delete=models.PROTECT, related_name="rubric_drafts")
    checkpoint = models.ForeignKey(
        Checkpoint,
        on_delete=models.PROTECT,
        related_name="+",
        limit_choices_to={"kind__in": WRITES_TEXT},
        help_text="The model that drafts and checks.",
    )
    pairs = models.PositiveIntegerField(help_text="How many decided pairs it gets at most.")
    max_tokens = models.PositiveIntegerField(default=1024, help_text="A reply is cut off after so many.")
    criteria = models.JSONField(
        default=list,
        blank=True,
        help_text="Objects with name, text, scale, weight, proposals; checked: agreeing, opposing, tied.",
    )
    pairs_read = models.PositiveIntegerField(default=0, help_text="Pairs that the criteria explain.")
    pairs_checked = models.PositiveIntegerField(default=0, help_text="Held-out pairs that were scored.")
    unread = models.PositiveIntegerField(default=0, help_text="Questions without a readable reply.")
    version = models.ForeignKey(
        "annotation.RubricVersion",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="The version that was saved from it.",
    )

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.UniqueConstraint(
                fields=["project"],
                condition=Q(state__in=(JobState.WAITING, JobState.RUNNING)),
                name="rubric_draft_going_on_once",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="rubric_draft_state_known"),
            models.CheckConstraint(condition=Q(pairs__gte=2), name="rubric_draft_has_pairs"),
        ]

    def __str__(self) -> str:
        return f"Rubric draft {self.pk} by {self.checkpoint}"

    def get_absolute_url(self) -> str:
        return reverse("rubric-draft", args=[self.project.slug, self.pk])


class JudgeVerdict(WrittenOnce):
    """Record of one judgment of a judge: its questions, the orders shown, and its replies.

    Written with the judgment, once.
    """

    judge = models.ForeignKey(Judge, on_delete=models.PROTECT, related_name="verdicts")
    judgment = models.OneToOneField(
        "annotation.Judgment", on_delete=models.PROTECT, related_name="judge_verdict"
    )
    checkpoint = models.ForeignKey(
        Checkpoint, on_delete=models.PROTECT, related_name="+", help_text="What answered."
    )
    model = models.CharField(max_length=200, help_text="Its name on its server, then.")
    template_digest = models.CharField(max_length=64, help_text="SHA-256 of the template.")
    replies = models.JSONField(
        help_text="For each order: completion ids as shown, the reply, and its ranks or why none."
    )
    orders_agree = models.BooleanField(help_text="Whether every order led to the same ranking.")
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    seconds = models.FloatField(default=0.0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.judge}: {self.judgment}"


# Sources of a project's suggestions, and the job that computes them ahead.


class SuggestionSource(BackgroundJob):
    """The model whose suggestions a project's annotators see after their first pass, and its work.

    A checkpoint that writes text is asked as an AI annotator; a reward model scores segments and responses.
    The state is that of its work: finished means that every comparison has its suggestions for now. Written
    by `services.suggestions` alone.
    """

    PAGE = "suggestions"

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.PROTECT, related_name="suggestion_source"
    )
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="+")
    template = models.TextField(
        blank=True, help_text="What an AI annotator is asked; unused for a reward model."
    )
    least_confidence = models.FloatField(
        default=0.5,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text="Suggestions of a lower confidence are left out, 0 to 1.",
    )
    is_active = models.BooleanField(default=True, help_text="Whether it goes on when there are comparisons.")
    compared = models.PositiveBigIntegerField(default=0, help_text="Comparisons that have their suggestions.")
    suggested = models.PositiveBigIntegerField(default=0, help_text="Suggestions stored.")
    planted = models.PositiveBigIntegerField(default=0, help_text="Of them planted wrong.")

    class Meta(BackgroundJob.Meta):
        constraints = [
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="suggestions_state_known"),
            models.CheckConstraint(
                condition=Q(least_confidence__range=(0, 1)), name="suggestions_confidence_in_range"
            ),
        ]

    def __str__(self) -> str:
        return f"Suggestions by {self.checkpoint}"
