"""Markdown to safe HTML: prompts and guidelines as they are, answers with source positions.

What is rendered was written by models and by people, and is trusted by no one: raw HTML is
shown as text, images are not loaded, and nh3 lets only the tags and attributes below through.
"""

import html
import itertools
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Literal

import nh3
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline.state_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from annotation.text import formulas
from annotation.text.formulas import (
    CountedBlocks,
    FormulaBudget,
    TooMuchWorkError,
    count_work,
    spend_on_inline_token,
)

# References in a prompt to the context that comes with it.

_WORDS = r"""
    contexts? | passages? | excerpts? | documents? | articles? | sources?
  | (?:text|paragraph|information|story|report|table|transcript)\s+(?:above|below|provided|given)
  | (?:above|below|following|provided|given|this)\s+(?:text|paragraph|information|story|report|table)
  | kontext | textstellen? | abschnitte?n? | passagen? | auszugs? | auszüge
  | dokumente?n? | artikeln? | quellen?
  | (?:folgenden?|obigen?|gegebenen?|vorliegenden?|diese[mnr])\s+(?:text|tabelle|bericht|informationen)
  | text\s+(?:oben|unten)
"""
_REFERENCE = re.compile(rf"(?<!\w)(?:{_WORDS})(?!\w)", re.IGNORECASE | re.VERBOSE)


def refers_to_context(question: str) -> bool:
    """Return True if a question names its context, as "the passage above" or "im folgenden Text"."""
    return _REFERENCE.search(question) is not None


# ── Rendering ──

# Attributes of an HTML element, computed in Python.


def attributes(**values: object) -> SafeString:
    """Return HTML attributes: `data_key` is `data-key`; True has no value, False and None are left out."""
    parts = []
    for name, value in values.items():
        if value is True:
            parts.append(name.replace("_", "-"))
        elif value is not None and value is not False:
            parts.append(f'{name.replace("_", "-")}="{escaped(value)}"')
    return mark_safe(" ".join(parts))  # noqa: S308 - names of ours, values escaped


def escaped(value: object) -> str:
    """Return text for HTML, escaped unless it is safe already; faster than `conditional_escape`."""
    safe = getattr(value, "__html__", None)
    return safe() if safe is not None else escape(str(value))


# ── Rendering ──

# Positions of the pieces of rendered text in their Markdown source.
#
# markdown-it-py says in which lines a block stands, not at which characters. Here the inline
# parser notes the position of every text token, and each line of a block's content is found
# again in its line of the source. A piece that does not equal its slice of the source gets no
# position: it is shown, and cannot be marked.

# The ends of lines as markdown-it sees them; str.splitlines knows more of them.
_LINE_END = re.compile(r"\r\n?|\n")
_CONTAINER_MARKERS = re.compile(r"(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*")
_BLANK = re.compile(r"[ \t]*")
_CELL_END = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of rendered text; `start` counts code points of the source, or is None."""

    text: str
    start: int | None

    def followed_by(self, other: "Piece") -> "Piece | None":
        """One piece for both, where `other` goes on where this one ends in the source too."""
        if self.start is None or other.start is None:
            joined = self.start is None and other.start is None
            return Piece(self.text + other.text, None) if joined else None
        if self.start + len(self.text) == other.start:
            return Piece(self.text + other.text, self.start)
        return None


class _PositionedState(StateInline):
    """Notes in `meta["at"]` of each token where it begins in the block's content."""

    _pending_at = 0
    _last_text = (-1, 0)

    def append_pending(self, text: str) -> None:
        if not self.pending:
            self._pending_at = self.pos
        super().append_pending(text)

    def pushPending(self) -> Token:  # noqa: N802 - the name is markdown-it-py's
        spend_on_inline_token(self.env, "text")
        token = super().pushPending()
        token.meta["at"] = self._pending_at
        return token

    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        spend_on_inline_token(self.env, ttype)
        token = super().push(ttype, tag, nesting)
        token.meta["at"] = self.pos
        if ttype == "text":
            # Emphasis pushes one token per marker before it moves on.
            position, count = self._last_text
            self._last_text = (self.pos, count + 1 if position == self.pos else 0)
            token.meta["at"] += self._last_text[1]
        return token


