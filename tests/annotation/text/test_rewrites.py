"""Rewrites of a text from left to right: the edits give the text, and what stayed keeps its origin."""

from hypothesis import given
from hypothesis import strategies as st

from annotation.forms.judgment import corrected
from annotation.record.judgment import Edit, Origin
from annotation.text.edits import applied, is_faithful, retyped
from tests.annotation.text.test_corrections import TEXTS

MODEL = Origin(continuation=7)
CATEGORIES = {"untruthful": 3}


@st.composite
def rewritten(draw: st.DrawFn) -> tuple[str, list[Edit]]:
    """An original, and edits as the labelling page makes them: apart, in order, by hand or by the model."""
    original = draw(TEXTS)
    places = sorted(
        draw(st.lists(st.integers(0, len(original)), max_size=6).filter(lambda p: len(p) % 2 == 0))
    )
    edits = [
        Edit(
            start=start,
            end=end,
            quote=original[start:end],
            replacement=draw(TEXTS),
            origin=draw(st.sampled_from([Origin(), MODEL, Origin(span=("untruthful", start, end))])),
        )
        for start, end in zip(places[::2], places[1::2], strict=True)
    ]
    return original, edits


@given(rewritten(), TEXTS | st.text(max_size=40))
def test_the_edits_give_the_text_that_was_typed_after_them(rewrite: tuple[str, list[Edit]], text: str):
    original, edits = rewrite
    changes = retyped(original, edits, text)
    assert is_faithful(original, changes)
    assert applied(original, changes) == text
    # A model is named for nothing that it did not write.
    by_model = [edit.replacement for edit in edits if edit.origin == MODEL]
    assert all(
        any(change.replacement in written for written in by_model)
        for change in changes
        if change.origin.continuation
    )


@given(rewritten())
def test_what_nobody_typed_again_is_as_it_was(rewrite: tuple[str, list[Edit]]):
    original, edits = rewrite
    stayed = [edit for edit in edits if edit.quote != edit.replacement]
    assert list(retyped(original, edits, applied(original, edits))) == stayed


def test_a_word_typed_into_the_models_text_parts_it():
    original = "Boil it long."
    edits = [
        Edit(start=5, end=7, quote="it", replacement="tea 🍵", origin=Origin(span=("untruthful", 5, 7))),
        Edit(start=7, end=13, quote=" long.", replacement=" for two hours e\u0301.", origin=MODEL),
    ]
    changes = retyped(original, edits, "Boil tea 🍵 for two minutes e\u0301.")
    assert [(c.start, c.end, c.replacement, c.origin) for c in changes] == [
        (5, 7, "tea 🍵", Origin(span=("untruthful", 5, 7))),
        (7, 13, " for two ", MODEL),
        (13, 13, "minutes", Origin()),
        (13, 13, " e\u0301.", MODEL),
    ]


@given(rewritten(), st.booleans())
def test_a_page_that_only_rewrites_sends_the_edits_that_were_made(
    rewrite: tuple[str, list[Edit]], is_windows: bool
):
    """A text field knows line feeds alone and sends CRLF; the original keeps its line breaks of any kind."""
    original, edits = rewrite
    if is_windows:
        edits = [e for e in edits if e.origin == MODEL]
    sent = [
        {"start": e.start, "end": e.end, "text": e.replacement, "continuation": e.origin.continuation}
        for e in edits
        if e.origin == MODEL or "\r" not in e.replacement + original
    ]
    made = applied(
        original,
        [
            Edit(start=s["start"], end=s["end"], quote="", replacement=s["text"])  # type: ignore[arg-type]
            for s in sent
        ],
    )
    field = made.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")
    text, changes = corrected(original, field, sent, CATEGORIES)
    assert text == made
    assert applied(original, changes) == text or not sent
    assert [(c.start, c.end, c.replacement) for c in changes] == [
        (s["start"], s["end"], s["text"]) for s in sent
    ]


def test_typed_line_breaks_become_those_of_the_original():
    sent = [{"start": 3, "end": 6, "text": "c\nd", "span": {"category": "untruthful", "start": 3, "end": 6}}]
    text, (change,) = corrected("a\r\nbbb\r\nz", "a\r\nc\r\nd\r\nz", sent, CATEGORIES)
    assert text == "a\r\nc\r\nd\r\nz"
    assert (change.replacement, change.origin) == ("c\r\nd", Origin(span=("untruthful", 3, 6)))
