"""However dense its markup is, a text of 100 KB is rendered with bounded work, and no part of it is lost.

Work is counted in calls of functions, Python's and C's: the same number on every machine.
"""

import sys
from typing import Any

import pytest

from annotation.text import formulas
from annotation.text.rendering import render_answer, render_markdown
from tests.annotation.text.test_rendering import Leaves, assert_exact

SIZE = 100_000
# About half a second.
MOST_CALLS = 3_000_000


def filled(unit: str, size: int = SIZE) -> str:
    return (unit * (size // len(unit) + 1))[:size]


def distinct_formulas(*parts: str) -> str:
    """Formulas that no cache knows."""
    unit = len("".join(parts)) + 7
    return "".join(f"${parts[0]}{number}{parts[1]}$ " for number in range(SIZE // unit))


DENSE = {
    "the tables of issue 14": "|a" * 2000 + "\n" + "|-" * 2000 + "\n" + ("|a" * 2000 + "\n") * 19,
    "one row of many cells": filled("|a", SIZE // 2) + "\n" + filled("|-", SIZE // 2),
    "a narrow table of many rows": "|a|b|\n|-|-|\n" + filled("|a|b|\n"),
    "quotes": filled(">a\n"),
    "deep quotes": filled("> " * 18 + "a\n"),
    "lists": filled("- a\n"),
    "carriage returns": filled("a\r\n"),
    "nested brackets": "[" * (SIZE // 2) + "]" * (SIZE // 2),
    "links that do not end": filled("[a](http://a"),
    "emphasis": filled("*a*"),
    "code over many lines": "`" + filled("a\n") + "`",
    "a long fence": "```\n" + filled("a\n"),
    "addresses": filled("<http://a>"),
    "ampersands": filled("&"),
    "formulas": filled("$a$ "),
    "formulas that do not end": filled("\\[\n"),
    "different formulas": distinct_formulas("x_{", "}"),
}


def calls_of(text: str) -> tuple[int, str]:
    """Return the number of functions that rendering an answer calls, and the markup."""
    formulas.to_mathml.cache_clear()
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    render_answer("a parser is made once")
    sys.setprofile(count)
    try:
        markup = render_answer(text)
    finally:
        sys.setprofile(None)
    return calls, markup


@pytest.mark.parametrize("name", DENSE)
def test_dense_markup_of_100_kb_takes_bounded_work_and_stays_markable(name: str):
    text = DENSE[name]
    calls, markup = calls_of(text)
    assert calls < MOST_CALLS
    assert_exact(text, markup)
    if "plain-note" in markup:
        assert Leaves(markup).text.endswith(text.replace("\r\n", "\n").replace("\0", ""))


def test_work_grows_no_faster_than_a_table():
    sizes = [calls_of("|a" * cells + "\n" + "|-" * cells)[0] for cells in (500, 1000)]
    assert sizes[1] < 2.1 * sizes[0]


def test_100_kb_of_ordinary_prose_keep_their_formatting():
    paragraph = (
        "The quick **brown** fox jumps over `the` lazy dog and says $x^2$ to it. " + "It " * 40 + "\n\n"
    )
    calls, markup = calls_of(filled(paragraph, 100_000))
    assert calls < MOST_CALLS
    assert "plain-note" not in markup
    assert "<strong>" in markup


def test_a_table_of_400_cells_stays_a_table():
    text = "|a|b|c|d|\n|-|-|-|-|\n" + "|1|2|3|4|\n" * 100
    assert render_answer(text).count("<td ") == 400


def test_a_text_shown_plainly_says_so_above_it():
    for markup in (render_answer(DENSE["lists"]), render_markdown(DENSE["lists"])):
        assert markup.startswith('<p class="plain-note">Shown as plain text')


def test_nothing_is_lost_of_what_is_nested_too_deeply():
    for text in ("> " * 25 + "the end", "- " * 25 + "the end"):
        assert "the end" in Leaves(render_answer(text)).text
        assert "the end" in render_markdown(text)
