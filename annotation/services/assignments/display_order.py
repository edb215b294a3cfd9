"""The order of the responses on a page, and the tokens that name them there."""

import random
from collections.abc import Sequence

from django.db import connection
from django.utils.crypto import salted_hmac

from annotation.models import Assignment, Project, User

# Chance that can be repeated but not foreseen: a keyed hash in place of dice.
#
# The same question gives the same answer, however often it is asked and by which process; without
# the server's secret key nobody can tell it beforehand.

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


LANES = 16
"""So many people of a project draw at once without waiting for each other's disk."""


def draw_number(*, project: Project, annotator: User, size: int) -> int:
    """Draw the next number for `display_order`. Belongs inside a transaction.

    Each lane of the project has its own row of orders, and a person keeps to one lane. The row stays locked
    until the transaction ends: no two draw the same number. One statement, because everyone of this lane
    who asks for work waits here.
    """
    with connection.cursor() as cursor:
        cursor.execute(_NEXT_NUMBER, [project.pk, size, _lane(annotator)])
        drawn: int = cursor.fetchone()[0]
    return drawn - 1


def display_order(
    *, project: Project, annotator: User, completion_ids: Sequence[int], number: int
) -> list[int]:
    """The display order of a number that was drawn for `annotator` and so many completions.

    Orders come in blocks of k for comparisons of k completions. Within a block a shuffled order is rotated
    by 0, 1, …, k−1 places (a cyclic Latin square), so that after every whole block each of the k
    candidates has stood in each position equally often: over a project no position is ahead by more
    than one for each lane. Nobody can predict the next order without the server's secret key.
    """
    drawn_for = f"{project.pk}:{len(completion_ids)}:{_lane(annotator)}"
    return balanced_order(completion_ids, number=number, drawn_for=drawn_for)


def balanced_order(ids: Sequence[int], *, number: int, drawn_for: str) -> list[int]:
    """Return the order with this number in the sequence named `drawn_for`, balanced as `display_order`."""
    size = len(ids)
    block, turn = divmod(number, size)
    drawn_for = f"{drawn_for}:{block}"
    seed = salted_hmac("annotation.display", drawn_for, algorithm="sha256").digest()
    chance = random.Random(seed)  # noqa: S311 - the seed is a keyed hash
    rotations = list(range(size))
    shuffled = list(range(size))
    # Both are shuffled: else in pairs the second order of a block would follow from the first.
    chance.shuffle(rotations)
    chance.shuffle(shuffled)
    rotation = rotations[turn]
    return [ids[index] for index in shuffled[rotation:] + shuffled[:rotation]]


_NEXT_NUMBER = """
    INSERT INTO annotation_displaytally (project_id, size, lane, drawn) VALUES (%s, %s, %s, 1)
    ON CONFLICT (project_id, size, lane) DO UPDATE SET drawn = annotation_displaytally.drawn + 1
    RETURNING drawn
"""


def _lane(annotator: User) -> int:
    return annotator.pk % LANES


def candidate_token(assignment: Assignment, completion_id: int) -> str:
    """The name of a completion on one assignment's page: it tells nothing and holds nowhere else."""
    mac = salted_hmac("annotation.candidate", f"{assignment.pk}:{completion_id}", algorithm="sha256")
    return mac.hexdigest()[:20]


def tokens_of(assignment: Assignment) -> dict[str, int]:
    """Token → completion id, for the completions of an assignment in their display order."""
    return {candidate_token(assignment, pk): pk for pk in assignment.display_order}
