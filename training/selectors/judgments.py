"""Judgments for training."""

from collections.abc import Sequence

from django.db.models import Count, Q, QuerySet

from annotation.choices import Split, Verdict
from annotation.models import Judgment, Project
from annotation.selectors.access import judgments_current


def decided_judgments(
    project: Project, rounds: Sequence[int], *, ai_feedback: bool = False
) -> QuerySet[Judgment]:
    """Return the current judgments on training prompts that imply a preference.

    Where a reviewer has decided the comparison, the reviewer's decision counts. AI judgments only with
    `ai_feedback`.
    """
    reviewed = Q(comparison__review__decided_at__isnull=False)
    return (
        judgments_current(project, rounds, machines=ai_feedback)
        .filter(comparison__prompt__split=Split.TRAIN)
        .annotate(places=Count("ranks__rank", distinct=True))
        .filter(Q(~reviewed, places__gt=1) | Q(reviewed, comparison__review__verdict=Verdict.RANKED))
    )
