"""Marks drawn into rendered answers: where they stand, how they overlap, and that nothing else changes."""

import re

from django.utils.safestring import SafeString
from hypothesis import given
from hypothesis import strategies as st

from annotation.text.rendering import Mark, render_answer, with_marks


def mark(number: int, start: int, end: int, category: str = "untruthful") -> Mark:
    return Mark(number=number, start=start, end=end, category=category)


def bare(markup: str) -> str:
    """Without what drawing adds."""
    return re.sub(r"</?mark[^>]*>|<sup>.*?</sup>", "", markup)


def marked_text(markup: str) -> str:
    """Return the text inside all marks, as a reader sees it."""
    return "".join(re.sub("<[^>]*>", "", inner) for inner in re.findall(r"<mark[^>]*>(.*?)</mark>", markup))


def number(count: int) -> str:
    return f'<sup><span class="visually-hidden">Span </span>{count}</sup>'


def test_a_mark_stands_around_its_words_and_its_number_behind_them():
    # Code points: "🍵 two minutes", "two" from 2 to 5.
    drawn = with_marks(render_answer("🍵 two minutes"), [mark(1, 2, 5)])
    assert f'🍵 <mark data-category="untruthful">two</mark>{number(1)} minutes' in drawn


def test_where_marks_overlap_each_part_stands_in_all_that_cover_it():
    # "abcdef": 1 covers abcd, 2 covers cdef. Cut at 2 and 4.
    drawn = with_marks(render_answer("abcdef"), [mark(1, 0, 4, "a"), mark(2, 2, 6, "b")])
    assert (
        '<mark data-category="a">ab</mark>'
        '<mark data-category="a"><mark data-category="b">cd</mark></mark>'
        f"{number(1)}"
        f'<mark data-category="b">ef</mark>{number(2)}'
    ) in drawn


def test_a_mark_goes_on_over_bold_words_and_has_one_number_at_its_end():
    drawn = with_marks(render_answer("one **two** three"), [mark(1, 2, 14)])
    # "e ", "two" and " th" (the stars are no text) are its parts.
    assert marked_text(drawn) == "e two th"
    assert drawn.count("<sup>") == 1
    assert drawn.index("<sup>") > drawn.index(" th")


def test_what_looks_like_html_stays_text():
    drawn = with_marks(render_answer("a <b> & c"), [mark(1, 2, 7)])
    assert marked_text(drawn) == "&lt;b&gt; &amp;"
    assert "<b>" not in drawn


def test_a_part_of_a_formula_marks_the_whole_of_it():
    markup = render_answer("So $a^2$ it is.")
    drawn = with_marks(markup, [mark(1, 4, 5)])
    formula = re.search(r'<span class="formula".*?</span>', markup, re.DOTALL)
    assert formula is not None
    assert f'<mark data-category="untruthful">{formula.group()}</mark>{number(1)}' in drawn


_TEXTS = st.lists(
    st.sampled_from(
        [
            "tea",
            " ",
            "\n",
            "\n\n",
            "\r\n",
            "**hot**",
            "`code`",
            "- one\n",
            "&amp;",
            "<i>",
            "🍵",
            "\u00a0",
            '"',
            "$x$",
        ]
    ),
    max_size=12,
).map("".join)
_MARKS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=4).map(
    lambda places: [mark(n, start, start + size) for n, (start, size) in enumerate(places, start=1)]
)


@given(text=_TEXTS, marks=_MARKS)
def test_without_the_marks_the_answer_is_what_it_was(text: str, marks: list[Mark]):
    markup = render_answer(text)
    drawn = with_marks(markup, marks)
    # nh3 spells this space as an entity; here it stands itself.
    assert bare(drawn).replace("\u00a0", "&nbsp;") == markup
    assert isinstance(drawn, SafeString)
    # Every number at most once.
    shown = re.findall(r"</span>(\d+)</sup>", drawn)
    assert len(shown) == len(set(shown)) <= len(marks)
