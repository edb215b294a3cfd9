"""Keys by which programs act for people."""

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q


class ApiToken(models.Model):
    """A named secret of one person for programs. Only its SHA-256 is kept: it is shown once, when made.

    Written by `annotation.services.people.tokens` alone. What is revoked or expired stays in the list.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=100, help_text="What it is for.")
    digest = models.CharField(max_length=64, unique=True, editable=False, help_text="SHA-256 of the secret.")
    beginning = models.CharField(
        max_length=12, editable=False, help_text="The first characters, to tell one from another."
    )
    scopes = models.JSONField(default=list, help_text="What it may be used for: names of `TokenScope`.")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, help_text="To the minute.")
    used_in_minute = models.PositiveIntegerField(
        default=0, editable=False, help_text="Requests in the minute of its last use."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "name"], condition=Q(revoked_at__isnull=True), name="api_token_name_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.beginning}…)"

    def is_good(self, now: datetime) -> bool:
        """Return True where the token is valid now."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)
