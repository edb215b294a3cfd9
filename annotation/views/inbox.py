"""The inbox, its badge, and the choice of e-mails."""

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import BigIntegerField, Q
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Purpose, Role
from annotation.errors import NotAllowed, Refusal
from annotation.models import Assignment, Comment, Comparison, Project
from annotation.models.inbox import LONGEST_COMMENT
from annotation.selectors.inbox import (
    SHOWN_AT_MOST,
    icon_of,
    may_answer,
    notifications_of,
    sentence,
    thread_of,
    threads_of,
    unread_count,
)
from annotation.selectors.reviews import decision_for
from annotation.services.inbox import (
    edit_comment,
    mark_read,
    mark_unread,
    post_comment,
    post_team_comment,
    resolve_thread,
)
from annotation.views.access import Request, own_assignment, project_page

# Forms of comments and of the choice of e-mails.


class CommentForm(forms.Form):
    text = forms.CharField(
        label=gettext_lazy("Comment"),
        max_length=LONGEST_COMMENT,
        widget=forms.Textarea(attrs={"rows": 3, "maxlength": LONGEST_COMMENT}),
        error_messages={"required": gettext_lazy("Write something first.")},
    )


class MailForm(forms.Form):
    """The e-mails that a person wants, and where to."""

    email = forms.EmailField(label=gettext_lazy("E-mail address"), required=False, max_length=254)
    mentions = forms.BooleanField(
        label=gettext_lazy("Mentions, replies, questions and reviews"), required=False
    )
    failures = forms.BooleanField(
        label=gettext_lazy("Failed rounds and jobs, and decisions that wait"), required=False
    )
    digest = forms.BooleanField(label=gettext_lazy("Daily digest of what is unread"), required=False)


# ── Inbox ──

_ON_A_PAGE = 30


@never_cache
@require_safe
def inbox(request: Request) -> HttpResponse:
    """Show the user's notifications, newest first. For everyone."""
    unread = request.GET.get("show") == "unread"
    page = Paginator(notifications_of(request.user, unread=unread), _ON_A_PAGE).get_page(
        request.GET.get("page")
    )
    context = {
        "page": page,
        "rows": [(entry, icon_of(entry), sentence(entry)) for entry in page],
        "unread_only": unread,
        "unread": unread_count(request.user),
        "query": urlencode({"show": "unread"}) if unread else "",
        "has_mail": settings.RONDO_EMAIL,
    }
    template = "annotation/inbox/list.html" if request.htmx else "annotation/inbox/inbox.html"
    return render(request, template, context)


@never_cache
@require_safe
def inbox_count(request: Request) -> HttpResponse:
    """Return the number of unread notifications for the badge in the bar. For everyone."""
    count = unread_count(request.user)
    shown = f"{SHOWN_AT_MOST}+" if count > SHOWN_AT_MOST else str(count)
    return render(request, "annotation/inbox/badge.html", {"count": count, "shown": shown})


@require_POST
def inbox_read(request: Request) -> HttpResponse:
    """Mark all notifications as read. For everyone."""
    mark_read(user=request.user)
    return redirect("inbox")


@require_POST
def notification(request: Request, pk: int) -> HttpResponse:
    """Open a notification, which marks it as read, or only mark it. For everyone."""
    bounded = pk if pk <= BigIntegerField.MAX_BIGINT else 0
    notification = get_object_or_404(notifications_of(request.user), pk=bounded)
    if "unread" in request.POST:
        mark_unread(user=request.user, pk=notification.pk)
        return redirect("inbox")
    mark_read(user=request.user, ids=[notification.pk])
    return redirect("inbox") if "read" in request.POST else redirect(notification.address)


