"""Inbox and comments, by the rules of their pages."""

from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView, Filters, OldestFirst, ProjectView
from annotation.api.labelling import LabellingView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Role, TokenScope
from annotation.models import Assignment, Comment, Comparison, Notification
from annotation.models.inbox import LONGEST_COMMENT
from annotation.selectors.inbox import (
    mail_choice_of,
    may_answer,
    may_join_team,
    notifications_of,
    sentence,
    threads_of,
)
from annotation.services.inbox import (
    choose_mail,
    edit_comment,
    mark_read,
    post_comment,
    post_team_comment,
    resolve_thread,
)


@fields.of(Notification, "id kind project text excerpt address created_at read_at")
class NotificationSerializer(serializers.ModelSerializer[Notification]):
    """An entry of the inbox."""

    project = serializers.SlugRelatedField("slug", read_only=True)  # type: ignore[var-annotated]
    text = fields.computed("The event as a sentence.")

    def get_text(self, notification: Notification) -> str:
        return sentence(notification)


class NotificationFilters(Filters):
    """Filters of the inbox."""

    unread = fields.flag("Only what is unread.", default=False)


class ReadSerializer(serializers.Serializer[Any]):
    """Notifications that were read."""

    ids = fields.several(
        fields.key(), "Without them, or with null: all.", allow_null=True, default=None, most=500
    )


class MarkedSerializer(serializers.Serializer[Any]):
    """The number of notifications that became read."""

    marked = fields.integer()


class MailChoiceSerializer(serializers.Serializer[Any]):
    """The e-mails that the user gets. The address is changed on the account page."""

    is_configured = fields.flag("False where this Rondo sends no e-mail.")
    email = fields.text()
    mentions = fields.flag()
    failures = fields.flag()
    digest = fields.flag()


class NewMailChoiceSerializer(serializers.Serializer[Any]):
    """A choice of e-mails."""

    mentions = fields.flag("Mentions, replies, questions and reviews.")
    failures = fields.flag("Failed rounds and jobs, and decisions that wait.")
    digest = fields.flag("A list of what is unread, once a day.")


@fields.of(Comment, "id assignment author text created_at edited_at resolved_at")
class CommentSerializer(serializers.ModelSerializer[Comment]):
    """A comment. `assignment` names its thread; null: that of the team."""

    author = fields.text(source="author.username")


class NewCommentSerializer(serializers.Serializer[Any]):
    """A comment to write."""

    text = fields.text(most=LONGEST_COMMENT)


class ReplySerializer(NewCommentSerializer):
    """A comment in the thread of an assignment, or of the team."""

    assignment = fields.key(
        "Whose thread it is; null: that of the team, which annotators do not see.",
        allow_null=True,
        default=None,
    )


class ResolveSerializer(serializers.Serializer[Any]):
    """A thread to resolve."""

    assignment = fields.key()


inbox = Resource(ApiView, "inbox/", tag="account", scope=TokenScope.LABEL)
mail = Resource(ApiView, "me/mail/", tag="account")
thread = Resource(
    LabellingView,
    f"{PROJECT}assignments/<int:pk>/comments/",
    tag="labelling",
    find=LabellingView.assignment,
)
threads = Resource(
    ProjectView,
    f"{PROJECT}comparisons/<int:pk>/comments/",
    tag="texts",
    role=Role.REVIEWER,
    scope=TokenScope.LABEL,
    find=lambda view, pk: _comparison(view, pk),
)
comment = Resource(
    ProjectView,
    f"{PROJECT}comments/<int:pk>/",
    tag="texts",
    role=Role.ANNOTATOR,
    scope=TokenScope.LABEL,
    find=lambda view, pk: get_object_or_404(
        Comment.objects.select_related(
            "assignment__comparison__project", "comparison__project", "author"
        ).filter(Q(assignment__comparison__project=view.project) | Q(comparison__project=view.project)),
        pk=pk,
        author=view.user,
    ),
)


