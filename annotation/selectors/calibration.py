"""Calibration sessions: who sees which, what they answer next, the votes side by side, and α."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.utils.safestring import SafeString

from annotation.choices import (
    SPENT_STATES,
    AssignmentState,
    CalibrationDraw,
    Purpose,
    Role,
    WithholdingState,
)
from annotation.models import (
    Assignment,
    CalibrationAnswer,
    CalibrationItem,
    CalibrationSession,
    Comparison,
    Completion,
    ConversationTurn,
    Judgment,
    Project,
    Review,
    User,
    Withholding,
)
from annotation.selectors import access
from annotation.selectors.comparison import (
    ShownJudgment,
    ShownResponse,
    Traces,
    judgments_of,
    with_everybody,
)
from annotation.text.rendering import render_turns

# What can be in a session, and who.


def usable_comparisons(project: Project) -> QuerySet[Comparison]:
    """Return work that is neither quarantined, nor of a conversation, nor under review."""
    withheld = Withholding.objects.filter(comparison=OuterRef("pk")).exclude(state=WithholdingState.RELEASED)
    turns = ConversationTurn.objects.filter(comparison=OuterRef("pk"))
    reviews = Review.objects.filter(comparison=OuterRef("pk"), decided_at__isnull=True)
    return Comparison.objects.filter(
        ~Exists(withheld), ~Exists(turns), ~Exists(reviews), project=project, purpose=Purpose.WORK
    )


def candidates_for_session(
    project: Project, participants: Sequence[int], *, draw: int, draw_from: CalibrationDraw
) -> list[int]:
    """Return up to `draw` comparisons at random that a new session may have, in the order drawn."""
    taken = CalibrationItem.objects.filter(comparison=OuterRef("pk"), is_open=True)
    rows = usable_comparisons(project).filter(~Exists(taken))
    if draw_from == CalibrationDraw.OPEN:
        had = Assignment.objects.filter(
            comparison=OuterRef("pk"), annotator__in=participants, state__in=SPENT_STATES
        )
        rows = rows.filter(~Exists(had), open_slots__gt=0)
    else:
        judged = Judgment.objects.filter(comparison=OuterRef("pk"), annotator__is_machine=False)
        rows = rows.filter(Exists(judged))
    return list(rows.order_by("?").values_list("pk", flat=True)[:draw])


def eligible_participants(project: Project) -> list[User]:
    """Return the members who can take part: people with an account of their own, by name."""
    members = User.objects.filter(
        memberships__project=project, is_active=True, is_machine=False, is_participant=False
    )
    return list(members.order_by("username"))


# Access.


def sessions_for(project: Project, user: User) -> QuerySet[CalibrationSession]:
    """Return the sessions that a person sees, newest first: managers all, others those they take part in."""
    sessions = CalibrationSession.objects.filter(project=project)
    if access.may(user, project, Role.MANAGER):
        return sessions
    return sessions.filter(participants=user)


def may_talk(user: User, item: CalibrationItem) -> bool:
    """Return True for who sees the talk on an item: participants and managers, once it is revealed."""
    session = item.session
    if session.revealed_at is None or not access.may(user, session.project, Role.ANNOTATOR):
        return False
    return access.may(user, session.project, Role.MANAGER) or session.participants.filter(pk=user.pk).exists()


def talking(item: CalibrationItem) -> list[User]:
    """Return everybody who may write in the talk on an item."""
    people = Q(memberships__role=Role.MANAGER) | Q(calibrations=item.session_id)
    members = User.objects.filter(people, memberships__project=item.session.project_id, is_active=True)
    return list(members.distinct().order_by("username"))


# Answering.


def next_item(project: Project, annotator: User) -> CalibrationItem | None:
    """Return the first comparison that a participant has neither answered nor skipped; None for none.

    No query where the project never had a session.
    """
    if not project.calibration_seals:
        return None
    return unanswered_by(project, annotator).select_related("comparison__prompt").first()


def unanswered_by(project: Project, annotator: User) -> QuerySet[CalibrationItem]:
    """Return the items that wait for a person, in their order; those in hand aside."""
    had = CalibrationAnswer.objects.filter(
        item=OuterRef("pk"), assignment__annotator=annotator, assignment__state__in=SPENT_STATES
    )
    return CalibrationItem.objects.filter(
        ~Exists(had),
        session__project=project,
        session__revealed_at__isnull=True,
        session__participants=annotator,
        comparison__purpose=Purpose.WORK,
    ).order_by("session", "index")


def who_is_asked(project: Project) -> set[int]:
    """Return the ids of the participants for whom items wait; those in hand aside."""
    if not project.calibration_seals:
        return set()
    sessions = CalibrationSession.objects.filter(project=project, revealed_at__isnull=True)
    people = User.objects.filter(calibrations__in=sessions).distinct()
    return {user.pk for user in people if unanswered_by(project, user).exists()}


@dataclass(frozen=True, kw_only=True, slots=True)
class ParticipantProgress:
    """A person's progress in a session, in comparisons."""

    user: User
    answered: int
    skipped: int
    total: int

    @property
    def left(self) -> int:
        return self.total - self.answered - self.skipped


