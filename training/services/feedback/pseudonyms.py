"""Pseudonyms: keyed hashes of end users' ids and network addresses, which are never stored themselves."""

from django.conf import settings
from django.utils.crypto import salted_hmac


def pseudonym(project_id: int, user_id: str) -> str:
    """Return the pseudonym of an end user in a project, 64 hexadecimal digits; each project has another."""
    return _hash(f"rondo.feedback.user.{project_id}", user_id, settings.SECRET_KEY)


def pseudonyms(project_id: int, user_id: str) -> list[str]:
    """Return every pseudonym that an end user may have had: one for each secret key still configured."""
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [_hash(f"rondo.feedback.user.{project_id}", user_id, key) for key in keys]


def address_hash(project_id: int, address: str) -> str:
    """Return the keyed hash of a network address; empty for an unknown one."""
    return _hash(f"rondo.feedback.address.{project_id}", address, settings.SECRET_KEY) if address else ""


def _hash(salt: str, value: str, key: str | bytes) -> str:
    return salted_hmac(salt, value, secret=key, algorithm="sha256").hexdigest()
