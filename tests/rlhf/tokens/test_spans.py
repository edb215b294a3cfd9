"""Marked stretches on tokens and segments, and segments' rewards on tokens."""

import json
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotation.record.judgment import SpanPart
from tests.tiny import tiny_tokenizer
from training.rlhf.spans import (
    place_segment_rewards,
    segment,
    segment_end_tokens,
    segment_labels,
    token_labels,
    trim_spans,
)

# "One two. 👍" as byte-level tokens: the emoji is four bytes, each a token on one character; then the end.
OFFSETS = [(0, 3), (3, 7), (7, 8), (8, 9), (9, 10), (9, 10), (9, 10), (9, 10), (10, 10)]

stretches = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
# What the rules look at, put together at random, and any text at all.
_MATERIAL = [
    *"aAiI1 .,;:!?\n\r\"')([]`*>-…。，「」é❤👍🏽",
    *(
        "\u0301",
        "\u200d",
        "\ufe0f",
        "\u2028",
        "U.S.",
        " The ",
        "Mr.",
        "e.g.",
        "```",
        "\n```\n",
        "[1]",
        ". . .",
    ),
]
texts = st.lists(st.sampled_from(_MATERIAL), max_size=30).map("".join) | st.text(max_size=30)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def pieces(text: str, granularity="sub-sentence", **options) -> list[str]:
    return [text[start:end] for start, end in segment(text, granularity, **options)]


def test_a_token_is_labelled_where_it_shares_a_character_with_a_span() -> None:
    # "two" stands at 4:7; its token " two" begins with the space before it.
    assert token_labels(OFFSETS, [(4, 7)]).tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_a_span_that_stops_where_a_token_begins_leaves_that_token_alone() -> None:
    assert token_labels(OFFSETS, [(0, 3)]).tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0]


def test_all_the_bytes_of_an_emoji_are_labelled_and_the_end_token_never_is() -> None:
    assert token_labels(OFFSETS, [(9, 99)]).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0]


def test_a_token_of_white_space_is_labelled_like_any_other() -> None:
    assert token_labels(OFFSETS, [(8, 9)]).tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_spans_with_categories_give_labels_for_each_in_any_order_and_overlapping() -> None:
    by_category = token_labels(OFFSETS, [(7, 8, "style"), (0, 7, "fact"), (2, 4, "style")])
    assert {name: labels.int().tolist() for name, labels in by_category.items()} == {
        "style": [1, 1, 1, 0, 0, 0, 0, 0, 0],
        "fact": [1, 1, 0, 0, 0, 0, 0, 0, 0],
    }
    assert by_category["fact"].dtype == torch.bool


def test_a_snapshots_spans_need_no_conversion() -> None:
    span = SpanPart(completion="c", category="fact", start=4, end=7, quote="two")
    assert token_labels(OFFSETS, [span])["fact"].nonzero().tolist() == [[1]]


def test_named_categories_are_there_also_where_nothing_is_marked() -> None:
    by_category = token_labels(OFFSETS, [(0, 3, "fact")], categories=["style", "fact"])
    assert list(by_category) == ["style", "fact"]
    assert not by_category["style"].any()
    assert token_labels(OFFSETS, [], categories=["fact"])["fact"].tolist() == [False] * 9


def test_without_spans_nothing_is_labelled_and_an_empty_span_labels_nothing() -> None:
    assert token_labels(OFFSETS, []).tolist() == [0] * 9
    assert token_labels(OFFSETS, [(5, 5)]).tolist() == [0] * 9
    assert token_labels([], [(0, 3)]).tolist() == []


