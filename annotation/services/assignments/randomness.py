"""Chance that can be repeated but not foreseen: a keyed hash in place of dice.

The same question gives the same answer, however often it is asked and by which process; without
the server's secret key nobody can tell it beforehand.
"""

from django.utils.crypto import salted_hmac

from annotation.models import Project, User

_BITS = 64


def happens(share: float, what: str, *, project: Project, annotator: User, turn: int) -> bool:
    """Return True on a `share` of all turns of this person: `what` happens on this one."""
    return _number(what, project, annotator, turn) < int(share * 2**_BITS)


def number_below(limit: int, what: str, *, project: Project, annotator: User, turn: int) -> int:
    """A number from 0 to `limit` − 1 for this turn of this person."""
    return (_number(what, project, annotator, turn) * limit) >> _BITS


def drawn_below(limit: int, what: str, subject: str) -> int:
    """Return a number from 0 to `limit` − 1 for a subject that is no turn of a person."""
    return (_keyed(what, subject) * limit) >> _BITS


def drawn_within(share: float, what: str, subject: str) -> bool:
    """Return True for a `share` of all subjects."""
    return _keyed(what, subject) < int(share * 2**_BITS)


def _number(what: str, project: Project, annotator: User, turn: int) -> int:
    return _keyed(what, f"{project.pk}:{annotator.pk}:{turn}")


def _keyed(what: str, subject: str) -> int:
    mac = salted_hmac(f"annotation.{what}", subject, algorithm="sha256")
    return int.from_bytes(mac.digest()[: _BITS // 8])
