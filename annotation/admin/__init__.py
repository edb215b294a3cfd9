"""Every model of `annotation` in the Django admin. What must not change is read-only there."""

from annotation.admin import inbox, judgments, people, projects, texts, transfers, webhooks, work

__all__ = ["inbox", "judgments", "people", "projects", "texts", "transfers", "webhooks", "work"]
