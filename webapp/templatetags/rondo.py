"""Tags and filters that are available in every template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from gettext import GNUTranslations, NullTranslations, translation
from pathlib import Path
from typing import Any

from django import template
from django.conf import settings
from django.forms import BoundField
from django.template import Context, Node, NodeList, TemplateSyntaxError
from django.template.base import FilterExpression, Parser, TextNode, Token, TokenType, Variable
from django.template.defaulttags import CommentNode
from django.template.library import SimpleNode
from django.templatetags.i18n import BlockTranslateNode, TranslateNode
from django.utils.html import format_html, format_html_join, json_script
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language

from annotation.choices import Role
from annotation.models import Assignment, Comparison, Project, User
from annotation.selectors.access import may
from annotation.selectors.inbox import (
    ShownComment,
    Thread,
    mail_choice_of,
    may_join_team,
    team_thread,
    thread_of,
    threads_of,
    without_thread,
)
from annotation.statistics.home import HomeRow
from annotation.text.rendering import render_markdown
from training.models import Round
from training.selectors.checkpoints import uses_of_comparison
from training.selectors.conversations import open_for_conversations
from training.selectors.dashboard import NextStep, dashboard_of, is_quick, next_step_of
from training.selectors.live import live_view
from webapp.environment import ASSETS
from webapp.guide.library import field_address, help_address, row_address
from webapp.navigation.sections import FULL_WIDTH, SectionEntry, entries

# Icons of static/vendor/lucide: `{% icon "book-open" %}`, available in every template.
#
# Decoration only: state the meaning in words next to it.

register = template.Library()

_FOLDER = ASSETS / "static" / "vendor" / "lucide"
_DRAWING = re.compile(r"<svg[^>]*>(.*)</svg>", re.S)


@register.simple_tag
@cache
def icon(name: str) -> SafeString:
    """Return the drawing of a Lucide icon; raise `TemplateSyntaxError` for a name that is not vendored."""
    match = _DRAWING.search(_read(name))
    drawing = re.sub(r"\s*\n\s*", "", match[1]) if match else ""
    svg = f'<svg class="icon" viewBox="0 0 24 24" aria-hidden="true">{drawing}</svg>'
    return mark_safe(svg)  # noqa: S308 - a file of ours, no input


@register.simple_tag
def attributes(values: Mapping[str, object], names: str) -> SafeString:
    """Return those attributes of an element that have a value, each after a space.

    True is written as the name alone; None, False and an empty text are left out.
    """
    parts = (
        (name, "" if values[name] is True else format_html('="{}"', values[name]))
        for name in names.split()
        if values.get(name) is not None and values[name] is not False and values[name] != ""
    )
    return format_html_join("", " {}{}", parts)


def _read(name: str) -> str:
    try:
        return (_FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    except FileNotFoundError:
        raise template.TemplateSyntaxError(f"static/vendor/lucide has no icon {name!r}") from None


# Parts of a page that only the language changes: `{% constant %}…{% endconstant %}`, in every template.
#
# Each process renders such a part once in each language. It holds text, translations and icons; whatever
# could differ between requests is a syntax error, so nothing of a person or a comparison is kept.


@register.tag
def constant(parser: Parser, token: Token) -> "ConstantNode":
    """Parse the part; raise `TemplateSyntaxError` if it holds more than text, translations and icons."""
    nodes = parser.parse(("endconstant",))
    parser.delete_first_token()
    for node in nodes:
        if not _is_constant(node):
            raise TemplateSyntaxError(
                f"{{% {token.contents} %}} holds text, translations and icons only, not {node!r}."
            )
    return ConstantNode(nodes)


class ConstantNode(Node):
    """Renders its nodes once in each language."""

    def __init__(self, nodes: NodeList) -> None:
        self._nodes = nodes
        self._rendered: dict[str | None, SafeString] = {}

    def render(self, context: Context) -> SafeString:
        language = get_language()
        rendered = self._rendered.get(language)
        if rendered is None:
            rendered = self._rendered[language] = self._nodes.render(context.new())
        return rendered


def _is_constant(node: Node) -> bool:
    if isinstance(node, SimpleNode):
        named = [*node.args, *node.kwargs.values()]
        return node.func is icon and node.target_var is None and not any(map(_varies, named))
    if isinstance(node, TranslateNode):
        return node.asvar is None and not _varies(node.filter_expression)
    if isinstance(node, BlockTranslateNode):
        texts = [*node.singular, *(node.plural or ())]
        return node.asvar is None and all(text.token_type == TokenType.TEXT for text in texts)
    return isinstance(node, TextNode | CommentNode)


def _varies(expression: FilterExpression) -> bool:
    """Return True for anything but a literal without filters."""
    named = expression.var
    return bool(expression.filters) or (isinstance(named, Variable) and named.lookups is not None)


# Links to the guide, available in every template.
#
# `{% guide_address %}` explains the current page, `{% field_guide field %}` a form's field, and `{%
# setting_guide page anchor %}` a setting that no form holds.


@register.simple_tag(takes_context=True)
def guide_address(context: Context) -> str:
    """Return the address behind the “?” of this page."""
    request = context.get("request")
    match = request.resolver_match if request is not None else None
    return help_address(match.url_name or "" if match else "")


@register.simple_tag
def field_guide(field: BoundField) -> str:
    """Return the address behind the “?” of a form's field; empty where the form has none."""
    return field_address(field)


@register.simple_tag
def setting_guide(page: str, anchor: str) -> str:
    """Return the address behind the “?” of a setting that is no field of a form."""
    return row_address(page, anchor)


