"""The hash of a prompt's content, and the split that follows from it."""

import hashlib
import json

from hypothesis import given
from hypothesis import strategies as st

from annotation import bulk
from annotation.choices import Split
from annotation.content import content_hash, split_of, text_hash


def test_the_hash_is_sha256_of_the_one_spelling_of_messages_and_context():
    spelled = (
        '{"context":[{"sentences":["Tea is a drink."],"title":"Tea"}],'
        '"messages":[{"content":"What is té?","role":"user"}]}'
    )
    found = content_hash(
        [{"role": "user", "content": "What is té?"}], [{"title": "Tea", "sentences": ["Tea is a drink."]}]
    )
    assert found == hashlib.sha256(spelled.encode("utf-8")).hexdigest()


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


def test_a_tenth_of_all_hashes_is_held_out():
    sides = [split_of(text_hash(str(number))) for number in range(5000)]
    # Binomial(5000, 0.1): 500 ± 5 standard deviations of 21.2.
    assert 394 <= sides.count(Split.HELD_OUT) <= 606


def test_the_split_is_decided_at_exactly_a_tenth():
    # 0.1 of 16**16 is 1844674407370955161.6, in hex 0x1999999999999999.99…
    assert split_of("1999999999999000" + "0" * 48) == Split.HELD_OUT
    assert split_of("199999999999a000" + "0" * 48) == Split.TRAIN