@pytest.mark.parametrize(
    ("spans", "options", "message"),
    [
        ([(4, 2)], {}, r"stretch 0, \(4, 2\), ends before it starts"),
        ([(-1, 2)], {}, "starts before 0"),
        ([(0, 2, "fact"), (0, 1)], {}, r"the span \(0, 1\) has no category"),
        ([(0, 1)], {"categories": ["fact"]}, r"the span \(0, 1\) has no category"),
        ([(0, 1, "style")], {"categories": ["fact"]}, "of category 'style', which is not among"),
        ([(0, 1, "style", 3)], {}, "is not"),
    ],
)
def test_spans_that_cannot_be_meant_are_refused(spans, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        token_labels(OFFSETS, spans, **options)


@given(st.lists(stretches, max_size=8), st.lists(stretches, max_size=5))
def test_labels_are_those_of_comparing_every_character(offsets, spans) -> None:
    marked = {place for start, end in spans for place in range(start, end)}
    expected = [int(not marked.isdisjoint(range(start, end))) for start, end in offsets]
    assert token_labels(offsets, spans).tolist() == expected
    assert segment_labels(offsets, spans).tolist() == expected


def test_a_span_loses_the_white_space_at_its_edges_unless_it_is_nothing_else() -> None:
    assert trim_spans("One two.  Three", [(3, 9, "a"), (8, 10, "b"), (0, 3, "c")]) == [
        (4, 8, "a"),
        (8, 10, "b"),
        (0, 3, "c"),
    ]


def test_a_reward_lands_on_the_last_token_of_its_segment() -> None:
    # "One two." ends at 8 with the token "."; " 👍" ends at 10 with the emoji's fourth byte.
    assert segment_end_tokens(OFFSETS, [8, 10]).tolist() == [2, 7]
    placed = place_segment_rewards(OFFSETS, [8, 10], [0.5, -1.0])
    assert placed.tolist() == [0, 0, 0.5, 0, 0, 0, 0, -1.0, 0]


def test_segments_that_end_within_one_token_add_up() -> None:
    # One token holds "a.b." and the two segments that end at 2 and 4.
    assert place_segment_rewards([(0, 4), (4, 6)], [2, 4, 6], [1, 2, 4]).tolist() == [3, 4]


def test_a_mark_and_line_break_in_one_token_end_the_segment_of_the_mark() -> None:
    # "Hi" ".\n\n" "Yo": the segment "Hi." ends inside the second token.
    assert segment_end_tokens([(0, 2), (2, 5), (5, 7)], [3, 7]).tolist() == [1, 2]


def test_a_segment_beyond_the_last_token_ends_with_it() -> None:
    assert segment_end_tokens([(0, 3), (3, 7), (7, 7)], [5, 20, 30]).tolist() == [1, 1, 1]


def test_tokens_without_width_end_no_segment_wherever_they_stand() -> None:
    offsets = [(0, 0), (0, 2), (2, 2), (2, 4), (0, 0)]
    assert segment_end_tokens(offsets, [2, 4]).tolist() == [1, 3]


def test_without_any_text_the_last_token_takes_the_reward() -> None:
    assert place_segment_rewards([(0, 0), (0, 0)], [4], [2.0]).tolist() == [0, 2.0]


def test_a_segment_before_all_tokens_ends_with_the_first_that_has_text() -> None:
    # A tokenizer that drops the leading white space of "   a".
    assert segment_end_tokens([(0, 0), (3, 4)], [2, 4]).tolist() == [1, 1]


def test_no_segments_give_no_reward() -> None:
    assert place_segment_rewards(OFFSETS, [], []).tolist() == [0] * 9
    assert place_segment_rewards([], [], []).tolist() == []


def test_rewards_keep_their_type_and_their_gradient() -> None:
    rewards = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    placed = place_segment_rewards(OFFSETS, [8, 10], rewards)
    (placed * torch.arange(9)).sum().backward()
    assert placed.dtype == torch.float64
    assert rewards.grad.tolist() == [2, 7]
    assert place_segment_rewards(OFFSETS, [8], torch.tensor([3])).dtype == torch.float32


@pytest.mark.parametrize(
    ("offsets", "ends", "rewards", "message"),
    [
        ([(0, 2)], [2], [1, 2], "1 segments need as many rewards"),
        ([], [2], [1], "no token to end 1 segments on"),
        ([(0, 2)], [0], [1], "a segment ends at 0"),
        ([(0, 2), (3, 4), (1, 2)], [2], [1], "run backwards at token 2, which starts at 1"),
        ([(2, 0)], [2], [1], "ends before it starts"),
    ],
)
def test_rewards_that_cannot_be_placed_are_refused(offsets, ends, rewards, message) -> None:
    with pytest.raises(ValueError, match=message):
        place_segment_rewards(offsets, ends, rewards)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(1, 20), st.integers(-9, 9)), max_size=6),
)
def test_rewards_are_those_of_a_search_token_by_token_and_their_sum_is_kept(widths, segments) -> None:
    places = [0]
    for width in widths:
        places.append(places[-1] + width)
    offsets = list(pairwise(places))
    ends, rewards = [end for end, _ in segments], [reward for _, reward in segments]
    expected = [0.0] * len(offsets)
    for end, reward in segments:
        holding = [t for t, (start, stop) in enumerate(offsets) if start < stop and start < end]
        expected[holding[-1] if holding else -1] += reward
    placed = place_segment_rewards(offsets, ends, rewards)
    assert placed.tolist() == expected
    assert placed.sum() == sum(rewards)


