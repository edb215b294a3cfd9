"""Who takes part."""

import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models

from annotation.choices import Role


class User(AbstractUser):
    """One person who signs in. `pseudonym` stands for them wherever judgments leave Rondo."""

    pseudonym = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    keys = models.JSONField(
        default=dict, blank=True, help_text="Keys that this person chose: action of the screen → key."
    )
    language = models.CharField(
        max_length=10, blank=True, help_text="Language of the interface; empty follows the browser."
    )

    def __str__(self) -> str:
        return self.get_full_name() or self.username


class Membership(models.Model):
    """One person's part in one project. Without a row a project does not exist for them."""

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey("annotation.User", on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=20, choices=Role, default=Role.ANNOTATOR)
    guideline_seen = models.PositiveIntegerField(
        null=True, blank=True, help_text="The newest version of the rules that this person has acknowledged."
    )
    qualified_at = models.DateTimeField(
        null=True, blank=True, help_text="When they passed the qualification set, or were let in without."
    )
    joined_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="membership_once_per_project"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user}, {self.get_role_display()} of {self.project}"
