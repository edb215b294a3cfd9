"""The inbox, its badge, and the choice of e-mails."""

from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import BigIntegerField
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.selectors.inbox import SHOWN_AT_MOST, icon_of, notifications_of, sentence, unread_count
from annotation.services.inbox.notifications import mark_read, mark_unread
from annotation.views.access import Request

_ON_A_PAGE = 30


@never_cache
@require_safe
def inbox(request: Request) -> HttpResponse:
    """Show what the user was told, newest first. For everyone."""
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
