"""Markdown to safe HTML: prompts and guidelines as they are, answers with source positions.

What is rendered was written by models and by people, and is trusted by no one: raw HTML is
shown as text, images are not loaded, and nh3 lets only the tags and attributes below through.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

import nh3
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from annotation.text import formulas
from annotation.text.rendering_work import CountedBlocks, TooMuchWorkError, Work, count_work
from annotation.text.source_positions import Piece, PositionedInline, SourceMap

_TAGS = {
    "p", "br", "hr", "strong", "em", "code", "pre", "blockquote", "ul", "ol", "li", "a", "span",
    "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td",
} | formulas.ELEMENTS  # fmt: skip
_ATTRIBUTES = {
    "a": {"href", "title"},
    "ol": {"start"},
    "span": {"data-start", "data-source-length", "tabindex"},
    "th": {"align"},
    "td": {"align"},
    **formulas.ATTRIBUTES,
}
_DIRECTIONS = {"auto", "ltr", "rtl"}
_LEAVES = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "th", "td"}
_CONTAINERS = {"blockquote", "ul", "ol", "li", "table"}
_SCHEMES = {"http", "https", "mailto"}
_LINK_BEGINNINGS = ("http://", "https://", "mailto:")
# No HTML can hold a NUL: it is left out, and what follows keeps its position.
_PLAIN_PART = re.compile(r"\r\n?|[^\r\0]+")
# Below this share of placed characters an answer is shown as plain text, every character of it markable.
_PLACED_SHARE = 0.6


class _PositionRenderer(RendererHTML):
    """Puts each piece that has a position into an element that carries it."""

    def renderInline(self, tokens: Sequence[Token], options: OptionsDict, env: EnvType) -> str:  # noqa: N802
        out: list[str] = []
        run: list[Piece] = []
        for index, token in enumerate(tokens):
            if token.type in ("text", "text_special"):
                run.extend(token.meta["pieces"])
                continue
            out.append(_pieces_html(run))
            run = []
            out.append(
                self.rules[token.type](tokens, index, options, env)
                if token.type in self.rules
                else self.renderToken(tokens, index, options, env)
            )
        return "".join(out) + _pieces_html(run)

    def code_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<code>{_pieces_html(tokens[idx].meta['pieces'])}</code>"

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f'<pre dir="ltr"><code>{_pieces_html(tokens[idx].meta["pieces"])}</code></pre>\n'

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self.code_block(tokens, idx, options, env)

    def formula(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        size = len(token.markup)
        converted = formulas.to_mathml(token.content[size:-size], display=bool(token.info))
        if converted is not None:
            shown = _formula_html(token, converted)
            return f'<p dir="auto">{shown}</p>\n' if token.block else shown
        source = _pieces_html(token.meta["pieces"])
        return f'<p class="plain" dir="auto">{source}</p>\n' if token.block else source


def _formula_html(token: Token, converted: formulas.Formula) -> str:
    """A formula is one unit: whoever marks a part of it marks the whole source of it."""
    classes = ["formula"]
    if token.info:
        classes.append("formula--display")
    if converted.is_wide:
        classes.append("formula--wide")
    focus = ' tabindex="0"' if converted.is_wide else ""
    return (
        f'<span class="{" ".join(classes)}"{_place_of(token.meta["pieces"])}{focus}>{converted.markup}</span>'
    )


def _place_of(pieces: Sequence[Piece]) -> str:
    """The attributes that place a formula whose source has these lines; none if a line is not found."""
    starts = [piece.start for piece in pieces if piece.text != "\n"]
    if not starts or starts[0] is None or starts[-1] is None or None in starts:
        return ""
    length = starts[-1] + len(pieces[-1].text) - starts[0]
    return f' data-start="{starts[0]}" data-source-length="{length}"'


def _pieces_html(pieces: Iterable[Piece]) -> str:
    merged: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        joined = merged[-1].followed_by(piece) if merged else None
        if joined is None:
            merged.append(piece)
        else:
            merged[-1] = joined
    return "".join(_piece_html(piece) for piece in merged)


def _piece_html(piece: Piece) -> str:
    text = html.escape(piece.text)
    return text if piece.start is None else f'<span data-start="{piece.start}">{text}</span>'


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt(renderer_cls=_PositionRenderer)
    parser.inline = PositionedInline()
    parser.block = CountedBlocks()
    parser.configure("commonmark", {"html": False, "breaks": True, "xhtmlOut": False})
    parser.enable("table")
    formulas.enable_formulas(parser)
    # Images would tell other servers who reads what; a reference definition would vanish from the page.
    parser.disable(["image", "reference", "html_block", "html_inline"])
    # A relative link would lead into Rondo itself; it stays visible as text.
    parser.validateLink = lambda url: url.lower().startswith(_LINK_BEGINNINGS)  # type: ignore[method-assign]
    count_work(parser)
    # Joined tokens would lose their positions; the renderer joins what belongs together.
    parser.disable(["text_join", "fragments_join"])
    return parser


def _rendered(text: str, heading_level: int, *, with_positions: bool) -> tuple[str, float]:
    """HTML before cleaning, and the share of its characters that have a position in `text`."""
    parser = _parser()
    work = Work()
    tokens = parser.parse(text, work.as_environment())
    SourceMap(text, work).annotate(tokens)
    if not with_positions:
        _forget_positions(tokens)
    _settle_headings(tokens, heading_level)
    _settle_directions(tokens)
    for token in tokens:
        if alignment := str(token.attrs.pop("style", "")).removeprefix("text-align:"):
            token.attrs["align"] = alignment
    return parser.renderer.render(tokens, parser.options, {}), _placed_share(tokens)


def _forget_positions(tokens: Sequence[Token]) -> None:
    for token in tokens:
        for part in [token, *(token.children or [])]:
            if "pieces" in part.meta:
                part.meta["pieces"] = [Piece(piece.text, None) for piece in part.meta["pieces"]]


def _settle_headings(tokens: Sequence[Token], first_level: int) -> None:
    """Fit the headings of a text into the outline of a page, without a gap between levels."""
    used = sorted({token.tag for token in tokens if token.type == "heading_open"})
    level = first_level - 1
    for token in tokens:
        if token.type == "heading_open":
            level = min(first_level + used.index(token.tag), level + 1, 6)
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{level}"


def _settle_directions(tokens: Sequence[Token]) -> None:
    """Let every block run in the direction of its text.

    For `auto` a browser skips inner blocks that have a direction, so a list, quote or table that begins from
    right to left says so itself.
    """
    undecided: list[Token] = []
    for token in tokens:
        if token.nesting == 1 and token.tag in _CONTAINERS:
            token.attrs["dir"] = "auto"
            undecided.append(token)
        elif token.nesting == 1 and token.tag in _LEAVES:
            token.attrs["dir"] = "auto"
        elif token.nesting == -1 and token.tag in _CONTAINERS:
            undecided = [one for one in undecided if one.level != token.level]
        elif token.type == "inline" and undecided:
            direction = next(filter(None, map(_direction, token.content)), None)
            if direction is None:
                continue
            for container in undecided:
                container.attrs["dir"] = direction
            undecided = []


def _direction(character: str) -> str | None:
    strong = unicodedata.bidirectional(character)
    return "auto" if strong == "L" else "rtl" if strong in ("R", "AL") else None


def _placed_share(tokens: Sequence[Token]) -> float:
    placed = shown = 0
    for token in tokens:
        for part in [token, *(token.children or [])]:
            for piece in part.meta.get("pieces", ()):
                if size := len(piece.text.strip()):
                    shown += size
                    placed += size if piece.start is not None else 0
    return placed / shown if shown else 1.0


def _clean(markup: str) -> SafeString:
    cleaned = nh3.clean(
        markup,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
        tag_attribute_values={tag: {"dir": _DIRECTIONS} for tag in (*_LEAVES, *_CONTAINERS, "pre")},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        allowed_classes={
            "p": {"plain", "plain-note"},
            "span": {"formula", "formula--display", "formula--wide"},
        },
    )
    return mark_safe(cleaned)  # noqa: S308 - nh3 has just cleaned it


def render_markdown(text: str, *, heading_level: int = 3) -> SafeString:
    """Safe HTML of Markdown written by anyone; its highest heading becomes `heading_level`.

    A text whose markup takes too much work (`rendering_work`) is shown as plain text, with a note.
    """
    try:
        markup, _share = _rendered(text, heading_level, with_positions=False)
    except TooMuchWorkError:
        return _clean(_note() + _plain_markup([Piece(text.replace("\0", ""), None)]))
    return _clean(markup)


def render_answer(text: str, *, heading_level: int = 3) -> SafeString:
    """Safe HTML of a model's answer, on which people mark spans.

    Each `<span data-start="N">` holds exactly the source text from code point N on, and the
    numbers rise through the document. A formula has `data-source-length` as well: it shows MathML
    for so many code points of LaTeX, delimiters included. What Markdown adds or changes (an entity)
    stands outside such spans. An answer that cannot be placed well is shown as plain text; so is one whose
    markup takes too much work (`rendering_work`), with a note.
    """
    try:
        markup, placed_share = _rendered(text, heading_level, with_positions=True)
    except TooMuchWorkError:
        return _clean(_note() + _plain_markup(_plain_pieces(text)))
    return _clean(markup) if placed_share >= _PLACED_SHARE else render_plain(text)


def render_plain(text: str) -> SafeString:
    """Safe HTML of a text as it stands, with source positions."""
    return _clean(_plain_markup(_plain_pieces(text)))


def _note() -> str:
    shown = _("Shown as plain text, because it has too much formatting.")
    return f'<p class="plain-note">{html.escape(shown)}</p>'


def _plain_markup(pieces: Sequence[Piece]) -> str:
    return f'<p class="plain" dir="auto">{_pieces_html(pieces)}</p>'


def _plain_pieces(text: str) -> list[Piece]:
    # A browser reads a carriage return as a line feed: such a line end has no position.
    return [
        Piece("\n", None) if part.group()[0] == "\r" else Piece(part.group(), part.start())
        for part in _PLAIN_PART.finditer(text)
    ]
