"""The first accounts, with random passwords that are shown once."""

import secrets
from dataclasses import dataclass

from annotation.models import User


@dataclass(frozen=True)
class NewAccount:
    """A new account with its password."""

    username: str
    password: str
    purpose: str


def ensure_accounts() -> list[NewAccount]:
    """Create `admin` if there is no superuser, and `annotator` if there are no users. Return both.

    Existing accounts stay unchanged: if `admin` is taken, the new one is `rondo-admin`.
    """
    first_start = not User.objects.exists()
    made = []
    if not User.objects.filter(is_superuser=True, is_active=True).exists():
        free = (name for name in ("admin", "rondo-admin") if not User.objects.filter(username=name).exists())
        made.append(
            _make(next(free, f"admin-{secrets.token_hex(3)}"), "runs rounds, sees all", superuser=True)
        )
    if first_start:
        made.append(_make("annotator", "annotates", superuser=False))
    return made


def _make(username: str, purpose: str, *, superuser: bool) -> NewAccount:
    password = secrets.token_urlsafe(12)
    User.objects.create_user(username=username, password=password, is_superuser=superuser, is_staff=superuser)
    return NewAccount(username, password, purpose)
