"""A browser's view of a rendered answer, in Python: text nodes, UTF-16 indices, `Answer.spanOf`.

A model of static/js/label-spans.js, line by line; tests/browser/test_offsets.py holds it to Chromium.
"""

from dataclasses import dataclass
from html.parser import HTMLParser

from annotation.offsets import utf16_to_codepoint

# What /\s/u matches in JavaScript; Python's str.isspace has another list.
SPACES = set("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff") | {
    chr(code) for code in range(0x2000, 0x200B)
}


def units(text: str) -> int:
    """Length in UTF-16 units, by the encoder."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


@dataclass(frozen=True, slots=True)
class TextNode:
    """One text node of the page. `start` is its leaf's data-start plus what comes before it in the leaf."""

    data: str
    start: int | None
    whole: tuple[int, int] | None
    """Start and end of the source of the formula that it is a part of."""


class Page(HTMLParser):
    """The text nodes of a rendered answer, as the browser has them."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.nodes: list[TextNode] = []
        self._leaf: dict[str, str | None] | None = None
        self._at = 0
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "span":
            self._leaf = dict(attrs)
            self._at = int(self._leaf.get("data-start") or 0)

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._leaf = None

    def handle_data(self, data: str) -> None:
        leaf = self._leaf or {}
        if "data-start" not in leaf:
            self.nodes.append(TextNode(data, None, None))
        elif "data-source-length" in leaf:
            start = int(leaf["data-start"] or 0)
            self.nodes.append(TextNode(data, start, (start, start + int(leaf["data-source-length"] or 0))))
        else:
            self.nodes.append(TextNode(data, self._at, None))
            self._at += len(data)

    @property
    def text(self) -> str:
        """The `textContent` of the answer's element."""
        return "".join(node.data for node in self.nodes)


def _is_in_pair(encoded: bytes, index: int) -> bool:
    """`inPair` of the script: whether `index` lies between the halves of a surrogate pair."""
    if not 0 < index < len(encoded) // 2:
        return False
    before, after = encoded[2 * index - 1], encoded[2 * index + 1]
    return 0xD8 <= before <= 0xDB and 0xDC <= after <= 0xDF


def span_of(page: Page, source: str, selected: tuple[int, int]) -> tuple[int, int] | None:
    """`spanOf` of the script, for a range from and to UTF-16 indices into the answer's `textContent`."""
    start = end = None
    position = 0
    for node in page.nodes:
        encoded = node.data.encode("utf-16-le")
        size = len(encoded) // 2
        begin = max(0, min(size, selected[0] - position))
        stop = max(0, min(size, selected[1] - position))
        position += size
        if node.start is None:
            continue
        begin -= _is_in_pair(encoded, begin)
        stop += _is_in_pair(encoded, stop)
        if begin >= stop:
            continue
        if node.whole:
            start = node.whole[0] if start is None else start
            end = node.whole[1]
        else:
            start = node.start + utf16_to_codepoint(node.data, begin) if start is None else start
            end = node.start + utf16_to_codepoint(node.data, stop)
    if start is None or end is None:
        return None
    while start < end and source[start] in SPACES:
        start += 1
    while start < end and source[end - 1] in SPACES:
        end -= 1
    return (start, end) if start < end else None
