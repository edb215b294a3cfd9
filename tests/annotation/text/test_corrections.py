"""Edits of a text: they give the corrected text, are readable, and no more than needed."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.record.judgment import Edit
from annotation.text.edits import DiffPiece, applied, edits, pieces, sides, with_own_line_breaks

_WORDS = [
    "tea",
    "Tea",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\r",
    "\t",
    ".",
    ",",
    "é",
    "e\u0301",
    "שלום",
    "🍵",
    "👩\u200d🏫",
    "🇩🇪",
    "👍🏽",
    "\u0301",
]
TEXTS = st.lists(st.sampled_from(_WORDS), max_size=25).map("".join)


@given(TEXTS | st.text(max_size=40), TEXTS | st.text(max_size=40))
def test_the_edits_applied_to_the_original_give_the_corrected_text(original: str, corrected: str):
    changes = edits(original, corrected)
    assert applied(original, changes) == corrected
    assert bool(changes) == (original != corrected)
    for edit in changes:
        assert original[edit.start : edit.end] == edit.quote
        assert edit.quote != edit.replacement
    for previous, following in pairwise(changes):
        assert previous.end < following.start


@given(TEXTS, TEXTS)
def test_the_pieces_hold_both_texts(original: str, corrected: str):
    shown = pieces(original, corrected)
    assert "".join(piece.text for piece in shown if piece.kind != "inserted") == original
    assert "".join(piece.text for piece in shown if piece.kind != "deleted") == corrected


@pytest.mark.parametrize(
    ("original", "corrected", "expected"),
    [
        ("Steep two minutes.", "Steep two minutes.", []),
        ("Steep ten minutes.", "Steep two minutes.", [(6, 9, "ten", "two")]),
        ("Steep it.", "Steep it well.", [(8, 8, "", " well")]),
        ("Steep it well.", "Steep it.", [(8, 13, " well", "")]),
        # Two words beside each other are one change; with a word between them they are two.
        ("a big red cup", "a small blue cup", [(2, 9, "big red", "small blue")]),
        ("ten old cups", "two old jars", [(0, 3, "ten", "two"), (8, 12, "cups", "jars")]),
        # No part of a word, of an emoji or of a flag is ever cut.
        ("cats", "cat", [(0, 4, "cats", "cat")]),
        ("cafe\u0301", "cafe", [(0, 5, "cafe\u0301", "cafe")]),
        ("🇩🇪 👍🏽", "🇩🇰 👍🏽", [(0, 2, "🇩🇪", "🇩🇰")]),
        ("a\r\nb", "a\nb", [(1, 3, "\r\n", "\n")]),
        ("all of it", "", [(0, 9, "all of it", "")]),
        ("", "all of it", [(0, 0, "", "all of it")]),
    ],
)
def test_an_edit_is_what_a_person_would_say_was_changed(
    original: str, corrected: str, expected: list[tuple[int, int, str, str]]
):
    changes = [(edit.start, edit.end, edit.quote, edit.replacement) for edit in edits(original, corrected)]
    assert changes == expected


def test_offsets_count_code_points():
    assert edits("🍵🍵 ten", "🍵🍵 two") == (Edit(start=3, end=6, quote="ten", replacement="two"),)


def test_a_reader_sees_what_went_before_what_came():
    assert pieces("Steep ten minutes.", "Steep two minutes.") == (
        DiffPiece("same", "Steep "),
        DiffPiece("deleted", "ten"),
        DiffPiece("inserted", "two"),
        DiffPiece("same", " minutes."),
    )


@given(TEXTS)
def test_a_text_that_nobody_touched_comes_back_as_it_was(text: str):
    sent = re.sub(r"\r\n|\r|\n", "\r\n", text)
    assert with_own_line_breaks(text, sent) == text


@pytest.mark.parametrize(
    ("original", "sent", "expected"),
    [
        ("a\r\nb\nc", "a\r\nb\r\nd", "a\r\nb\nd"),
        ("a\nb", "a\r\nb\r\nc", "a\nb\nc"),
        ("a\r\nb", "a\r\nb\r\nc", "a\r\nb\r\nc"),
        ("a", "a\r\nb", "a\nb"),
        ("a\n\nb", "b", "b"),
    ],
)
def test_line_breaks_stay_as_they_were_where_nothing_was_changed(original: str, sent: str, expected: str):
    assert with_own_line_breaks(original, sent) == expected


@given(TEXTS, TEXTS)
def test_what_was_typed_is_kept_but_for_the_kind_of_its_line_breaks(original: str, sent: str):
    result = with_own_line_breaks(original, sent)
    assert re.sub(r"\r\n|\r|\n", "\n", result) == re.sub(r"\r\n|\r|\n", "\n", sent)


def test_three_words_of_a_long_text_are_three_edits():
    # Common words all over, as in any text; a third of them stands nowhere else.
    words = ["the" if number % 3 else f"word{number}" for number in range(4000)]
    changed = list(words)
    changed[5], changed[2000], changed[3990] = "first", "middle", "last"
    replacements = [edit.replacement for edit in edits(" ".join(words), " ".join(changed))]
    assert replacements == ["first", "middle", "last"]


def test_side_by_side_what_both_texts_have_is_the_same_and_the_rest_is_marked():
    left, right = sides("Steep it two minutes.", "Steep it ten minutes!")
    assert left == [
        DiffPiece("same", "Steep it "),
        DiffPiece("deleted", "two"),
        DiffPiece("same", " minutes"),
        DiffPiece("deleted", "."),
    ]
    assert [piece.text for piece in right if piece.kind == "inserted"] == ["ten", "!"]


@given(TEXTS | st.text(max_size=40), TEXTS | st.text(max_size=40))
def test_side_by_side_each_text_comes_back_to_the_letter(left: str, right: str):
    on_left, on_right = sides(left, right)
    assert "".join(piece.text for piece in on_left) == left
    assert "".join(piece.text for piece in on_right) == right
    same = [[piece.text for piece in side if piece.kind == "same"] for side in (on_left, on_right)]
    assert same[0] == same[1]
