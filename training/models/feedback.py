"""Requests of applications, and the feedback of their end users: apart from annotators' judgments."""

import secrets

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.urls import reverse

from annotation.choices import JobState, RatingScale
from annotation.models.jobs import Job
from training.choices import AbuseKind, FeedbackKind, SelectionReason
from training.models.checkpoints import Checkpoint

KEY_PREFIX = "rondo_pk_"
"""Beginning of every publishable key: it opens nothing but feedback."""


def publishable_key() -> str:
    """Return a new publishable key. It stands in web pages, so it is stored and shown in the clear."""
    return KEY_PREFIX + secrets.token_urlsafe(18)


class FeedbackSettings(Job):
    """Settings of a project for applications' requests and feedback. One row per project.

    Absent until a manager saves it: nothing is stored. The job columns are those of the selection of requests
    for annotators (`services.feedback.selection`).
    """

    PAGE = "feedback-settings"

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.CASCADE, related_name="feedback_settings"
    )
    stores_requests = models.BooleanField(
        default=False, help_text="Store the requests of the tokens that are opted in."
    )
    retention_days = models.PositiveIntegerField(
        default=30, help_text="Stored requests and their feedback are deleted after so many days."
    )
    patterns = models.JSONField(
        default=list, blank=True, help_text="Regular expressions; what matches is replaced before storing."
    )
    origins = models.JSONField(
        default=list, blank=True, help_text="Web origins whose pages may send feedback with a key."
    )
    daily_quota = models.PositiveIntegerField(
        default=10_000, help_text="Most feedback of one token or key in a day."
    )
    daily_quota_of_user = models.PositiveIntegerField(
        default=200, help_text="Most feedback of one end user in a day."
    )
    abuse_checked_at = models.DateTimeField(
        null=True, blank=True, help_text="Feedback until then was searched for abuse."
    )
    problem = models.TextField(
        blank=True, default="", help_text="Why the last request that was not stored could not be."
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "feedback settings"
        constraints = [
            models.CheckConstraint(
                condition=Q(retention_days__gte=1, retention_days__lte=3650),
                name="feedback_retention_bounded",
            ),
            models.CheckConstraint(condition=Q(state__in=JobState.values), name="feedback_state_known"),
        ]

    def __str__(self) -> str:
        return f"Feedback settings of {self.project}"


class RequestOptIn(models.Model):
    """A token whose requests are stored, and in which project. Written by `services.feedback.settings`."""

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="request_opt_ins"
    )
    token = models.OneToOneField(
        "annotation.ApiToken", on_delete=models.CASCADE, related_name="request_opt_in"
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.token} in {self.project}"


class FeedbackKey(models.Model):
    """A publishable key: with it a web page gives feedback on its project's responses, and nothing else."""

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="feedback_keys")
    name = models.CharField(max_length=100, help_text="The application that uses it.")
    key = models.CharField(max_length=60, unique=True, default=publishable_key, editable=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"],
                condition=Q(revoked_at__isnull=True),
                name="feedback_key_name_once",
            )
        ]

    def __str__(self) -> str:
        return self.name


class FeedbackRule(models.Model):
    """A rule that puts a share of stored requests before annotators, up to a number a day."""

    # No index of its own: the constraint begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="feedback_rules", db_index=False
    )
    reason = models.CharField(max_length=20, choices=SelectionReason)
    is_on = models.BooleanField(default=False)
    share = models.FloatField(default=0.05, help_text="Of the stored requests, from 0 to 1.")
    most_per_day = models.PositiveIntegerField(default=20)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "reason"], name="feedback_rule_once"),
            models.CheckConstraint(
                condition=Q(share__gte=0, share__lte=1), name="feedback_rule_share_is_one"
            ),
            models.CheckConstraint(
                condition=Q(reason__in=SelectionReason.values), name="feedback_rule_reason_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_reason_display()} in {self.project}"


class ApplicationRequest(models.Model):
    """A request of an application: its prompt, its completions and where they came from, redacted.

    Written by `services.feedback.recording` after the answer was sent. Deleted after the project's retention,
    or with its end user. It is no prompt of the project: only those that come before annotators become one.
    """

    # No index of its own: the constraint and the indexes below begin with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="application_requests", db_index=False
    )
    key = models.CharField(max_length=100, help_text="The completion id, `id` of the answer.")
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="application_requests")
    token = models.ForeignKey(
        "annotation.ApiToken", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    token_name = models.CharField(max_length=100)
    pseudonym = models.CharField(
        max_length=64, blank=True, default="", help_text="Keyed hash of the end user's id; empty without one."
    )
    messages = models.JSONField(help_text="A list of objects with `role` and `content`, redacted.")
    content_hash = models.CharField(max_length=64, help_text="As of a prompt.")
    sampling = models.JSONField(default=dict, help_text="temperature, top_p, max_tokens, … as requested.")
    choices = models.JSONField(
        help_text="Completions in their order: `text`, `seed`, `finish_reason`, `token_count`."
    )
    redactions = models.PositiveIntegerField(default=0, help_text="Stretches that patterns replaced.")
    is_streamed = models.BooleanField(default=False)
    scores = models.JSONField(
        default=dict, blank=True, help_text="Score of the first completion by reward model."
    )
    examined_at = models.DateTimeField(
        null=True, blank=True, help_text="When the rules that need no feedback decided on it."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "key"], name="application_request_key_once")
        ]
        indexes = [
            models.Index(fields=["project", "id"], name="application_request_order"),
            models.Index(fields=["project", "pseudonym"], name="application_request_by_user"),
            models.Index(fields=["project", "created_at"], name="application_request_by_age"),
            models.Index(
                fields=["project", "id"],
                condition=Q(examined_at__isnull=True),
                name="application_request_unexamined",
            ),
        ]

    def __str__(self) -> str:
        return self.key

    def get_absolute_url(self) -> str:
        return reverse("feedback-request", args=[self.project.slug, self.pk])

    @property
    def last_question(self) -> str:
        """Return the last user turn."""
        return next((turn["content"] for turn in reversed(self.messages) if turn["role"] == "user"), "")


