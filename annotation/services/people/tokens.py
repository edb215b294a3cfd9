"""Keys by which programs act for people: made, shown once, used, revoked."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import TokenScope
from annotation.errors import NotAllowed, Refusal
from annotation.models import ApiToken, User
from annotation.services.audit import record

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
