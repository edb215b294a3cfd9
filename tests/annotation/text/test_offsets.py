"""Browser and Python agree on where a span is. The oracle is Python's own UTF-16 encoder."""

import json
import random
import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import example, given
from hypothesis import strategies as st

from annotation.models import Judgment, Project, SpanFlag, User
from annotation.offsets import codepoint_to_utf16, utf16_to_codepoint
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.next import assign_next
from annotation.services.texts import NewCompletion, record_completions
from annotation.text.identity import text_hash
from annotation.text.rendering import render_answer, render_plain
from tests import factories
from tests.annotation.labelling.texts import FAMILY, FLAG, PIECES, markdown_text, plain_text
from tests.annotation.text.browser_model import SPACES, Page, span_of, units

texts = st.lists(
    st.sampled_from(PIECES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=8
).map("".join)


@given(texts)
@example(FAMILY + "\r\n" + FLAG)
def test_every_place_between_characters_is_where_the_encoder_says(text: str):
    for index in range(len(text) + 1):
        there = units(text[:index])
        assert codepoint_to_utf16(text, index) == there
        assert utf16_to_codepoint(text, there) == index


@given(texts)
@example("𝔘")
def test_the_text_that_a_browser_cuts_out_is_the_text_that_python_cuts_out(text: str):
    encoded = text.encode("utf-16-le")
    places = [units(text[:index]) for index in range(len(text) + 1)]
    for start, end in zip(places, places[2:], strict=False):
        cut_by_browser = encoded[2 * start : 2 * end].decode("utf-16-le")
        assert text[utf16_to_codepoint(text, start) : utf16_to_codepoint(text, end)] == cut_by_browser


@given(texts)
@example("a\U0001f600b")
def test_an_index_inside_a_surrogate_pair_is_refused(text: str):
    whole = {units(text[:index]) for index in range(len(text) + 1)}
    for index in set(range(units(text) + 1)) - whole:
        with pytest.raises(ValueError, match="surrogate pair"):
            utf16_to_codepoint(text, index)


def test_a_family_of_emoji_counts_five_here_and_eight_there():
    assert codepoint_to_utf16(FAMILY, 5) == 8
    assert utf16_to_codepoint(FAMILY, 2) == 1  # after the man
    assert utf16_to_codepoint(FAMILY, 3) == 2  # after the first joiner


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_outside_the_text_is_refused(index: int):
    with pytest.raises(ValueError, match=str(index)):
        utf16_to_codepoint("abc", index)
    with pytest.raises(ValueError, match=str(index)):
        codepoint_to_utf16("abc", index)


# ── Many selections ───────────────────────────────────────────────────────────────────

_SELECTIONS = 8


def cells_of(page: Page) -> list[tuple[int, int] | None]:
    """For each UTF-16 unit that the browser shows, the source that it stands for; the encoder counts."""
    cells: list[tuple[int, int] | None] = []
    for node in page.nodes:
        for index, character in enumerate(node.data):
            at = node.start
            place = None if at is None else node.whole or (at + index, at + index + 1)
            cells += [place] * units(character)
    return cells


def marked_in(cells: list[tuple[int, int] | None], source: str) -> tuple[int, int] | None:
    """From the first to the last piece of source that a selection touches, without spaces around."""
    touched = [cell for cell in cells if cell]
    if not touched:
        return None
    start, end = min(first for first, _ in touched), max(last for _, last in touched)
    inside = [index for index in range(start, end) if source[index] not in SPACES]
    return (inside[0], inside[-1] + 1) if inside else None


def draw_range(draw: random.Random, size: int) -> tuple[int, int]:
    """A selection of at least one unit; half of them are short, as people's are."""
    start = draw.randrange(size)
    longest = size - start
    return start, start + draw.randint(1, min(longest, 4) if draw.random() < 0.5 else longest)


@pytest.mark.parametrize("texts", [1_250, pytest.param(12_500, marks=pytest.mark.long)])
def test_many_thousand_selections_give_the_span_that_was_seen(texts: int):
    draw = random.Random(20261121)
    cases = formulas = crossing = 0
    while cases < texts * _SELECTIONS:
        is_plain = draw.random() < 0.3
        source = plain_text(draw) if is_plain else markdown_text(draw)
        page = Page(render_plain(source) if is_plain else render_answer(source))
        cells = cells_of(page)
        if not cells:
            continue
        shown = page.text.encode("utf-16-le")
        for _ in range(_SELECTIONS):
            start, end = draw_range(draw, len(cells))
            span = span_of(page, source, (start, end))
            assert span == marked_in(cells[start:end], source), (source, start, end)
            cases += 1
            if span is None:
                continue
            quote = source[span[0] : span[1]]
            # The server cuts the same text out by the browser's way of counting.
            there = [codepoint_to_utf16(source, place) for place in span]
            assert source.encode("utf-16-le")[2 * there[0] : 2 * there[1]].decode("utf-16-le") == quote
            touched = {cell for cell in cells[start:end] if cell}
            if len(touched) == 1 and span[1] - span[0] > 1:
                formulas += 1
                assert quote[0] in "$\\", "a formula is marked with its delimiters"
                assert quote[-1] in "$)]"
            elif not any(cell is None or cell[1] - cell[0] > 1 for cell in cells[start:end]) and sorted(
                first for first, _ in touched
            ) == list(range(min(touched)[0], max(touched)[0] + 1)):
                # Within one stretch, the quote is what the browser highlights.
                seen = shown[2 * start : 2 * end].decode("utf-16-le", "ignore")
                assert seen.strip("".join(SPACES)) in quote
            else:
                crossing += 1
    assert formulas > texts / 25, "formulas were among them"
    assert crossing > texts / 2.5, "and selections across paragraphs"


# ── Half a surrogate pair ─────────────────────────────────────────────────────────────


def submit_span(client: Client, project: Project, user: User, text: str, **changes: object) -> Any:
    """Submit a pair with one mark, from JSON as a browser sends it."""
    factories.make_comparison(project, [text, "Ten hours."])
    assignment = assign_next(project=project, annotator=user)
    token = next(
        token
        for token, pk in tokens_of(assignment).items()
        if assignment.comparison.completions.get(pk=pk).text == text
    )
    span = {
        "candidate": token,
        "category": "irrelevant",
        "start": 0,
        "end": 1,
        "quote": text[:1],
        "text_hash": text_hash(text),
    }
    fields = {
        "idempotency_key": str(uuid.uuid4()),
        "guideline": "1",
        "active_seconds": "7",
        "choice": "equal",
        "span_flags": json.dumps([{**span, **changes}]),
    }
    return client.post(reverse("submit", args=[project.slug, assignment.pk]), fields)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quote": "\ud83d"}, "half a surrogate pair"),
        ({"quote": "\udf75🍵"}, "half a surrogate pair"),
        ({"quote": "t"}, "does not stand on its quote"),
        ({"end": 2}, "does not stand on its quote"),
        ({"start": 1, "end": 2}, "does not stand on its quote"),
        ({"end": 99}, "is outside its response"),
    ],
)
def test_a_span_whose_quote_does_not_match_is_refused_with_a_clear_error(
    project: Project, alice: User, client: Client, changes: dict[str, object], words: str
):
    client.force_login(alice)
    answer = submit_span(client, project, alice, "🍵 tea", **changes)
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert not Judgment.objects.exists()


@pytest.mark.django_db
def test_a_span_whose_quote_matches_is_stored_as_it_stands(project: Project, alice: User, client: Client):
    client.force_login(alice)
    assert submit_span(client, project, alice, "🍵 tea").status_code == 302
    assert list(SpanFlag.objects.values_list("start", "end", "quote")) == [(0, 1, "🍵")]


@pytest.mark.django_db
def test_half_a_pair_that_a_model_wrote_is_stored_as_the_replacement_character(project: Project):
    (row,) = record_completions(
        prompt=factories.make_prompt(project),
        source=factories.make_source(),
        answers=[NewCompletion(text="a\ud83db 🍵")],
    )
    row.refresh_from_db()
    assert row.text == "a\ufffdb 🍵"
    assert row.text_hash == text_hash(row.text)
