"""Pages of the guide: read from their files once per process.

`index.md` orders them: one heading per kind, and below it a list with a link to each page.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

import nh3
from django.contrib.staticfiles import finders
from django.forms import BoundField
from django.templatetags.static import static
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import override
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from annotation.text import formulas
from annotation.text.formulas import FormulaBudget

# Markdown of the guide to HTML, with anchors on headings, links of the app, and pictures by theme.
#
# The pages are our own, and the HTML is cleaned all the same. A picture is named `…-light.webp`; the one
# for the dark theme lies beside it.

_TAGS = {
    "p", "br", "hr", "strong", "em", "code", "pre", "blockquote", "ul", "ol", "li", "a", "span", "img", "div",
    "h1", "h2", "h3", "h4", "table", "thead", "tbody", "tr", "th", "td",
} | formulas.ELEMENTS  # fmt: skip
_ATTRIBUTES = {
    "a": {"href", "class", "aria-hidden", "tabindex"},
    "ol": {"start"},
    "span": {"class", "tabindex"},
    "div": {"class", "tabindex", "role"},
    "pre": {"tabindex"},
    "table": {"class"},
    "tr": {"id"},
    "img": {"src", "alt", "class", "width", "height", "loading"},
    **{heading: {"id"} for heading in ("h1", "h2", "h3", "h4")},
    **formulas.ATTRIBUTES,
}
_STATIC = "static/"
_ROWS_OF = ("field", "setting")
"""First headings of the tables whose rows have anchors."""
_WIDTH, _HEIGHT = 1400, 900
"""Size of a picture, as `make screenshots` takes it. A drawing states its own."""
_SIZE_OF_DRAWING = re.compile(r'viewBox="0 0 (\d+) (\d+)"')


@dataclass(frozen=True, slots=True)
class GuideSection:
    """The part of a page below one heading, as plain text."""

    level: int
    title: str
    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page as HTML, and its sections in order; the first begins with the page's title.

    `rows` are the anchors of the settings in its tables: that of the section, and the setting's own.
    """

    html: SafeString
    sections: Sequence[GuideSection]
    rows: Sequence[str]


def anchor_of(title: str) -> str:
    """Return the anchor that GitHub gives a heading, so that links work in both places."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def setting_anchor(label: str) -> str:
    """Return the part of a row's anchor that names its setting: its label without unit or “(optional)”."""
    return anchor_of(label.partition(" (")[0])


def render(text: str, *, folder: str) -> Rendered:
    """Render a page that lies in `folder`."""
    parser = _parser()
    tokens = parser.parse(text, FormulaBudget().as_environment())
    sections = tuple(_sections(tokens))
    rows = tuple(_rows(tokens))
    for token in tokens:
        if token.type == "inline":
            for part in token.children or ():
                _settle_link(part, folder)
    markup = parser.renderer.render(tokens, parser.options, {})
    cleaned = nh3.clean(
        markup,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https"},
        link_rel="noopener noreferrer",
    )
    return Rendered(mark_safe(cleaned), sections, rows)  # noqa: S308 - nh3 has just cleaned it


