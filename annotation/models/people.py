"""People: users, memberships, invitations."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext as _

from annotation.choices import MailState, Role
from annotation.models.written_once import WrittenOnce

# Checks of the JSON values by which work is allocated: the rules of a project, the skills of a member.

MOST_RULES = 50
MOST_SKILLS = 50
LONGEST_SKILL = 60
LONGEST_GROUP = 60
LONGEST_TAG = 200
ALL = 100
"""Percent: the share of a rule that reserves every comparison with its tag."""


def check_skills(value: Any) -> None:
    """Refuse skills that are not a list of different names."""
    if not isinstance(value, list) or not all(_is_name(skill, LONGEST_SKILL) for skill in value):
        raise ValidationError(
            _("Skills are a list of names of at most %(longest)s characters.") % {"longest": LONGEST_SKILL}
        )
    if len(value) > MOST_SKILLS:
        raise ValidationError(_("A member has at most %(most)s skills.") % {"most": MOST_SKILLS})
    _refuse_repeated(value, _("The skill %(name)s is named twice. Leave one out."))


def check_allocation(value: Any) -> None:
    """Refuse rules that are not a list of a tag with a skill and perhaps a share each, every tag once."""
    if not isinstance(value, list) or not all(_is_rule(rule) for rule in value):
        raise ValidationError(
            _(
                "A rule names a tag and a skill in words, perhaps a share in percent from 1 to 100, such as "
                '{"tag": "german", "skill": "German", "share": 100}.'
            )
        )
    if len(value) > MOST_RULES:
        raise ValidationError(_("A project has at most %(most)s rules.") % {"most": MOST_RULES})
    _refuse_repeated(
        [rule["tag"] for rule in value], _("The tag %(name)s has a rule already. Remove it first.")
    )


def _is_rule(rule: Any) -> bool:
    return (
        isinstance(rule, dict)
        and {"tag", "skill"} <= rule.keys() <= {"tag", "skill", "share"}
        and _is_share(rule.get("share", ALL))
        and _is_name(rule["tag"], LONGEST_TAG)
        and _is_name(rule["skill"], LONGEST_SKILL)
    )


def _is_share(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= ALL


def _is_name(value: Any, longest: int) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= longest
        and value == value.strip()
        and "\x00" not in value
    )


def _refuse_repeated(names: Sequence[str], message: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValidationError(message % {"name": name})


# ── People ──


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
    is_participant = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Annotates by the link of a panel; reaches nothing but the labelling pages of its project.",
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
    hourly_wage = models.DecimalField(
        max_digits=8,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="What an hour of this person is paid; empty for the project's wage.",
    )
    item_pay = models.DecimalField(
        max_digits=8,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text="What an annotation of this person is paid; empty for the project's rate.",
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


# Keys by which programs act for people.


class ApiToken(models.Model):
    """A named secret of one person for programs. Only its SHA-256 is kept: it is shown once, when made.

    Written by `annotation.services.people.accounts` alone. What is revoked or expired stays in the list.
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


# Audit log: every action with its actor and time.


class AuditEntry(WrittenOnce):
    """One action of a person. Written by `annotation.services.audit.record` alone.

    Triggers of the database refuse every UPDATE and DELETE, of whatever program, with two exceptions:
    `project` becomes empty when the project is deleted, and the words (`subject`, `details`) may be replaced
    where `redacted_at` moves on with them (`annotation.services.people.accounts.erase_account`).
    """

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="audit_entries",
        help_text="Who did it; none where Rondo did it by itself.",
    )
    project = models.ForeignKey(
        "annotation.Project",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="audit_entries",
        help_text="Where; none for what belongs to no project.",
    )
    action = models.CharField(
        max_length=60, help_text="What was done, as `round.start` or `checkpoint.delete`."
    )
    subject = models.CharField(max_length=200, help_text="To what: its name at that time.")
    subject_id = models.PositiveBigIntegerField(null=True, blank=True, help_text="Its key, where it has one.")
    details = models.JSONField(default=dict, blank=True, help_text="What else is worth knowing later.")
    created_at = models.DateTimeField(auto_now_add=True)
    redacted_at = models.DateTimeField(
        null=True, blank=True, help_text="When a name in its words was replaced, since that person left."
    )

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["project", "-id"], name="audit_by_project"),
            models.Index(fields=["action", "-id"], name="audit_by_action"),
        ]

    def __str__(self) -> str:
        return f"{self.action}: {self.subject}"


# Answers of the API that are given again when their request comes again.


class KeptAnswer(models.Model):
    """The response to a request with an `Idempotency-Key`, so that sending it again does nothing twice.

    Written by `annotation.api.base` alone, in the transaction of what the request did. Only
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
