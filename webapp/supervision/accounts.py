"""The first accounts. Their passwords are drawn here and shown once."""

import secrets
from dataclasses import dataclass

from annotation.models import User


@dataclass(frozen=True)
class NewAccount:
    """An account that has just been made, with the password that nobody can read again."""

    username: str
    password: str
    purpose: str


def ensure_accounts() -> list[NewAccount]:
    """Make `admin` on a database that has no superuser, and `annotator` on one that has no users at all.

    Returns what was made. Nobody's account is changed: where somebody else is called `admin`, the
    new one is `rondo-admin`.
    """
    first_start = not User.objects.exists()
    made = []
    if not User.objects.filter(is_superuser=True, is_active=True).exists():
        free = (name for name in ("admin", "rondo-admin") if not User.objects.filter(username=name).exists())
        made.append(
            _make(next(free, f"admin-{secrets.token_hex(3)}"), "runs rounds, sees all", superuser=True)
        )
    if first_start:
        made.append(_make("annotator", "judges answers", superuser=False))
    return made


def _make(username: str, purpose: str, *, superuser: bool) -> NewAccount:
    password = secrets.token_urlsafe(12)
    User.objects.create_user(username=username, password=password, is_superuser=superuser, is_staff=superuser)
    return NewAccount(username, password, purpose)