class _Renderer(RendererHTML):
    """Puts tables and code where they can scroll, and shows the picture of the theme."""

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<div class="table-scroll" tabindex="0" role="group"><table class="table">'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</table></div>\n"

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f'<pre tabindex="0"><code>{escape(tokens[idx].content)}</code></pre>\n'

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self.fence(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        path = str(token.attrs["src"])
        name = path[path.index(_STATIC) + len(_STATIC) :]
        width, height = _size_of(name)
        pictures = "".join(
            f'<img class="guide__picture guide__picture--{theme}" '
            f'src="{escape(static(name.replace("-light.", f"-{theme}.")))}" alt="{escape(token.content)}" '
            f'width="{width}" height="{height}" loading="lazy">'
            for theme in ("light", "dark")
        )
        # The words of a drawing stay large enough to read: it scrolls where it is wider than the screen.
        is_drawing = name.endswith(".svg")
        return f'<span class="guide__drawing" tabindex="0">{pictures}</span>' if is_drawing else pictures

    def formula(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        size = len(token.markup)
        converted = formulas.to_mathml(token.content[size:-size], display=bool(token.info))
        if converted is None:
            return f"<code>{escape(token.content)}</code>"
        display = " formula--display" if token.info else ""
        wide = ' formula--wide" tabindex="0' if converted.is_wide else ""
        shown = f'<span class="formula{display}{wide}">{converted.markup}</span>'
        return f"<p>{shown}</p>\n" if token.block else shown


@cache
def _size_of(name: str) -> tuple[int, int]:
    """Return width and height of a picture below `static/`."""
    file = finders.find(name) if name.endswith(".svg") else None
    if file is None:
        return _WIDTH, _HEIGHT
    size = _SIZE_OF_DRAWING.search(Path(file).read_text(encoding="utf-8"))
    return (int(size[1]), int(size[2])) if size else (_WIDTH, _HEIGHT)


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer)
    parser.enable("table")
    formulas.enable_formulas(parser)
    return parser


def _sections(tokens: Sequence[Token]) -> Iterator[GuideSection]:
    """Yield the sections, and give each heading its anchor."""
    level, title, anchor, parts = 1, "", "", list[str]()
    repeats: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            if title:
                yield GuideSection(level, title, anchor, " ".join(parts))
            level, title, parts = int(token.tag[1]), _plain(tokens[index + 1]), []
            anchor = anchor_of(title)
            repeats[anchor] = repeats.get(anchor, -1) + 1
            anchor = f"{anchor}-{repeats[anchor]}" if repeats[anchor] else anchor
            token.attrs["id"] = anchor
        elif token.type == "inline" and tokens[index - 1].type != "heading_open":
            parts.append(_plain(token))
        elif token.type in ("fence", "code_block"):
            parts.append(token.content)
    if title:
        yield GuideSection(level, title, anchor, " ".join(parts))


def _rows(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the anchors of settings in tables, and give each row its anchor."""
    section, head = "", ""
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            section = str(token.attrs["id"])
        elif token.type == "thead_open":
            head = _plain(tokens[index + 3])
        elif token.type == "tr_open" and tokens[index - 1].type != "thead_open" and head in _ROWS_OF:
            token.attrs["id"] = f"{section}-{setting_anchor(_plain(tokens[index + 2]))}"
            yield str(token.attrs["id"])


def _plain(token: Token) -> str:
    """Return the text of an inline token without its markup."""
    parts = []
    for part in token.children or ():
        parts.append(" " if part.type in ("softbreak", "hardbreak") else part.content)
    return "".join(parts)


def _settle_link(token: Token, folder: str) -> None:
    """Turn a link between files into one between pages of the app; one out of the guide into code."""
    href = str(token.attrs.get("href", "")) if token.type == "link_open" else ""
    parts = urlsplit(href)
    if not href or parts.scheme or not parts.path:
        return
    path = posixpath.normpath(posixpath.join(folder, parts.path))
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    token.attrs["href"] = address_of(path) + fragment


def address_of(path: str) -> str:
    """Return the address of a guide page from its path below the guide's folder: `how-to/deploy.md`."""
    if path == "index.md":
        return reverse("guide")
    kind, _, name = path.removesuffix(".md").partition("/")
    return reverse("guide-page", args=[kind, name])


# ── Library ──

FOLDER = Path(__file__).resolve().parent
KINDS = ("tutorials", "how-to", "reference", "explanation")
"""Folders of the guide, by the kinds of Diátaxis."""

_ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<path>[\w./-]+)\.md\)(?:: (?P<summary>.+))?$", re.M)
_KIND = re.compile(r"^## (.+)$", re.M)


@dataclass(frozen=True)
class GuidePage:
    kind: str
    name: str
    title: str
    summary: str

    @property
    def path(self) -> Path:
        """Return the page's file."""
        return FOLDER / self.kind / f"{self.name}.md"

    @property
    def rendered(self) -> Rendered:
        """Return its HTML and its sections in English."""
        return _rendered(self.path)

    def in_language(self, language: str) -> "Edition":
        """Return the page in a language, else in English: pages for labellers have a German file, too."""
        path = self.path.with_suffix(f".{language}.md")
        if path.is_file():
            rendered = _rendered(path)
            return Edition(language, rendered.sections[0].title, rendered)
        return Edition("en", self.title, self.rendered)


@dataclass(frozen=True, slots=True)
class Edition:
    """A page in one language."""

    language: str
    title: str
    rendered: Rendered


@cache
def _rendered(path: Path) -> Rendered:
    return render(path.read_text(encoding="utf-8"), folder=path.parent.name)