def test_sub_sentences_end_at_marks_and_white_space_opens_the_next() -> None:
    text = "First, this; then that: yes. Really? Oh!"
    assert pieces(text) == ["First,", " this;", " then that:", " yes.", " Really?", " Oh!"]
    assert pieces(text, "sentence") == ["First, this; then that: yes.", " Really?", " Oh!"]
    assert segment(text, "whole") == [(0, len(text))]


def test_white_space_at_the_end_closes_the_last_segment() -> None:
    assert pieces("  One. Two. \n") == ["  One.", " Two. \n"]


@pytest.mark.parametrize(
    "text",
    [
        "Mr. Smith met Dr. J. K. Rowling of Acme Inc. in the U.S. Senate",
        "A sum of 3.14 and 1.000.000 at 10.30",
        "See https://example.com/a.b?c=1 and e.g. file.txt, i.e. No. 5 in vol. 2",
        "It ran from c. 1900 to Jan. 5, at 9 a.m. sharp",
        "Well... and then… nothing",
        '"Why?" he asked, and "Stop!" she said',
        "1. First item",
        "- **a. First** item",
        "Use `a. B! C` here",
    ],
)
def test_a_sentence_does_not_end_within(text: str) -> None:
    assert pieces(text, "sentence") == [text]


@pytest.mark.parametrize("text", ["It costs 1,000 or 1:30", "at http://a.b/c;d,e?f", "a:b;c", "1，000"])
def test_a_sub_sentence_does_not_end_within(text: str) -> None:
    assert pieces(text) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He left the U.S. She stayed.", ["He left the U.S.", " She stayed."]),
        ("So did I. The end.", ["So did I.", " The end."]),
        ("Pi is 3.14. It goes on.", ["Pi is 3.14.", " It goes on."]),
        ("No. It is not.", ["No.", " It is not."]),
        ("See example.com. Alice did.", ["See example.com.", " Alice did."]),
        ("lower case. so it goes.", ["lower case.", " so it goes."]),
        ('He said "no." Then he (really!) left.', ['He said "no."', " Then he (really!) left."]),
        ("So?! Yes... And.", ["So?!", " Yes...", " And."]),
        ("Known.[1][2] True.", ["Known.[1][2]", " True."]),
        ("**Bold.** Plain.", ["**Bold.**", " Plain."]),
        ("这是。你好！「好吗？」是的", ["这是。", "你好！", "「好吗？」", "是的"]),
        ("यह है। वह है।", ["यह है।", " वह है।"]),
        ("Great! 👍🏽 Yes. ❤️", ["Great!", " 👍🏽 Yes.", " ❤️"]),
        ("Title\n\n1. One.\r\n2. Two", ["Title", "\n\n1. One.", "\r\n2. Two"]),
        ("Wait . . . what", ["Wait . . . what"]),
    ],
)
def test_a_sentence_ends_after(text: str, expected: list[str]) -> None:
    assert pieces(text, "sentence") == expected


def test_sub_sentences_end_at_an_ellipsis_and_within_a_quoted_question_where_sentences_go_on() -> None:
    assert pieces('Well... and "Why?" he asked.') == ["Well...", ' and "Why?"', " he asked."]


def test_wide_commas_end_sub_sentences() -> None:
    assert pieces("他说，是的；好") == ["他说，", "是的；", "好"]


def test_a_fenced_block_is_one_segment() -> None:
    code = "```python\nx = 1; y = 2\n\nprint(x, y)\n```"
    assert pieces(f"Look:\n{code}\nDone, see.") == ["Look:", f"\n{code}", "\nDone,", " see."]
    assert pieces("Look:\n~~~\na. B\nc, d") == ["Look:", "\n~~~\na. B\nc, d"]


def test_no_segment_is_punctuation_alone() -> None:
    assert pieces('"Yes." --- ... No! --') == ['"Yes."', " --- ... No! --"]
    assert pieces("?! ...") == ["?! ..."]


