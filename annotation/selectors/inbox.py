"""The inbox: a person's notifications, in the language of the reader."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, QuerySet
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, NotificationKind, Purpose, Role
from annotation.models import (
    Assignment,
    CalibrationItem,
    Comment,
    Comparison,
    MailChoice,
    Membership,
    Notification,
    Review,
    User,
)
from annotation.selectors import access
from annotation.selectors.calibration import may_talk
from annotation.text.rendering import render_markdown

ICONS = {
    NotificationKind.MENTION: "message-square",
    NotificationKind.REPLY: "message-square",
    NotificationKind.QUESTION: "circle-help",
    NotificationKind.COMMENT: "message-square",
    NotificationKind.REVIEW_DECIDED: "list-checks",
    NotificationKind.RETURNED: "undo-2",
    NotificationKind.RETURN_ANSWERED: "list-checks",
    NotificationKind.OVERRULED: "scale",
    NotificationKind.CALIBRATION_BEGUN: "users",
    NotificationKind.CALIBRATION_REVEALED: "users",
    NotificationKind.ROUND_FAILED: "triangle-alert",
    NotificationKind.JOB_FAILED: "triangle-alert",
    NotificationKind.DECISION_WAITING: "scale",
    NotificationKind.NOT_ENOUGH_EVIDENCE: "scale",
}

SHOWN_AT_MOST = 99
"""The badge counts no further."""


def notifications_of(user: User, *, unread: bool = False) -> QuerySet[Notification]:
    """Return a person's notifications in projects that they may still open, newest first."""
    rows = Notification.objects.filter(
        user=user, project__in=access.projects_for(user).order_by()
    ).select_related("project")
    return rows.filter(read_at__isnull=True) if unread else rows


def unread_count(user: User) -> int:
    """Return the number of unread notifications, counted up to one more than the badge shows."""
    return notifications_of(user, unread=True).order_by()[: SHOWN_AT_MOST + 1].count()


def sentence(notification: Notification) -> str:
    """Return the notification as a sentence in the active language."""
    sentences = {
        NotificationKind.MENTION: _("%(subject)s mentioned you"),
        NotificationKind.REPLY: _("%(subject)s replied"),
        NotificationKind.QUESTION: _("%(subject)s asked a question"),
        NotificationKind.COMMENT: _("%(subject)s wrote to you about a comparison"),
        NotificationKind.REVIEW_DECIDED: _("A comparison that you flagged was reviewed"),
        NotificationKind.RETURNED: _("A reviewer returned an annotation to you"),
        NotificationKind.RETURN_ANSWERED: _("An annotation that you returned was answered"),
        NotificationKind.OVERRULED: _("A reviewer decided otherwise than you"),
        NotificationKind.CALIBRATION_BEGUN: _("You take part in the calibration session %(subject)s"),
        NotificationKind.CALIBRATION_REVEALED: _("The annotations of %(subject)s are revealed"),
        NotificationKind.ROUND_FAILED: _("%(subject)s failed"),
        NotificationKind.JOB_FAILED: _("Failed: %(subject)s"),
        NotificationKind.DECISION_WAITING: _("%(subject)s waits for your decision"),
        NotificationKind.NOT_ENOUGH_EVIDENCE: _("%(subject)s ended without enough evidence"),
    }
    return sentences[NotificationKind(notification.kind)] % {"subject": notification.subject}


def icon_of(notification: Notification) -> str:
    """Return the name of the icon of a notification's kind."""
    return ICONS[NotificationKind(notification.kind)]


def mail_choice_of(user: User) -> MailChoice:
    """Return a person's choice of e-mails, or an unsaved one with the defaults."""
    return MailChoice.objects.filter(user=user).first() or MailChoice(user=user)


# Threads of comments, and who may see them: the one place that keeps annotators blind to each other.
#
# An annotator sees the thread of their own assignment. Managers see all threads of their project. A
# reviewer
# sees them too, but not of a comparison that they have as annotator, nor while its review is undecided:
# reviews are blind.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownComment:
    """A comment as a reader sees it."""

    comment: Comment
    markup: SafeString
    is_own: bool
    is_answer: bool
    """Written by a manager or reviewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """The comments of one assignment, oldest first."""

    assignment: Assignment
    comments: Sequence[ShownComment]

    @property
    def has_question(self) -> bool:
        """Return True where the annotator wrote something."""
        return any(not shown.is_answer for shown in self.comments)

    @property
    def is_open(self) -> bool:
        """Return True while a question waits for an answer."""
        return any(shown.comment.resolved_at is None and not shown.is_answer for shown in self.comments)


def may_see_thread(user: User, assignment: Assignment) -> bool:
    """Return True for the annotator of the assignment, and for who may answer there."""
    if assignment.comparison.purpose == Purpose.ARENA:
        return False
    if user.pk == assignment.annotator_id:
        return access.may(user, assignment.comparison.project, Role.ANNOTATOR)
    return may_answer(user, assignment)


def may_answer(user: User, assignment: Assignment) -> bool:
    """Return True for managers, and for reviewers who are blind to nothing here."""
    if assignment.comparison.purpose == Purpose.ARENA:
        return False
    project = assignment.comparison.project
    if access.may(user, project, Role.MANAGER):
        return True
    if not access.may(user, project, Role.REVIEWER):
        return False
    return not _is_blind(user, assignment.comparison_id)


def may_join_team(user: User, comparison: Comparison) -> bool:
    """Return True for who sees the team's thread: managers, and reviewers who are not blind."""
    if comparison.purpose == Purpose.ARENA:
        return False
    if access.may(user, comparison.project, Role.MANAGER):
        return True
    return access.may(user, comparison.project, Role.REVIEWER) and not _is_blind(user, comparison.pk)


