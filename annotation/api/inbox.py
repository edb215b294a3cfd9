"""Inbox and comments, by the rules of their pages."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, Filters, ListView, OldestFirst, ProjectView, read_body
from annotation.api.labelling import LabellingView
from annotation.choices import Role, TokenScope
from annotation.models import Assignment, Comment, Comparison, Notification, User
from annotation.models.inbox import LONGEST_COMMENT
from annotation.selectors.comments import may_answer, threads_of
from annotation.selectors.inbox import mail_choice_of, notifications_of, sentence
from annotation.services.inbox.comments import edit_comment, post_comment, resolve_thread
from annotation.services.inbox.mail import choose_mail
from annotation.services.inbox.notifications import mark_read

_BIGGEST = 2**63 - 1


class NotificationSerializer(serializers.ModelSerializer[Notification]):
    """An entry of the inbox."""

    project = serializers.SlugRelatedField("slug", read_only=True)  # type: ignore[var-annotated]
    text = serializers.SerializerMethodField(help_text="The event as a sentence.")

    class Meta:
        model = Notification
        fields = ("id", "kind", "project", "text", "excerpt", "address", "created_at", "read_at")

    def get_text(self, notification: Notification) -> str:
        return sentence(notification)


class NotificationFilters(Filters):
    """Filters of the inbox."""

    unread = serializers.BooleanField(required=False, default=False, help_text="Only what is unread.")


class ReadSerializer(serializers.Serializer[Any]):
    """Notifications that were read."""

    ids = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=_BIGGEST),
        required=False,
        allow_null=True,
        default=None,
        max_length=500,
        help_text="Without them, or with null: all.",
    )


class MarkedSerializer(serializers.Serializer[Any]):
    """The number of notifications that became read."""

    marked = serializers.IntegerField()


class MailChoiceSerializer(serializers.Serializer[Any]):
    """The e-mails that the user gets. The address is changed on the account page."""

    is_configured = serializers.BooleanField(help_text="False where this Rondo sends no e-mail.")
    email = serializers.CharField()
    mentions = serializers.BooleanField()
    failures = serializers.BooleanField()
    digest = serializers.BooleanField()


class NewMailChoiceSerializer(serializers.Serializer[Any]):
    """A choice of e-mails."""

    mentions = serializers.BooleanField(help_text="Mentions, replies, questions and reviews.")
    failures = serializers.BooleanField(help_text="Failed rounds and jobs, and decisions that wait.")
    digest = serializers.BooleanField(help_text="A list of what is unread, once a day.")


class CommentSerializer(serializers.ModelSerializer[Comment]):
    """A comment. `assignment` names its thread."""

    author = serializers.CharField(source="author.username")

    class Meta:
        model = Comment
        fields = ("id", "assignment", "author", "text", "created_at", "edited_at", "resolved_at")


class NewCommentSerializer(serializers.Serializer[Any]):
    """A comment to write."""

    text = serializers.CharField(max_length=LONGEST_COMMENT)


class ReplySerializer(NewCommentSerializer):
    """A comment in the thread of an assignment."""

    assignment = serializers.IntegerField(min_value=1, max_value=_BIGGEST)


class ResolveSerializer(serializers.Serializer[Any]):
    """A thread to resolve."""

    assignment = serializers.IntegerField(min_value=1, max_value=_BIGGEST)


class InboxView(ListView, ApiView):
    """The user's inbox. For everyone."""

    changes = TokenScope.LABEL
    serializer_class = NotificationSerializer
    queryset = Notification.objects.none()
    filters = NotificationFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return notifications_of(self.user, unread=bool(query.get("unread")))

    @extend_schema(
        operation_id="inbox_list",
        tags=["account"],
        parameters=[NotificationFilters],
        responses=NotificationSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List what the user was told, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="inbox_read", tags=["account"], request=ReadSerializer, responses=MarkedSerializer
    )
    def post(self, request: Request) -> Response:
        """Mark notifications as read. Entries of others are left alone."""
        values = read_body(ReadSerializer, request)
        return Response({"marked": mark_read(user=self.user, ids=values["ids"])})


class MailChoiceView(ApiView):
    """The user's choice of e-mails. For everyone."""

    @extend_schema(operation_id="me_mail_read", tags=["account"], responses=MailChoiceSerializer)
    def get(self, request: Request) -> Response:
        """Read which e-mails the user gets."""
        return Response(_choice(self.user))

    @extend_schema(
        operation_id="me_mail_set",
        tags=["account"],
        request=NewMailChoiceSerializer,
        responses=MailChoiceSerializer,
    )
    def put(self, request: Request) -> Response:
        """Choose which e-mails the user gets."""
        values = read_body(NewMailChoiceSerializer, request)
        choose_mail(user=self.user, email=self.user.email, **values)
        return Response(_choice(self.user))