def test_a_text_without_characters_has_no_segments_and_white_space_is_one() -> None:
    for granularity in ("sub-sentence", "sentence", "whole"):
        assert pieces("", granularity) == []
        assert pieces(" \n ", granularity) == [" \n "]


def test_short_sub_sentences_are_joined_within_their_sentence() -> None:
    text = "On May 3, 1777, at the gate of Paris, he fell. Sad, yes."
    # "On May 3," has three words, "1777," one, "at the gate of Paris," five, "he fell." two.
    assert pieces(text, min_words=5) == ["On May 3, 1777, at the gate of Paris, he fell.", " Sad, yes."]
    assert pieces(text, min_words=3) == [
        "On May 3,",
        " 1777, at the gate of Paris, he fell.",
        " Sad, yes.",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"granularity": "word"}, "'word' is not one of sub-sentence, sentence, whole"),
        ({"min_words": 0}, "at least 1"),
    ],
)
def test_a_granularity_that_does_not_exist_is_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        segment("a", **options)


@given(texts, st.sampled_from(["sub-sentence", "sentence", "whole"]), st.integers(1, 4))
def test_segments_are_a_partition_of_the_text(text, granularity, min_words) -> None:
    bounds = segment(text, granularity, min_words=min_words)
    assert "".join(text[start:end] for start, end in bounds) == text
    assert all(start < end for start, end in bounds)
    assert all(left[1] == other[0] for left, other in pairwise(bounds))


@given(texts, st.integers(1, 4))
def test_sub_sentence_boundaries_include_the_sentence_boundaries(text, min_words) -> None:
    fine = {end for _, end in segment(text, "sub-sentence", min_words=min_words)}
    assert {end for _, end in segment(text, "sentence")} <= fine


@given(texts, st.sampled_from(["sub-sentence", "sentence"]))
def test_a_segment_by_itself_is_one_segment(text, granularity) -> None:
    for piece in pieces(text, granularity):
        assert pieces(piece, granularity) == [piece]


@given(texts)
def test_no_boundary_parts_a_character_from_what_combines_with_it(text) -> None:
    for _, end in segment(text)[:-1]:
        assert not unicodedata.category(text[end]).startswith("M")
        assert text[end] not in "\u200d🏽"
        assert text[end - 1 : end + 1] != "\r\n"


def test_long_texts_of_nothing_but_marks_take_no_longer_than_their_length_asks() -> None:
    # 150,000 characters each; a search that starts over at every mark would take many minutes.
    for text in (
        "!\n" * 75_000,
        "`" * 150_000,
        "." * 150_000,
        ". " * 75_000,
        "[1]" * 50_000,
        "```\n" * 40_000,
    ):
        assert len(segment(text)) >= 1


def qa_feedback(data: Path) -> list[tuple[str, list[tuple[int, int, str]]]]:
    items = json.loads((data / "qa_feedback" / "feedback.json").read_text())
    return [
        (
            item["prediction 1"],
            [(error["start"], error["end"], error["error type"]) for error in item["feedback"]["errors"]],
        )
        for item in items
    ]


def test_every_error_of_qa_feedback_lies_on_tokens_and_segments_that_hold_its_text(
    tokenizer, data: Path
) -> None:
    count = 0
    for text, spans in qa_feedback(data):
        offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
        for start, end, category in spans:
            count += 1
            quote = text[start:end].strip()
            tokens = token_labels(offsets, [(start, end, category)])[category].nonzero().flatten().tolist()
            assert text[start:end] in text[offsets[tokens[0]][0] : offsets[tokens[-1]][1]]
            for granularity in ("sub-sentence", "sentence", "whole"):
                segments = segment(text, granularity)
                held = (
                    segment_labels(segments, [(start, end, category)])[category].nonzero().flatten().tolist()
                )
                assert held == list(range(held[0], held[-1] + 1))
                assert quote in text[segments[held[0]][0] : segments[held[-1]][1]]
    assert count == 958 or len(qa_feedback(data)) < 350


def test_segments_of_real_answers_end_on_tokens_that_end_where_they_do(tokenizer, data: Path) -> None:
    """Byte-level tokens part before white space, so no reward waits for the next segment's token."""
    for text, _ in qa_feedback(data):
        offsets = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
        ends = [end for _, end in segment(text)]
        last = segment_end_tokens(offsets, ends).tolist()
        assert [offsets[token][1] for token in last] == ends
        assert len(set(last)) == len(last)