def team_thread(*, comparison: Comparison, reader: User) -> list[ShownComment]:
    """Return the comments of the team on a comparison, oldest first; none for who does not see them."""
    if not may_join_team(reader, comparison):
        return []
    rows = Comment.objects.filter(comparison=comparison).select_related("author").order_by("pk")
    return [_comment(comment, reader, is_answer=False) for comment in rows]


def talk_of(*, item: CalibrationItem, reader: User) -> list[ShownComment]:
    """Return the talk on an item of a calibration session, oldest first; none for who does not see it."""
    if not may_talk(reader, item):
        return []
    rows = Comment.objects.filter(calibration_item=item).select_related("author").order_by("pk")
    return [_comment(comment, reader, is_answer=False) for comment in rows]


def answering(comparison: Comparison) -> list[User]:
    """Return the members who may answer in the threads of a comparison: its team."""
    project = comparison.project_id
    members = Membership.objects.filter(project=project, user__is_active=True).select_related("user")
    rows = list(members.exclude(role=Role.ANNOTATOR).order_by("user__username"))
    undecided = Review.objects.filter(comparison=comparison, decided_at__isnull=True).exists()
    judging = set(Assignment.objects.filter(comparison=comparison).values_list("annotator_id", flat=True))
    return [row.user for row in rows if row.role == Role.MANAGER or not (undecided or row.user_id in judging)]


def thread_of(*, assignment: Assignment, reader: User) -> Thread:
    """Return the thread of one assignment; it may be empty. The caller has asked `may_see_thread`."""
    # Nobody can have written about what was leased a moment ago.
    is_fresh = assignment.fresh_completions is not None
    comments = () if is_fresh else assignment.comments.select_related("author").order_by("pk")
    return _shown(assignment, list(comments), reader)


def threads_of(*, comparison: Comparison, reader: User) -> list[Thread]:
    """Return the threads of a comparison that `reader` may see, in the order of their first comment."""
    if comparison.purpose == Purpose.ARENA:
        return []
    comments = Comment.objects.filter(assignment__comparison=comparison)
    if not access.may(reader, comparison.project, Role.MANAGER) and (
        not access.may(reader, comparison.project, Role.REVIEWER) or _is_blind(reader, comparison.pk)
    ):
        comments = comments.filter(assignment__annotator=reader)
    by_assignment: dict[Assignment, list[Comment]] = {}
    for comment in comments.select_related("author", "assignment__annotator").order_by("pk"):
        if comment.assignment is not None:
            by_assignment.setdefault(comment.assignment, []).append(comment)
    return [_shown(assignment, rows, reader) for assignment, rows in by_assignment.items()]


def without_thread(*, comparison: Comparison, reader: User) -> list[Assignment]:
    """Return the assignments of a comparison in which `reader` may begin a thread, by annotator."""
    if not may_join_team(reader, comparison):
        return []
    rows = Assignment.objects.filter(
        ~Exists(Comment.objects.filter(assignment=OuterRef("pk"))),
        comparison=comparison,
        state__in=[AssignmentState.LEASED, AssignmentState.SUBMITTED],
        annotator__is_machine=False,
        annotator__is_active=True,
    )
    return list(rows.exclude(annotator=reader).select_related("annotator").order_by("annotator__username"))


def _is_blind(user: User, comparison_id: int) -> bool:
    return (
        Review.objects.filter(comparison=comparison_id, decided_at__isnull=True).exists()
        or Assignment.objects.filter(comparison=comparison_id, annotator=user).exists()
    )


def _shown(assignment: Assignment, comments: Sequence[Comment], reader: User) -> Thread:
    return Thread(
        assignment=assignment,
        comments=[
            _comment(comment, reader, is_answer=comment.author_id != assignment.annotator_id)
            for comment in comments
        ],
    )


def _comment(comment: Comment, reader: User, *, is_answer: bool) -> ShownComment:
    return ShownComment(
        comment=comment,
        markup=render_markdown(comment.text, heading_level=4),
        is_own=comment.author_id == reader.pk,
        is_answer=is_answer,
    )
