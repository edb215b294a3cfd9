"""The hash of a prompt's content, and the split that follows from it."""

import hashlib
import json
import math
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.choices import Split
from annotation.models import bulk
from annotation.text.identity import content_hash, held_out_quota, in_held_out_share, split_new, text_hash


def test_the_hash_is_sha256_of_the_one_spelling_of_messages_and_context():
    spelled = (
        '{"context":[{"sentences":["Tea is a drink."],"title":"Tea"}],'
        '"messages":[{"content":"What is té?","role":"user"}]}'
    )
    digest = content_hash(
        [{"role": "user", "content": "What is té?"}], [{"title": "Tea", "sentences": ["Tea is a drink."]}]
    )
    assert digest == hashlib.sha256(spelled.encode("utf-8")).hexdigest()


@given(st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.text()})), st.lists(st.text()))
def test_any_text_is_hashed_as_pythons_own_encoder_spells_it(messages, sentences: list[str]):
    context = [{"title": "Tea", "sentences": sentences}]
    content = {"context": context, "messages": messages}
    spelled = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert content_hash(messages, context) == hashlib.sha256(spelled.encode()).hexdigest()


_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(st.none() | st.booleans() | _NUMBERS | st.text(), st.lists))
def test_what_an_import_stores_as_json_is_read_back_as_it_was(value):
    assert json.loads(bulk.json_value(value)) == value


def test_the_order_of_fields_does_not_matter_but_the_order_of_turns_does():
    first = {"role": "user", "content": "a"}
    second = {"role": "assistant", "content": "b"}
    assert content_hash([first]) == content_hash([{"content": "a", "role": "user"}])
    assert content_hash([first, second]) != content_hash([second, first])


def test_a_tenth_of_all_hashes_is_in_the_held_out_share():
    inside = sum(in_held_out_share(text_hash(str(number))) for number in range(5000))
    # Binomial(5000, 0.1): 500 ± 5 standard deviations of 21.2.
    assert 394 <= inside <= 606


def test_the_held_out_share_ends_at_exactly_a_tenth():
    # 0.1 of 16**16 is 1844674407370955161.6, in hex 0x1999999999999999.99…
    assert in_held_out_share("1999999999999000" + "0" * 48)
    assert not in_held_out_share("199999999999a000" + "0" * 48)


@pytest.mark.parametrize(
    ("prompts", "least"),
    [(0, 0), (1, 1), (3, 1), (4, 2), (10, 3), (11, 4), (60, 18), (63, 19), (66, 20), (67, 20), (10_000, 20)],
)
def test_a_small_project_holds_out_thirty_in_a_hundred_up_to_twenty(prompts: int, least: int):
    assert held_out_quota(prompts) == least


def test_the_smallest_hashes_are_held_out_until_the_quota_is_met():
    digests = [f"{number:x}" * 64 for number in range(2, 12)]
    # None of 0x22… to 0xbb… is below 0x19…; three of ten are wanted.
    sides = split_new(digests[::-1], prompts=0, held_out=0)
    assert [digest for digest in digests if sides[digest] == Split.HELD_OUT] == digests[:3]


def test_new_prompts_make_up_for_what_the_project_holds_out_too_little():
    sides = split_new(["5" * 64, "9" * 64, "3" * 64], prompts=7, held_out=1)
    # Ten prompts want three: two more.
    assert sides == {"3" * 64: Split.HELD_OUT, "5" * 64: Split.HELD_OUT, "9" * 64: Split.TRAIN}


def test_a_large_project_holds_out_about_a_tenth():
    sides = split_new([text_hash(str(number)) for number in range(5000)], prompts=0, held_out=0)
    assert 394 <= list(sides.values()).count(Split.HELD_OUT) <= 606


@given(st.lists(st.integers(min_value=1, max_value=40), max_size=12), st.randoms(use_true_random=False))
def test_however_prompts_arrive_the_quota_is_met_after_every_batch(batches: list[int], random: Random):
    held_out = total = 0
    for size in batches:
        digests = [text_hash(f"{random.random()} {total + place}") for place in range(size)]
        sides = split_new(digests, prompts=total, held_out=held_out)
        total += size
        held_out += list(sides.values()).count(Split.HELD_OUT)
        assert held_out >= min(math.ceil(Fraction(3, 10) * total), 20)
