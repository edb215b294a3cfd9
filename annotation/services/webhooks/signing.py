"""Signatures of webhooks, as the Standard Webhooks specification has them (version 1, symmetric keys).

The `standardwebhooks` package takes one secret at a time; a rotation here needs signatures of two. The
signature itself is one call of the standard library's `hmac`, so a dependency would save no code.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
"""With which a secret begins, so that people and scanners tell it from others."""

_SECRET_BYTES = 32


def draw_secret() -> str:
    """A new secret: `whsec_` and 32 random bytes in base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signature_of(*, secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64.

    timestamp: seconds since 1970. Raises `ValueError` where the secret is none of `draw_secret`.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("A webhook's secret is whsec_ and base64.") from error
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def headers_of(*, secrets_: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver verifies a message. While a secret is rotated, both sign."""
    signatures = [
        signature_of(secret=secret, message_id=message_id, timestamp=timestamp, body=body)
        for secret in secrets_
    ]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
