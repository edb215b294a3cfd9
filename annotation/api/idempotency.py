"""Idempotency keys: a repeated request is executed once; its response is stored for a day."""

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
    """The key was sent with another request."""


def fingerprint_of(*, method: str, address: str, body: bytes) -> str:
    """Return a hash that is equal for repetitions of one request."""
    return hashlib.sha256(b"\0".join((method.encode(), address.encode(), body))).hexdigest()


def require_key(key: str) -> None:
    """Refuse an `Idempotency-Key` that is not 1 to `LONGEST_KEY` visible ASCII characters."""
    if not _KEY.fullmatch(key):
        raise Refusal(
            "invalid_idempotency_key",
            _("An Idempotency-Key has 1 to %(most)d visible ASCII characters, without spaces."),
            field="Idempotency-Key",
            most=LONGEST_KEY,
        )


def claim_key(*, user: User, key: str, fingerprint: str) -> KeptAnswer:
    """Return the row of a key: new (`status` 0), or with the stored response. Call inside a transaction.

    Waits until a concurrent request with the same key has ended. Raises `KeyReused` for a key that was sent
    with another request, `Refusal` for an invalid key.
    """
    assert_in_transaction()
    require_key(key)
    try:
        with transaction.atomic():
            return KeptAnswer.objects.create(user=user, key=key, fingerprint=fingerprint)
    except IntegrityError:
        stored = KeptAnswer.objects.get(user=user, key=key)
    if stored.fingerprint != fingerprint:
        raise KeyReused(
            "idempotency_key_reused",
            _("This Idempotency-Key was sent with another request. Draw a new one."),
            field="Idempotency-Key",
        )
    return stored


def keep_answer(*, row: KeptAnswer, status: int, body: str) -> None:
    """Store the response of a request under its key, in the transaction of the request."""
    assert_in_transaction()
    KeptAnswer.objects.filter(pk=row.pk).update(status=status, body=body)


def forget_answers(*, now: datetime | None = None) -> int:
    """Delete responses stored for longer than a day. Return how many."""
    oldest = (now or timezone.now()) - KEPT_FOR
    return KeptAnswer.objects.filter(created_at__lt=oldest).delete()[0]


def assert_in_transaction() -> None:
    """Raise `TransactionManagementError` outside a transaction: key and effect must commit together."""
    if not transaction.get_connection().in_atomic_block:
        raise transaction.TransactionManagementError("A key is claimed in the transaction of its request.")
