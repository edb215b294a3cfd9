"""People: users, memberships, invitations."""

import uuid
from datetime import datetime

from django.contrib.auth.models import AbstractUser
from django.core.validators import MinValueValidator
from django.db import models

from annotation.choices import MailState, Role
from annotation.models.allocation import LONGEST_GROUP, check_skills


class User(AbstractUser):
    """One person who signs in. `pseudonym` stands for them wherever judgments leave Rondo."""

    pseudonym = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    keys = models.JSONField(
        default=dict, blank=True, help_text="Keys that this person chose: action of the screen → key."
    )
    language = models.CharField(
        max_length=10, blank=True, help_text="Language of the interface; empty follows the browser."
    )
    is_guest = models.BooleanField(
        default=False, editable=False, help_text="Stands for a visitor of an arena, who cannot sign in."
    )
    is_machine = models.BooleanField(
        default=False, editable=False, help_text="A program that judges. It cannot sign in."
    )

    erased_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When this person had their account deleted; the row stays as the author of judgments.",
    )

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(
                condition=models.Q(erased_at__isnull=True)
                | models.Q(
                    is_active=False, is_staff=False, is_superuser=False, first_name="", last_name="", email=""
                ),
                name="user_erased_has_no_name",
            ),
            models.CheckConstraint(
                condition=models.Q(is_machine=False)
                | models.Q(is_active=False, is_staff=False, is_superuser=False),
                name="user_machine_cannot_sign_in",
            ),
        ]

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
    daily_limit = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many comparisons this person may submit a day; empty for the project's limit.",
    )
    total_limit = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many comparisons this person may submit in all; empty for no limit.",
    )
    skills = models.JSONField(
        default=list,
        blank=True,
        validators=[check_skills],
        help_text="What this person can judge, such as languages, in the words of the project's rules.",
    )
    group = models.CharField(
        max_length=LONGEST_GROUP,
        blank=True,
        default="",
        db_default="",
        help_text="Group of annotators, such as a profession or a region; reward models can learn what each "
        "group prefers. Empty for none.",
    )
    joined_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="membership_once_per_project"),
            models.CheckConstraint(
                condition=models.Q(daily_limit__isnull=True) | models.Q(daily_limit__gte=1),
                name="membership_daily_limit_positive",
            ),
            models.CheckConstraint(
                condition=models.Q(total_limit__isnull=True) | models.Q(total_limit__gte=1),
                name="membership_total_limit_positive",
            ),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user}, {self.get_role_display()} of {self.project}"


class Invitation(models.Model):
    """A link by which people become members of one project. Only its SHA-256 is kept: it is shown once.

    Written by `annotation.services.projects.invitations` alone. What is used up, expired or revoked stays
    in the list.
    """

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="invitations")
    role = models.CharField(max_length=20, choices=Role, default=Role.ANNOTATOR)
    note = models.CharField(max_length=100, blank=True, help_text="Whom it is for, to tell one from another.")
    digest = models.CharField(max_length=64, unique=True, editable=False, help_text="SHA-256 of the secret.")
    uses = models.PositiveIntegerField(default=0, help_text="How many people joined by it.")
    most_uses = models.PositiveIntegerField(default=1, help_text="How many may.")
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    email = models.EmailField(
        blank=True,
        default="",
        db_default="",
        help_text="Where the link is sent; a link sent by e-mail is shown nowhere else.",
    )
    mail = models.CharField(
        max_length=10, choices=MailState, default=MailState.NONE, db_default=MailState.NONE, blank=True
    )
    created_by = models.ForeignKey("annotation.User", on_delete=models.PROTECT, related_name="invitations")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(uses__lte=models.F("most_uses"), most_uses__gte=1),
                name="invitation_not_overused",
            ),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="invitation_role_known"),
            models.CheckConstraint(
                condition=models.Q(mail=MailState.NONE, email="")
                | (models.Q(mail__in=["waiting", "sent", "failed"]) & ~models.Q(email="")),
                name="invitation_mail_has_address",
            ),
        ]

    def __str__(self) -> str:
        return f"Invitation {self.pk} to {self.project}"

    def is_good(self, now: datetime) -> bool:
        """Return True where somebody may still join by it."""
        return self.revoked_at is None and self.expires_at > now and self.uses < self.most_uses
