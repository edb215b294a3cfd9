"""Live conversations on the models' side: who answers, and the responses as they were generated."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from annotation.models.conversations import MOST_TURNS
from training.models.checkpoints import Checkpoint
from training.models.comparing import ArenaLink


class ContinuesWith(models.TextChoices):
    """The response with which a conversation goes on."""

    CHOSEN = "chosen", _("the preferred response")
    RANDOM = "random", _("a random response")
    EDITED = "edited", _("the annotator's edit of the preferred response")


class ConversationSettings(models.Model):
    """Settings of annotators' conversations with checkpoints. Without a row, or closed, none may begin."""

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.CASCADE, related_name="conversation_settings"
    )
    checkpoints = models.ManyToManyField(Checkpoint, related_name="+")
    responses = models.PositiveSmallIntegerField(default=2, help_text="Responses to every message, 2 to 4.")
    continues_with = models.CharField(max_length=10, choices=ContinuesWith, default=ContinuesWith.CHOSEN)
    most_turns = models.PositiveSmallIntegerField(default=10)
    rates_whole = models.BooleanField(default=True, help_text="Ask for a rating of the whole conversation.")
    is_open = models.BooleanField(default=False, help_text="Whether annotators may begin conversations.")
    sampling = models.JSONField(default=dict, help_text="temperature, top_p, max_tokens.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "conversation settings"
        constraints = [
            models.CheckConstraint(
                condition=Q(responses__range=(2, 4)), name="conversation_settings_responses_in_range"
            ),
            models.CheckConstraint(
                condition=Q(most_turns__range=(1, MOST_TURNS)), name="conversation_settings_turns_in_range"
            ),
            models.CheckConstraint(
                condition=Q(continues_with__in=ContinuesWith.values),
                name="conversation_settings_continuation_known",
            ),
        ]

    def __str__(self) -> str:
        return f"Conversations of {self.project}"


class TurnResponse(models.Model):
    """One response to one turn, by its position on the screen. `text` is empty until it is generated.

    Position and checkpoint are drawn with the turn, counterbalanced, and never change; with the seed the
    same response is generated again.
    """

    turn = models.ForeignKey(
        "annotation.ConversationTurn", on_delete=models.CASCADE, related_name="responses", db_index=False
    )
    position = models.PositiveSmallIntegerField()
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="+")
    seed = models.PositiveBigIntegerField()
    sampling = models.JSONField(default=dict)
    text = models.TextField(blank=True)
    finish_reason = models.CharField(max_length=20, blank=True)
    token_count = models.PositiveIntegerField(null=True, blank=True)
    written_at = models.DateTimeField(null=True, blank=True)
    completion = models.ForeignKey(
        "annotation.Completion",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="turn_responses",
        help_text="Stored with the turn's comparison, once all responses are generated.",
    )

    class Meta:
        ordering = ["turn", "position"]
        constraints = [
            models.UniqueConstraint(fields=["turn", "position"], name="turn_response_position_once"),
            models.CheckConstraint(
                condition=Q(position__range=(1, 4)), name="turn_response_position_in_range"
            ),
        ]

    def __str__(self) -> str:
        return self.text[:80]


class ModelDraw(models.Model):
    """Count of turns that a set of checkpoints answered, so that sets and positions are counterbalanced."""

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    scope = models.CharField(max_length=30, help_text="`project`, or the arena.")
    models_key = models.CharField(max_length=100, help_text="Ids of the checkpoints, in order.")
    drawn = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "scope", "models_key"], name="model_draw_once"),
        ]

    def __str__(self) -> str:
        return f"{self.models_key}: {self.drawn}"


class PreparedOpening(models.Model):
    """Responses to a task's opening message, generated ahead. The next conversation about it takes them."""

    task = models.ForeignKey(
        "annotation.ConversationTask", on_delete=models.CASCADE, related_name="prepared_openings"
    )
    key = models.CharField(max_length=64, help_text="Hash of all that it was generated from.")
    responses = models.JSONField(
        help_text="In the order of positions: checkpoint, seed, text, finish_reason, token_count."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"Opening of {self.task}"


class ArenaTalk(models.Model):
    """A conversation of a voter in an arena in which visitors write their own messages."""

    arena = models.ForeignKey(ArenaLink, on_delete=models.CASCADE, related_name="talks")
    conversation = models.OneToOneField(
        "annotation.Conversation", on_delete=models.CASCADE, related_name="arena_talk"
    )

    def __str__(self) -> str:
        return f"{self.arena}: {self.conversation}"
