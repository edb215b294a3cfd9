"""The bound on the work of rendering one text, in units that are counted and do not depend on the machine.

A parser in Python spends up to ten microseconds on each unit. Dense markup (a table of 40,000 cells, a
hundred thousand brackets) would hold a web process for seconds: beyond `MOST_UNITS` parsing stops, and the
text is shown as it stands.
"""

from typing import Literal

from markdown_it import MarkdownIt
from markdown_it.parser_block import ParserBlock
from markdown_it.rules_block.state_block import StateBlock
from markdown_it.rules_inline.state_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType

# A third of a second at most, whatever the markup. 100 KB of prose with some emphasis and code stay below it.
MOST_UNITS = 40_000
# Measured: a line that every rule for blocks looks at, a token of a block, a token within a line.
_TRIED_BLOCK = 4
_BLOCK_TOKEN = 2
_INLINE_TOKEN = 2
_LINK = 5
_FORMULA = 3
_FORMULA_CHARACTER = 2
_KEY = "work"


class TooMuchWorkError(Exception):
    """A text that is shown as it stands, because its markup is too dense or too deep."""


class Work:
    """The work spent on one text so far."""

    def __init__(self, most: int = MOST_UNITS) -> None:
        self._most = most
        self.units = 0

    def spend(self, units: int) -> None:
        """Count work that is about to be done. Raises `TooMuchWorkError` beyond the bound."""
        self.units += units
        if self.units > self._most:
            raise TooMuchWorkError

    def as_environment(self) -> EnvType:
        """The environment that carries this count through a parser."""
        return {_KEY: self}


def spend(env: EnvType, units: int) -> None:
    """Count work for the text that is parsed with this environment."""
    work: Work = env[_KEY]
    work.spend(units)


def spend_on_inline_token(env: EnvType, token_type: str) -> None:
    """Count a token within a line; a link is normalised and cleaned as well."""
    spend(env, _LINK if token_type == "link_open" else _INLINE_TOKEN)  # noqa: S105 - a token of Markdown


def spend_on_formula(env: EnvType, latex: str) -> None:
    """Count a formula, whose conversion takes time by its length."""
    spend(env, _FORMULA + _FORMULA_CHARACTER * len(latex))


def _looked_for_link_ends(text: str) -> int:
    """Count the characters that links look at for their end: up to 32 links look at the same ones."""
    return sum(len(run) * min(run.count("]("), 32) for run in text.split()) // 16


class CountedBlocks(ParserBlock):
    """The block parser of markdown-it-py; counts its tokens, and gives up where it would drop text."""

    def parse(self, src: str, md: MarkdownIt, env: EnvType, outTokens: list[Token]) -> list[Token] | None:  # noqa: N803
        """Parse a text into blocks."""
        if not src:
            return None
        # Each level of quotes goes through all its lines again, without asking any rule.
        spend(env, src.count(">") + _looked_for_link_ends(src))
        state = _CountedState(src, md, env, outTokens)
        self.tokenize(state, state.line, state.lineMax)
        return state.tokens


class _CountedState(StateBlock):
    def push(self, ttype: str, tag: str, nesting: Literal[-1, 0, 1]) -> Token:
        spend(self.env, _BLOCK_TOKEN)
        token = super().push(ttype, tag, nesting)
        if self.level >= self.md.options.maxNesting:
            # markdown-it would leave out everything within.
            raise TooMuchWorkError
        return token


def count_work(parser: MarkdownIt) -> None:
    """Count each position and each line at which a parser tries its rules."""
    parser.inline.ruler.before("text", "work", _tried_inline)
    alternatives = ["paragraph", "reference", "blockquote", "list"]
    parser.block.ruler.before("table", "work", _tried_block, {"alt": alternatives})


def _tried_inline(state: StateInline, silent: bool) -> bool:
    spend(state.env, 1)
    return False


def _tried_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    spend(state.env, _TRIED_BLOCK)
    return False