@dataclass(frozen=True, slots=True)
class GuideShelf:
    """Pages of one kind, in reading order."""

    kind: str
    title: str
    pages: Sequence[GuidePage]


@cache
def shelves() -> Sequence[GuideShelf]:
    """Return all pages by kind, in the order of `index.md`."""
    return tuple(_shelves((FOLDER / "index.md").read_text(encoding="utf-8")))


def _shelves(index: str) -> Iterator[GuideShelf]:
    _introduction, *parts = _KIND.split(index)
    for title, entries in zip(parts[::2], parts[1::2], strict=True):
        pages = []
        for entry in _ENTRY.finditer(entries):
            kind, _, name = entry["path"].partition("/")
            pages.append(GuidePage(kind, name, entry["title"], entry["summary"] or ""))
        if pages:
            yield GuideShelf(pages[0].kind, title, tuple(pages))


@cache
def pages() -> dict[tuple[str, str], GuidePage]:
    """Return all pages by folder and name."""
    return {(page.kind, page.name): page for shelf in shelves() for page in shelf.pages}


def neighbours(page: GuidePage) -> tuple[GuidePage | None, GuidePage | None]:
    """Return the page before and the page after this one, in reading order."""
    ordered = list(pages().values())
    at = ordered.index(page)
    before = ordered[at - 1] if at else None
    return before, ordered[at + 1] if at + 1 < len(ordered) else None


# The guide page that explains each page of the app, and the row that explains each setting: behind the “?”.
#
# A setting's paragraph is the row of a table that begins with the setting's label in English.

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
        *("prompt-new", "statistics-item", "saved-views", "saved-view", "saved-view-assign"),
        *("near-duplicates", "prompt-similar"),
        *("view-queue-end", "change-undo", "bin", "bin-restore", "project-delete"),
    ),
    "how-to/import-and-export": ("transfers", "transfer", "sources", "export-choose"),
    "how-to/check-quality": (
        *(
            "statistics-items",
            "annotators",
            "annotator",
            "pay",
            "calibrations",
            "reviews",
            "review",
            "gold",
            "gold-make",
        ),
        *("gold-answer", "withheld", "drift", "drift-items"),
    ),
    "explanation/statistics": ("statistics",),
    "how-to/use-ai-annotators": ("judges", "judge", "suggestions"),
    "how-to/use-rubrics": ("rubrics", "rubric", "rubric-new", "rubric-edit", "rubric-drafts", "rubric-draft"),
    "how-to/learn-while-labelling": ("live",),
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
        *("category", "category-add", "project-question", "project-question-add"),
    ),
    "how-to/recruit-participants": ("panels", "panel-participants"),
    "how-to/repeat-a-study": ("project-file", "project-file-new"),
    "how-to/allocate-work": ("allocation",),
    "how-to/receive-webhooks": ("webhooks", "webhook", "webhook-delivery"),
    "how-to/use-the-api": ("tokens", "api-docs"),
    "how-to/manage-accounts": ("account", "mfa_index", "mfa_list_webauthn", "audit"),
    "how-to/take-the-course": ("course", "lesson", "course-class"),
    "how-to/monitor": ("status",),
    "how-to/install": ("start",),
    "how-to/serve-models": ("served-model", "providers", "provider"),
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
    "annotation.views.panels.PanelForm": (_PROJECT, "panels"),
    "annotation.views.panels.HostsForm": (_PROJECT, "panels"),
    "annotation.views.sources.SourceForm": (_PROJECT, "sources"),
    "annotation.views.webhooks.WebhookForm": (_PROJECT, "webhooks"),
    "annotation.views.webhooks.WebhookSettingsForm": (_PROJECT, "webhooks"),
    "training.views.conversations.ConversationSettingsForm": (_PROJECT, "conversations"),
    "training.views.conversations.ConversationTaskForm": (_PROJECT, "opening-tasks"),
    "training.views.feedback.FeedbackSettingsForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.PatternTestForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.OptInForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.KeyForm": (_PROJECT, "feedback-of-applications"),
    "training.views.feedback.EraseForm": (_PROJECT, "feedback-of-applications"),
    "training.views.embeddings.EmbedForm": (_PROJECT, "search-by-meaning"),
    "training.views.judges.RubricDraftForm": (_PROJECT, "rubrics"),
    "training.forms.suggestions.SuggestionsForm": (_PROJECT, "suggestions"),
    "training.forms.live.LiveForm": (_PROJECT, "live-learning"),
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
