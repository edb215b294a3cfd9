"""Progress of people in projects, counted as it happens; also what they queue behind."""

from dataclasses import dataclass, replace

from django.db import connection
from django.db.models import F

from annotation.choices import Purpose
from annotation.models import AnnotatorTally, Assignment, RoundTally
from annotation.selectors.progress import count_done


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One request of one person in one project, and their tally at this moment."""

    tally_id: int
    number: int
    submitted: int
    retests: int
    in_round: RoundTally


_TAKE_TURN = """
    INSERT INTO annotation_annotatortally
        (project_id, annotator_id, turns, submitted, retests, round_number, round_done, round_unseen)
    VALUES (%s, %s, 1, 0, 0, NULL, 0, 0)
    ON CONFLICT (project_id, annotator_id)
        DO UPDATE SET turns = annotation_annotatortally.turns + 1
    RETURNING id, turns, submitted, retests, round_number, round_done, round_unseen
"""


def take_turn(*, project_id: int, annotator_id: int) -> Turn:
    """Wait for this person's other requests in this project, then go on alone until the transaction ends.

    It comes first in a transaction: it is the lock of the person. One statement makes the row, locks
    it and reads it, which no query of the ORM can.
    """
    with connection.cursor() as cursor:
        cursor.execute(_TAKE_TURN, [project_id, annotator_id])
        tally_id, number, submitted, retests, *in_round = cursor.fetchone()
    return Turn(
        tally_id=tally_id,
        number=number,
        submitted=submitted,
        retests=retests,
        in_round=RoundTally(*in_round),
    )


def count_submission(*, turn: Turn, assignment: Assignment) -> Turn:
    """Count an assignment that was just submitted for the first time, and return the turn with it counted.

    Call it in the turn's transaction. Gold, qualification and retests are no part of anyone's progress.
    """
    comparison = assignment.comparison
    counted = turn.in_round
    if comparison.purpose == Purpose.GOLD or assignment.retest_of_id is not None:
        # The page that comes next counts it like any other.
        in_round = counted._replace(round_unseen=counted.round_unseen + 1)
        AnnotatorTally.objects.filter(pk=turn.tally_id).update(**in_round._asdict())
        return replace(turn, in_round=in_round)
    if comparison.purpose != Purpose.WORK:
        return turn
    if counted.round_number == comparison.round_number:
        done = counted.round_done + 1
    else:
        # Another round than last time: counted once from the rows, then kept again.
        done = count_done(
            project_id=comparison.project_id,
            annotator_id=assignment.annotator_id,
            round_number=comparison.round_number,
        )
    same_round = counted.round_number in (None, comparison.round_number)
    in_round = RoundTally(comparison.round_number, done, counted.round_unseen if same_round else 0)
    submitted = turn.submitted + 1
    AnnotatorTally.objects.filter(pk=turn.tally_id).update(submitted=submitted, **in_round._asdict())
    return replace(turn, submitted=submitted, in_round=in_round)


def count_retest(*, turn: Turn) -> None:
    """Count a retest that was given. One that is given back is not offered anew at once."""
    AnnotatorTally.objects.filter(pk=turn.tally_id).update(retests=F("retests") + 1)
