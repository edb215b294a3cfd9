"""Prompt sets: prompts of a project on which checkpoints are compared again and again."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse


class PromptSet(models.Model):
    """A named choice of a project's prompts. Written by `training.services.prompt_sets`."""

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="prompt_sets")
    name = models.CharField(max_length=100)
    prompts = models.ManyToManyField("annotation.Prompt", related_name="prompt_sets", blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="prompt_set_name_once"),
            models.CheckConstraint(condition=~Q(name=""), name="prompt_set_has_name"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("prompt-set", args=[self.project.slug, self.pk])