# Comments on a comparison: an annotator's thread, and all threads for managers and reviewers.


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.ANNOTATOR)
def ask(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show the thread of an assignment and ask in it. For the annotator who has it."""
    assignment = own_assignment(request, project, pk)
    form = CommentForm(request.POST or None)
    sent = request.method == "POST" and _post(request, assignment, form)
    if sent and not request.htmx:
        return redirect("ask", project.slug, assignment.pk)
    context = {
        "project": project,
        "assignment": assignment,
        "thread": thread_of(assignment=assignment, reader=request.user),
        "form": CommentForm() if sent else form,
        "sent": sent,
        "decision": None if request.htmx else decision_for(assignment),
    }
    # Replace only the small form, so that everything entered stays.
    template = "annotation/comments/ask.html" if request.htmx else "annotation/comments/ask_page.html"
    return render(request, template, context, status=422 if form.is_bound and not sent else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.REVIEWER)
def comments(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show the threads of a comparison, answer and resolve. For reviewers."""
    comparison = get_object_or_404(
        Comparison.objects.select_related("prompt", "project").exclude(purpose=Purpose.ARENA),
        pk=_bounded(pk),
        project=project,
    )
    comparison.project = project
    form, answered, is_team = CommentForm(), None, "team" in request.POST
    if request.method == "POST" and is_team:
        form = CommentForm(request.POST)
        if _post_to_team(request, comparison, form):
            return redirect(f"{request.path}#team")
    elif request.method == "POST":
        answered = _assignment_answered(request, comparison)
        if "resolve" in request.POST:
            resolve_thread(assignment=answered, user=request.user)
            return redirect(_address(answered))
        form = CommentForm(request.POST)
        if _post(request, answered, form):
            return redirect(_address(answered))
    context = {
        "project": project,
        "comparison": comparison,
        "threads": threads_of(comparison=comparison, reader=request.user),
        "form": form,
        "answered": answered,
        "is_team": is_team,
    }
    return render(request, "annotation/comments/page.html", context, status=422 if form.is_bound else 200)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.ANNOTATOR)
def comment_edit(request: Request, project: Project, pk: int) -> HttpResponse:
    """Edit one's own comment. For the annotator or manager who wrote it."""
    comment = get_object_or_404(
        Comment.objects.select_related(
            *("assignment__comparison__project", "comparison__project", "author"),
            "calibration_item__session__project",
        ).filter(
            Q(assignment__comparison__project=project)
            | Q(comparison__project=project)
            | Q(calibration_item__session__project=project)
        ),
        pk=_bounded(pk),
        author=request.user,
    )
    form = CommentForm(request.POST or None, initial={"text": comment.text})
    if request.method == "POST" and form.is_valid():
        try:
            edit_comment(comment=comment, author=request.user, text=form.cleaned_data["text"])
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect(_address_of(comment, request))
    context = {
        "project": project,
        "comment": comment,
        "form": form,
        "back": _address_of(comment, request),
    }
    return render(request, "annotation/comments/edit.html", context, status=422 if form.is_bound else 200)


def _post(request: Request, assignment: Assignment, form: CommentForm) -> bool:
    if not form.is_valid():
        return False
    try:
        post_comment(assignment=assignment, author=request.user, text=form.cleaned_data["text"])
    except Refusal as refusal:
        form.add_error(refusal.field, refusal.message)
        return False
    return True


def _post_to_team(request: Request, comparison: Comparison, form: CommentForm) -> bool:
    if not form.is_valid():
        return False
    try:
        post_team_comment(comparison=comparison, author=request.user, text=form.cleaned_data["text"])
    except NotAllowed as refusal:
        raise PermissionDenied(refusal.message) from refusal
    except Refusal as refusal:
        form.add_error(refusal.field, refusal.message)
        return False
    return True


def _address_of(comment: Comment, request: Request) -> str:
    """Return the address of a comment's thread, as its author opens it."""
    if comment.assignment is not None:
        return _address(comment.assignment, request)
    if (item := comment.calibration_item) is not None:
        place = [item.session.project.slug, item.session_id, item.index]
        return f"{reverse('calibration-item', args=place)}#talk"
    comparison = comment.comparison
    assert comparison is not None  # noqa: S101 - a comment stands in one thread
    return f"{reverse('comments', args=[comparison.project.slug, comparison.pk])}#team"


def _assignment_answered(request: Request, comparison: Comparison) -> Assignment:
    """Return the assignment whose thread is answered; 404 where the user may not answer there."""
    pk = request.POST.get("assignment", "")
    assignment = get_object_or_404(
        Assignment.objects.select_related("annotator"),
        pk=_bounded(int(pk)) if pk.isdecimal() and len(pk) < 20 else 0,
        comparison=comparison,
    )
    assignment.comparison = comparison
    if not may_answer(request.user, assignment):
        raise Http404
    return assignment


def _address(assignment: Assignment, request: Request | None = None) -> str:
    """Return the address of a thread, as its annotator or as others open it."""
    slug = assignment.comparison.project.slug
    if request is not None and assignment.annotator_id == request.user.pk:
        return reverse("ask", args=[slug, assignment.pk])
    return f"{reverse('comments', args=[slug, assignment.comparison_id])}#thread-{assignment.pk}"


def _bounded(pk: int) -> int:
    # A larger number would be a database error.
    return pk if pk <= BigIntegerField.MAX_BIGINT else 0
