"""The first pass over a comparison with suggestions: its arm, and what waits for the final pass."""

from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import HelpArm, Purpose
from annotation.errors import InvalidAnswer
from annotation.models import Assignment, HelpReveal, HelpSettings, Judgment, Project, User
from annotation.selectors.suggestions import open_reveal_of, suggestions_for
from annotation.services.assignments import randomness


def open_reveal(*, judgment: Judgment, assignment: Assignment) -> HelpReveal | None:
    """Begin the experiment after a first pass; None where the comparison takes no part in it.

    Call it in the transaction that writes the first judgment. The arm hangs on the server's key, the
    annotator and the comparison alone: asking again cannot change it. Retests, qualification and gold items
    with feedback take no part: they measure annotators by what they know without help.
    """
    comparison = assignment.comparison
    project = comparison.project
    if not project.has_help or judgment.supersedes_id is not None:
        return None
    is_known = comparison.purpose == Purpose.GOLD and not project.gold_feedback
    takes_part = comparison.purpose == Purpose.WORK or is_known
    if not takes_part or assignment.retest_of_id is not None or not judgment.blind:
        return None
    if not suggestions_for(comparison):
        return None
    arm = arm_of(project=project, annotator=judgment.annotator, comparison_id=comparison.pk)
    return HelpReveal.objects.create(
        assignment=assignment,
        arm=arm,
        first_judgment=judgment,
        finished_at=timezone.now() if arm == HelpArm.CONTROL else None,
    )


def arm_of(*, project: Project, annotator: User, comparison_id: int) -> HelpArm:
    """Return the arm of an annotator for a comparison, drawn with the server's key."""
    share = HelpSettings.objects.values_list("control_share", flat=True).get(project=project)
    without = randomness.happens(share, "help", project=project, annotator=annotator, turn=comparison_id)
    return HelpArm.CONTROL if without else HelpArm.HELPED


def refuse_while_open(assignment: Assignment, current: Judgment | None) -> None:
    """Refuse a change of the first pass while suggestions wait for decisions."""
    if current is None or not assignment.comparison.project.has_help:
        return
    if open_reveal_of(assignment) is not None:
        raise InvalidAnswer(
            "suggestions_undecided",
            _("Decide on the suggestions for this comparison first."),
            field="suggestions",
        )
