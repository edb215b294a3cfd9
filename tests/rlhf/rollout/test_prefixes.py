"""Prefixes that were read before are not read again, which changes nothing but the time."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rlhf.rollout.test_batching import assert_same
from tests.rlhf.rollout.test_engine import alone, disturb, engine_of, request_of, run
from tests.tiny import tiny_model_folder
from training.contract.methods.common import LoraSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.cache import Prefixes

OPENING = [0, *(70 + number % 19 for number in range(49))]
ADAPTERS = [None, "low", "other", "whole"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    """The base, two adapters and one that is all of the weights, each of which writes something else."""
    loaded = Backbone.load(folder, device="cpu", dtype=torch.float32)
    for seed, (name, settings) in enumerate(
        {"low": LoraSettings(rank=4), "other": LoraSettings(rank=2)}.items()
    ):
        loaded.add_adapter(name, settings, seed=seed)
        disturb(loaded, name, seed)
    loaded.add_adapter("whole", None, seed=0)
    disturb(loaded, "whole", 9, scale=0.05)
    return loaded


def ask(engine: Any, *requests: Any) -> list[list[Any]]:
    handles = [engine.submit([request]) for request in requests]
    run(engine)
    return [handle.samples for handle in handles]


def in_common(first: list[int], other: list[int]) -> int:
    """Return the number of tokens that both begin with."""
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, other, strict=False))))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_next_turn_of_a_conversation_reads_only_what_is_new(backbone: Backbone, adapter: str | None):
    engine = engine_of(backbone, keep_tokens=4000, steady=True)
    prompt = list(OPENING)
    for turn in range(4):
        read = engine.tokens_read
        [[sample]] = ask(engine, request_of(prompt, adapter, seed=turn))
        assert_same([[sample]], [alone(backbone, request_of(prompt, adapter, seed=turn))])
        # The last token of a response was drawn and never run; behind it come the words of the next message.
        new = len(prompt) if turn == 0 else 1 + 6
        assert engine.tokens_read - read == new
        prompt += [*sample.token_ids, *[80 + turn] * 6]
    assert engine.tokens_reused == sum(len(OPENING) + turn * (12 + 6) + 11 for turn in range(3))


def test_checkpoints_that_continue_with_one_response_share_nothing_but_the_text(backbone: Backbone):
    engine = engine_of(backbone, keep_tokens=4000, steady=True)
    first = ask(engine, *(request_of(OPENING, adapter, seed=1) for adapter in ADAPTERS))
    chosen = first[1][0].token_ids
    prompt = [*OPENING, *chosen, 90, 91, 92]
    read = engine.tokens_read
    second = [request_of(prompt, adapter, seed=2) for adapter in ADAPTERS]
    assert_same(ask(engine, *second), [alone(backbone, request) for request in second])
    # Who wrote the response knows it; the others have read the opening alone, and draw no other beginning.
    others = [sample.token_ids for [sample] in (first[0], first[2], first[3])]
    known = [in_common(chosen, other) for other in others]
    assert max(known) < len(chosen)
    assert engine.tokens_read - read == (1 + 3) + sum(len(chosen) - same + 3 for same in known)


@pytest.mark.parametrize("pieces", [1, 7, 20])
def test_a_long_message_behind_a_known_beginning_is_read_in_pieces(backbone: Backbone, pieces: int):
    engine = engine_of(backbone, keep_tokens=4000, steady=True, read_at_once=pieces)
    [[sample]] = ask(engine, request_of(OPENING, "low", seed=1))
    prompt = [*OPENING, *sample.token_ids, *[85, 86, 87] * 10]
    read = engine.tokens_read
    # Two samples of it, and another conversation beside them.
    first, two, third = (
        request_of(prompt, "low", seed=2),
        request_of(prompt, "low", seed=3),
        request_of([0, 75], "other"),
    )
    assert_same(ask(engine, first, two, third), [alone(backbone, each) for each in (first, two, third)])
    assert engine.tokens_read - read == 1 + 30 + 2


def test_the_same_prompt_once_more_reads_its_last_token(backbone: Backbone):
    engine = engine_of(backbone, keep_tokens=4000)
    first = ask(engine, request_of(OPENING, seed=4))
    read = engine.tokens_read
    assert_same(ask(engine, request_of(OPENING, seed=4)), first)
    assert engine.tokens_read - read == 1


def test_without_places_nothing_is_kept(backbone: Backbone):
    engine = engine_of(backbone)
    for _ in range(2):
        ask(engine, request_of(OPENING, seed=4))
    assert engine.tokens_read == 2 * len(OPENING)
    assert engine.tokens_reused == 0


def test_what_was_called_off_is_known_as_far_as_it_came(backbone: Backbone):
    engine = engine_of(backbone, keep_tokens=4000)
    handle = engine.submit([request_of(OPENING, seed=4, max_tokens=100)])
    for _ in range(20):
        engine.step()
    engine.cancel(handle)
    written = handle.samples[0].token_ids
    assert 10 < len(written) < 100
    read = engine.tokens_read
    again = request_of([*OPENING, *written, 77], seed=5)
    assert_same(ask(engine, again), [alone(backbone, again)])
    assert engine.tokens_read - read == 2


def test_numbers_that_are_not_finite_are_not_kept(folder: Path):
    backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
    backbone.add_adapter("broken", LoraSettings(rank=2), seed=0)
    disturb(backbone, "broken", 1)
    engine = engine_of(backbone, keep_tokens=4000)
    state = {key: value.clone() for key, value in backbone.adapter_state("broken").items()}
    backbone.restore("broken", {key: torch.full_like(value, torch.nan) for key, value in state.items()}, {})
    handle = engine.submit([request_of(OPENING, "broken", seed=1)])
    run(engine)
    with pytest.raises(FloatingPointError):
        _ = handle.samples
    backbone.restore("broken", state, {})
    again = request_of(OPENING, "broken", seed=1)
    assert_same(ask(engine, again), [alone(backbone, again)])
    assert engine.tokens_reused == 0


def layers(length: int) -> Any:
    return lambda: {0: (torch.zeros(1, length, 1), torch.zeros(1, length, 1))}


def test_those_used_longest_ago_make_place():
    prefixes = Prefixes(most_tokens=100)
    first, second, third = ([number] * 40 for number in (1, 2, 3))
    for ids in (first, second):
        prefixes.add(None, ids, layers(40))
    assert prefixes.longest(None, [*first, 9]).length == 40
    prefixes.add(None, third, layers(40))
    assert prefixes.tokens == 80
    assert [prefixes.longest(None, [*ids, 9]).length for ids in (first, second, third)] == [40, 0, 40]


def test_a_sequence_takes_the_place_of_what_it_continues():
    prefixes = Prefixes(most_tokens=1000)
    prefixes.add("low", [1] * 40, layers(40))
    prefixes.add("other", [1] * 40, layers(40))
    prefixes.add("low", [1] * 60, layers(60))
    assert prefixes.tokens == 100
    # And what is known already is not kept twice.
    prefixes.add("low", [1] * 50, layers(50))
    assert prefixes.tokens == 100


def test_what_is_longer_than_all_places_is_not_kept():
    prefixes = Prefixes(most_tokens=100)
    prefixes.add(None, [1] * 101, layers(101))
    assert prefixes.tokens == 0


sequences = st.lists(st.integers(1, 2), min_size=30, max_size=45)


@given(stored=st.lists(st.tuples(st.sampled_from([None, "low"]), sequences), max_size=8), prompt=sequences)
def test_the_longest_beginning_is_found(stored: list[tuple[str | None, list[int]]], prompt: list[int]):
    prefixes = Prefixes(most_tokens=10_000)
    for adapter, ids in stored:
        prefixes.add(adapter, ids, layers(len(ids)))
    of_base = [ids for adapter, ids in stored if adapter is None and len(ids) >= 32]
    longest = max((in_common(ids, prompt[:-1]) for ids in of_base), default=0)
    assert prefixes.longest(None, prompt).length == (longest if longest >= 32 else 0)
