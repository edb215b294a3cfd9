"""Samples that wait for a place, places that become free, and what the keys kept for them must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.rlhf.rollout.test_rollout import ending_with
from tests.tiny import tiny_model_folder
from training.contract.methods.common import LoraSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.cache import KeyCache
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import Sample
from training.rlhf.sampling import SamplingParameters

PROMPTS = [[0, *range(40, 40 + length)] for length in (6, 1, 11, 3, 3, 17, 2, 8, 5)]
"""Nine of different lengths, two of the same."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    return Backbone.load(folder, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def ending(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A third of its vocabulary ends a sample: samples end at different steps."""
    return ending_with(folder, tmp_path_factory.mktemp("ending"), *range(3, 60))


def assert_same(actual: list[list[Sample]], expected: list[list[Sample]]) -> None:
    """Token for token, and log-probabilities up to rounding."""
    for group, others in zip(actual, expected, strict=True):
        for sample, other in zip(group, others, strict=True):
            assert sample.token_ids == other.token_ids
            assert (sample.text, sample.finish_reason, sample.seed) == (
                other.text,
                other.finish_reason,
                other.seed,
            )
            log_probs = [token.log_prob for token in sample.tokens]
            assert log_probs == pytest.approx([token.log_prob for token in other.tokens], abs=1e-3)


@pytest.mark.parametrize(("n", "max_rows"), [(1, 4), (3, 4), (2, 1), (4, 7), (1, 100)])
def test_samples_that_waited_are_those_of_one_big_batch(ending: Backbone, n: int, max_rows: int):
    parameters = SamplingParameters(max_tokens=30, seed=1)
    seeds = list(range(0, 90, 10))
    together = rollout(ending, PROMPTS, parameters, n=n, seeds=seeds)
    lengths = {len(sample.tokens) for group in together for sample in group}
    assert len(lengths) > 3
    assert_same(rollout(ending, PROMPTS, parameters, n=n, seeds=seeds, max_rows=max_rows), together)


def test_a_free_place_is_taken_at_once_and_there_are_never_more_than_allowed(
    ending: Backbone, monkeypatch: pytest.MonkeyPatch
):
    written: list[int] = []
    original = KeyCache.write

    def spy(self: KeyCache) -> Any:
        written.append(len(self.row_prompts))
        return original(self)

    monkeypatch.setattr(KeyCache, "write", spy)
    groups = rollout(ending, PROMPTS, SamplingParameters(max_tokens=30, seed=1), n=2, max_rows=4)
    # A sample's first token comes with its prompt, every other one with a pass of its own.
    assert sum(written) == sum(len(sample.tokens) - 1 for group in groups for sample in group)
    # As long as any waits all places are taken: only the last ones to end leave some free.
    fewer = next(place for place, count in enumerate(written) if count < 4)
    assert set(written[:fewer]) == {4}
    assert written[fewer:] == sorted(written[fewer:], reverse=True)


def test_every_prompt_is_read_once_and_forgotten_with_its_last_sample(
    ending: Backbone, monkeypatch: pytest.MonkeyPatch
):
    read: list[int] = []
    prompt_counts: list[int] = []
    original_read, original_write = KeyCache.read, KeyCache.write

    def spy_read(self: KeyCache, pieces: list[tuple[int, int]]) -> Any:
        read.extend(length for _, length in pieces)
        return original_read(self, pieces)

    def spy_write(self: KeyCache) -> Any:
        prompt_counts.append(len(self.prompt_lengths))
        return original_write(self)

    monkeypatch.setattr(KeyCache, "read", spy_read)
    monkeypatch.setattr(KeyCache, "write", spy_write)
    rollout(ending, PROMPTS, SamplingParameters(max_tokens=30, seed=1), n=3, max_rows=4)
    # The fourth and the fifth are one prompt: it is read once for the samples of both.
    assert PROMPTS[3] == PROMPTS[4]
    assert read == [len(prompt) for prompt in PROMPTS[:4] + PROMPTS[5:]]
    # Four samples stand behind four prompts at most, and one more may be waited for.
    assert max(prompt_counts) <= 5


