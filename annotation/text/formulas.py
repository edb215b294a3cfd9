r"""LaTeX in answers: where a formula stands, and its MathML.

What counts as a formula follows pandoc and GitHub: `$…$`, `$$…$$`, `\(…\)` and `\[…\]`; a sum of money
does not. latex2mathml converts; its result is rebuilt here from the elements, attributes and
lengths below. A formula that is too long, too deep or not understood stays as its source.
"""

import html
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from xml.etree.ElementTree import Element

from markdown_it import MarkdownIt
from markdown_it.parser_block import ParserBlock
from markdown_it.rules_block.state_block import StateBlock
from markdown_it.rules_inline.state_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType

# The bound on the work of rendering one text, in units that are counted and do not depend on the machine.
#
# A parser in Python spends up to ten microseconds on each unit. Dense markup (a table of 40,000 cells, a
# hundred thousand brackets) would hold a web process for seconds: beyond `MOST_UNITS` parsing stops, and
# the
# text is shown as it stands.

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


class FormulaBudget:
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
    work: FormulaBudget = env[_KEY]
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


ELEMENTS = {
    "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup",
    "munder", "mover", "munderover", "mtable", "mtr", "mtd", "mstyle", "mpadded", "mphantom", "menclose",
}  # fmt: skip
ATTRIBUTES = {
    "math": {"displaystyle"},
    "mi": {"mathvariant"},
    "mo": {"stretchy", "fence", "form", "movablelimits", "largeop", "separator", "minsize", "maxsize"},
    "mtext": {"mathvariant"},
    "mspace": {"width", "height", "depth"},
    "mfrac": {"linethickness"},
    "munder": {"accentunder"},
    "mover": {"accent"},
    "munderover": {"accent", "accentunder"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mpadded": {"width", "height", "depth", "lspace", "voffset"},
    "menclose": {"notation"},
    "mtd": {"columnalign"},
}
# Browsers show an element that lacks one of these parts as if it were a row.
_CHILDREN = {
    **dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}

_LONGEST = 2000
_MOST_LINES = 60
_DEEPEST = 40
_MOST_ELEMENTS = 1500
# Macros multiply without end; a link or a style is nothing that a formula needs.
_REFUSED = re.compile(
    r"\\(?:newcommand|renewcommand|providecommand|def|gdef|edef|let|newenvironment|renewenvironment|"
    r"DeclareMathOperator|href|url|style|class|cssId|htmlClass|htmlStyle|includegraphics|input|require)(?![a-zA-Z])"
)
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([a-zA-Z]+\*?)\}")
# What latex2mathml does not know, or would number from 1 in each formula, as what it knows.
_AS_KNOWN = {
    **dict.fromkeys(("align", "aligned", "eqnarray", "eqnarray*", "flalign", "flalign*"), "align*"),
    **dict.fromkeys(("gather", "gather*", "gathered", "multline", "multline*"), "matrix"),
    **dict.fromkeys(("equation", "equation*", "displaymath"), ""),
    "dcases": "cases",
}
_CHARACTER = re.compile(r"&#x([0-9A-Fa-f]+);")
_LENGTH = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)\s*(em|ex|px|pt|mu|)")
_LENGTH_ATTRIBUTES = {
    "width", "height", "depth", "lspace", "voffset", "minsize", "maxsize", "linethickness",
}  # fmt: skip
_EM = {"em": 1.0, "ex": 0.45, "px": 1 / 16, "pt": 1 / 12, "mu": 1 / 18, "": 1.0}
_LARGEST_EM, _SMALLEST_EM = 6.0, -2.0
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_ALPHABETS = {
    "bold": "BOLD", "italic": "ITALIC", "bold-italic": "BOLD ITALIC", "double-struck": "DOUBLE-STRUCK",
    "script": "SCRIPT", "bold-script": "BOLD SCRIPT", "fraktur": "FRAKTUR", "bold-fraktur": "BOLD FRAKTUR",
    "sans-serif": "SANS-SERIF", "bold-sans-serif": "SANS-SERIF BOLD", "monospace": "MONOSPACE",
}  # fmt: skip
_STACKED = {"msub": "munder", "msup": "mover", "msubsup": "munderover"}
_WITH_LIMITS = {"lim", "max", "min", "sup", "inf", "det", "gcd", "Pr", "argmax", "argmin"}
# About what fits on a line at 360 px; a wider formula scrolls, and the keyboard must reach what scrolls.
_NARROW_GLYPHS = 24