class Feedback(models.Model):
    """One end user's feedback of one kind on one completion; given again, it replaces what was given before.

    Written by `services.feedback.recording` alone. It is no judgment, and enters a snapshot only where a
    recipe says so.
    """

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="feedback", db_index=False
    )
    # No index of its own: the constraint begins with it.
    request = models.ForeignKey(
        ApplicationRequest, on_delete=models.CASCADE, related_name="feedback", db_index=False
    )
    choice = models.PositiveSmallIntegerField(default=0, help_text="Which of the answer's completions.")
    kind = models.CharField(max_length=12, choices=FeedbackKind)
    value = models.SmallIntegerField(
        null=True, blank=True, help_text="0 or 1 of a thumb, the step of a rating."
    )
    scale = models.CharField(max_length=10, choices=RatingScale, blank=True, default="")
    text = models.TextField(blank=True, default="", help_text="The rewrite, redacted.")
    alternative = models.ForeignKey(
        ApplicationRequest, on_delete=models.CASCADE, null=True, blank=True, related_name="chosen_in"
    )
    alternative_choice = models.PositiveSmallIntegerField(default=0)
    author = models.CharField(
        max_length=64, help_text="Keyed hash of the end user's id, or of the token where none was sent."
    )
    address = models.CharField(
        max_length=64, blank=True, default="", help_text="Keyed hash of the network address."
    )
    token = models.ForeignKey(
        "annotation.ApiToken", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    key = models.ForeignKey(FeedbackKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    source_name = models.CharField(max_length=100, help_text="Name of the token or key.")
    changes = models.PositiveIntegerField(default=0, help_text="How often it was replaced by another value.")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "feedback"
        constraints = [
            models.UniqueConstraint(
                fields=["request", "choice", "kind", "author"], name="feedback_once_per_author"
            ),
            models.CheckConstraint(
                condition=(
                    Q(kind=FeedbackKind.THUMB, value__in=(0, 1), scale=RatingScale.THUMBS)
                    | Q(kind=FeedbackKind.RATING, scale=RatingScale.FIVE, value__gte=1, value__lte=5)
                    | Q(kind=FeedbackKind.RATING, scale=RatingScale.SEVEN, value__gte=1, value__lte=7)
                    | (Q(kind=FeedbackKind.REWRITE, value__isnull=True) & ~Q(text=""))
                    | Q(kind=FeedbackKind.ALTERNATIVE, value__isnull=True, alternative__isnull=False)
                ),
                name="feedback_fits_its_kind",
            ),
            models.CheckConstraint(
                condition=~Q(alternative=F("request"), alternative_choice=F("choice")),
                name="feedback_alternative_is_another",
            ),
        ]
        indexes = [
            models.Index(fields=["project", "id"], name="feedback_order"),
            models.Index(fields=["project", "author", "created_at"], name="feedback_by_author"),
            models.Index(fields=["project", "address", "created_at"], name="feedback_by_address"),
            models.Index(fields=["project", "created_at"], name="feedback_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} on {self.request}"

    @property
    def is_good(self) -> bool | None:
        """Return True for a thumb up or a rating above the middle, False for the reverse, else None."""
        if self.value is None:
            return None
        middle = {RatingScale.THUMBS: 0.5, RatingScale.FIVE: 3, RatingScale.SEVEN: 4}[RatingScale(self.scale)]
        return None if self.value == middle else self.value > middle


class FeedbackIncident(models.Model):
    """A pattern in feedback that looks like abuse. Its feedback is excluded until a manager includes it.

    Written by `services.feedback.abuse`; found again it stays one row, which grows.
    """

    # No index of its own: the constraint begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="feedback_incidents", db_index=False
    )
    kind = models.CharField(max_length=15, choices=AbuseKind)
    subject = models.CharField(max_length=120, help_text="Whose feedback: user, address, token or key.")
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    feedback = models.ManyToManyField(Feedback, related_name="incidents")
    is_included = models.BooleanField(default=False, help_text="A manager takes it for honest.")
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-started_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "kind", "subject", "started_at"], name="feedback_incident_once"
            ),
            models.CheckConstraint(condition=Q(kind__in=AbuseKind.values), name="feedback_incident_known"),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {self.subject}"


class FeedbackComparison(models.Model):
    """A stored request that came before annotators: its comparison, and the rule that chose it."""

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="feedback_comparisons"
    )
    request = models.OneToOneField(
        ApplicationRequest,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="comparison",
        help_text="Empty once the request was deleted.",
    )
    comparison = models.ForeignKey(
        "annotation.Comparison",
        on_delete=models.CASCADE,
        related_name="feedback_origins",
        help_text="Shared by requests with the same prompt and responses.",
    )
    reason = models.CharField(max_length=20, choices=SelectionReason)
    figure = models.FloatField(null=True, blank=True, help_text="The reward, or the disagreement.")
    added_prompt = models.BooleanField(
        default=False, help_text="The prompt was not in the project before; it leaves with its request."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(reason__in=SelectionReason.values), name="feedback_comparison_reason_known"
            )
        ]

    def __str__(self) -> str:
        return f"{self.get_reason_display()}: {self.comparison}"
