"""A project's settings for requests and feedback of applications: opt-in, limits, rules, keys, redaction."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import regex
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import JobState, TokenScope
from annotation.errors import Refusal
from annotation.models import ApiToken, Project, User
from annotation.selectors import access
from annotation.services import audit
from training.choices import SelectionReason
from training.models import FeedbackKey, FeedbackRule, FeedbackSettings, RequestOptIn

# ── Redaction ──


REPLACEMENT = "[redacted]"
SECONDS = 1.0
"""For all texts of one request. What takes longer is not stored."""
MOST_PATTERNS = 50
LONGEST_PATTERN = 500
SUGGESTED = (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", r"\+?\d[\d ()/-]{6,}\d")
"""E-mail addresses, and telephone or account numbers."""

_PROBE_SECONDS = 0.2
_PROBES = (*(character * 3_000 + "\n!" for character in "a0 .-@"), "a1 @." * 1_000)
"""Texts on which patterns with nested or overlapping repetition take exponential time."""


class TooSlowError(Exception):
    """The patterns took longer than a request may."""


class Redactor:
    """The patterns of a project, for the texts of one request. `count` is how often they matched."""

    def __init__(self, patterns: Sequence[str], *, seconds: float = SECONDS) -> None:
        self._patterns = [regex.compile(pattern) for pattern in patterns]
        self._until = time.monotonic() + seconds
        self.count = 0

    def __call__(self, text: str) -> str:
        """Return the text with every match replaced. Raises `TooSlowError` when time is up."""
        for pattern in self._patterns:
            left = self._until - time.monotonic()
            if left <= 0:
                raise TooSlowError
            try:
                # Other threads answer requests meanwhile.
                text, matches = pattern.subn(REPLACEMENT, text, timeout=left, concurrent=True)
            except TimeoutError as error:
                raise TooSlowError from error
            self.count += matches
        return text


def checked_patterns(lines: Sequence[str]) -> list[str]:
    """Return patterns without blank lines. Refuses what does not compile, matches nothing, or is slow."""
    patterns = [line.strip() for line in lines if line.strip()]
    if len(patterns) > MOST_PATTERNS:
        raise Refusal(
            "too_many_patterns", _("Enter at most %(most)d patterns."), field="patterns", most=MOST_PATTERNS
        )
    for number, pattern in enumerate(patterns, start=1):
        if fault := _fault(pattern):
            raise Refusal(
                "invalid_pattern",
                _("Pattern %(number)d: %(fault)s"),
                field="patterns",
                number=number,
                fault=fault,
            )
    return patterns


def _fault(pattern: str) -> str:
    if len(pattern) > LONGEST_PATTERN or "\x00" in pattern:
        return _("it has more than %(most)d characters.") % {"most": LONGEST_PATTERN}
    try:
        compiled = regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        return _("it is no regular expression (%(why)s).") % {"why": error}
    try:
        if compiled.search("", timeout=_PROBE_SECONDS):
            return _("it matches an empty text, so it would match everywhere.")
        for probe in _PROBES:
            compiled.subn(REPLACEMENT, probe, timeout=_PROBE_SECONDS)
    except TimeoutError:
        return _("it takes too long on some texts. Avoid repetition within repetition.")
    return ""


# ── Settings, keys and opt-in ──


SETTINGS = (
    *("stores_requests", "retention_days", "patterns", "origins"),
    *("daily_quota", "daily_quota_of_user"),
)
MOST_KEYS = 20
MOST_ORIGINS = 20

_ORIGIN = re.compile(r"https?://[a-z0-9.-]{1,253}(?::[1-9][0-9]{0,4})?")


def settings_of(project: Project) -> FeedbackSettings:
    """Return the project's settings; unsaved defaults, which store nothing, where there are none."""
    return FeedbackSettings.objects.filter(project=project).first() or FeedbackSettings(
        project=project, patterns=list(SUGGESTED), state=JobState.FINISHED
    )


def rules_of(project: Project) -> list[FeedbackRule]:
    """Return the rules of a project, one for each reason; unsaved ones are off."""
    stored = {rule.reason: rule for rule in project.feedback_rules.all()}
    return [
        stored.get(reason) or FeedbackRule(project=project, reason=reason)
        for reason in SelectionReason.values
    ]


@transaction.atomic
def change_settings(*, project: Project, changes: Mapping[str, Any], changed_by: User) -> FeedbackSettings:
    """Store settings, those of `SETTINGS` that are in `changes`. Refuses wrong values, naming the field."""
    access.refuse_unless_manager(changed_by, project, "manager_changes_feedback")
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    settings = settings_of(project)
    checked = dict(changes)
    if "patterns" in checked:
        checked["patterns"] = checked_patterns(checked["patterns"])
    if "origins" in checked:
        checked["origins"] = _checked_origins(checked["origins"])
    if not 1 <= checked.get("retention_days", settings.retention_days) <= 3650:
        raise Refusal("invalid_retention", _("Enter 1 to 3650 days."), field="retention_days")
    changed = {
        name: checked[name]
        for name in SETTINGS
        if name in checked and checked[name] != getattr(settings, name)
    }
    for name, value in changed.items():
        setattr(settings, name, value)
    if changed or settings.pk is None:
        settings.problem = ""
        # A worker writes the columns of its job meanwhile.
        written = [*changed, "problem", "updated_at"] if settings.pk else None
        settings.save(update_fields=written)
        audit.record(
            action="feedback.settings", subject=project, actor=changed_by, project=project, details=changed
        )
    # A selection that failed begins again with the next sweep.
    FeedbackSettings.objects.filter(pk=settings.pk, state=JobState.FAILED).update(
        state=JobState.FINISHED, error=""
    )
    return settings


