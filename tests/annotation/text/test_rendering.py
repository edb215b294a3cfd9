"""Rendered answers know where their text stands in the source; nothing active survives."""

import random
import re
import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotation.text.rendering import _clean, render_answer, render_markdown


class Leaves(HTMLParser):
    """Collects what stands in `<span data-start>` elements, and all text, as a browser would see it.

    A leaf is (start, text), a formula (start, length of its source); one without a place is in neither.
    """

    def __init__(self, markup):
        super().__init__(convert_charrefs=True)
        self.leaves = []
        self.formulas = []
        self.text = ""
        self._open = None
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag, attrs):
        if tag == "span":
            assert self._open is None, "leaves never nest"
            attributes = dict(attrs)
            self._length = attributes.get("data-source-length")
            assert ("formula" in attributes.get("class", "")) == bool(
                self._length or "data-start" not in attributes
            )
            self._open = [int(attributes.get("data-start", -1)), ""]

    def handle_endtag(self, tag):
        if tag == "span":
            start, text = self._open
            self._open = None
            if self._length:
                assert text.strip(), "a formula that shows nothing cannot be marked"
                self.formulas.append((start, int(self._length)))
            elif start >= 0:
                self.leaves.append((start, text))

    def handle_data(self, data):
        self.text += data
        if self._open is not None:
            self._open[1] += data


def leaves_of(text):
    return Leaves(render_answer(text)).leaves


DELIMITERS = {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}


def assert_exact(source, markup=None):
    rendered = Leaves(markup or render_answer(source))
    for start, text in rendered.leaves:
        assert text
        assert source[start : start + len(text)] == text
    for start, length in rendered.formulas:
        whole = source[start : start + length]
        assert any(
            whole.startswith(opener) and whole.endswith(closer) and len(whole) > len(opener + closer)
            for opener, closer in DELIMITERS.items()
        )
    places = [(start, len(text)) for start, text in rendered.leaves] + rendered.formulas
    position = 0
    for start, length in sorted(places):
        assert start >= position, "leaves do not overlap"
        position = start + length
    assert [start for start, _ in rendered.leaves] == sorted(start for start, _ in rendered.leaves)


# What Markdown gives a meaning to, and what makes positions go wrong.
FRAGMENTS = [
    "a", "b c", "word", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "  \n", "\\\n", " ", "  ", "\t", "    ",
    "*", "**", "_", "__", "***", "`", "``", "` `", "```\n", "```python\n", "~~~\n", "# ", "## ", " ##", "#",
    "- ", "* ", "1. ", "12) ", "> ", ">", "---\n", "===\n", "| ", "|", "|---|---|\n", "|:-:|\n", "\\|", "\\",
    "\\*", "\\a", "&amp;", "&lt;", "&#35;", "&nosuch;", "<b>", "</b>", "<script>", "<!-- x -->", "<http://x.y>",
    "<me@x.y>", "[", "]", "](b)b", "[t](http://u)", "](http://b)b", "[t](http://u \"v\")", "![i](j)",
    "[r]: /url\n", "[r]", "http://x.y/z_a_b",
    "😀", "👩‍👩‍👧‍👦", "🇩🇪", "é", "e\u0301", "שלום", "\u00a0",
    "\u2028", "\u0085", "\x0b", "\x0c", "\ufeff", "漢字", "$x^2$",
    "$", "$$", "$$\n", "$x$", r"\(", r"\)", r"\[", r"\]", "\\]\n", "\\[\n", r"\frac{a}{b}", r"\nonsense",
    "{", "}", "= x", "$$\ny\n$$\n", r"\\", "$5", "^2", "_1", r"\text{a}",
]  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join))
def test_every_leaf_equals_its_slice_of_the_source(source):
    assert_exact(source)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_any_text_keeps_its_positions(source):
    assert_exact(source)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=24).map("".join))
def test_nothing_a_reader_marks_is_lost_from_the_page(source):
    """Words made of letters stand in the rendered text as often as in the source or in link targets."""
    assert Leaves(render_answer(source)).text.count("word") == source.count("word")


