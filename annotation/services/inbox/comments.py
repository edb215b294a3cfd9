"""Comments: asked by an annotator, answered by managers and reviewers.

A thread lies between the annotator of one assignment and the project's managers and reviewers. Who may see it
is decided in `annotation.selectors.comments` alone.
"""

import re

from django.db import transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import NotificationKind
from annotation.errors import NotAllowed, Refusal
from annotation.models import Assignment, Comment, User
from annotation.models.inbox import LONGEST_COMMENT
from annotation.selectors.comments import answering, may_answer, may_see_thread
from annotation.services.inbox.notifications import Event, managers_of, notify

_MENTION = re.compile(r"(?<![\w@.+/-])@([\w.@+-]{1,150})")
MOST_MENTIONS = 20
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def post_comment(*, assignment: Assignment, author: User, text: str) -> Comment:
    """Write a comment into the thread of an assignment, and notify whom it concerns after the commit.

    What a manager or reviewer writes resolves the questions before it. Refuses who may not see the thread
    (`NotAllowed`), and an empty or too long text.
    """
    if not may_see_thread(author, assignment):
        raise NotAllowed("not_concerned_with_comparison", _("You have nothing to do with this comparison."))
    written = _checked(text)
    with transaction.atomic():
        comment = Comment.objects.create(assignment=assignment, author=author, text=written)
        if author.pk != assignment.annotator_id:
            _resolve(assignment)
            comment.refresh_from_db()
        _notify(comment)
    return comment


def edit_comment(*, comment: Comment, author: User, text: str) -> Comment:
    """Change the text of one's own comment; those newly mentioned are notified."""
    if comment.author_id != author.pk or not may_see_thread(author, comment.assignment):
        raise NotAllowed("author_edits_comment", _("Only its author edits a comment."))
    written = _checked(text)
    if written == comment.text:
        return comment
    with transaction.atomic():
        comment.text, comment.edited_at = written, timezone.now()
        comment.save(update_fields=["text", "edited_at"])
        _notify(comment)
    return comment


def resolve_thread(*, assignment: Assignment, user: User) -> int:
    """Mark the open questions of a thread as resolved; return how many there were."""
    if not may_answer(user, assignment):
        raise NotAllowed("reviewer_resolves_questions", _("Managers and reviewers resolve questions."))
    return _resolve(assignment)


def mentioned_in(text: str) -> list[str]:
    """Return the user names that a text mentions with `@`, each once, in lower case."""
    # A sentence may end right after a name, which may hold a full stop.
    names = [name.rstrip(".").lower() for name in _MENTION.findall(text)]
    return list(dict.fromkeys(name for name in names if name))[:MOST_MENTIONS]


def _resolve(assignment: Assignment) -> int:
    return Comment.objects.filter(assignment=assignment, resolved_at__isnull=True).update(
        resolved_at=timezone.now()
    )


def _checked(text: str) -> str:
    written = text.replace("\r\n", "\n").strip()
    if not written:
        raise Refusal("comment_missing", _("Write something first."), field="text")
    if len(written) > LONGEST_COMMENT:
        raise Refusal(
            "comment_too_long",
            _("A comment has at most %(most)d characters."),
            field="text",
            most=LONGEST_COMMENT,
        )
    if _UNSTORABLE.search(written):
        raise Refusal(
            "text_not_storable", _("The text holds a character that cannot be stored."), field="text"
        )
    return written


def _notify(comment: Comment) -> None:
    """Tell the mentioned, then the other side: managers of a question, the annotator of a reply.

    Only people who may see the thread are told. All of one comment has one key, so nobody is told twice.
    """
    assignment, author = comment.assignment, comment.author
    project = assignment.comparison.project
    names = set(mentioned_in(comment.text))
    audience = [*answering(assignment), assignment.annotator]
    mentioned = [user for user in audience if user.username.lower() in names and user.pk != author.pk]
    _tell(comment, NotificationKind.MENTION, mentioned)
    mentioned_ids = {user.pk for user in mentioned}
    if author.pk == assignment.annotator_id:
        others = [user for user in managers_of(project.pk) if user.pk not in {author.pk, *mentioned_ids}]
        _tell(comment, NotificationKind.QUESTION, others)
    else:
        before = User.objects.filter(comments__assignment=assignment).distinct()
        part = {assignment.annotator_id, *before.values_list("pk", flat=True)}
        others = [user for user in audience if user.pk in part - {author.pk, *mentioned_ids}]
        _tell(comment, NotificationKind.REPLY, others)


def _tell(comment: Comment, kind: NotificationKind, users: list[User]) -> None:
    """Write notifications; each person gets the address of the thread as they may open it."""
    assignment = comment.assignment
    project = assignment.comparison.project
    annotators = [user for user in users if user.pk == assignment.annotator_id]
    for group, address in (
        (annotators, reverse("ask", args=[project.slug, assignment.pk])),
        (
            [user for user in users if user not in annotators],
            f"{reverse('comments', args=[project.slug, assignment.comparison_id])}#thread-{assignment.pk}",
        ),
    ):
        if group:
            event = Event(
                kind=kind,
                key=f"comment:{comment.pk}",
                subject=str(comment.author),
                excerpt=comment.text,
                address=address,
            )
            notify(project_id=project.pk, users=group, event=event)
