"""The Django admin, in groups: rounds and projects first, and each group by its subject."""

from typing import Any

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

GROUPS: tuple[tuple[str, str | Promise, tuple[str, ...]], ...] = (
    ("loop", _("Rounds and projects"), ("Round", "Project", "Run", "Checkpoint", "Snapshot", "Evaluation")),
    (
        "data",
        _("Data"),
        (
            "Prompt",
            "Completion",
            "Comparison",
            "Assignment",
            "Judgment",
            "Review",
            "ReviewDecision",
            "ReviewReturn",
            "FileImport",
        ),
    ),
    (
        "questions",
        _("Questions and quality"),
        ("Category", "Criterion", "Guideline", "GoldAnswer", "Withholding", "ItemFlag", "Judge"),
    ),
    ("people", _("People"), ("User", "Membership", "Invitation", "Group", "ApiToken", "AuditEntry")),
    ("compare", _("Compare"), ("PromptSet", "SideBySide", "ArenaLink", "ArenaPair", "VoteLedger")),
    ("webhooks", _("Webhooks"), ("WebhookEndpoint", "WebhookMessage", "WebhookDelivery", "WebhookAttempt")),
)
"""Key, title and models of each group, in the order of the index; what no group names follows by app."""


# The admin's own form to sign in supports neither a second factor nor a passkey.
@method_decorator(secure_admin_login, name="login")
class RondoAdminSite(admin.AdminSite):
    """Django's admin site with its index in groups, and Rondo's way to sign in."""

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the models that the user may see, in groups; those of one app where it is named."""
        apps: list[Any] = super().get_app_list(request, app_label)
        if app_label is not None:
            return apps
        rows = {row["object_name"]: row for app in apps for row in app["models"]}
        groups = []
        for key, title, names in GROUPS:
            if models := [rows.pop(name) for name in names if name in rows]:
                groups.append(
                    {
                        "name": title,
                        "app_label": key,
                        "app_url": reverse("admin:index"),
                        "has_module_perms": True,
                        "models": models,
                    }
                )
        for app in apps:
            if left := [row for row in app["models"] if row["object_name"] in rows]:
                groups.append({**app, "models": left})
        return groups
