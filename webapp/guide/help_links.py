"""The guide page that explains each page of the app, for the “?” in its bar."""

from django.urls import reverse

_PAGES: dict[str, tuple[str, ...]] = {
    "tutorials/first-round": ("projects", "project", "dashboard"),
    "how-to/label": (
        *(
            "label",
            "submit",
            "revise",
            "skip",
            "flag",
            "ask",
            "my-work",
            "guidelines",
            "keys",
            "continuation",
        ),
        *("final-pass", "arena", "arena-ballot"),
    ),
    "tutorials/live-conversations": (
        *("conversations", "conversation", "conversation-begin", "conversation-say", "conversation-settings"),
        *("conversation-task", "conversation-task-add", "arena-talk"),
    ),
    "how-to/manage-data": (
        *("data-comparisons", "data-prompts", "data-annotations", "data-responses", "data-act", "prompt"),
        *("prompt-new", "statistics-item"),
    ),
    "how-to/import-and-export": ("transfers", "transfer", "export-choose"),
    "how-to/check-quality": (
        *("statistics-items", "annotators", "annotator", "reviews", "review", "gold", "gold-make"),
        *("withheld", "drift", "drift-items"),
    ),
    "explanation/statistics": ("statistics",),
    "how-to/train-on-several-gpus": ("scaling",),
    "how-to/use-ai-annotators": ("judges", "judge", "suggestions"),
    "how-to/use-rubrics": ("rubrics", "rubric", "rubric-new", "rubric-edit", "rubric-drafts", "rubric-draft"),
    "how-to/train-a-round": ("rounds", "round", "round-draft", "round-promote", "round-open", "round-start"),
    "reference/recipe": ("round-recipe",),
    "explanation/rounds": ("evaluation",),
    "how-to/follow-runs": (
        "runs",
        "run",
        "runs-compare",
        "checkpoints",
        "checkpoint",
        "snapshot",
        "completion",
    ),
    "how-to/compare-checkpoints": (
        *("compare", "compare-shown", "prompt-sets", "prompt-set", "leaderboard", "leaderboard-groups"),
        *("leaderboard-items", "arenas", "arena-create"),
    ),
    "how-to/collect-feedback": (
        *("feedback", "feedback-request", "feedback-figures", "feedback-incidents", "feedback-settings"),
    ),
    "how-to/set-up-a-project": (
        *("project-new", "project-settings", "guidelines-edit", "project-preview", "members", "invitations"),
        *("project-audit", "project-questions", "criterion", "criterion-add", "project-categories"),
        *("category", "category-add"),
    ),
    "how-to/allocate-work": ("allocation",),
    "how-to/receive-webhooks": ("webhooks", "webhook", "webhook-delivery"),
    "how-to/use-the-api": ("tokens", "api-docs"),
    "how-to/manage-accounts": ("account", "mfa_index", "mfa_list_webauthn", "audit"),
    "how-to/monitor": ("status",),
    "how-to/install": ("start",),
    "how-to/serve-models": ("served-model",),
    "how-to/add-a-base-model": ("base-models", "base-model", "base-model-add", "base-model-remove"),
}
PAGE_OF = {url_name: page for page, url_names in _PAGES.items() for url_name in url_names}
"""URL name of a page of the app → folder and name of the guide page."""


def help_address(url_name: str) -> str:
    """Return the address of the guide page that explains a page of the app; else of the guide."""
    if page := PAGE_OF.get(url_name):
        return reverse("guide-page", args=page.split("/"))
    return reverse("guide")