# Threads of comments in templates, and the choice of e-mails on the account page.


@register.simple_tag(takes_context=True)
def comment_threads(context: Context, comparison: Comparison) -> Sequence[Thread]:
    """Return the threads of a comparison that the reader of the page may see."""
    return threads_of(comparison=comparison, reader=context["request"].user)


@register.simple_tag(takes_context=True)
def team_comments(context: Context, comparison: Comparison) -> Sequence[ShownComment] | None:
    """Return the comments of the team on a comparison; None for a reader who does not see them."""
    user = context["request"].user
    return team_thread(comparison=comparison, reader=user) if may_join_team(user, comparison) else None


@register.simple_tag(takes_context=True)
def assignments_without_thread(context: Context, comparison: Comparison) -> Sequence[Assignment]:
    """Return the assignments of a comparison in which the reader of the page may begin a thread."""
    return without_thread(comparison=comparison, reader=context["request"].user)


@register.simple_tag
def own_thread(assignment: Assignment, annotator: User) -> Thread:
    """Return the thread of an assignment, for its annotator's screen."""
    return thread_of(assignment=assignment, reader=annotator)


@register.inclusion_tag("annotation/inbox/mail_choice.html")
def mail_settings(user: User) -> dict[str, Any]:
    """Render a person's choice of e-mails."""
    return {"user": user, "choice": mail_choice_of(user), "has_mail": settings.RONDO_EMAIL}


# Sidebar and tabs of the project that a page belongs to, available in every template.

_NEXT_STEPS = 5


@register.inclusion_tag("training/dashboard/whole.html", takes_context=True)
def project_dashboard(context: Context, project: Project) -> dict[str, Any]:
    """Render the manager's part of a project's overview; of a large project it is computed afterwards."""
    request = context["request"]
    waits = "compute" not in request.GET and not is_quick(project)
    return {
        "request": request,
        "project": project,
        "dashboard": None if waits else dashboard_of(project),
    }


@register.inclusion_tag("training/live_line.html", takes_context=True)
def live_line(context: Context, project: Project) -> dict[str, Any]:
    """Render where live learning of a project is, for managers: annotators stay blind."""
    is_manager = may(context["request"].user, project, Role.MANAGER)
    return {"project": project, "view": live_view(project) if is_manager else None}


@register.inclusion_tag("training/comparison_uses.html")
def comparison_uses(comparison: Comparison) -> dict[str, Any]:
    """Render the provenance of a comparison's responses, and its use in training."""
    completions = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    return {"completions": completions, "uses": uses_of_comparison(comparison)}


@dataclass(frozen=True, slots=True)
class ManagedRow:
    """A row of the home page with what a manager sees of it."""

    row: HomeRow
    round: Round | None
    next_step: NextStep | None
    """None for those who are no managers, and beyond the first projects: it takes some queries."""


@register.simple_tag
def with_conversations(rows: Sequence[HomeRow]) -> set[int]:
    """Return the keys of those projects whose annotators may begin conversations."""
    return open_for_conversations(row.project.pk for row in rows)


@register.simple_tag
def with_next_steps(rows: Sequence[HomeRow]) -> list[ManagedRow]:
    """Return each row of the home page, for managers with the newest round and the next step."""
    projects = [row.project.pk for row in rows if row.is_manager]
    rounds = {
        round_.project_id: round_
        for round_ in Round.objects.filter(project__in=projects)
        .select_related("project", "policy")
        .order_by("number")
    }
    first = set(projects[:_NEXT_STEPS])
    return [
        ManagedRow(
            row,
            newest := rounds.get(row.project.pk),
            next_step_of(row.project, newest) if row.project.pk in first else None,
        )
        for row in rows
    ]


@register.simple_tag(takes_context=True)
def project_sections(context: Context) -> Sequence[SectionEntry]:
    """Return the sections of the page's `project` that its reader may open; empty without a project."""
    project, request = context.get("project"), context.get("request")
    if not isinstance(project, Project) or request is None or not request.user.is_authenticated:
        return ()
    if request.user.is_participant:
        return ()
    match = request.resolver_match
    url_name = match.url_name if match else ""
    return () if url_name in FULL_WIDTH else tuple(entries(project, request.user, url_name))


# Texts of conversations.


@register.filter
def markdown(text: str) -> SafeString:
    """Render Markdown as safe HTML."""
    return render_markdown(text, heading_level=2)


# Translations for scripts, in the language of the page.
#
# They are embedded in the page as data: a separate catalogue would cost a request before a labelling screen
# can be used, and English needs none. static/js/theme.js reads them.

_LOCALE = Path(__file__).resolve().parent.parent / "locale"


@cache
def _words(language: str) -> dict[str, str | list[str]]:
    """Return message → translation; for a message with a plural, the singular → both forms."""
    catalogue: GNUTranslations | NullTranslations = translation(
        "djangojs", _LOCALE, languages=[language], fallback=True
    )
    words: dict[str, str | list[str]] = {}
    for message, text in getattr(catalogue, "_catalog", {}).items():
        if isinstance(message, tuple):
            forms = words.setdefault(message[0], ["", ""])
            assert isinstance(forms, list)  # noqa: S101 - a message is plural everywhere or nowhere
            forms[message[1]] = text
        elif message:
            words[message] = text
    return words


@register.simple_tag
def script_words() -> SafeString | str:
    """Embed the translations for `translate` in static/js/theme.js; empty in English."""
    words = _words(get_language() or "")
    return json_script(words, "words") if words else ""