def progress_in(session: CalibrationSession) -> list[ParticipantProgress]:
    """Return everybody's progress, by name. Counts alone, so they are no secret before the reveal."""
    total = items_of(session).count()
    rows = (
        CalibrationAnswer.objects.filter(item__session=session, item__comparison__purpose=Purpose.WORK)
        .order_by()
        .values_list("assignment__annotator", "assignment__state")
        .annotate(Count("pk"))
    )
    counts = {(annotator, state): number for annotator, state, number in rows}
    return [
        ParticipantProgress(
            user=user,
            answered=counts.get((user.pk, AssignmentState.SUBMITTED), 0),
            skipped=counts.get((user.pk, AssignmentState.SKIPPED), 0),
            total=total,
        )
        for user in session.participants.order_by("username")
    ]


def items_of(session: CalibrationSession) -> QuerySet[CalibrationItem]:
    """Return the items of a session in their order; what was deleted since is left out."""
    return session.items.filter(comparison__purpose=Purpose.WORK).order_by("index")


# Votes side by side.


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote:
    """A participant's annotation of one item: at the reveal, and as it is now."""

    user: User
    answer: CalibrationAnswer
    now: ShownJudgment
    """After the close: the version at the close."""
    before: ShownJudgment | None
    """None for who answered after the reveal."""
    preference: str
    """In the numbers of the page."""
    preference_before: str

    @property
    def is_changed(self) -> bool:
        return self.before is not None and self.before.judgment.pk != self.now.judgment.pk


class ItemPage:
    """One item of a revealed session: prompt, responses with everybody's spans, votes side by side."""

    def __init__(self, item: CalibrationItem) -> None:
        self.item = item
        self.comparison = item.comparison
        self.completions: list[Completion] = [
            candidate.completion for candidate in item.comparison.candidates.select_related("completion")
        ]
        self.numbers = {completion.pk: number for number, completion in enumerate(self.completions, start=1)}

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """Role and rendered content of every turn of the prompt."""
        return render_turns(self.comparison.prompt.messages)

    @cached_property
    def votes(self) -> list[Vote]:
        """The participants' votes, by name; none while the comparison is sealed (again)."""
        answers = {
            answer.assignment_id: answer
            for answer in self.item.answers.filter(assignment__state=AssignmentState.SUBMITTED)
        }
        rows = judgments_of(self.comparison).filter(assignment__in=answers)
        versions: dict[int, list[ShownJudgment]] = defaultdict(list)
        for row in rows:
            versions[row.assignment_id].append(ShownJudgment(row, self.numbers, str(row.annotator)))
        return sorted(
            (self._vote(answers[pk], shown) for pk, shown in versions.items()),
            key=lambda vote: vote.user.username,
        )

    def _vote(self, answer: CalibrationAnswer, versions: Sequence[ShownJudgment]) -> Vote:
        by_pk = {shown.judgment.pk: shown for shown in versions}
        newest = next((shown for shown in versions if not shown.superseded), versions[-1])
        now = by_pk.get(answer.after_id or 0, newest)
        before = by_pk.get(answer.before_id or 0)
        names = {pk: str(number) for pk, number in self.numbers.items()}
        return Vote(
            user=now.judgment.annotator,
            answer=answer,
            now=now,
            before=before,
            preference=now.preference_in(names),
            preference_before=before.preference_in(names) if before else "",
        )

    @cached_property
    def responses(self) -> list[ShownResponse]:
        """Every response with the spans of all votes."""
        traces = Traces(self.comparison, self.completions)
        shown = [vote.now for vote in self.votes]
        return [
            with_everybody(completion, self.numbers[completion.pk], shown, shown, traces)
            for completion in self.completions
        ]
