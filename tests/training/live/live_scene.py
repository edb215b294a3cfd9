"""Helpers with which the tests of live learning label and work."""

from annotation.choices import Split
from annotation.models import Comparison, Project, User
from annotation.services.assignments.next import assign_next
from tests.training.conftest import judge
from training.models import LiveLearning
from training.services.live import do_live, sweep_live

EVERY = 4
FAR = [7.0]
"""Divergence of a response's tokens; a question is raised from six nats on."""


def label(project: Project, annotator: User, count: int) -> list[Comparison]:
    """Judge so many comparisons of training prompts, and what of others comes between."""
    judged: list[Comparison] = []
    while len(judged) < count:
        assignment = assign_next(project=project, annotator=annotator)
        assert assignment is not None, f"nothing is left after {len(judged)}"
        judge(assignment.comparison, annotator)
        if assignment.comparison.prompt.split == Split.TRAIN:
            judged.append(assignment.comparison)
    return judged


def work(learning: LiveLearning) -> LiveLearning:
    """Do what a sweep and a worker do."""
    sweep_live()
    do_live(learning.pk)
    learning.refresh_from_db()
    return learning


def sources_of(comparison: Comparison) -> set[str]:
    return {completion.source.name for completion in comparison.completions.select_related("source")}


def waiting(project: Project, source: str) -> int:
    open_ones = Comparison.objects.filter(project=project, open_slots__gt=0, prompt__split=Split.TRAIN)
    return open_ones.filter(completions__source__name=source).distinct().count()
