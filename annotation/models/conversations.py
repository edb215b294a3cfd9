"""Live conversations: an annotator talks with blind checkpoints, and every turn is a comparison."""

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse

from annotation.models.work import shuffled

MOST_TURNS = 40
"""Turns of the longest conversation."""


class ConversationTask(models.Model):
    """An opening task of a project: persona and goal, and the beginning of the conversation."""

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="conversation_tasks", db_index=False
    )
    name = models.CharField(max_length=120)
    instructions = models.TextField(
        blank=True, help_text="Persona and goal, in Markdown. Annotators see them beside the conversation."
    )
    system = models.TextField(blank=True, help_text="System prompt of the checkpoints.")
    opening = models.TextField(
        blank=True, help_text="First message; empty where the annotator writes it themselves."
    )
    language = models.CharField(max_length=40, blank=True, help_text="Language to write in, such as German.")
    least_turns = models.PositiveSmallIntegerField(default=1, help_text="Turns before it may be ended.")
    harm_category = models.CharField(
        max_length=80,
        blank=True,
        help_text="Red teaming: the harm to provoke. Its success is then rated at the end.",
    )
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="conversation_task_name_once"),
            models.CheckConstraint(
                condition=Q(least_turns__range=(1, MOST_TURNS)), name="conversation_task_least_turns_in_range"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Conversation(models.Model):
    """One person's conversation. It is open until `ended_at`; the judgments of its turns stand either way.

    All turns are of the split of the first, whose prompt every later one contains.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="conversations", db_index=False
    )
    annotator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="conversations"
    )
    task = models.ForeignKey(
        ConversationTask, on_delete=models.PROTECT, null=True, blank=True, related_name="conversations"
    )
    system = models.TextField(blank=True)
    seed = models.PositiveBigIntegerField(
        default=shuffled, help_text="From which the seeds of the responses and every draw follow."
    )
    rating = models.PositiveSmallIntegerField(null=True, blank=True, help_text="Of the whole, 1 to 5.")
    attack_success = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Red teaming: 0 the models refused, to 4 full success."
    )
    comment = models.TextField(blank=True)
    imported_from = models.JSONField(null=True, blank=True, help_text="Its id and task in another project.")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(rating__isnull=True) | Q(rating__range=(1, 5)),
                name="conversation_rating_in_range",
            ),
            models.CheckConstraint(
                condition=Q(attack_success__isnull=True) | Q(attack_success__range=(0, 4)),
                name="conversation_attack_success_in_range",
            ),
        ]
        indexes = [models.Index(fields=["project", "annotator", "ended_at"], name="conversation_of_person")]

    def __str__(self) -> str:
        return f"Conversation {self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("conversation", args=[self.project.slug, self.pk])


class ConversationTurn(models.Model):
    """One message of the annotator, and the comparison of the responses to it once all are there.

    `continued_with` is written with the next message: whatever is judged later, the conversation went on
    from that response.
    """

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="turns")
    index = models.PositiveSmallIntegerField(help_text="From 1.")
    prompt = models.ForeignKey(
        "annotation.Prompt",
        on_delete=models.PROTECT,
        related_name="turns",
        help_text="The conversation up to the annotator's message.",
    )
    comparison = models.ForeignKey(
        "annotation.Comparison", on_delete=models.PROTECT, null=True, blank=True, related_name="turns"
    )
    continued_with = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    continued_text = models.TextField(
        blank=True, help_text="The annotator's edit with which it went on; empty for the response as it was."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["conversation", "index"]
        constraints = [
            models.UniqueConstraint(fields=["conversation", "index"], name="conversation_turn_once"),
            models.UniqueConstraint(fields=["conversation", "comparison"], name="conversation_compared_once"),
            models.CheckConstraint(
                condition=Q(index__range=(1, MOST_TURNS)), name="conversation_turn_in_range"
            ),
            models.CheckConstraint(
                condition=Q(continued_text="") | Q(continued_with__isnull=False),
                name="conversation_edit_of_a_response",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.conversation}, turn {self.index}"
