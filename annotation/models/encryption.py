"""Secrets that must be read again: encrypted with a key drawn from the secret key of this Rondo."""

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class SealBrokenError(Exception):
    """A sealed value cannot be read: the secret key is another one now, and the old one is not kept."""


def seal(text: str, *, purpose: str) -> str:
    """A text as it may stand in the database. What is sealed for one purpose opens for no other."""
    return _cipher(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """The text again, also under a key of `SECRET_KEY_FALLBACKS`. Raises `SealBrokenError`."""
    try:
        return _cipher(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise SealBrokenError(f"The {purpose} cannot be read with this secret key.") from error


def _cipher(purpose: str) -> MultiFernet:
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    digests = (hashlib.sha256(f"rondo {purpose}:".encode() + str(key).encode()).digest() for key in keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])
