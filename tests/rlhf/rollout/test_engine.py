"""Many requests and adapters in one batch: each sample is what it is alone, trouble is each one's own."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rlhf.rollout.test_batching import assert_same
from tests.tiny import tiny_model_folder
from training.contract import ContractError
from training.contract.methods.common import LoraSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.cache import KeyCache
from training.rlhf.rollout.engine import RolloutEngine
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import Delta, Handle, SampleRequest, end_tokens
from training.rlhf.sampling import SamplingParameters

SHAPES = {
    "narrow": LoraSettings(rank=1, targets=("q_proj",)),
    "wide": LoraSettings(rank=16),
    "late": LoraSettings(rank=4, layers=1),
    "attention": LoraSettings(rank=3, alpha=2.0, targets=("k_proj", "v_proj", "o_proj"), layers=2),
}
"""Adapters of different ranks, on different layers of different blocks."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    """The base, four adapters that change what it writes, and one that is all of the weights."""
    loaded = Backbone.load(folder, device="cpu", dtype=torch.float32)
    for seed, (name, settings) in enumerate(SHAPES.items()):
        loaded.add_adapter(name, settings, seed=seed)
        disturb(loaded, name, seed)
    loaded.add_adapter("whole", None, seed=0)
    disturb(loaded, "whole", 9, scale=0.05)
    return loaded


def disturb(backbone: Backbone, name: str, seed: int, *, scale: float = 0.3) -> None:
    generator = torch.Generator().manual_seed(seed)
    state = backbone.adapter_state(name)
    drawn = {
        key: value + scale * torch.randn(value.shape, generator=generator) for key, value in state.items()
    }
    backbone.restore(name, drawn, {})


def engine_of(backbone: Backbone, **choices: Any) -> RolloutEngine:
    return RolloutEngine(backbone, ends=end_tokens(backbone), **choices)


def request_of(
    prompt: list[int], adapter: str | None = None, *, seed: int = 0, place: int = 0, **choices: Any
) -> SampleRequest:
    parameters = SamplingParameters(**{"max_tokens": 12, **choices})
    return SampleRequest(
        prompt=tuple(prompt), parameters=parameters, seed=seed, adapter=adapter, place=(place, 0)
    )


def run(engine: RolloutEngine) -> None:
    while engine.busy:
        engine.step()


def alone(backbone: Backbone, request: SampleRequest) -> list[Any]:
    parameters = replace(request.parameters, seed=request.seed)
    return rollout(backbone, [list(request.prompt)], parameters, adapter=request.adapter)[0]


def drawn_request(chance: random.Random, names: list[str | None]) -> SampleRequest:
    """A request like those of strangers: any adapter, prompt, length and way of sampling."""
    length = chance.choice([1, 2, 5, 30])
    return request_of(
        [0, *(chance.randrange(3, 300) for _ in range(length))],
        chance.choice(names),
        seed=chance.randrange(1000),
        max_tokens=chance.choice([1, 3, 20]),
        temperature=chance.choice([0, 0.7, 1.0]),
        top_p=chance.choice([0.9, 1.0]),
        top_k=chance.choice([0, 7]),
        stop=chance.choice([(), ("e",)]),
        alternatives=chance.choice([None, 2]),
    )


@pytest.mark.parametrize("seed", range(6))
def test_samples_of_many_adapters_in_one_batch_are_those_that_each_gives_alone(backbone: Backbone, seed: int):
    chance = random.Random(seed)
    names: list[str | None] = [None, *SHAPES, "whole"]
    requests = [drawn_request(chance, names) for _ in range(14)]
    engine = engine_of(backbone, max_rows=chance.choice([3, 8, None]), steady=chance.random() < 0.5)
    handles: list[Handle] = []
    for request in requests:
        # Some come while others are being written.
        handles.append(engine.submit([request]))
        for _ in range(chance.randrange(3)):
            engine.step()
    run(engine)
    expected = [alone(backbone, single) for single in requests]
    assert_same([handle.samples for handle in handles], expected)
    # What the adapters write differs, so that a mix-up would show.
    texts = {tuple(alone(backbone, request_of([0, 65, 66], name))[0].token_ids) for name in names}
    assert len(texts) == len(names)


def test_rows_of_two_adapters_and_of_the_base_are_one_pass(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
):
    passes: list[int] = []
    original = Backbone.packed_states

    def spy(self: Backbone, input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        passes.append(input_ids.shape[1])
        return original(self, input_ids, *arguments)

    monkeypatch.setattr(Backbone, "packed_states", spy)
    engine = engine_of(backbone)
    # Ordered so that rows of one adapter do not stand beside each other.
    names = ["wide", None, "late", "wide", None, "late"]
    handles = [
        engine.submit([request_of([0, 70 + number], name, max_tokens=4, seed=number)])
        for number, name in enumerate(names)
    ]
    run(engine)
    # Six prompts of two tokens in one pass, then three passes of six tokens.
    assert passes == [12, 6, 6, 6]
    assert all(len(handle.samples[0].tokens) == 4 for handle in handles)


def test_an_adapter_that_is_all_of_the_weights_is_mixed_with_none(backbone: Backbone):
    with (
        pytest.raises(ContractError, match="'whole' is all of the weights"),
        backbone.mixing([("wide", 2), ("whole", 1)]),
    ):
        pass


def test_a_prompt_is_read_once_for_each_adapter_that_answers_it(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
):
    read: list[int] = []
    original = KeyCache.read

    def spy(self: KeyCache, pieces: list[tuple[int, int]]) -> Any:
        read.extend(length for _, length in pieces)
        return original(self, pieces)

    monkeypatch.setattr(KeyCache, "read", spy)
    engine = engine_of(backbone)
    prompt = [0, 65, 66, 67]
    first = engine.submit([request_of(prompt, "wide", seed=seed) for seed in (1, 2)])
    engine.step()
    # Another client asks the same while it is being answered; then one asks another checkpoint.
    second = engine.submit([request_of(prompt, "wide", seed=1)])
    third = engine.submit([request_of(prompt, "late", seed=1)])
    run(engine)
    assert read == [4, 4]
    assert second.samples[0].token_ids == first.samples[0].token_ids
    assert third.samples[0].token_ids != first.samples[0].token_ids
    # Nobody needs it any more: the next one reads it again.
    engine.submit([request_of(prompt, "wide")])
    run(engine)
    assert read == [4, 4, 4]


def test_a_cancelled_request_ends_and_the_others_are_not_disturbed(backbone: Backbone):
    engine = engine_of(backbone, max_rows=2)
    kept_wanted = request_of([0, 80, 81], "wide", seed=5, max_tokens=20)
    dropped = engine.submit([request_of([0, 70], "late", max_tokens=20)])
    kept_handle = engine.submit([kept_wanted])
    waiting = engine.submit([request_of([0, 71], max_tokens=20)])
    for _ in range(4):
        engine.step()
    engine.cancel(dropped)
    engine.cancel(waiting)
    assert dropped.finished
    assert dropped.samples[0].finish_reason == "cancelled"
    assert 0 < len(dropped.samples[0].tokens) < 20
    assert waiting.samples[0].tokens == ()
    run(engine)
    assert_same([kept_handle.samples], [alone(backbone, kept_wanted)])


def test_what_a_listener_raises_ends_its_own_request_only(backbone: Backbone):
    deltas: list[Delta] = []

    def bad(delta: Delta) -> None:
        deltas.append(delta)
        if len(deltas) == 3:
            raise OSError("nobody listens")

    engine = engine_of(backbone)
    other_wanted = request_of([0, 80, 81], seed=5, max_tokens=20)
    broken = engine.submit([request_of([0, 70], max_tokens=20)], bad)
    other = engine.submit([other_wanted])
    run(engine)
    assert len(deltas) == 3
    with pytest.raises(OSError, match="nobody listens"):
        _ = broken.samples
    assert_same([other.samples], [alone(backbone, other_wanted)])


def test_an_adapter_that_gives_no_numbers_leaves_no_trace_in_the_places_that_it_held(folder: Path):
    backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
    backbone.add_adapter("broken", LoraSettings(rank=2), seed=0)
    state = backbone.adapter_state("broken")
    engine = engine_of(backbone, max_rows=2)
    good = request_of([0, 80, 81], seed=5, max_tokens=30)
    first = engine.submit([good])
    second = engine.submit([request_of([0, 66], "broken", max_tokens=30)])
    for _ in range(4):
        engine.step()
    # In the middle of its answer: its keys and values become NaN where they are kept.
    backbone.restore("broken", {key: value * math.nan for key, value in state.items()}, {})
    later = [engine.submit([request_of([0, 90, number], seed=number, max_tokens=30)]) for number in range(3)]
    read = engine.submit([request_of([0, 67, 68, 69], "broken")])
    last = engine.submit([good])
    run(engine)
    for handle in (second, read):
        with pytest.raises(FloatingPointError, match="not finite"):
            _ = handle.samples
    expected = [alone(backbone, row.wanted) for handle in (first, *later, last) for row in handle.rows]
    assert_same([handle.samples for handle in (first, *later, last)], expected)


def test_a_pass_that_fails_costs_only_the_request_that_it_fails_for(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
):
    original = Backbone.packed_states
    failures: list[int] = []

    def failing(self: Backbone, input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        # Token 299 stands for a text that the machine has no memory for, whatever is beside it.
        if 299 in input_ids[0].tolist():
            failures.append(input_ids.shape[1])
            raise MemoryError("no memory")
        return original(self, input_ids, *arguments)

    requests = [request_of([0, 70 + number], "wide", seed=number, max_tokens=15) for number in range(3)]
    expected = [alone(backbone, request) for request in requests]
    assert all(299 not in sample.token_ids for [sample] in expected)
    monkeypatch.setattr(Backbone, "packed_states", failing)
    engine = engine_of(backbone)
    deltas: list[Delta] = []
    handles = [engine.submit([request], deltas.append) for request in requests[:2]]
    for _ in range(5):
        engine.step()
    bad = engine.submit([request_of([0, 299])])
    handles.append(engine.submit([requests[2]]))
    run(engine)
    with pytest.raises(MemoryError):
        _ = bad.samples
    assert_same([handle.samples for handle in handles], expected)
    # What they had written before was not told again.
    assert sum(len(delta.tokens) for delta in deltas) == sum(h.samples[0].visible_tokens for h in handles[:2])
    assert len(failures) == 2


def test_keys_never_take_more_places_than_were_allowed(backbone: Backbone, monkeypatch: pytest.MonkeyPatch):
    held: list[int] = []
    original = KeyCache.write

    def spy(self: KeyCache, *order: Any) -> Any:
        layout = original(self, *order)
        prompts = len(self.prompt_lengths) * max(self.prompt_lengths)
        held.append(prompts + len(self.row_lengths) * max(self.row_lengths))
        return layout

    monkeypatch.setattr(KeyCache, "write", spy)
    requests = [
        request_of([0] + [65 + number] * (400 if number % 3 else 20), seed=number, max_tokens=60)
        for number in range(12)
    ]
    engine = engine_of(backbone, max_tokens=2048)
    handles = [engine.submit([request]) for request in requests]
    run(engine)
    # Four prompts of 401 tokens with four answers of 60 fit, a fifth does not.
    assert 401 * 3 < max(held) <= 2048
    assert_same([handle.samples for handle in handles], [alone(backbone, request) for request in requests])


def test_memory_for_keys_is_given_back_when_a_long_prompt_has_left(backbone: Backbone):
    cache = KeyCache(torch.device("cpu"))
    engine = engine_of(backbone)
    engine.submit([request_of([5] * 1900, seed=1, max_tokens=2)])
    for number in range(15):
        engine.submit([request_of([0, 70 + number], seed=number, max_tokens=40)])
    engine.step()
    [lane] = engine._lanes.values()
    cache = lane._cache
    widest = [layer.prompts[0].shape for layer in cache._layers.values()]
    assert {shape[0] * shape[2] for shape in widest} == {16 * 1900}
    for _ in range(3):
        engine.step()
    assert engine.running == 15
    engine.submit([request_of([0, 99], max_tokens=40)])
    engine.step()
    assert {layer.prompts[0].shape[2] for layer in cache._layers.values()} == {2}
    run(engine)
    # With nothing left to write nothing is kept.
    assert engine._lanes == {}


def test_reading_a_long_prompt_does_not_keep_the_others_from_their_tokens(backbone: Backbone):
    deltas: list[Delta] = []
    engine = engine_of(backbone, read_at_once=50, steady=True)
    writing = engine.submit([request_of([0, 70], max_tokens=30)])
    engine.step()
    for number in range(5):
        engine.submit([request_of([5 + number] * 40, max_tokens=30)], deltas.append)
    before = len(writing.rows[0].tokens)
    for _ in range(5):
        engine.step()
    # One prompt was read in each step, and a token written.
    assert engine.running == 6
    assert len(writing.rows[0].tokens) - before == 5


def test_a_long_prompt_is_read_in_pieces_between_which_a_stream_goes_on(backbone: Backbone):
    prompt = [0] + [65 + number % 31 for number in range(1899)]
    engine = engine_of(backbone, read_at_once=300, steady=True)
    writing = engine.submit([request_of([0, 70], "wide", max_tokens=40)])
    engine.step()
    before = len(writing.rows[0].tokens)
    requests = [
        request_of(prompt, "late", seed=3, max_tokens=9),
        request_of(prompt, "late", seed=4, max_tokens=9),
    ]
    long = engine.submit(requests)
    written: list[int] = []
    while not long.rows[0].tokens:
        assert engine.tokens_read <= 2 + 300 * (len(written) + 1)
        engine.step()
        written.append(len(writing.rows[0].tokens) - before)
    # 1,900 tokens are 7 pieces; after each of them, and as the long one begins, the stream got its token.
    assert written == [1, 2, 3, 4, 5, 6, 7, 8]
    assert engine.tokens_read == 2 + 1900
    run(engine)
    # Token for token, what each is alone, its prompt read at once.
    assert_same([writing.samples], [alone(backbone, request_of([0, 70], "wide", max_tokens=40))])
    assert_same([[sample] for sample in long.samples], [alone(backbone, request) for request in requests])


@pytest.mark.parametrize("adapter", [None, "whole", "wide"])
@pytest.mark.parametrize("pieces", [1, 7, 64])
def test_pieces_of_any_length_give_the_same_answer(backbone: Backbone, adapter: str | None, pieces: int):
    request = request_of([0] + [70 + number % 19 for number in range(99)], adapter, seed=5)
    engine = engine_of(backbone, read_at_once=pieces, steady=True)
    others = [request_of([0, 80 + number], "narrow", seed=number, max_tokens=60) for number in range(3)]
    other_handles = [engine.submit([other]) for other in others]
    handle = engine.submit([request])
    run(engine)
    assert_same([handle.samples], [alone(backbone, request)])
    assert_same([other.samples for other in other_handles], [alone(backbone, other) for other in others])


def test_a_long_prompt_that_is_called_off_amid_its_pieces_leaves_nothing(backbone: Backbone):
    engine = engine_of(backbone, read_at_once=100, steady=True)
    writing = engine.submit([request_of([0, 70], max_tokens=30)])
    engine.step()
    long = [5] * 950
    first, second = engine.submit([request_of(long, seed=1)]), engine.submit([request_of(long, seed=2)])
    for _ in range(3):
        engine.step()
    engine.cancel(first)
    short = engine.submit([request_of([0, 90], seed=9)])
    run(engine)
    # What was read for the one that left serves the other that asked the same.
    assert engine.tokens_read == 2 + 950 + 2
    requests = [request_of([0, 70], max_tokens=30), request_of(long, seed=2), request_of([0, 90], seed=9)]
    samples = [handle.samples for handle in (writing, second, short)]
    assert_same(samples, [alone(backbone, request) for request in requests])
    third = engine.submit([request_of(long, seed=1)])
    for _ in range(3):
        engine.step()
    engine.cancel(third)
    assert engine._lanes == {}


def test_a_piece_that_fails_costs_only_the_request_that_it_is_of(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
):
    original = Backbone.packed_states

    def failing(self: Backbone, input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if 299 in input_ids[0].tolist():
            raise MemoryError("no memory")
        return original(self, input_ids, *arguments)

    request = request_of([0, 70], max_tokens=20)
    expected = alone(backbone, request)
    monkeypatch.setattr(Backbone, "packed_states", failing)
    engine = engine_of(backbone, read_at_once=50, steady=True)
    writing = engine.submit([request])
    engine.step()
    bad = engine.submit([request_of([5] * 180 + [299])])
    run(engine)
    with pytest.raises(MemoryError):
        _ = bad.samples
    assert_same([writing.samples], [expected])


def test_a_greedy_token_has_probability_one_and_is_the_likeliest(backbone: Backbone):
    [sample] = alone(backbone, request_of([0, 80, 81], temperature=0, alternatives=1))
    assert [token.log_prob for token in sample.tokens] == [0.0] * 12
    assert [token.id for token in sample.tokens] == [token.alternatives[0][0] for token in sample.tokens]


def test_what_cannot_be_asked_is_refused_at_once(backbone: Backbone):
    engine = engine_of(backbone)
    with pytest.raises(ValueError, match="'nobody' is not loaded"):
        engine.submit([request_of([0, 1]), request_of([0, 1], "nobody")])
    with pytest.raises(ValueError, match="prompt 3 is empty"):
        engine.submit([request_of([], place=3)])
    assert not engine.busy


def test_a_bound_below_the_context_is_refused(backbone: Backbone):
    with pytest.raises(ValueError, match="at least 2048"):
        engine_of(backbone, max_tokens=2047)
