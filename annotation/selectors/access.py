"""Access of people, and the state of their work. Reads only."""

from collections.abc import Sequence
from typing import Any

from allauth.account.adapter import get_adapter
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from annotation.choices import SPENT_STATES as SPENT_STATES
from annotation.choices import AssignmentState, Purpose, Role
from annotation.errors import NotAllowed
from annotation.models import (
    Assignment,
    Candidate,
    Category,
    Comparison,
    Guideline,
    HelpReveal,
    Judgment,
    Membership,
    Project,
    User,
)
from annotation.selectors.allocation import allotted_to
from annotation.selectors.allocation import membership_of as membership_of
from annotation.selectors.configuration import configuration_of
from annotation.selectors.progress import Progress as Progress
from annotation.selectors.progress import progress_of as progress_of


def client_address(request: HttpRequest) -> str | None:
    """Return the client's address; behind our proxies, the one seen by the outermost.

    None if unknown: the web server is reached by a Unix socket.
    """
    try:
        return str(get_adapter().get_client_ip(request))
    except PermissionDenied:
        return None


_RANK_OF_ROLE = {Role.ANNOTATOR: 1, Role.REVIEWER: 2, Role.MANAGER: 3}


def projects_for(user: User | AnonymousUser) -> QuerySet[Project]:
    """Return the complete projects of which `user` is a member; all of them for a superuser."""
    if not user.is_authenticated:
        return Project.objects.none()
    complete = Project.objects.filter(is_incomplete=False)
    return complete if user.is_superuser else complete.filter(memberships__user=user)


def may(user: User | AnonymousUser, project: Project, role: Role) -> bool:
    """Return True where `user` has `role` in `project`, or a higher one. A superuser has every role."""
    if not user.is_authenticated or not user.is_active:
        return False
    if user.is_superuser:
        return True
    return allows(user, membership_of(user, project), role)


def refuse_unless_manager(user: User | AnonymousUser, project: Project, code: str) -> None:
    """Raise `NotAllowed` with this code unless `user` manages the project."""
    if not may(user, project, Role.MANAGER):
        raise NotAllowed(code, _("Only a manager of the project may do this."))


def allows(user: User, membership: Membership | None, role: Role) -> bool:
    """Return True where a person with this membership has `role`; `may` without a second look-up."""
    if not user.is_active:
        return False
    if user.is_superuser:
        return True
    return membership is not None and _RANK_OF_ROLE[Role(membership.role)] >= _RANK_OF_ROLE[role]


def may_create_projects(user: User | AnonymousUser) -> bool:
    """Return True where `user` may create projects: staff, and who may by `annotation.add_project`.

    A superuser has every permission.
    """
    return user.is_active and (user.is_staff or user.has_perm("annotation.add_project"))


def current_guideline(project: Project) -> Guideline | None:
    """The newest version of a project's rules."""
    return configuration_of(project).guideline


def categories_of(project: Project) -> list[Category]:
    """A project's error categories in their order, the archived ones too."""
    return list(configuration_of(project).categories)


def current_round(project: Project) -> int:
    """The number of the newest round for which there is work; 1 before there is any."""
    newest = (
        Comparison.objects.filter(project=project, purpose=Purpose.WORK)
        .order_by("-round_number")
        .values_list("round_number", flat=True)
        .first()
    )
    return newest or 1


def round_of_work(project: Project, annotator: User) -> int:
    """Return the round whose work this person gets next, as `assign_next` gives it.

    The round of what they hold longest, else the newest with work open to them, else the newest. Right after
    a round has opened that may be the one before: their pages name one round, and count in it.
    """
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK)
    mine = Assignment.objects.filter(comparison=OuterRef("pk"), annotator=annotator)
    held = (
        Assignment.objects.filter(
            annotator=annotator, state=AssignmentState.LEASED, retest_of__isnull=True, comparison__in=work
        )
        .order_by("leased_at", "pk")
        .values_list("comparison__round_number", flat=True)
        .first()
    )
    if held is not None:
        return held
    is_open = work.filter(allotted_to(project, annotator), open_slots__gt=0).exclude(
        Exists(mine.filter(state__in=SPENT_STATES))
    )
    newest = is_open.order_by("-round_number").values_list("round_number", flat=True).first()
    return newest or current_round(project)


