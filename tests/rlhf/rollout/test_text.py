"""From tokens to text while it is being written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny import END, tiny_tokenizer
from training.rlhf.rollout.samples import TextStream

TOKENIZER = tiny_tokenizer()
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return ids


def stream(ids: list[int], *stop: str, complete: bool = True) -> tuple[TextStream, list[str]]:
    """The stream after all ids, or after the stop string, and what it gave at each."""
    text = TextStream(TOKENIZER, stop)
    deltas = []
    for id in ids:
        deltas.append(text.push(id))
        if text.stopped:
            break
    deltas.append(text.finish(complete=complete))
    return text, deltas


# A family joined by zero-width joiners, a flag, a combining accent, Arabic, Chinese.
@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧‍👦!", "🇫🇷", "e\u0301a", "مرحبا", "漢字", "a  b\r\n\tc", "naïve — “q”"]
)
def test_a_character_of_several_tokens_is_given_whole(text: str):
    streamed, deltas = stream(ids_of(text))
    assert "".join(deltas) == streamed.text == text
    assert not any(REPLACEMENT in delta for delta in deltas)


def test_text_is_given_as_soon_as_it_is_certain():
    # The emoji's four bytes are four tokens; only the last makes it a character.
    ids = ids_of("😀")
    assert len(ids) == 4
    _, deltas = stream(ids)
    assert deltas == ["", "", "", "😀", ""]


@given(st.lists(st.integers(3, len(TOKENIZER) - 1), max_size=40))
def test_the_pieces_of_any_tokens_make_the_decoded_whole(ids: list[int]):
    streamed, deltas = stream(ids)
    assert "".join(deltas) == streamed.text == TOKENIZER.decode(ids)
    assert streamed.visible_tokens == len(ids)


def test_a_character_cut_off_by_the_token_limit_is_left_out():
    streamed, deltas = stream(ids_of("ok 😀")[:-1], complete=False)
    assert streamed.text == "".join(deltas) == "ok "


def test_bytes_that_are_no_character_stay_when_the_model_ended_there_itself():
    streamed, _ = stream(ids_of("😀")[:2])
    assert streamed.text == REPLACEMENT


def test_special_tokens_are_no_text():
    streamed, _ = stream([*ids_of("a"), TOKENIZER.convert_tokens_to_ids(END), *ids_of("b")])
    assert streamed.text == "ab"


def test_a_stop_string_across_tokens_ends_the_text_before_it():
    ids = ids_of("xqz STOP tail")
    assert len(ids_of("STOP")) > 1
    streamed, deltas = stream(ids, "STOP")
    assert streamed.stopped
    assert "".join(deltas) == streamed.text == "xqz "
    # What may begin the stop string was held back until it was certain.
    assert not any("S" in delta for delta in deltas)


def test_a_stop_string_inside_one_token_cuts_that_token():
    # "answer" is one token of this tokenizer; a stop string can lie in its middle.
    ids = ids_of(" the")
    assert len(ids) == 1
    streamed, _ = stream(ids, "h")
    assert streamed.text == " t"
    assert streamed.visible_tokens == 1


def test_what_only_began_a_stop_string_is_given_in_the_end():
    streamed, deltas = stream(ids_of("abcST"), "STOP")
    assert deltas[-1] == "ST"
    assert streamed.text == "abcST"
    assert not streamed.stopped


def test_a_stop_string_of_several_bytes_per_character_is_found():
    streamed, _ = stream(ids_of("eins 🛑 zwei"), "🛑")
    assert streamed.text == "eins "


def test_tokens_past_a_stop_string_are_not_visible():
    ids = ids_of("abSTOP")
    streamed, _ = stream(ids, "STOP")
    shown = ids[: streamed.visible_tokens]
    assert TOKENIZER.decode(shown) == "ab"


@given(
    text=st.text(alphabet="ab😀 ", max_size=30),
    stops=st.lists(st.text(alphabet="ab😀 ", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(text: str, stops: list[str]):
    streamed, deltas = stream(ids_of(text), *stops)
    # By brute force: read the text character by character; the first stop string that is
    # complete ends it, and of several complete at once the one that begins first.
    expected = text
    for end in range(1, len(text) + 1):
        begins = [text[:end].find(stop) for stop in stops if stop in text[:end]]
        if begins:
            expected = text[: min(begins)]
            break
    # Two stop strings may both be completed by one token of several characters: then the one
    # that begins first counts, which is at most as far as the one found above.
    assert expected.startswith(streamed.text)
    assert streamed.text in {text[: text.find(stop)] for stop in stops if stop in text} | {expected}
    assert "".join(deltas) == streamed.text
    assert streamed.stopped == any(stop in text for stop in stops)
    assert not any(stop in streamed.text for stop in stops)
