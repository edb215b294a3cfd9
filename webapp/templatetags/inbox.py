"""Threads of comments in templates, and the choice of e-mails on the account page."""

from collections.abc import Sequence
from typing import Any

from django import template
from django.conf import settings
from django.template import Context

from annotation.models import Assignment, Comparison, User
from annotation.selectors.inbox import Thread, mail_choice_of, thread_of, threads_of

register = template.Library()


@register.simple_tag(takes_context=True)
def comment_threads(context: Context, comparison: Comparison) -> Sequence[Thread]:
    """Return the threads of a comparison that the reader of the page may see."""
    return threads_of(comparison=comparison, reader=context["request"].user)


@register.simple_tag
def own_thread(assignment: Assignment, annotator: User) -> Thread:
    """Return the thread of an assignment, for its annotator's screen."""
    return thread_of(assignment=assignment, reader=annotator)


@register.inclusion_tag("annotation/inbox/mail_choice.html")
def mail_settings(user: User) -> dict[str, Any]:
    """Render a person's choice of e-mails."""
    return {"user": user, "choice": mail_choice_of(user), "has_mail": settings.RONDO_EMAIL}
