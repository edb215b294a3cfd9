"""A request of a program that is sent twice is done once: what it was answered is kept for a day."""

import hashlib
import re
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import KeptAnswer, User

KEPT_FOR = timedelta(hours=24)
LONGEST_KEY = 200
_KEY = re.compile(rf"[!-~]{{1,{LONGEST_KEY}}}")


class KeyReused(Refusal):
    """The key stands for another request already."""


def fingerprint_of(*, method: str, address: str, body: bytes) -> str:
    """What two requests have in common when they are one request sent twice."""
    return hashlib.sha256(b"\0".join((method.encode(), address.encode(), body))).hexdigest()


def require_key(key: str) -> None:
    """Refuse an `Idempotency-Key` that is not as the API's document says: visible characters of ASCII."""
    if not _KEY.fullmatch(key):
        raise Refusal(
            _("An Idempotency-Key has 1 to %(most)d visible ASCII characters, without spaces.")
            % {"most": LONGEST_KEY},
            field="Idempotency-Key",
        )


def claim_key(*, user: User, key: str, fingerprint: str) -> KeptAnswer:
    """The row of a key, in the transaction of the request: new (`status` 0), or answered before.

    Who comes second while the first is still at work waits here for its end. Refuses a key under which
    another request was sent (`KeyReused`), and one that no program should draw.
    """
    assert_in_transaction()
    require_key(key)
    try:
        with transaction.atomic():
            return KeptAnswer.objects.create(user=user, key=key, fingerprint=fingerprint)
    except IntegrityError:
        kept = KeptAnswer.objects.get(user=user, key=key)
    if kept.fingerprint != fingerprint:
        raise KeyReused(
            _("This Idempotency-Key was sent with another request. Draw a new one."), field="Idempotency-Key"
        )
    return kept


def keep_answer(*, kept: KeptAnswer, status: int, body: str) -> None:
    """Remember what the request of a key was answered; part of the transaction of what it did."""
    assert_in_transaction()
    KeptAnswer.objects.filter(pk=kept.pk).update(status=status, body=body)


def forget_answers(*, now: datetime | None = None) -> int:
    """Delete what was kept for longer than a day; how many that were."""
    oldest = (now or timezone.now()) - KEPT_FOR
    return KeptAnswer.objects.filter(created_at__lt=oldest).delete()[0]


def assert_in_transaction() -> None:
    """A key that outlives what its request did, or the other way round, would be worse than none."""
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("A key is claimed in the transaction of its request.")
