"""The webhooks of a project and their deliveries."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import OuterRef, Prefetch, QuerySet, Subquery
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import Role, WebhookEvent
from annotation.errors import Refusal
from annotation.models import Project, WebhookAttempt, WebhookDelivery, WebhookEndpoint
from annotation.services.webhooks import (
    change_webhook,
    create_webhook,
    delete_webhook,
    resend,
    rotate_secret,
    send_test,
)
from annotation.views.access import Request, project_page, refusals_shown

# Form of a webhook.


class WebhookForm(forms.Form):
    """An address, what it is for, and its events."""

    url = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=500,
        widget=forms.URLInput(attrs={"autocomplete": "off", "placeholder": "https://"}),
        help_text=gettext_lazy("Messages are sent there by POST, over TLS. Redirects are not followed."),
    )
    description = forms.CharField(label=gettext_lazy("What it is for"), max_length=200, required=False)
    events = forms.MultipleChoiceField(
        label=gettext_lazy("Events"),
        choices=WebhookEvent.choices,
        widget=forms.CheckboxSelectMultiple,
    )


class WebhookSettingsForm(WebhookForm):
    """The same of a webhook that there is, and whether it is switched on."""

    is_enabled = forms.BooleanField(label=gettext_lazy("Switched on"), required=False)


_LISTED = 50


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def webhooks(request: Request, project: Project) -> HttpResponse:
    """List the project's webhooks and create one, whose secret is shown once. For managers."""
    form, made = WebhookForm(request.POST or None), None
    if request.method == "POST" and form.is_valid():
        try:
            made = create_webhook(project=project, created_by=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            form = WebhookForm()
    context = {"project": project, "form": form, "made": made, "webhooks": _with_last(project)}
    status = 422 if request.method == "POST" and made is None else 200
    return render(request, "annotation/webhooks/webhooks.html", context, status=status)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def webhook(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show and change a webhook, with its latest deliveries. For managers."""
    endpoint = get_object_or_404(_with_last(project), pk=pk)
    form = WebhookSettingsForm(
        request.POST or None,
        initial={name: getattr(endpoint, name) for name in ("url", "description", "events", "is_enabled")},
    )
    if request.method == "POST" and form.is_valid():
        try:
            change_webhook(endpoint=endpoint, changed_by=request.user, **form.cleaned_data)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            messages.success(request, _("The webhook is changed."))
            return redirect("webhook", project.slug, endpoint.pk)
    return _shown(request, endpoint, form, status=422 if request.method == "POST" else 200)


@never_cache
@require_POST
@project_page(role=Role.MANAGER)
def webhook_rotate(request: Request, project: Project, pk: int) -> HttpResponse:
    """Create a new secret, shown once; the previous one keeps signing for a day. For managers."""
    endpoint = get_object_or_404(_with_last(project), pk=pk)
    made = rotate_secret(endpoint=endpoint, rotated_by=request.user)
    form = WebhookSettingsForm(
        initial={name: getattr(endpoint, name) for name in ("url", "description", "events", "is_enabled")}
    )
    return _shown(request, endpoint, form, made=made)


@require_POST
@project_page(role=Role.MANAGER)
def webhook_test(request: Request, project: Project, pk: int) -> HttpResponse:
    """Send an empty test message. For managers."""
    endpoint = get_object_or_404(project.webhooks, pk=pk)
    try:
        delivery = send_test(endpoint=endpoint, sent_by=request.user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect("webhook", project.slug, endpoint.pk)
    return redirect("webhook-delivery", project.slug, delivery.pk)


@require_POST
@project_page(role=Role.MANAGER)
def webhook_delete(request: Request, project: Project, pk: int) -> HttpResponse:
    """Delete a webhook with its sent and pending messages. For managers."""
    delete_webhook(endpoint=get_object_or_404(project.webhooks, pk=pk), deleted_by=request.user)
    messages.success(request, _("The webhook is deleted."))
    return redirect("webhooks", project.slug)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def webhook_delivery(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a message with all its attempts; a POST sends it again. For managers."""
    delivery = get_object_or_404(
        WebhookDelivery.objects.select_related("endpoint__project", "message"),
        pk=pk,
        endpoint__project=project,
    )
    if request.method == "POST":
        with refusals_shown(request):
            resend(delivery=delivery, sent_by=request.user)
            messages.success(request, _("The message is sent again."))
        return redirect("webhook-delivery", project.slug, delivery.pk)
    context = {"project": project, "delivery": delivery, "attempts": delivery.attempts.all()[:_LISTED]}
    return render(request, "annotation/webhooks/delivery.html", context)


def _with_last(project: Project) -> "QuerySet[WebhookEndpoint, Any]":
    """Return the project's webhooks, each with the time and result of its last attempt."""
    last = WebhookAttempt.objects.filter(delivery__endpoint=OuterRef("pk")).order_by("-pk")
    return (
        WebhookEndpoint.objects.filter(project=project)
        .select_related("project")
        .annotate(
            last_at=Subquery(last.values("started_at")[:1]),
            last_status=Subquery(last.values("status")[:1]),
            last_error=Subquery(last.values("error")[:1]),
        )
    )


def _shown(
    request: Request, endpoint: WebhookEndpoint, form: WebhookSettingsForm, *, status: int = 200, **more: Any
) -> HttpResponse:
    attempts = WebhookAttempt.objects.order_by("pk")
    rows = endpoint.deliveries.select_related("message").prefetch_related(
        Prefetch("attempts", queryset=attempts)
    )
    context = {
        "project": endpoint.project,
        "endpoint": endpoint,
        "form": form,
        "deliveries": rows[:_LISTED],
        **more,
    }
    return render(request, "annotation/webhooks/webhook.html", context, status=status)