@transaction.atomic
def set_rule(
    *, project: Project, reason: str, is_on: bool, share: float, most_per_day: int, changed_by: User
) -> FeedbackRule:
    """Store the rule of one reason. Refuses a share outside 0 to 1 and an unknown reason."""
    access.refuse_unless_manager(changed_by, project, "manager_changes_feedback")
    if reason not in SelectionReason.values:
        raise Refusal("unknown_rule", _("Choose one of the rules."), field="reason")
    if not 0 <= share <= 1:
        raise Refusal("invalid_share", _("Enter a share from 0 to 1."), field="share")
    if not 1 <= most_per_day <= 10_000:
        raise Refusal("invalid_daily_quota", _("Enter 1 to 10000 a day."), field="most_per_day")
    values = {"is_on": is_on, "share": share, "most_per_day": most_per_day}
    before = FeedbackRule.objects.filter(project=project, reason=reason).values(*values).first()
    rule, _created = FeedbackRule.objects.update_or_create(project=project, reason=reason, defaults=values)
    if before != values and (before or is_on):
        audit.record(
            action="feedback.rule",
            subject=project,
            actor=changed_by,
            project=project,
            details={"reason": reason, **values},
        )
    return rule


@transaction.atomic
def opt_in(*, project: Project, token: ApiToken, opted_by: User) -> RequestOptIn:
    """Have the requests of a token stored in a project. Refuses another person's token, one that generates
    nothing, and one whose requests another project stores."""
    access.refuse_unless_manager(opted_by, project, "manager_changes_feedback")
    if token.user_id != opted_by.pk or not token.is_good(timezone.now()):
        raise Refusal("unknown_token", _("Choose one of your tokens."), field="token")
    if TokenScope.GENERATE not in token.scopes:
        raise Refusal("token_lacks_scope", _("This token may not generate responses."), field="token")
    row, created = RequestOptIn.objects.get_or_create(
        token=token, defaults={"project": project, "created_by": opted_by}
    )
    if row.project_id != project.pk:
        raise Refusal(
            "token_of_other_project", _("Another project stores the requests of this token."), field="token"
        )
    if created:
        audit.record(action="feedback.opt_in", subject=token, actor=opted_by, project=project)
    return row


@transaction.atomic
def opt_out(*, row: RequestOptIn, opted_by: User) -> None:
    """Store no more requests of a token. Those that are stored stay until their retention ends."""
    access.refuse_unless_manager(opted_by, row.project, "manager_changes_feedback")
    audit.record(action="feedback.opt_out", subject=row.token, actor=opted_by, project=row.project)
    row.delete()


def create_key(*, project: Project, name: str, created_by: User) -> FeedbackKey:
    """Create a publishable key. Refuses an empty or taken name, and the twenty-first key."""
    access.refuse_unless_manager(created_by, project, "manager_changes_feedback")
    name = name.replace("\x00", "").strip()[:100]
    if not name:
        raise Refusal("application_name_missing", _("Enter the name of the application."), field="name")
    if project.feedback_keys.filter(revoked_at__isnull=True).count() >= MOST_KEYS:
        raise Refusal(
            "too_many_keys",
            _("This project has %(most)d keys. Revoke one first."),
            field="name",
            most=MOST_KEYS,
        )
    try:
        with transaction.atomic():
            key = FeedbackKey.objects.create(project=project, name=name, created_by=created_by)
            audit.record(action="feedback.key", subject=key, actor=created_by, project=project)
    except IntegrityError:
        raise Refusal("key_name_in_use", _("A key of this project has this name."), field="name") from None
    return key


@transaction.atomic
def revoke_key(*, key: FeedbackKey, revoked_by: User) -> None:
    """Make a key worthless, for good. Its feedback stays."""
    access.refuse_unless_manager(revoked_by, key.project, "manager_changes_feedback")
    if FeedbackKey.objects.filter(pk=key.pk, revoked_at__isnull=True).update(revoked_at=timezone.now()):
        audit.record(action="feedback.key_revoke", subject=key, actor=revoked_by, project=key.project)


def _checked_origins(lines: Sequence[str]) -> list[str]:
    origins = [line.strip().lower().rstrip("/") for line in lines if line.strip()]
    if len(origins) > MOST_ORIGINS:
        raise Refusal(
            "too_many_origins", _("Enter at most %(most)d origins."), field="origins", most=MOST_ORIGINS
        )
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise Refusal(
                "invalid_origin",
                _("“%(origin)s” is no origin. Write it as https://app.example.org."),
                field="origins",
                origin=origin[:100],
            )
    return list(dict.fromkeys(origins))
