"""Positions of the pieces of rendered text in their Markdown source.

markdown-it-py says in which lines a block stands, not at which characters. Here the inline
parser notes the position of every text token, and each line of a block's content is found
again in its line of the source. A piece that does not equal its slice of the source gets no
position: it is shown, and cannot be marked.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline.state_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType

from annotation.text.rendering_work import Work, spend_on_inline_token

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

    def __init__(self, source: str, work: Work) -> None:
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
