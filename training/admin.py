"""Every model of `training` in the Django admin, and the button that starts a training round."""

import json
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html

from annotation.admin.base import BoundedAdmin, WrittenOnceAdmin
from annotation.errors import Refusal
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.selectors import material_of, round_view
from training.services.rounds import cancel_round, open_first_round, reopen_round, start_again, start_round


@admin.register(Snapshot)
class SnapshotAdmin(WrittenOnceAdmin):
    list_display = ["short_digest", "project", "rounds", "judgment_count", "created_by", "created_at"]
    list_filter = ["project", "created_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["digest", "project__name", "project__slug"]
    exclude = ["judgments"]

    @admin.display(description="judgments")
    def judgment_count(self, snapshot: Snapshot) -> int:
        return int(snapshot.counts.get("judgments", 0))


@admin.register(Run)
class RunAdmin(WrittenOnceAdmin):
    list_display = ["name", "method", "state", "step", "total_steps", "heartbeat_at", "created_at"]
    list_filter = ["state", "method", "snapshot__project", "created_at"]
    search_fields = ["name", "error", "worker"]


@admin.register(Checkpoint)
class CheckpointAdmin(WrittenOnceAdmin):
    list_display = ["name", "kind", "project", "base_model", "parent", "created_at"]
    list_filter = ["kind", "project", "base_model", "created_at"]
    list_select_related = ["project", "parent"]
    search_fields = ["name", "digest", "base_model"]


class IndentedJSONField(forms.JSONField):
    """JSON that a person can read while they edit it."""

    def prepare_value(self, value: Any) -> Any:
        return json.dumps(value, indent=2) if isinstance(value, dict) else super().prepare_value(value)


@admin.register(RoundStep)
class RoundStepAdmin(WrittenOnceAdmin):
    list_display = ["round", "position", "kind", "state", "current", "total", "heartbeat_at"]
    list_filter = ["state", "kind", "round__project"]
    list_select_related = ["round__project"]
    search_fields = ["message", "error", "worker", "round__project__name"]


@admin.register(Round)
class RoundAdmin(BoundedAdmin):
    """A round is opened for a project, may get another recipe until it trains, and is started here."""

    change_form_template = "admin/training/round/change_form.html"
    list_display = ["__str__", "state", "policy", "started_by", "started_at", "finished_at"]
    list_filter = ["state", "project", "created_at"]
    list_select_related = ["project", "policy", "started_by"]
    search_fields = ["project__name", "project__slug", "policy__name"]
    readonly_fields = [
        "project",
        "number",
        "state",
        "policy",
        "snapshot",
        "cancel_requested",
        "created_by",
        "started_by",
        "created_at",
        "started_at",
        "finished_at",
    ]
    fields = ["recipe", *readonly_fields]
    formfield_overrides = {models.JSONField: {"form_class": IndentedJSONField}}

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ["project"]
        # What a round trained with is part of its record.
        return self.fields if obj.can_start else ["recipe_as_text", *self.readonly_fields]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [] if obj is None else ["recipe_as_text", *self.readonly_fields]

    @admin.display(description="recipe")
    def recipe_as_text(self, round_: Round) -> str:
        return format_html('<pre class="log">{}</pre>', json.dumps(round_.recipe, indent=2))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            return
        opened = open_first_round(project=obj.project, started_by=request.user)  # type: ignore[arg-type]
        # The row was written by the service; the admin goes on with it.
        obj.pk = opened.pk
        obj.refresh_from_db()

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        actions: dict[str, Callable[..., HttpResponse]] = {
            "start": self.start_view,
            "progress": self.progress_view,
            "cancel": self.cancel_view,
            "again": self.again_view,
            "reopen": self.reopen_view,
        }
        own = [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(view),
                name=f"training_round_{name}",
            )
            for name, view in actions.items()
        ]
        return [*own, *super().get_urls()]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        found = self.get_object(request, object_id)
        live = self._progress_context(request, found) if isinstance(found, Round) else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **live})

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The live part of the page."""
        round_ = self._round(request, object_id, change=False)
        return render(request, "admin/training/round/progress.html", self._progress_context(request, round_))

    def start_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for confirmation, then start training."""
        round_ = self._round(request, object_id)
        if request.method == "POST":
            user: Any = request.user
            return self._act(request, round_, lambda: start_round(round_=round_, started_by=user))
        context = {
            **self.admin_site.each_context(request),
            "title": f"Start training round {round_.number}?",
            "opts": self.opts,
            "original": round_,
            "round": round_,
            "material": material_of(round_),
            "back": self._address("change", round_),
        }
        return render(request, "admin/training/round/start.html", context)

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Stop what goes on."""
        round_ = self._round(request, object_id)
        return self._act(request, round_, lambda: cancel_round(round_=round_))

    def again_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Go on where the round ended early."""
        round_ = self._round(request, object_id)
        return self._act(request, round_, lambda: start_again(round_=round_))

    def reopen_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Back to labelling."""
        round_ = self._round(request, object_id)
        return self._act(request, round_, lambda: reopen_round(round_=round_))

    def _act(self, request: HttpRequest, round_: Round, action: Callable[[], None]) -> HttpResponse:
        if request.method != "POST":
            return HttpResponse(status=405, headers={"Allow": "POST"})
        try:
            action()
        except Refusal as refusal:
            messages.error(request, refusal.message)
        return redirect(self._address("change", round_))

    def _round(self, request: HttpRequest, object_id: str, *, change: bool = True) -> Round:
        found = self.get_object(request, object_id)
        if not isinstance(found, Round):
            raise Http404
        allowed = self.has_change_permission if change else self.has_view_permission
        if not allowed(request, found):
            raise PermissionDenied
        return found

    def _progress_context(self, request: HttpRequest, round_: Round) -> dict[str, Any]:
        names = ("progress", "start", "cancel", "again", "reopen")
        return {
            "round": round_,
            "view": round_view(round_),
            "may_act": self.has_change_permission(request, round_),
            "urls": {name: self._address(name, round_) for name in names},
        }

    def _address(self, name: str, round_: Round) -> str:
        return reverse(f"{self.admin_site.name}:training_round_{name}", args=[round_.pk])
