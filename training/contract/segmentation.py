"""Boundaries of the sentences and sub-sentences of an answer.

Rules, no model: the same text gives the same segments in the trainer, in the sampler and on every machine,
and unknown languages are still cut at punctuation and lines.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

Granularity = Literal["sub-sentence", "sentence", "whole"]
Segment = tuple[int, int]
"""[start, end) in code points."""

_LINE_BREAKS = "\n\r\x0b\x0c\x85\u2028\u2029"
# These mean the same also where no white space follows them.
_WIDE_STOPS = "。！？｡؟۔।॥።។။։"
_WIDE_COMMAS = "，、；：､،؛"
_MARKS = re.compile(rf"\.(?:[ \u00a0]\.)+|[.!?…‼⁇⁈⁉]+|[,;:]|[{_WIDE_STOPS}]+|[{_WIDE_COMMAS}]")
_QUOTES = "\"'”’»›」』】》〉）〕］)]}"
# Markdown's emphasis, invisible characters and skin tones belong to what they follow.
_CLOSERS = frozenset(_QUOTES + "*_~`" + "\u200b\u200e\u200f\u2060\ufeff" + "🏻🏼🏽🏾🏿")
_ZERO_WIDTH_JOINER = "\u200d"
_REFERENCE = re.compile(r"\[\d{1,3}\]")

_FENCED = re.compile(
    r"^[ \t]*(`{3,}+|~{3,}+)[^\n]*\n(?:.*?^[ \t]*\1[`~]*[ \t]*$|.*\Z)", re.MULTILINE | re.DOTALL
)
_INLINE_CODE = re.compile(rf"`[^`{_LINE_BREAKS}]+`")
# "2. Then", "- **a. Then**", "> iv. Then": the number of a list's item ends nothing.
_ITEM_NUMBER = re.compile(r"\s*(?:[-+*•>#]+[ \t]+)*[*_]*\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})")
_WORD_BEFORE = re.compile(r"(?:[^\W\d_]+\.)*[^\W\d_]+\Z")
_NEXT_WORD = re.compile(r"[^\S\n\r]*[\"'“‘„«‹(\[{¿¡*_]*([^\W_]*)")
_LONGEST_WORD = 40


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TITLES = _words(
    "mr mrs ms mx dr prof st mt ft gen col lt sgt capt cmdr adm maj rep sen gov pres hon rev fr msgr mme "
    "mlle messrs"
)
_NEVER_LAST = _words("vs v cf viz approx ca e.g i.e eg ie incl resp al")
_BEFORE_NUMBERS = _words(
    "no nos nr fig figs eq eqs sec sect ch chap vol vols p pp art ed eds app tab ref refs ver op b c d r "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_SOMETIMES_LAST = _words("inc ltd corp co bros jr sr esq est ave blvd rd sq univ assn dept gov't govt")
_OPENING_WORDS = _words(
    "a after also although an and as at both but during each for from he her here his how however i if in "
    "it its many most my no on one other our she since so some such that the their then there these they "
    "this those though to today under we what when where which while who why with you your"
)


def segment(text: str, granularity: Granularity = "sub-sentence", *, min_words: int = 1) -> list[Segment]:
    """Cut a text into segments: (start, end) in code points, half open, in order.

    The segments partition the text; none is empty, and an empty text has none. White space between two
    segments opens the second, as byte-level tokenizers have it: in "One. Two" the tokens are "One", ".", "
    Two", so a segment ends with the token of its mark. White space at the end of the text closes the last
    segment.

    "sentence": ends after . ! ? … and their counterparts in other scripts, with the quotes, brackets and
    reference numbers that close behind them, and at every line break: LLMs write one paragraph or item a
    line. It does not end at abbreviations, initials, decimals, URLs or an item's number. A fenced code block
    is one sentence, and nothing is cut inside inline code. "sub-sentence": cuts sentences further after , ; :
    ! ? … where white space follows (not within 1,000 or 10:30) and after their wide forms. "whole": the text
    is one segment.

    `min_words` joins sub-sentences of one sentence until each has that many words, counted by white space;
    the published code of Wu et al. uses 5. The sub-sentence boundaries always include the sentence
    boundaries. No segment is punctuation alone unless the whole text is. After Wu et al. 2023 (Fine-Grained
    RLHF), who take sentences from spaCy and cut them at , ; ! ?. Raises `ValueError` for another granularity.
    """
    if granularity not in get_args(Granularity):
        raise ValueError(f"granularity {granularity!r} is not one of {', '.join(get_args(Granularity))}")
    if min_words < 1:
        raise ValueError(f"min_words {min_words} must be at least 1")
    if not text:
        return []
    whole = (0, len(text))
    if granularity == "whole":
        return [whole]
    boundaries = _boundaries(text)
    sentences = _cut(text, whole, [boundary.place for boundary in boundaries if boundary.ends_sentence])
    if granularity == "sentence":
        return sentences
    places = [boundary.place for boundary in boundaries]
    parts: list[Segment] = []
    for sentence in sentences:
        inside = places[bisect_right(places, sentence[0]) : bisect_right(places, sentence[1])]
        parts += _joined(text, _cut(text, sentence, inside), min_words)
    return parts


class _Boundary(NamedTuple):
    place: int
    ends_sentence: bool


def _boundaries(text: str) -> list[_Boundary]:
    """Return every place where a sub-sentence may end, in order."""
    ends_sentence: dict[int, bool] = {}
    fences = [match.span() for match in _FENCED.finditer(text)]
    codes = _outside([match.span() for match in _INLINE_CODE.finditer(text)], fences)
    for match in re.finditer(r"\s+", text):
        if any(char in _LINE_BREAKS for char in match.group()) and not _within(match.start(), fences):
            ends_sentence[match.start()] = True
    untouchable = sorted(fences + codes)
    code_starts = {start for start, _ in codes}
    for match in _MARKS.finditer(text):
        if _within(match.start(), untouchable):
            continue
        place = _after_closers(text, match.end(), code_starts)
        if _may_end(text, match, place):
            stops = _stops_sentence(text, match, place)
            if stops or match.group() != ".":
                ends_sentence[place] = ends_sentence.get(place, False) or stops
    return [_Boundary(*item) for item in sorted(ends_sentence.items())]


def _outside(inner: Iterable[Segment], outer: Sequence[Segment]) -> list[Segment]:
    return [span for span in inner if not _within(span[0], outer)]


def _within(place: int, spans: Sequence[Segment]) -> bool:
    """Return whether one of the sorted, disjoint spans holds the character at `place`."""
    index = bisect_right(spans, place, key=lambda span: span[0]) - 1
    return index >= 0 and place < spans[index][1]


def _after_closers(text: str, place: int, code_starts: Collection[int]) -> int:
    """Return the end of the quotes, brackets, references and combining marks at `place`."""
    while place < len(text) and place not in code_starts:
        if text[place] in _CLOSERS or unicodedata.category(text[place]).startswith("M"):
            place += 1
        elif reference := _REFERENCE.match(text, place):
            place = reference.end()
        else:
            break
    return place


def _may_end(text: str, mark: re.Match[str], place: int) -> bool:
    """Return whether a mark with its closers ends a segment: 3.14, 1,000, 10:30, a.b and ?q=1 do not."""
    if place == len(text) or text[place].isspace():
        return True
    if mark.group()[0] not in _WIDE_STOPS + _WIDE_COMMAS or text[place] == _ZERO_WIDTH_JOINER:
        return False
    between_digits = text[mark.start() - 1 : mark.start()].isdigit() and text[mark.end()].isdigit()
    return not between_digits


def _stops_sentence(text: str, mark: re.Match[str], place: int) -> bool:
    sign = mark.group()
    if sign[0] in ",;:" + _WIDE_COMMAS:
        return False
    following = _word_after(text, place)
    goes_on = following[:1].islower()
    # "Why?" he asked.
    if goes_on and any(char in _QUOTES for char in text[mark.end() : place]):
        return False
    if sign == ".":
        return _full_stop(text, mark.start(), following)
    is_ellipsis = "!" not in sign and "?" not in sign and (len(sign) > 1 or sign == "…")
    return not (is_ellipsis and goes_on and sign[0] in ".…")


def _word_after(text: str, place: int) -> str:
    """Return the next word on the line, without opening quotes or brackets."""
    match = _NEXT_WORD.match(text, place)
    return match.group(1) if match else ""


def _full_stop(text: str, dot: int, following: str) -> bool:
    """Return whether a single "." ends a sentence rather than belonging to the word before it."""
    line = max((text.rfind(char, 0, dot) for char in "\n\r"), default=-1) + 1
    if _ITEM_NUMBER.fullmatch(text, line, dot):
        return False
    match = _WORD_BEFORE.search(text, max(line, dot - _LONGEST_WORD), dot)
    if match is None:
        return True
    word = match.group()
    is_title = word.lower() in _TITLES and (word[0].isupper() or following[:1].islower())
    if is_title or word.lower() in _NEVER_LAST:
        return False
    if word.lower() in _BEFORE_NUMBERS and (following[:1].isdigit() or len(word) == 1):
        return not (following[:1].isdigit() or following[:1].islower() or word.isupper())
    opens = following.lower() in _OPENING_WORDS and following[:1].isupper()
    # "U.S." and "Ph.D." are abbreviations; "example.com" is none.
    if word.lower() in _SOMETIMES_LAST or ("." in word and max(map(len, word.split("."))) <= 3):
        return opens
    # "by J. K. Rowling" is one sentence, "So did I. The" and "vitamin C. It" are two.
    if len(word) == 1 and word.isupper():
        return opens and bool(text[line : match.start()].strip())
    return not (len(word) == 1 and following[:1].islower())


def _cut(text: str, within: Segment, places: Iterable[int]) -> list[Segment]:
    """Cut a stretch at `places`, joining parts without content to a neighbour."""
    start, end = within
    parts: list[Segment] = []
    content = _next_content(text, start, end)
    for place in places:
        if start < place < end and content < place:
            parts.append((start, place))
            start = place
            content = _next_content(text, start, end)
    if content == end and parts:
        start = parts.pop()[0]
    return [*parts, (start, end)]


def _next_content(text: str, start: int, end: int) -> int:
    """Return the index of the first letter, digit or symbol (such as an emoji); `end` if there is none."""
    for index in range(start, end):
        if text[index].isalnum() or unicodedata.category(text[index]) in ("So", "Sm", "Sc"):
            return index
    return end


def _joined(text: str, parts: Sequence[Segment], min_words: int) -> list[Segment]:
    """Join neighbours until each part has `min_words` words; a remainder joins the part before it."""
    joined: list[Segment] = []
    start = parts[0][0]
    for _, end in parts:
        if len(text[start:end].split()) >= min_words:
            joined.append((start, end))
            start = end
    end = parts[-1][1]
    if start < end:
        start = joined.pop()[0] if joined else start
        joined.append((start, end))
    return joined


# ── Boundaries of the steps of a response that nobody cut: what a process reward model scores ──
#
# Labelled steps come with their places, from the trace that was imported. Generated text is cut by the same
# rule where it is written as a trace, and as a person would read it elsewhere:
#
# 1. A trace has headings, as `annotation.text.traces` writes them: `[assistant]`, `[reasoning]`,
#    `[tool call NAME]`, each on a line of its own, first or after an empty line. From one to the next is a
#    step. Tool results and turns of others are no steps of the agent: nobody labels or scores them.
# 2. Paragraphs, which empty lines end.
# 3. Of one paragraph, sentences, which line breaks end too.
#
# A heading inside a tool's output cannot be told from one that the agent wrote; in labelled data it does not
# matter, because there the places are known.


_HEADING = re.compile(
    r"(?:\A|(?<=\n\n))\[(?:(?P<agents>assistant|reasoning|tool call)|user|system|tool|tool result|tool error)"
    r"(?: [^\[\]\n]+)?\](?=\n|\Z)"
)
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")


def steps(text: str) -> list[Segment]:
    """Cut a text into steps: [start, end) in code points, in order, without the white space around them."""
    segments = _of_trace(text)
    if not segments:
        sentences = segment(text, "sentence")
        segments = _paragraphs(text, sentences)
        if len(segments) < 2:
            segments = sentences
    return [_trimmed(text, part) for part in segments if text[slice(*part)].strip()]


def _of_trace(text: str) -> list[Segment]:
    """The agent's steps of a trace; none of a text without headings."""
    headings = list(_HEADING.finditer(text))
    if not headings:
        return []
    # What stands before the first heading goes on where the prompt ended: it is the agent's.
    starts = [(0, True), *((heading.start(), heading.group("agents") is not None) for heading in headings)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return [(start, end) for (start, agents), end in zip(starts, ends, strict=True) if agents]


def _paragraphs(text: str, sentences: list[Segment]) -> list[Segment]:
    """Sentences joined until an empty line: so none is cut within a block of code."""
    segments: list[Segment] = []
    for start, end in sentences:
        space = text[start : end - len(text[start:end].lstrip())]
        if segments and not _EMPTY_LINE.search(space):
            start = segments.pop()[0]
        segments.append((start, end))
    return segments


def _trimmed(text: str, stretch: Segment) -> Segment:
    start, end = stretch
    quote = text[start:end]
    return end - len(quote.lstrip()), start + len(quote.rstrip())