# Each leaf is what a person can select; worked out by hand from CommonMark.
@pytest.mark.parametrize(
    ("source", "leaves"),
    [
        ("plain", [(0, "plain")]),
        ("a **b** c", [(0, "a "), (4, "b"), (7, " c")]),
        ("***b***", [(3, "b")]),
        ("2 * 3 * 4", [(0, "2 * 3 * 4")]),
        ("😀 *x* 😀", [(0, "😀 "), (3, "x"), (5, " 😀")]),
        ("[x](http://b)b", [(1, "x"), (13, "b")]),
        ("[x](b)", [(0, "[x](b)")]),
        ("<http://x.y>z", [(1, "http://x.y"), (12, "z")]),
        ("a &amp; b", [(0, "a "), (7, " b")]),
        (r"\*a\*", [(1, "*a"), (4, "*")]),
        ("`` a`b ``", [(3, "a`b")]),
        ("## Head ##\r\n\r\ntext", [(3, "Head"), (14, "text")]),
        ("> one\r\n> two", [(2, "one"), (9, "two")]),
        ("> one\nlazy", [(2, "one"), (6, "lazy")]),
        ("- a\n  - b\n\n    c", [(2, "a"), (8, "b"), (15, "c")]),
        ("one  \ntwo", [(0, "one"), (6, "two")]),
        ("one\\\ntwo", [(0, "one"), (5, "two")]),
        ("```py\nx = 1\n\n\ty\n```", [(6, "x = 1"), (13, "\ty")]),
        ("- ```\n  x\n  ```", [(8, "x")]),
        ("    code\n", [(4, "code")]),
        ("|a|b|\n|-|-|\n|a|a|", [(1, "a"), (3, "b"), (13, "a"), (15, "a")]),
        ("Title\n===\ntext", [(0, "Title"), (10, "text")]),
        ("<b>x</b>", [(0, "<b>x</b>")]),
        ("![i](http://j)", [(0, "!"), (2, "i")]),
        ("[r]: /url", [(0, "[r]: /url")]),
    ],
)
def test_positions_worked_out_by_hand(source, leaves):
    assert leaves_of(source) == leaves


def test_an_answer_that_cannot_be_placed_is_plain_text_with_every_line_markable():
    source = "&lt;&gt;&amp;&lt;&gt;\r\n&quot;ok&quot;"
    assert leaves_of(source) == [(0, "&lt;&gt;&amp;&lt;&gt;"), (23, "&quot;ok&quot;")]
    assert 'class="plain"' in render_answer(source)


def test_headings_of_an_answer_leave_no_gap_in_the_outline():
    markup = render_answer("### a\n\n# b\n\n## c\n\n###### d")
    assert [line[:3] for line in markup.splitlines()] == ["<h3", "<h3", "<h4", "<h5"]


PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><use href='data:image/svg+xml,x#y'/></svg>",
    "<iframe src=//evil.example></iframe>",
    "<style>*{display:none}</style>",
    "<p style='position:fixed' onclick=alert(1)>x</p>",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<form action=//evil.example><input name=password></form>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<span data-start=0 id=main class=x>forged</span>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#10;script:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:msgbox)",
    "[x](file:///etc/passwd)",
    "<javascript:alert(1)>",
    '[x](http://a.example "\\"onmouseover=alert(1)")',
    "![x](http://evil.example/pixel.png)",
    "```<script>\nx\n```",
    "[x](//evil.example/\"onclick='alert(1)')",
    r"$\text{<script>alert(1)</script>}$",
    r"$\text{</math><img src=x onerror=alert(1)>}$",
    r"$\text{&lt;script&gt;}$",
    r"$\href{javascript:alert(1)}{x}$",
    r"$\style{position:fixed}{x}$",
    r"$\class{bar}{x}$",
    r"$\color{red}{x} \colorbox{red}{x} \textcolor{red;background:url(//evil.example)}{x}$",
    r"$\unicode{x3c}script\unicode{x3e}$",
    r"$\rule{999em}{999em}\hspace{-999em}$",
    '$\\begin{array}{c" onclick="alert(1)}x\\end{array}$',
    r"""$$\genfrac{<}{>}{1px" onload="x"}{0}{a}{b}$$""",
]


class Tags(HTMLParser):
    def __init__(self, markup):
        super().__init__()
        self.seen = []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


