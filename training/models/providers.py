"""Providers of models: OpenAI-compatible servers, each with its address and its sealed key."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse

from annotation.models.webhooks import unseal

SEALED_FOR = "provider key"
LONGEST_PROVIDER_NAME = 60
MOST_MODELS = 1000
"""Models of a provider that are remembered."""


class ModelProvider(models.Model):
    """A server whose models respond here. Written by `services.providers` alone.

    The key is encrypted with the secret key of this Rondo, and no page or API shows it.
    """

    name = models.CharField(max_length=LONGEST_PROVIDER_NAME, unique=True)
    url = models.CharField(max_length=200)
    sealed_key = models.TextField(blank=True, help_text="Encrypted; empty where the server needs none.")
    served_models = models.JSONField(
        default=list, blank=True, help_text="Names that it gave when last tested."
    )
    tested_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True, help_text="Why the last test failed; empty if it did not.")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=~Q(name="") & ~Q(url=""), name="provider_has_name_and_address"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("provider", args=[self.pk])

    @property
    def has_key(self) -> bool:
        """Return whether a key is sent along."""
        return bool(self.sealed_key)

    @property
    def key(self) -> str:
        """Return the key, which is for the server alone. Raises `SealBrokenError`."""
        return unseal(self.sealed_key, purpose=SEALED_FOR) if self.sealed_key else ""
