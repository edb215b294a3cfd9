"""Scores of a rubric judge: from the replies in all orders to one score for each response and criterion."""

from collections.abc import Sequence
from statistics import fmean

from annotation.models import RubricVersion
from annotation.record.judgment import RubricScorePart
from annotation.services.texts.completions import storable
from training.services.judges.judging import Reply

TOKENS_PER_SCORE = 24
"""The least length of one line of a reply: score and reason."""


def scores_of(replies: Sequence[Reply], version: RubricVersion) -> tuple[RubricScorePart, ...]:
    """Return the mean of each score over all orders, with the reason of the first order.

    Empty where one order has no scores: then nothing is judged.
    """
    scored = [reply.scores for reply in replies if reply.scores is not None]
    if len(scored) < len(replies):
        return ()
    return tuple(
        RubricScorePart(
            completion=str(completion),
            criterion=criterion.key,
            value=fmean(scores[completion][criterion.key].value for scores in scored),
            reason=storable(scored[0][completion][criterion.key].reason),
        )
        for completion in replies[0].order
        for criterion in version.criteria.all()
    )


def scores_as_json(reply: Reply) -> dict[str, dict[str, list[object]]] | None:
    """Return a reply's scores: completion id → criterion key → value and reason."""
    if reply.scores is None:
        return None
    return {
        str(pk): {key: [score.value, storable(score.reason)] for key, score in scores.items()}
        for pk, scores in reply.scores.items()
    }