class _NotConvertedError(Exception):
    """This formula stays as its source."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula as `<math>…</math>`; `is_wide` where it may not fit on the line of a small screen."""

    markup: str
    is_wide: bool


@lru_cache(maxsize=4096)
def to_mathml(latex: str, *, display: bool) -> Formula | None:
    """MathML of a formula without its delimiters, or None where it must stay as its source."""
    if len(latex) > _LONGEST or not latex.strip() or _REFUSED.search(latex):
        return None
    try:
        root = _element(_ENVIRONMENT.sub(_known_environment, latex), display)
        writer = _MarkupWriter(display)
        body = "".join(writer.written(child, 1) for child in root)
        if not writer.is_visible:
            return None
    except Exception:
        # latex2mathml has a dozen errors of its own beside IndexError, TypeError and RecursionError; none
        # of them may cost the reader the page.
        return None
    style = ' displaystyle="true"' if display else ""
    return Formula(f"<math{style}>{body}</math>", writer.glyphs > _NARROW_GLYPHS)


def _known_environment(match: re.Match[str]) -> str:
    name = _AS_KNOWN.get(match[2], match[2])
    return f"\\{match[1]}{{{name}}}" if name else ""


def _element(latex: str, display: bool) -> Element:
    # Two megabytes of tables, in every process that shows no formula: imported with the first one.
    from latex2mathml.converter import convert_to_element

    mode = "block" if display else "inline"
    element = convert_to_element(latex, display=mode)
    if any("linebreak" in part.attrib for part in element.iter("mspace")):
        # `\\` outside an environment breaks the line; browsers break lines only in tables.
        element = convert_to_element(f"\\begin{{align*}}{latex}\\end{{align*}}", display=mode)
    return element


class _MarkupWriter:
    """Writes an element of latex2mathml as HTML, out of what is allowed; counts what is seen."""

    def __init__(self, display: bool) -> None:
        self.display = display
        self.elements = 0
        self.glyphs = 0.0
        self.is_visible = False

    def written(self, element: Element, depth: int) -> str:
        self.elements += 1
        tag = element.tag
        if tag not in ELEMENTS or tag == "math" or depth > _DEEPEST or self.elements > _MOST_ELEMENTS:
            raise _NotConvertedError
        if len(element) != _CHILDREN.get(tag, len(element)):
            raise _NotConvertedError
        attributes = "".join(self._attribute(tag, name, value) for name, value in element.attrib.items())
        text = self._text(element)
        body = "".join(self.written(child, depth + 1) for child in element)
        if self.display and tag in _STACKED and element[0].text in _WITH_LIMITS:
            tag = _STACKED[tag]
        return f"<{tag}{attributes}>{text}{body}</{tag}>"

    def _attribute(self, tag: str, name: str, value: str) -> str:
        if (tag == "menclose" and value != "box") or name == "linebreak":
            # Browsers draw no other enclosure: a struck-out term would look like one that stands.
            raise _NotConvertedError
        if name not in ATTRIBUTES.get(tag, ()) or (tag == "mi" and value != "normal"):
            return ""
        if name in _LENGTH_ATTRIBUTES:
            value = self._length(tag, value)
        return f' {name}="{html.escape(value)}"'

    def _length(self, tag: str, value: str) -> str:
        match = _LENGTH.fullmatch(value.strip())
        if match is None:
            raise _NotConvertedError
        sign, number, unit = match.groups()
        size = float(number) * _EM[unit] * (-1 if sign == "-" else 1)
        # Nothing may cover its neighbours or push them off the page.
        if not _SMALLEST_EM <= size <= _LARGEST_EM:
            raise _NotConvertedError
        self.glyphs += max(size, 0) * 2 if tag == "mspace" else 0
        return f"{size:.4g}em" if unit == "mu" else sign + number + unit

    def _text(self, element: Element) -> str:
        text = (element.text or "").strip("\n")
        if re.search(r"\\[a-zA-Z]", text) or (element.tag != "mtext" and text == "&"):
            raise _NotConvertedError
        text = _CHARACTER.sub(lambda match: chr(int(match[1], 16)), text)
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in text) or any(
            unicodedata.bidirectional(character) in _DIRECTIONS for character in text
        ):
            raise _NotConvertedError
        variant = element.get("mathvariant", "")
        if element.tag != "mtext" and variant in _ALPHABETS:
            # Of this attribute, browsers know no more than "normal".
            text = "".join(_letter(character, _ALPHABETS[variant]) for character in text)
        self.glyphs += len(text)
        self.is_visible = self.is_visible or bool(text.strip())
        return html.escape(text, quote=False)