class OwnCommentsView(ListView, LabellingView):
    """The thread of an assignment. For the annotator who has it."""

    pagination_class = OldestFirst
    serializer_class = CommentSerializer
    queryset = Comment.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        assignment = self.assignment(self.kwargs["pk"])
        return Comment.objects.filter(assignment=assignment).select_related("author")

    @extend_schema(
        operation_id="assignments_comments",
        tags=["labelling"],
        responses=CommentSerializer(many=True),
    )
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """List the comments on an assignment, oldest first. Other annotators do not see them."""
        return self.listed()

    @extend_schema(
        operation_id="assignments_ask",
        tags=["labelling"],
        request=NewCommentSerializer,
        responses={201: CommentSerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Ask the managers about an assignment; `@name` mentions one of them."""
        assignment = self.assignment(pk)
        values = read_body(NewCommentSerializer, request)
        comment = post_comment(assignment=assignment, author=self.user, **values)
        return Response(CommentSerializer(comment).data, status=201)


class CommentsView(ListView, ProjectView):
    """The threads of a comparison. For reviewers."""

    role = Role.REVIEWER
    changes = TokenScope.LABEL
    pagination_class = OldestFirst
    serializer_class = CommentSerializer
    queryset = Comment.objects.none()

    def comparison(self, pk: int) -> Comparison:
        """Return the comparison in the address."""
        comparison = get_object_or_404(Comparison, pk=pk, project=self.project)
        comparison.project = self.project
        return comparison

    def thread(self, comparison: Comparison, pk: int) -> Assignment:
        """Return the assignment whose thread is written to; 404 where the user may not answer there."""
        assignment = get_object_or_404(Assignment, pk=pk, comparison=comparison)
        assignment.comparison = comparison
        if not may_answer(self.user, assignment):
            raise Http404
        return assignment

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        threads = threads_of(comparison=self.comparison(self.kwargs["pk"]), reader=self.user)
        ids = [thread.assignment.pk for thread in threads]
        return Comment.objects.filter(assignment__in=ids).select_related("author")

    @extend_schema(operation_id="comments_list", tags=["texts"], responses=CommentSerializer(many=True))
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """List the comments on a comparison that the user may see, oldest first."""
        return self.listed()

    @extend_schema(
        operation_id="comments_reply",
        tags=["texts"],
        request=ReplySerializer,
        responses={201: CommentSerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Answer in a thread, which resolves its open questions."""
        comparison = self.comparison(pk)
        values = read_body(ReplySerializer, request)
        assignment = self.thread(comparison, values["assignment"])
        comment = post_comment(assignment=assignment, author=self.user, text=values["text"])
        return Response(CommentSerializer(comment).data, status=201)


class CommentView(ProjectView):
    """One's own comment. For the annotator or manager who wrote it."""

    role = Role.ANNOTATOR
    changes = TokenScope.LABEL

    @extend_schema(
        operation_id="comments_edit",
        tags=["texts"],
        request=NewCommentSerializer,
        responses=CommentSerializer,
    )
    def put(self, request: Request, slug: str, pk: int) -> Response:
        """Change the text of one's own comment."""
        rows = Comment.objects.select_related("assignment__comparison__project", "author")
        comment = get_object_or_404(
            rows, pk=pk, author=self.user, assignment__comparison__project=self.project
        )
        values = read_body(NewCommentSerializer, request)
        edit_comment(comment=comment, author=self.user, **values)
        return Response(CommentSerializer(comment).data)


class ResolveView(CommentsView):
    """The state of a thread. For reviewers."""

    http_method_names = ("post", "options")

    @extend_schema(
        operation_id="comments_resolve", tags=["texts"], request=ResolveSerializer, responses={204: None}
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Mark the open questions of a thread as resolved."""
        comparison = self.comparison(pk)
        values = read_body(ResolveSerializer, request)
        resolve_thread(assignment=self.thread(comparison, values["assignment"]), user=self.user)
        return Response(status=204)


def _choice(user: User) -> dict[str, Any]:
    choice = mail_choice_of(user)
    return {
        "is_configured": settings.RONDO_EMAIL,
        "email": user.email,
        "mentions": choice.mentions,
        "failures": choice.failures,
        "digest": choice.digest,
    }
