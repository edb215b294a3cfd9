"""Accounts of people: names, passwords, switched on and off."""

import hashlib
import json
import re
import secrets
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction
from django.db.models import F, Q
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, TokenScope
from annotation.errors import NotAllowed, Refusal
from annotation.models import AnnotatorTally, ApiToken, Assignment, AuditEntry, Draft, User
from annotation.selectors.personal_data import pointing_at_people
from annotation.services.assignments.leases import release_assignment
from annotation.services.audit import record
from annotation.services.inbox import absolute, deliver

_WRITTEN_TOGETHER = (
    frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}),
    frozenset({"CJK", "HANGUL"}),
    frozenset({"CJK", "BOPOMOFO"}),
)
"""Scripts that one language mixes."""
_LOOK_LATIN = frozenset(
    # Cyrillic, Greek, Armenian, Cherokee: letters that a Latin letter looks like in most fonts.
    "аеіјорсухѕһԁԛԝӏАВЕЅІЈКМНОРСТУХҮԌοονιρυκαχΑΒΕΖΗΙΚΜΝΟΡΤΥΧϲϳօոսհցզՕՍՏԼᎪᎫᎬᎳᎻᏀᏃᏆᏔᏚᏞᏟᏢᏦᏮᏴ"
)


def require_one_meaning(username: str) -> None:
    """Raise `ValidationError` for a name of several scripts, or one whose letters only look Latin."""
    letters = [char for char in username if unicodedata.category(char).startswith("L")]
    scripts = {unicodedata.name(char, "UNKNOWN").partition(" ")[0] for char in letters}
    if len(scripts) > 1 and not any(scripts <= together for together in _WRITTEN_TOGETHER):
        raise ValidationError(_("Use letters of one script in a user name."), code="several_scripts")
    if letters and scripts != {"LATIN"} and all(char in _LOOK_LATIN for char in letters):
        raise ValidationError(
            _("This user name looks like one in Latin letters. Choose another."), code="looks_latin"
        )


def send_password_reset(user_id: int) -> bool:
    """Send a person the link to a new password; return True where it was sent.

    The link holds for `PASSWORD_RESET_TIMEOUT`, and until the password or the address changes.
    """
    user = User.objects.filter(pk=user_id, is_active=True, is_guest=False, is_machine=False).first()
    if user is None or not user.email or not settings.RONDO_EMAIL:
        return False
    parts = {"uidb36": user_pk_to_url_str(user), "key": default_token_generator.make_token(user)}
    link = absolute(reverse("account_reset_password_from_key", kwargs=parts))
    with translation.override(user.language or settings.LANGUAGE_CODE):
        subject = _("Your password for Rondo")
        return deliver(user.email, subject, "mail/password_reset.txt", {"user": user, "link": link})


_STAYS: tuple[type[models.Model], ...] = (AnnotatorTally, LogEntry)
"""Rows that would go with a person's row, and stay: counts of their judgments, and the admin's history."""


def choose_language(*, user: User, language: str) -> None:
    """Store the language of someone's pages; empty follows their browser. Refuses one that Rondo has not."""
    if language and language not in dict(settings.LANGUAGES):
        raise Refusal(
            "unknown_language",
            _("Rondo does not speak this language. Choose one of the list."),
            field="language",
        )
    user.language = language
    user.save(update_fields=["language"])


def erase_account(*, user: User) -> None:
    """Make a person's row a pseudonym, for good. Refuses the last administrator.

    What hangs on their judgments stays and names nobody: judgments, assignments, reviews, what they made in
    projects, and the audit log. What is about them alone goes: memberships, tokens, second factors, accounts
    of other sites, drafts; work that they hold is given back, and their invitations are revoked. Their names
    in the words of the audit log and of the admin's history are replaced. The text that they wrote into
    judgments stays as written: snapshots are made of it.
    """
    with transaction.atomic():
        others = User.objects.filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
        if user.is_superuser and not others.exists():
            raise Refusal(
                "last_administrator", _("You are the only administrator. Appoint another one first.")
            )
        names = sorted({user.username, user.get_full_name(), user.email} - {""}, key=len, reverse=True)
        for assignment in Assignment.objects.filter(annotator=user, state=AssignmentState.LEASED):
            release_assignment(assignment=assignment, annotator=user)
        Draft.objects.filter(assignment__annotator=user).delete()
        user.invitations.filter(revoked_at__isnull=True).update(revoked_at=timezone.now())
        for model, field in _rows_of_their_own():
            model._base_manager.filter(**{field: user}).delete()
        pseudonym = f"deleted-{user.pseudonym.hex[:16]}"
        _anonymise(user, pseudonym)
        record(action="account.delete", subject=pseudonym, actor=user)
        _redact(names, pseudonym)