def _letter(character: str, alphabet: str) -> str:
    """The letter or digit in a mathematical alphabet; itself where that has none."""
    name = unicodedata.name(character, "").removeprefix("LATIN ").replace("LETTER ", "")
    for unicode_name in (f"MATHEMATICAL {alphabet} {name}", f"{alphabet} {name}", f"BLACK-LETTER {name}"):
        if unicode_name.startswith("BLACK") and alphabet != "FRAKTUR":
            continue
        try:
            return unicodedata.lookup(unicode_name)
        except KeyError:
            continue
    return character


# ── Where a formula stands ────────────────────────────────────────────────────────────

_CLOSERS = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}
_DOLLAR = re.compile(r"(?<!\\)(?:\\\\)*(\$)")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_BRACED = re.compile(r"\{[^{}]*\}")


def enable_formulas(parser: MarkdownIt) -> None:
    """Teach a Markdown parser formulas; code goes first, as everywhere in Markdown."""
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.block.ruler.before(
        "fence", "formula", _formula_block, {"alt": ["paragraph", "blockquote", "list"]}
    )


def _formula(state: StateInline, silent: bool) -> bool:
    opener = _opener(state.src, state.pos)
    end = _end(state.src, state.pos, opener) if opener else None
    if end is None or end > state.posMax:
        return False
    if not silent:
        spend_on_formula(state.env, state.src[state.pos : end])
        token = state.push("formula", "", 0)
        token.markup = opener
        token.content = state.src[state.pos : end]
        token.info = "display" if opener in ("$$", r"\[") else ""
    state.pos = end
    return True


def _opener(text: str, at: int) -> str:
    pair = text[at : at + 2]
    if pair in _CLOSERS:
        return pair
    return "$" if pair[:1] == "$" else ""


def _end(text: str, at: int, opener: str) -> int | None:
    """Return the end of the formula that opens at `at`; None where there is none."""
    begin, closer = at + len(opener), _CLOSERS[opener]
    limit = begin + _LONGEST + 2
    if opener in (r"\(", r"\["):
        index = text.find(closer, begin, limit)
        close = index if index >= 0 else None
    else:
        dollar = _DOLLAR.search(text, begin, limit)
        close = dollar.start(1) if dollar else None
    if close is None or not text.startswith(closer, close):
        return None
    inner = text[begin:close]
    if not inner.strip() or "`" in inner:
        return None
    if opener == "$" and not _stands_like_a_formula(text, at, close, inner):
        return None
    return close + len(closer)


def _stands_like_a_formula(text: str, at: int, close: int, inner: str) -> bool:
    """Return True where two dollar signs enclose a formula and are not the signs of two prices."""
    before, after = text[at - 1 : at], text[close + 1 : close + 2]
    if inner[0].isspace() or inner[-1].isspace() or "\n\n" in inner:
        return False
    if before.isalnum() or before == "$" or after.isalnum() or after == "$":
        return False
    # "$5, or 10 euros (not 9$)": a price goes on in words.
    return not (inner[0].isdigit() and _WORD.search(_BRACED.sub("", inner)))


def _formula_block(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """A displayed formula over whole lines, which no list, heading or blank line inside breaks."""
    if state.is_code_block(start_line):
        return False
    opener = _line(state, start_line)[:2]
    if opener not in ("$$", r"\["):
        return False
    last = _last_line(state, start_line, end_line, _CLOSERS[opener])
    if last is None:
        return False
    content = state.getLines(start_line, last + 1, state.blkIndent, False).strip()
    inner = content[2:-2]
    if not inner.strip() or len(inner) > _LONGEST or "`" in inner or _CLOSERS[opener] in inner:
        return False
    if silent:
        return True
    state.line = last + 1
    spend_on_formula(state.env, content)
    token = state.push("formula", "", 0)
    token.markup, token.content, token.info = opener, content, "display"
    token.block = True
    token.map = [start_line, last + 1]
    return True


def _line(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].rstrip()


def _last_line(state: StateBlock, start_line: int, end_line: int, closer: str) -> int | None:
    for number in range(start_line, min(end_line, start_line + _MOST_LINES)):
        text = _line(state, number)
        if number > start_line and text and state.sCount[number] < state.blkIndent:
            return None
        begin = 2 if number == start_line else 0
        index = text.find(closer, begin)
        if index >= 0:
            return number if index + len(closer) == len(text) else None
    return None
