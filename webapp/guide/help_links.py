"""The guide page that explains each page of the app, and the row that explains each setting: behind the “?”.

A setting's paragraph is the row of a table that begins with the setting's label in English.
"""

from django.forms import BoundField
from django.urls import reverse
from django.utils.translation import override

from webapp.guide.library import pages, setting_anchor

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
    "how-to/use-ai-annotators": ("judges", "judge", "suggestions"),
    "how-to/use-rubrics": ("rubrics", "rubric", "rubric-new", "rubric-edit", "rubric-drafts", "rubric-draft"),
    "how-to/train-a-round": ("rounds", "round", "round-draft", "round-promote"),
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


_PROJECT = "reference/project-settings"
_BASES = "reference/base-models"
_FORMS: dict[str, tuple[str, ...]] = {
    "annotation.forms.projects.ProjectSettingsForm": (_PROJECT, "project", "assignment", "quality"),
    "annotation.forms.projects.GuidelinesForm": (_PROJECT, "project"),
    "annotation.forms.projects.NewProjectForm": (_PROJECT, "project"),
    "annotation.forms.rubrics.RubricForm": (_PROJECT, "rubrics"),
    "annotation.forms.rubrics.RubricCriterionForm": (_PROJECT, "rubrics"),
    "annotation.views.questions.AskedForm": (_PROJECT, "questions"),
    "annotation.views.questions.CategoryForm": (_PROJECT, "categories"),
    "annotation.views.questions.CriterionForm": (_PROJECT, "criteria"),
    "annotation.views.allocation.RuleForm": (_PROJECT, "allocation"),
    "annotation.views.invitations.InvitationForm": (_PROJECT, "invitations"),
    "annotation.views.webhooks.WebhookForm": (_PROJECT, "webhooks"),
    "annotation.views.webhooks.WebhookSettingsForm": (_PROJECT, "webhooks"),
    "training.views.conversations.ConversationSettingsForm": (_PROJECT, "conversations"),
    "training.views.conversations.ConversationTaskForm": (_PROJECT, "opening-tasks"),
    "training.views.feedback.FeedbackSettingsForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.PatternTestForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.OptInForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.KeyForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.EraseForm": (_PROJECT, "feedback-of-applications"),
    "training.views.judges.RubricDraftForm": (_PROJECT, "rubrics"),
    "training.forms.suggestions.SuggestionsForm": (_PROJECT, "suggestions"),
    "training.views.judges.JudgeForm": (_PROJECT, "ai-annotators"),
    "training.views.judges.ServedModelForm": (_BASES, "models-of-other-servers"),
    "training.views.base_models.HubForm": (_BASES, "forms"),
    "training.views.base_models.FolderForm": (_BASES, "forms"),
    "training.views.base_models.ServerForm": (_BASES, "models-of-other-servers"),
    "annotation.views.tokens.TokenForm": ("how-to/use-the-api", "tokens"),
    "training.forms.comparing.CompareForm": ("how-to/compare-checkpoints", "playground"),
    "training.forms.comparing.AgainForm": ("how-to/compare-checkpoints", "playground"),
    "training.forms.comparing.ArenaForm": ("how-to/compare-checkpoints", "arenas"),
}
"""Form → its page of the guide and the sections that may explain its fields."""
EXPLAINED_FORMS = tuple(_FORMS)


def field_address(field: BoundField) -> str:
    """Return the address of the row that explains a form's field; empty for other forms."""
    form = type(field.form)
    page, *sections = _FORMS.get(f"{form.__module__}.{form.__qualname__}", ("",))
    if not page:
        return ""
    with override("en"):
        name = setting_anchor(str(field.label))
    rows = pages()[_parts(page)].rendered.rows
    anchors = (f"{section}-{name}" for section in sections if f"{section}-{name}" in rows)
    return row_address(page, next(anchors, sections[0]))


def row_address(page: str, anchor: str) -> str:
    """Return the address of a page of the guide at an anchor."""
    return f"{reverse('guide-page', args=_parts(page))}#{anchor}"


def _parts(page: str) -> tuple[str, str]:
    kind, _, name = page.partition("/")
    return kind, name
