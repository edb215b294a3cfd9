"""Judgments for training."""

from collections.abc import Sequence

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet

from annotation.choices import Split, Verdict
from annotation.models import Judgment, LabelledStep, Project
from annotation.selectors.access import judgments_current


def judgments_with_labelled_steps(
    project: Project, rounds: Sequence[int], *, ai_feedback: bool = False
) -> QuerySet[Judgment]:
    """Return the current judgments on training prompts that label a step of a trace.

    A process reward model learns from them without any preference.
    """
    labelled = Exists(LabelledStep.objects.filter(judgment=OuterRef("pk")))
    return judgments_current(project, rounds, machines=ai_feedback).filter(
        labelled, comparison__prompt__split=Split.TRAIN
    )


def decided_judgments(
    project: Project, rounds: Sequence[int], *, ai_feedback: bool = False, first_passes: bool = False
) -> QuerySet[Judgment]:
    """Return the current judgments on training prompts that imply a preference.

    Where a reviewer has decided the comparison, the reviewer's decision counts. AI judgments only with
    `ai_feedback`; with `first_passes` as annotators judged before suggestions.
    """
    reviewed = Q(comparison__review__decided_at__isnull=False)
    return (
        judgments_current(project, rounds, machines=ai_feedback, first_passes=first_passes)
        .filter(comparison__prompt__split=Split.TRAIN)
        .annotate(places=Count("ranks__rank", distinct=True), ranked=Count("ranks", distinct=True))
        .filter(
            Q(~reviewed, places__gt=1)
            # A partial ranking puts what it ranks above the others.
            | Q(~reviewed, ranked__gt=0, ranked__lt=F("comparison__size"))
            | Q(reviewed, comparison__review__verdict=Verdict.RANKED)
        )
    )
