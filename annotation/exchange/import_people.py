"""Annotators of imported judgments: people and programs who cannot sign in here."""

import hashlib
import uuid
from collections.abc import Iterable

from django.contrib.auth.hashers import make_password

from annotation.models import User

_DERIVED = uuid.UUID("0a4f3f0c-5a57-5f0e-8e7c-7d0c5c4b9a31")
_LONGEST = 150

Name = tuple[str, bool]
"""The file's name for an annotator, and True if that is a program."""


class ImportedPeople:
    """The accounts that stand for the annotators in the files of one format.

    They are inactive and have no password. A name that is a pseudonym of ours keeps it, unless somebody here
    has it: judgments in a file are never attributed to that person.
    """

    def __init__(self, format_name: str) -> None:
        self._format = format_name
        self._ids: dict[Name, int] = {}
        self.persons: dict[str, int] = {}
        """Pseudonym → the account here that has it, and was not made by an import."""

    def ids(self, names: Iterable[Name]) -> dict[Name, int]:
        """Return the accounts of these names; create missing ones. Call it inside a transaction."""
        unknown = [name for name in dict.fromkeys(names) if name not in self._ids]
        if unknown:
            self._look_up(unknown)
        return self._ids

    def _look_up(self, names: list[Name]) -> None:
        usernames = {name: self._username(name) for name in names}
        accounts = dict(User.objects.filter(username__in=usernames.values()).values_list("username", "pk"))
        pseudonyms = {name: pseudonym for name in names if (pseudonym := _as_uuid(name[0]))}
        owners = {
            pseudonym: (pk, username)
            for pseudonym, pk, username in User.objects.filter(pseudonym__in=pseudonyms.values()).values_list(
                "pseudonym", "pk", "username"
            )
        }
        new = []
        for name in names:
            pseudonym = pseudonyms.get(name)
            owner = owners.get(pseudonym) if pseudonym else None
            if owner is not None and owner[1] != usernames[name]:
                self.persons[name[0]] = owner[0]
                pseudonym = uuid.uuid5(_DERIVED, str(pseudonym))
            if usernames[name] not in accounts:
                new.append(self._account(name, usernames[name], pseudonym))
        User.objects.bulk_create(new)
        accounts |= {user.username: user.pk for user in new}
        self._ids |= {name: accounts[usernames[name]] for name in names}

    def _account(self, name: Name, username: str, pseudonym: uuid.UUID | None) -> User:
        return User(
            username=username,
            first_name="Imported",
            last_name=f"{self._format} {name[0]}".strip()[:_LONGEST],
            password=make_password(None),
            is_active=False,
            is_machine=name[1],
            **({"pseudonym": pseudonym} if pseudonym else {}),
        )

    def _username(self, name: Name) -> str:
        kind = "machine" if name[1] else "imported"
        if _as_uuid(name[0]):
            # Whichever format bears it, a pseudonym is the same person.
            return f"{kind}-{name[0]}"
        username = f"{kind}-{self._format}-{name[0]}" if name[0] else f"{kind}-{self._format}"
        if len(username) <= _LONGEST:
            return username
        return f"{kind}-{self._format}-{hashlib.sha256(name[0].encode()).hexdigest()[:32]}"


def _as_uuid(name: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(name) if len(name) == 36 else None
    except ValueError:
        return None