def _rows_of_their_own() -> Iterator[tuple[type[models.Model], str]]:
    """Models whose rows go with a person's row by the rule of the database, and the field that says whose."""
    for relation in pointing_at_people():
        model = relation.related_model
        if relation.on_delete is models.CASCADE and not issubclass(model, _STAYS):
            yield model, relation.field.name


def _anonymise(user: User, pseudonym: str) -> None:
    user.groups.clear()
    user.user_permissions.clear()
    user.username = pseudonym
    user.first_name = user.last_name = user.email = user.language = ""
    user.is_active = user.is_staff = user.is_superuser = False
    user.last_login, user.keys = None, {}
    user.erased_at = timezone.now()
    user.set_unusable_password()
    user.save()


def _redact(names: list[str], pseudonym: str) -> None:
    """Replace names, as whole words, in what the audit log and the admin's history say."""
    word = re.compile("|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names))
    now = timezone.now()
    # Not through the manager, which refuses: the triggers of the database let this one change pass.
    entries: models.QuerySet[AuditEntry] = models.QuerySet(AuditEntry)
    for entry in entries.filter(_mention(names, "subject", "details")):
        subject, details = word.sub(pseudonym, entry.subject)[:200], _replaced(entry.details, word, pseudonym)
        if (subject, details) != (entry.subject, entry.details):
            entries.filter(pk=entry.pk).update(subject=subject, details=details, redacted_at=now)
    for line in LogEntry.objects.filter(_mention(names, "object_repr", "change_message")):
        line.object_repr = word.sub(pseudonym, line.object_repr)[:200]
        line.change_message = _replaced_in_message(line.change_message, word, pseudonym)
        line.save(update_fields=["object_repr", "change_message"])


def _replaced_in_message(message: str, word: re.Pattern[str], pseudonym: str) -> str:
    """Replace names in the admin's history of a change: JSON, in which a name may be escaped, or words."""
    try:
        return json.dumps(_replaced(json.loads(message), word, pseudonym))
    except ValueError:
        return word.sub(pseudonym, message)


def _mention(names: list[str], *fields: str) -> Q:
    """Rows in which one of these fields has one of the names somewhere; JSON may write it escaped."""
    condition = Q()
    for name in names:
        escaped = name.encode("ascii", "backslashreplace").decode()
        for field in fields:
            condition |= Q(**{f"{field}__contains" if field != "details" else "details__icontains": name})
            if escaped != name:
                condition |= Q(**{f"{field}__icontains": r"\u"})
    return condition


def _replaced(value: Any, word: re.Pattern[str], pseudonym: str) -> Any:
    """A JSON value with the names in its strings replaced."""
    match value:
        case str():
            return word.sub(pseudonym, value)
        case dict():
            return {
                _replaced(key, word, pseudonym): _replaced(inner, word, pseudonym)
                for key, inner in value.items()
            }
        case list():
            return [_replaced(inner, word, pseudonym) for inner in value]
        case _:
            return value


# Keys by which programs act for people: made, shown once, used, revoked.

MOST_TOKENS = 50
"""So many tokens that still open something may one person have."""

_PREFIX = "rondo_"


class TooManyRequests(Refusal):
    """The token was used as often as it may be in this minute."""

    def __init__(self, seconds: int) -> None:
        super().__init__(
            "too_many_requests",
            _("This token may be used %(most)d times a minute. Ask again in %(seconds)d seconds."),
            most=settings.RONDO_TOKEN_REQUESTS_PER_MINUTE,
            seconds=seconds,
        )
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token and its secret, which nothing tells again."""

    token: ApiToken
    secret: str


def create_token(
    *, user: User, name: str, scopes: Sequence[str], expires_at: datetime | None = None
) -> NewToken:
    """Make a token for one's programs. Only the SHA-256 of its secret is stored.

    Refuses a name that another of one's good tokens has, no scope or an unknown one, an end in the past,
    and the fifty-first.
    """
    name = name.replace("\x00", "").strip()
    if not name:
        raise Refusal("token_name_missing", _("Enter the purpose of the token."), field="name")
    known_scopes = [scope for scope in TokenScope.values if scope in scopes]
    if not known_scopes or set(scopes) - set(known_scopes):
        raise Refusal("token_scopes_missing", _("Choose what the token may be used for."), field="scopes")
    now = timezone.now()
    if expires_at is not None and expires_at <= now:
        raise Refusal("date_past", _("Choose an end that lies ahead."), field="expires_at")
    if user.api_tokens.filter(_is_good(now)).count() >= MOST_TOKENS:
        raise Refusal(
            "too_many_tokens",
            _("You have %(most)d tokens. Revoke one first."),
            field="name",
            most=MOST_TOKENS,
        )
    secret = _PREFIX + secrets.token_urlsafe(32)
    try:
        with transaction.atomic():
            token = ApiToken.objects.create(
                user=user,
                name=name,
                digest=_digest(secret),
                beginning=secret[:12],
                scopes=known_scopes,
                expires_at=expires_at,
            )
            record(action="token.create", subject=token, actor=user, details={"scopes": known_scopes})
    except IntegrityError:
        raise Refusal(
            "token_name_in_use",
            _("You have a token of this name. Choose another name, or revoke that one first."),
            field="name",
        ) from None
    return NewToken(token, secret)


def revoke_token(*, token: ApiToken, user: User) -> None:
    """Make a token worthless, for good. Revoking twice is revoking once. Refuses another person's."""
    if token.user_id != user.pk:
        raise NotAllowed("token_of_another", _("This token belongs to someone else."))
    with transaction.atomic():
        revoked = ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(
            revoked_at=timezone.now()
        )
        if revoked:
            record(action="token.revoke", subject=token, actor=user)
    token.refresh_from_db()


def use_token(*, secret: str, scope: TokenScope, now: datetime | None = None) -> ApiToken | None:
    """The token of a request, counted as used; None for a secret that opens nothing.

    Refuses what the token is not for (`NotAllowed`) and what comes too often (`TooManyRequests`).
    A token of someone who may no longer sign in opens nothing.
    """
    moment = now or timezone.now()
    token = ApiToken.objects.select_related("user").filter(digest=_digest(secret)).first()
    if token is None or not token.is_good(moment) or not token.user.is_active:
        return None
    if scope not in token.scopes:
        raise NotAllowed(
            "token_lacks_scope",
            _("This token is not for that: it lacks the scope '%(scope)s'."),
            scope=scope.value,
        )
    _count(token, moment)
    return token


def _count(token: ApiToken, moment: datetime) -> None:
    """Count a use in its minute; of many at once exactly as many pass as may."""
    minute = moment.replace(second=0, microsecond=0)
    most = settings.RONDO_TOKEN_REQUESTS_PER_MINUTE
    row = ApiToken.objects.filter(pk=token.pk)
    for _attempt in range(2):
        # A request of the minute before that one of this minute has overtaken counts with that one.
        if row.filter(last_used_at__gte=minute, used_in_minute__lt=most).update(
            used_in_minute=F("used_in_minute") + 1
        ):
            return
        earlier = Q(last_used_at__isnull=True) | Q(last_used_at__lt=minute)
        if most > 0 and row.filter(earlier).update(last_used_at=minute, used_in_minute=1):
            return
        # Between the two another request may have been the first of this minute: look again.
    left = (minute + timedelta(minutes=1) - moment).total_seconds()
    raise TooManyRequests(max(1, int(left + 0.999)))


def _is_good(now: datetime) -> Q:
    return Q(revoked_at__isnull=True) & (Q(expires_at__isnull=True) | Q(expires_at__gt=now))


def _digest(secret: str) -> str:
    # A secret of 256 random bits: nobody guesses it from a fast hash, and it can be looked up by it.
    return hashlib.sha256(secret.encode()).hexdigest()