class PositionedInline(ParserInline):
    """The inline parser of markdown-it-py, with positions."""

    def parse(self, src: str, md: MarkdownIt, env: EnvType, tokens: list[Token]) -> list[Token]:
        state = _PositionedState(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    start: int


def _lines_of(source: str) -> list[_Line]:
    lines, position = [], 0
    for end in _LINE_END.finditer(source):
        lines.append(_Line(source[position : end.start()], position))
        position = end.end()
    lines.append(_Line(source[position:], position))
    return lines


class SourceMap:
    """Gives every token that shows text its pieces, in `meta["pieces"]`."""

    def __init__(self, source: str, work: FormulaBudget) -> None:
        self._source = source
        self._work = work
        self._lines = _lines_of(source)

    def annotate(self, tokens: Sequence[Token]) -> None:
        """Walk the block tokens in order and place what they show."""
        cells: Iterator[int | None] = iter(())
        for index, token in enumerate(tokens):
            if token.type == "tr_open":
                cells = self._cell_starts(token)
            elif token.type in ("fence", "code_block"):
                self._place_code(token)
            elif token.type == "formula":
                self._place_formula_block(token)
            elif token.type == "inline":
                opened_by = tokens[index - 1]
                if opened_by.type in ("th_open", "td_open"):
                    starts = [next(cells, None)]
                elif opened_by.type == "heading_open" and opened_by.markup.startswith("#"):
                    starts = [self._heading_start(token)]
                else:
                    starts = self._suffix_starts(token.content, token.map)
                self._place_inline(token, starts)

    def _line(self, number: int) -> _Line:
        return self._lines[number] if number < len(self._lines) else _Line("", len(self._source))

    def _suffix_starts(self, content: str, lines: Sequence[int] | None) -> list[int | None]:
        """Return the start of each line of a content: container markers and indentation stand before it."""
        first = lines[0] if lines else len(self._lines)
        return [_suffix_start(self._line(first + i), text) for i, text in enumerate(content.split("\n"))]

    def _heading_start(self, token: Token) -> int | None:
        line = self._line(token.map[0] if token.map else len(self._lines))
        marker = re.search(r"#+[ \t]*", line.text)
        return line.start + marker.end() if marker else None

    def _cell_starts(self, row: Token) -> Iterator[int | None]:
        """Return the starts of the cells of a row, from left to right, in one pass over its line."""
        line = self._line(row.map[0] if row.map else len(self._lines))
        prefix = _CONTAINER_MARKERS.match(line.text)
        position = prefix.end() if prefix else 0
        if line.text.startswith("|", position):
            position += 1
        while True:
            blank = _BLANK.match(line.text, position)
            yield line.start + (blank.end() if blank else position)
            end = _CELL_END.search(line.text, position)
            if end is None:
                return
            position = end.end()

    def _piece(self, text: str, start: int | None) -> Piece:
        if start is None or start < 0 or self._source[start : start + len(text)] != text:
            return Piece(text, None)
        return Piece(text, start)

    def _place_code(self, token: Token) -> None:
        lines = token.content.split("\n")
        # Content ends with a line end; a fence's first line is the fence itself.
        ended = lines and lines[-1] == ""
        texts = lines[:-1] if ended else lines
        self._work.spend(len(texts))
        first = (token.map[0] if token.map else len(self._lines)) + (token.type == "fence")
        pieces: list[Piece] = []
        for i, text in enumerate(texts):
            start = _suffix_start(self._line(first + i), text)
            pieces.append(self._piece(text, start))
            pieces.append(Piece("\n", None))
        token.meta["pieces"] = pieces

    def _place_formula_block(self, token: Token) -> None:
        texts = token.content.split("\n")
        starts = self._suffix_starts(token.content, token.map)
        token.meta["pieces"] = _with_line_ends(map(self._piece, texts, starts))

    def _place_inline(self, block: Token, starts: Sequence[int | None]) -> None:
        """Place the children of one block whose content's lines begin at `starts` in the source."""
        ends_of_lines = [i for i, character in enumerate(block.content) if character == "\n"]
        begins = [0, *(end + 1 for end in ends_of_lines)]

        def in_source(position: int) -> int | None:
            line = bisect_left(ends_of_lines, position)
            start = starts[line] if line < len(starts) else None
            return None if start is None else start + position - begins[line]

        previous: Token | None = None
        for token in block.children or []:
            if token.type in ("text", "text_special"):
                at = _text_position(token, previous)
                start = None if at is None else in_source(at)
                token.meta["pieces"] = [self._piece(token.content, start)] if token.content else []
            elif token.type == "code_inline":
                parts = _code_span_parts(token, block.content)
                self._work.spend(len(parts))
                token.meta["pieces"] = [self._piece(text, in_source(at)) for text, at in parts]
            elif token.type == "formula":
                begin = int(token.meta["at"])
                lines = [
                    begin,
                    *(begin + i + 1 for i, character in enumerate(token.content) if character == "\n"),
                ]
                texts = token.content.split("\n")
                token.meta["pieces"] = _with_line_ends(
                    self._piece(text, in_source(at)) for text, at in zip(texts, lines, strict=True)
                )
            previous = token


def _with_line_ends(lines: Iterable[Piece]) -> list[Piece]:
    pieces: list[Piece] = []
    for line in lines:
        if pieces:
            pieces.append(Piece("\n", None))
        pieces.append(line)
    return pieces


def _suffix_start(line: _Line, text: str) -> int | None:
    if line.text.endswith(text):
        return line.start + len(line.text) - len(text)
    # Markdown trims the ends of a block, and turns a half-used tab into spaces.
    shown, there = text.strip(), line.text.rstrip()
    if shown and there.endswith(shown):
        indentation = len(text) - len(text.lstrip())
        return line.start + len(there) - len(shown) - indentation
    return None


def _text_position(token: Token, previous: Token | None) -> int | None:
    at = token.meta.get("at")
    if not isinstance(at, int):
        return None
    if token.type == "text_special":
        # An entity shows what does not stand in the source; an escape shows what follows its backslash.
        return at + token.markup.index(token.content) if token.info == "escape" else None
    if previous is not None and previous.type == "link_open" and previous.markup == "autolink":
        return at + 1
    return at


def _code_span_parts(token: Token, content: str) -> list[tuple[str, int]]:
    """The lines of a code span with their positions in the block's content.

    Markdown shows a line end as a space, and drops one space at both ends when both have one.
    """
    start = int(token.meta["at"]) + len(token.markup)
    raw = content[start : start + len(token.content)]
    if raw.replace("\n", " ") != token.content:
        start += 1
        raw = content[start : start + len(token.content)]
    parts: list[tuple[str, int]] = []
    for line in raw.split("\n"):
        if parts:
            parts.append((" ", start - 1))
        parts.append((line, start))
        start += len(line) + 1
    return parts


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
    work = FormulaBudget()
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


def render_turns(messages: Iterable[Mapping[str, str]]) -> list[tuple[str, SafeString]]:
    """Return the role and the safe HTML of every message of a chat."""
    return [(message["role"], render_markdown(message["content"])) for message in messages]


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


# Marks drawn into rendered answers, for pages that only show them.
#
# Where one marks, `label-spans.js` draws them in the same way: a piece of text is cut where marks begin
# or end, and each part stands in all marks that cover it.

# What `render_answer` gives a position: a piece of text, or a formula, which is marked as a whole.
_PLACED = re.compile(
    r'<span data-start="(?P<start>\d+)">(?P<text>[^<]*)</span>'
    r'|<span[^>]* data-start="(?P<formula>\d+)" data-source-length="(?P<length>\d+)"[^>]*>.*?</span>',
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """[start, end) of a completion's text, in code points."""

    number: int
    """Under which the page tells more of it."""
    start: int
    end: int
    category: str
    """The key of its category, for its colour."""


def with_marks(markup: SafeString, marks: Sequence[Mark]) -> SafeString:
    """The HTML of `render_answer` with the marks drawn in it, each followed by its number."""
    pieces = list(_PLACED.finditer(markup))
    # The number stands behind the last piece that shows some of the mark.
    last = {
        mark.number: index for index, piece in enumerate(pieces) for mark in marks if _covers(mark, piece)
    }
    drawn = []
    place = 0
    for index, piece in enumerate(pieces):
        here = [mark for mark in marks if _covers(mark, piece)]
        ends = {mark.number for mark in here if last[mark.number] == index}
        drawn += [markup[place : piece.start()], _drawn(piece, here, ends) if here else piece.group()]
        place = piece.end()
    return mark_safe("".join([*drawn, markup[place:]]))  # noqa: S308 - it was safe, and so is what is added


def _extent(piece: re.Match[str]) -> tuple[int, int]:
    if piece["start"] is None:
        start = int(piece["formula"])
        return start, start + int(piece["length"])
    start = int(piece["start"])
    return start, start + len(html.unescape(piece["text"]))


def _covers(mark: Mark, piece: re.Match[str]) -> bool:
    start, end = _extent(piece)
    return mark.start < end and mark.end > start


def _drawn(piece: re.Match[str], marks: Sequence[Mark], ends: set[int]) -> str:
    start, end = _extent(piece)
    if piece["start"] is None:
        return _part(piece.group(), marks, [mark for mark in marks if mark.number in ends])
    text = html.unescape(piece["text"])
    cuts = sorted(
        {start, end, *(cut for mark in marks for cut in (mark.start, mark.end) if start < cut < end)}
    )
    parts = []
    for low, high in itertools.pairwise(cuts):
        around = [mark for mark in marks if mark.start <= low and mark.end >= high]
        ended = [mark for mark in around if mark.number in ends and min(mark.end, end) == high]
        parts.append(_part(html.escape(text[low - start : high - start], quote=False), around, ended))
    return f'<span data-start="{start}">{"".join(parts)}</span>'


def _part(shown: str, around: Sequence[Mark], ended: Sequence[Mark]) -> str:
    for mark in reversed(around):
        shown = format_html('<mark data-category="{}">{}</mark>', mark.category, mark_safe(shown))  # noqa: S308
    for mark in ended:
        shown += format_html('<sup><span class="visually-hidden">{} </span>{}</sup>', _("Span"), mark.number)
    return shown
