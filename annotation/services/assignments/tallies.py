"""Progress of people in projects, counted as it happens; also what they queue behind."""

from dataclasses import dataclass, replace

from django.db import connection
from django.db.models import F

from annotation.choices import Purpose
from annotation.models import AnnotatorTally, Assignment
from annotation.selectors.progress import count_done


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One request of one person in one project, and their tally at this moment."""

    tally_id: int
    number: int
    submitted: int
    retests: int
    round_number: int | None
    round_done: int


_TAKE_TURN = """
    INSERT INTO annotation_annotatortally
        (project_id, annotator_id, turns, submitted, retests, round_number, round_done, round_unseen)
    VALUES (%s, %s, 1, 0, 0, NULL, 0, 0)
    ON CONFLICT (project_id, annotator_id)
        DO UPDATE SET turns = annotation_annotatortally.turns + 1
    RETURNING id, turns, submitted, retests, round_number, round_done
"""


def take_turn(*, project_id: int, annotator_id: int) -> Turn:
    """Wait for this person's other requests in this project, then go on alone until the transaction ends.

    It comes first in a transaction: it is the lock of the person. One statement makes the row, locks
    it and reads it, which no query of the ORM can.
    """
    with connection.cursor() as cursor:
        cursor.execute(_TAKE_TURN, [project_id, annotator_id])
        tally_id, number, submitted, retests, round_number, round_done = cursor.fetchone()
    return Turn(
        tally_id=tally_id,
        number=number,
        submitted=submitted,
        retests=retests,
        round_number=round_number,
        round_done=round_done,
    )


def count_submission(*, turn: Turn, assignment: Assignment) -> Turn:
    """Count an assignment that was just submitted for the first time, and return the turn with it counted.

    Call it in the turn's transaction. Gold, qualification and retests are no part of anyone's progress.
    """
    comparison = assignment.comparison
    if comparison.purpose == Purpose.GOLD or assignment.retest_of_id is not None:
        # The page that comes next counts it like any other.
        AnnotatorTally.objects.filter(pk=turn.tally_id).update(round_unseen=F("round_unseen") + 1)
        return turn
    if comparison.purpose != Purpose.WORK:
        return turn
    if turn.round_number == comparison.round_number:
        done = turn.round_done + 1
    else:
        # Another round than last time: counted once from the rows, then kept again.
        done = count_done(
            project_id=comparison.project_id,
            annotator_id=assignment.annotator_id,
            round_number=comparison.round_number,
        )
    same_round = turn.round_number in (None, comparison.round_number)
    AnnotatorTally.objects.filter(pk=turn.tally_id).update(
        submitted=turn.submitted + 1,
        round_number=comparison.round_number,
        round_done=done,
        round_unseen=F("round_unseen") * int(same_round),
    )
    return replace(turn, submitted=turn.submitted + 1, round_number=comparison.round_number, round_done=done)


def count_retest(*, turn: Turn) -> None:
    """Count a retest that was given. One that is given back is not offered anew at once."""
    AnnotatorTally.objects.filter(pk=turn.tally_id).update(retests=F("retests") + 1)