@inbox.get_list(NotificationSerializer, filters=NotificationFilters)
def inbox_list(view: ApiView, query: Values) -> QuerySet[Notification]:
    """List what the user was told, newest first."""
    return notifications_of(view.user, unread=bool(query.get("unread")))


@inbox.post(takes=ReadSerializer, returns=MarkedSerializer)
def inbox_read(view: ApiView, values: Values) -> Values:
    """Mark notifications as read. Entries of others are left alone."""
    return {"marked": mark_read(user=view.user, ids=values["ids"])}


@mail.get(returns=MailChoiceSerializer)
def me_mail_read(view: ApiView) -> Values:
    """Read which e-mails the user gets."""
    choice = mail_choice_of(view.user)
    return {
        "is_configured": settings.RONDO_EMAIL,
        "email": view.user.email,
        "mentions": choice.mentions,
        "failures": choice.failures,
        "digest": choice.digest,
    }


@mail.put(takes=NewMailChoiceSerializer, returns=MailChoiceSerializer)
def me_mail_set(view: ApiView, values: Values) -> Values:
    """Choose which e-mails the user gets."""
    choose_mail(user=view.user, email=view.user.email, **values)
    return me_mail_read(view)


@thread.get_list(CommentSerializer, pages=OldestFirst)
def assignments_comments(view: LabellingView, assignment: Assignment) -> QuerySet[Comment]:
    """List the comments on an assignment, oldest first. Other annotators do not see them."""
    return Comment.objects.filter(assignment=assignment).select_related("author")


@thread.post(takes=NewCommentSerializer, returns=CommentSerializer, status=201)
def assignments_ask(view: LabellingView, assignment: Assignment, values: Values) -> Comment:
    """Ask the managers about an assignment; `@name` mentions one of them."""
    return post_comment(assignment=assignment, author=view.user, **values)


@threads.get_list(CommentSerializer, pages=OldestFirst)
def comments_list(view: ProjectView, comparison: Comparison) -> QuerySet[Comment]:
    """List the comments on a comparison that the user may see, oldest first."""
    ids = [thread.assignment.pk for thread in threads_of(comparison=comparison, reader=view.user)]
    seen = Q(assignment__in=ids)
    if may_join_team(view.user, comparison):
        seen |= Q(comparison=comparison)
    return Comment.objects.filter(seen).select_related("author")


@threads.post(takes=ReplySerializer, returns=CommentSerializer, status=201)
def comments_reply(view: ProjectView, comparison: Comparison, values: Values) -> Comment:
    """Write in a thread. In that of an annotator it resolves the open questions."""
    if values["assignment"] is None:
        return post_team_comment(comparison=comparison, author=view.user, text=values["text"])
    assignment = _thread(view, comparison, values["assignment"])
    return post_comment(assignment=assignment, author=view.user, text=values["text"])


@threads.post("resolve/", takes=ResolveSerializer)
def comments_resolve(view: ProjectView, comparison: Comparison, values: Values) -> None:
    """Mark the open questions of a thread as resolved."""
    resolve_thread(assignment=_thread(view, comparison, values["assignment"]), user=view.user)


@comment.put(takes=NewCommentSerializer, returns=CommentSerializer)
def comments_edit(view: ProjectView, comment: Comment, values: Values) -> Comment:
    """Change the text of one's own comment."""
    edit_comment(comment=comment, author=view.user, **values)
    return comment


def _comparison(view: ProjectView, pk: int) -> Comparison:
    comparison = get_object_or_404(Comparison, pk=pk, project=view.project)
    comparison.project = view.project
    return comparison


def _thread(view: ProjectView, comparison: Comparison, pk: int) -> Assignment:
    """Return the assignment whose thread is written to; 404 where the user may not answer there."""
    assignment = get_object_or_404(Assignment, pk=pk, comparison=comparison)
    assignment.comparison = comparison
    if not may_answer(view.user, assignment):
        raise Http404
    return assignment