def test_prompts_read_in_several_passes_are_read_as_in_one(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
):
    parameters = SamplingParameters(max_tokens=8, seed=5)
    at_once = rollout(backbone, PROMPTS, parameters, n=2)
    monkeypatch.setattr("training.rlhf.rollout.generate._READ_AT_ONCE", 12)
    assert_same(rollout(backbone, PROMPTS, parameters, n=2), at_once)


def test_a_long_sample_outgrows_the_room_first_made_for_its_keys(folder: Path, backbone: Backbone):
    oracle: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    [[sample]] = rollout(backbone, [PROMPTS[2]], SamplingParameters(temperature=0, max_tokens=200))
    expected = oracle.generate(torch.tensor([PROMPTS[2]]), do_sample=False, max_new_tokens=200)
    assert len(sample.tokens) > 130
    assert sample.token_ids == expected[0, len(PROMPTS[2]) :].tolist()


def with_adapter(folder: Path, dtype: torch.dtype) -> Backbone:
    """A backbone with an adapter "policy" that changes what it writes."""
    backbone = Backbone.load(folder, device="cpu", dtype=dtype)
    backbone.add_adapter("policy", LoraSettings(rank=4), seed=1)
    generator = torch.Generator().manual_seed(2)
    state = backbone.adapter_state("policy")
    drawn = {name: 0.2 * torch.randn(value.shape, generator=generator) for name, value in state.items()}
    backbone.restore("policy", drawn, {})
    return backbone


def plain_log_probs(
    backbone: Backbone, adapter: str | None, prompt: list[int], sample: Sample, temperature: float
) -> torch.Tensor:
    """Of each token of a sample, by one pass over prompt and sample with padding's mask and no cache."""
    ids = torch.tensor([prompt + sample.token_ids])
    with torch.inference_mode(), backbone.using(adapter):
        states = backbone.hidden_states(ids, torch.ones_like(ids)).states
        logits = backbone.logits(states[0, len(prompt) - 1 : -1]).float() / temperature
    return torch.log_softmax(logits, -1)[range(len(sample.tokens)), sample.token_ids]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_an_adapter_log_probabilities_are_those_of_a_plain_pass_with_it(
    folder: Path, dtype: torch.dtype
):
    backbone = with_adapter(folder, dtype)
    parameters = SamplingParameters(temperature=0.8, max_tokens=20, seed=3)
    groups = rollout(backbone, PROMPTS, parameters, n=2, adapter="policy", max_rows=5)
    from_plain, from_base = [], []
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for sample in group:
            sampled = torch.tensor([token.log_prob for token in sample.tokens])
            from_plain.append((sampled - plain_log_probs(backbone, "policy", prompt, sample, 0.8)).abs())
            from_base.append((sampled - plain_log_probs(backbone, None, prompt, sample, 0.8)).abs())
    if dtype is torch.float32:
        assert float(torch.cat(from_plain).max()) < 1e-4
    # Two orders of adding up in bfloat16 differ where these random weights amplify it: on average little.
    assert float(torch.cat(from_plain).mean()) < 0.03
    assert float(torch.cat(from_base).mean()) > 0.3


def test_called_off_samples_that_waited_end_too(backbone: Backbone):
    calls = 0

    def cancelled() -> bool:
        nonlocal calls
        calls += 1
        return calls > 6

    groups = rollout(
        backbone, PROMPTS, SamplingParameters(max_tokens=50), n=2, max_rows=3, cancelled=cancelled
    )
    assert [len(group) for group in groups] == [2] * 9
    samples = [sample for group in groups for sample in group]
    assert {sample.finish_reason for sample in samples} == {"cancelled"}
    assert all(sample.tokens for sample in samples[:3])
    assert not any(sample.tokens for sample in samples[3:])


def test_the_context_ends_each_sample_where_its_own_prompt_leaves_off(backbone: Backbone):
    prompts = [[5] * 2046, [5] * 2040, [5] * 2043]
    groups = rollout(backbone, prompts, SamplingParameters(max_tokens=100, seed=1), n=2, max_rows=3)
    assert [[len(sample.tokens) for sample in group] for group in groups] == [[2, 2], [8, 8], [5, 5]]


def test_a_bound_of_no_rows_is_refused(backbone: Backbone):
    with pytest.raises(ValueError, match="max_rows must be at least 1"):
        rollout(backbone, PROMPTS, SamplingParameters(), max_rows=0)
