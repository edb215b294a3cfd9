"""Answers of the API that are given again when their request comes again."""

from django.conf import settings
from django.db import models


class KeptAnswer(models.Model):
    """The response to a request with an `Idempotency-Key`, so that sending it again does nothing twice.

    Written by `annotation.api.idempotency` alone, in the transaction of what the request did. Only
    requests that succeeded are kept: one that was refused did nothing, and may be sent again.
    """

    # No index of its own: the constraint below begins with it.
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    key = models.CharField(max_length=200, help_text="As the program sent it.")
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of method, address and body.")
    status = models.PositiveSmallIntegerField(default=0, help_text="0 until the request is answered.")
    body = models.TextField(blank=True, help_text="The answer as JSON.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="kept_answer_key_once")]
        indexes = [models.Index(fields=["created_at"], name="kept_answer_by_age")]

    def __str__(self) -> str:
        return f"{self.key} of {self.user}"