def rounds_of(project: Project) -> list[int]:
    """The numbers of the rounds that have comparisons to be judged as work, in order."""
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK)
    return list(work.order_by("round_number").values_list("round_number", flat=True).distinct())


def round_shown(assignment: Assignment) -> int:
    """The round that an assignment's page may name: a known item or a retest looks like today's work."""
    comparison = assignment.comparison
    if comparison.purpose == Purpose.WORK and assignment.retest_of_id is None:
        return comparison.round_number
    return round_of_work(comparison.project, assignment.annotator)


def _first_passes() -> QuerySet[Judgment]:
    """Return the first judgment of everything with a reveal, and what stands of everything else."""
    without_help = ~Exists(HelpReveal.objects.filter(assignment=OuterRef("assignment")))
    current = ~Exists(Judgment.everything.filter(supersedes=OuterRef("pk")))
    return Judgment.objects.filter(Q(help_after__isnull=False) | (current & without_help))


def judgments_current(
    project: Project,
    round_numbers: Sequence[int] | None = None,
    *,
    machines: bool = False,
    unblinded: bool = False,
    first_passes: bool = False,
) -> QuerySet[Judgment]:
    """The judgments of work that nothing supersedes, oldest first, with all that belongs to them.

    Gold, qualification and retests are not among them: they measure, and nothing learns from them.
    `round_numbers` restricts them to those rounds; None gives all. Those of programs that judge are among
    them only with `machines`, those made with the models' names in sight only with `unblinded`. With
    `first_passes` a judgment that was made with suggestions in sight, or is their control, is represented by
    the first pass: what its annotator thought before any help. Iterate with
    `.iterator(chunk_size=…)` when there may be many: the related rows come in batches.
    """
    standing = _first_passes() if first_passes else Judgment.objects.current()
    judgments = standing.filter(
        comparison__project=project,
        comparison__purpose=Purpose.WORK,
        assignment__retest_of__isnull=True,
    )
    if not machines:
        judgments = judgments.filter(annotator__is_machine=False)
    if not unblinded:
        judgments = judgments.filter(blind=True)
    if round_numbers is not None:
        judgments = judgments.filter(comparison__round_number__in=round_numbers)
    candidates = Candidate.objects.order_by("index").select_related("completion__source")
    return (
        judgments.select_related(
            "annotator", "guideline", "assignment", "comparison__prompt", "demonstration"
        )
        .prefetch_related(
            Prefetch("comparison__candidates", queryset=candidates),
            "ranks",
            "span_flags__category",
            "missing_info__category",
            "corrections__edits",
            "ratings__criterion",
            "critiques",
        )
        .order_by("id")
    )


def judgments_hidden(project: Project, round_numbers: Sequence[int] | None = None) -> QuerySet[Judgment]:
    """The judgments that `judgments_current` leaves out because a calibration session hides them.

    To be counted, as whatever leaves them out says, and never to be filtered by what they hold.
    """
    hidden = Judgment.everything.current().filter(
        comparison__project=project,
        comparison__purpose=Purpose.WORK,
        comparison__is_sealed=True,
        assignment__retest_of__isnull=True,
        annotator__is_machine=False,
    )
    return hidden if round_numbers is None else hidden.filter(comparison__round_number__in=round_numbers)


def current_judgment(assignment: Assignment) -> Judgment | None:
    """Return the current judgment of an assignment, after all revisions."""
    # Also while a calibration session hides it from others: whoever asks here asks for its annotator.
    return Judgment.everything.current().filter(assignment=assignment).first()


def last_submitted(annotator: User, project: Project) -> Assignment | None:
    """The assignment that `annotator` submitted last: what "undo" opens again."""
    return (
        Assignment.objects.filter(
            annotator=annotator, comparison__project=project, state=AssignmentState.SUBMITTED
        )
        # What an arena asked has been revealed since: it is never opened again.
        .exclude(comparison__purpose=Purpose.ARENA)
        .select_related("comparison__prompt")
        .order_by("-closed_at", "-id")
        .first()
    )


def judged() -> Exists:
    """Comparisons that somebody has judged."""
    return Exists(Judgment.objects.filter(comparison=OuterRef("pk")))


def with_answer_of(**source: Any) -> Exists:
    """Comparisons with an answer whose source is so: lookups of it, as `name="starter"`."""
    written = {f"completion__source__{lookup}": value for lookup, value in source.items()}
    return Exists(Candidate.objects.filter(comparison=OuterRef("pk"), **written))
