"""Text that annotators pasted while they wrote, where the project records it."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from annotation.choices import WrittenIn
from annotation.models.written_once import WrittenOnce

LONGEST_PASTE = 10_000_000
"""Characters; a longer paste counts as so many."""


class PasteRecord(WrittenOnce):
    """One paste into a text: how long, where, and whether the screen showed that text. The text is not kept.

    Written by `services.pastes` alone, while the annotator has the comparison in hand.
    """

    assignment = models.ForeignKey("annotation.Assignment", on_delete=models.CASCADE, related_name="pastes")
    annotator = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="pastes")
    key = models.UUIDField(unique=True, help_text="Drawn by the page: a paste that is sent twice is one.")
    field = models.CharField(max_length=20, choices=WrittenIn)
    completion = models.ForeignKey(
        "annotation.Completion",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="+",
        help_text="The response that was written about; empty for a text about none.",
    )
    characters = models.PositiveIntegerField()
    is_on_screen = models.BooleanField(
        help_text="Whether the prompt or a response held it, as the annotator's page reported."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(condition=Q(field__in=WrittenIn.values), name="paste_field_known"),
            models.CheckConstraint(
                condition=Q(characters__range=(1, LONGEST_PASTE)), name="paste_has_characters"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.characters} characters into {self.field}"