HARMLESS = {
    "p", "br", "hr", "strong", "em", "code", "pre", "blockquote", "ul", "ol", "li", "a", "span",
    "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
# MathML's elements of presentation; none of them loads, links or runs anything.
MATHML = {
    "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup", "msubsup",
    "munder", "mover", "munderover", "mtable", "mtr", "mtd", "mstyle", "mpadded", "mphantom", "menclose",
}  # fmt: skip
HARMLESS_ON_MATHML = {
    "displaystyle", "mathvariant", "stretchy", "fence", "form", "movablelimits", "largeop", "separator",
    "minsize", "maxsize", "width", "height", "depth", "linethickness", "accent", "accentunder", "scriptlevel",
    "lspace", "voffset", "notation", "columnalign",
}  # fmt: skip
FORMULA_CLASSES = {"formula", "formula--display", "formula--wide"}


@pytest.mark.parametrize("render", [render_answer, render_markdown])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_active_survives(render, payload):
    for tag, attributes in Tags(render(f"before\n\n{payload}\n\n- {payload} after")).seen:
        if tag in MATHML:
            assert set(attributes) <= HARMLESS_ON_MATHML
            continue
        assert tag in HARMLESS
        allowed = {"href", "title", "rel", "target", "start", "data-start", "align", "class", "dir"}
        if tag == "span":
            allowed |= {"data-source-length", "tabindex"}
        assert set(attributes) <= allowed
        assert attributes.get("href", "http://").startswith(("http://", "https://", "mailto:"))
        assert attributes.get("tabindex", "0") == "0"
        assert attributes.get("dir", "auto") in ("auto", "ltr", "rtl")
        assert set(attributes.get("class", "").split()) <= ({"plain"} if tag == "p" else FORMULA_CLASSES)


def test_links_open_beside_the_work_and_tell_nobody_where_from():
    (_, attributes) = Tags(render_answer("[x](https://a.example)")).seen[-2]
    assert attributes["target"] == "_blank"
    assert set(attributes["rel"].split()) >= {"noopener", "noreferrer"}


def test_a_forged_position_in_the_text_is_text():
    assert leaves_of('<span data-start="7">x</span>') == [(0, '<span data-start="7">x</span>')]


def test_pathological_answers_are_rendered_in_a_moment():
    generator = random.Random(1)
    for unit in (
        *("*a ", "[", "`", "> ", "- ", "|a", "_*", "&amp;", "\\"),
        *("$", "$$", "$$\n", "$a ", "$a$", r"\(", r"\[", "\\[\n", "$\\", "$\\\\", "> $$\n", "$a\\$", "$`"),
    ):
        source = unit * 3000
        assert_exact(source[: generator.randrange(5000, 6000)])


# ── Formulas ──────────────────────────────────────────────────────────────────────────


# (start, length) of each formula, counted by hand; what is none is left to Markdown.
@pytest.mark.parametrize(
    ("source", "formulas"),
    [
        ("$x$", [(0, 3)]),
        ("Let $x_1$ and $x_2$.", [(4, 5), (14, 5)]),
        (r"😀 \(a<b\) b", [(2, 7)]),
        ("$$a+b$$", [(0, 7)]),
        (r"\[ a \]", [(0, 7)]),
        ("a\n\n$$\r\nx\r\n$$\r\n\nb", [(3, 9)]),
        ("$$\n\\begin{aligned}\na &= b \\\\\n- c &= d\n\\end{aligned}\n$$", [(0, 54)]),
        ("a\n\\[\n\nx\n\n\\]\nb", [(2, 9)]),
        ("> $$\n> x\n> $$", [(2, 11)]),
        ("- $$\n  x\n  $$", [(2, 11)]),
        ("**$x$**", [(2, 3)]),
        ("# $x$", [(2, 3)]),
        ("[$x$](http://a.b)", [(1, 3)]),
        ("|$a$|\n|-|\n|b|", [(1, 3)]),
        ("$a_1\n+ b_1$", []),
        ("$a\nb$", [(0, 5)]),
        ("$5$", [(0, 3)]),
        (r"\$5 and $x$", [(8, 3)]),
        ("$5 and $10", []),
        ("It costs $5, or $6.", []),
        ("$20-$30", []),
        ("$5, or ten euros (not 9$)", []),
        ("US$5 and CA$6", []),
        ("$HOME and $PATH", []),
        ("$a:$b", []),
        ("5$ and 6$", []),
        ("`$x$`", []),
        ("```\n$x$\n```", []),
        ("    $x$", []),
        ("$a `x` b$", []),
        ("$$", []),
        ("$$$$", []),
        ("$ x $", []),
        (r"$\nonsense$", []),
        (r"$\quad$", []),
        (r"$\frac{a}$", []),
        (r"$\cancel{x}$", []),
        (r"$\text{a \textbf{b}}$", []),
        (r"$a & b$", []),
        (r"$\newcommand{\a}{b}\a$", []),
    ],
)
def test_formulas_worked_out_by_hand(source, formulas):
    rendered = Leaves(render_answer(source))
    assert rendered.formulas == formulas
    assert_exact(source)


def test_what_is_no_formula_stays_to_the_letter():
    for source in (r"$\nonsense_a*b*_c$", "$5 and $10", r"$$\nonsense_a$$", "$$\n\\nonsense *a*\n\n- b\n$$"):
        lines = [line for line in source.split("\n") if line]
        assert [text for _, text in Leaves(render_answer(source)).leaves] == lines


@pytest.mark.parametrize(
    ("latex", "seen"),
    [
        (r"$x^2$", "<msup><mi>x</mi><mn>2</mn></msup>"),
        (r"$\frac{1}{2}$", "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>"),
        (r"$\mathbb{R}$", "<mi>ℝ</mi>"),
        (r"$\mathbf{AB}$", "<mi>𝐀</mi><mi>𝐁</mi>"),
        (r"$a<b$", "<mi>a</mi><mo>&lt;</mo><mi>b</mi>"),
        (r"$\boxed{4}$", '<menclose notation="box"><mrow><mn>4</mn></mrow></menclose>'),
        (r"$$\lim_{x} x$$", "<munder><mo>lim</mo><mrow><mi>x</mi></mrow></munder>"),
        (r"$$a \\ b$$", "<mtr>"),
    ],
)
def test_a_formula_becomes_mathml(latex, seen):
    assert seen in render_answer(latex)
    assert seen in render_markdown(latex)


def test_a_prompt_carries_no_positions():
    assert "data-" not in render_markdown("a $x$ **b**")
    assert "<span>" not in render_markdown("a $x$ **b**")


def test_only_a_wide_formula_can_be_reached_by_tab():
    assert "tabindex" not in render_answer("$x$")
    assert 'tabindex="0"' in render_answer("$" + "+".join("abcdefghijklmno") + "$")


@pytest.mark.parametrize(
    "latex",
    [
        "{" * 900 + "x" + "}" * 900,
        r"\sqrt" * 380 + "x",
        r"\frac" * 300,
        "x^" * 900,
        r"\left(" * 300 + r"\right)" * 30,
        r"\begin{matrix}" * 130,
        "&" * 1900,
        "x_1^2" * 390,
        "x" * 2001,
        r"\sqrt{" * 45 + "x" + "}" * 45,
    ],
)
def test_a_formula_beyond_all_measure_stays_source_and_takes_no_time(latex):
    started = time.thread_time()
    markup = render_answer(f"${latex}$")
    assert time.thread_time() - started < 2
    assert "<math" not in markup
    assert_exact(f"${latex}$", markup)


@pytest.mark.parametrize("render", [render_answer, render_markdown])
def test_every_block_runs_in_the_direction_of_its_text(render):
    markup = render("# A\n\nB\n\n- c\n\n> d\n\n| e |\n|---|\n| f |\n\n1. g\n\n   h")
    blocks = re.findall(r"<(?:p|h\d|ul|ol|li|blockquote|table|th|td)\b[^>]*>", markup)
    assert len(blocks) == 13
    assert [block for block in blocks if 'dir="auto"' not in block] == []


def test_a_list_that_begins_from_right_to_left_has_its_signs_on_the_right():
    markup = render_markdown("- שלום\n\n  עולם\n- tea\n\n> 1. שלום\n\n```\nשלום\n```")
    assert '<ul dir="rtl">' in markup
    assert '<blockquote dir="rtl">' in markup
    assert '<ol dir="rtl">' in markup
    assert '<pre dir="ltr">' in markup
    # Each entry goes by its own text.
    assert re.findall(r'<li dir="(\w+)">', markup) == ["rtl", "auto", "rtl"]


def test_no_other_direction_passes():
    assert 'dir="auto"' in render_answer("plain")
    assert "dir=" not in _clean('<p dir="sideways">x</p><span dir="rtl">y</span>')
