"""Sampling over the backbone: exact log-probabilities, seeds, ends, and what a row costs."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.tiny import tiny_model_folder
from training.contract.methods.common import LoraSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import rollout
from training.rlhf.rollout.samples import Delta, Sample
from training.rlhf.sampling import SamplingParameters

PROMPTS = [[0, 65, 66, 67, 68, 69, 70], [0, 80], [0, 90, 91, 92]]
"""Ids of the tiny tokenizer, of different lengths, so that a batch of them is padded."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def backbone(folder: Path) -> Backbone:
    return Backbone.load(folder, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    """The same model as transformers itself runs it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def forced_logits(oracle: Any, prompt: list[int], written: list[int]) -> torch.Tensor:
    """Logits that each written token was drawn from, by one forward pass over the whole row."""
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([prompt + written])).logits[0]
    return logits[len(prompt) - 1 : -1]


def ending_with(folder: Path, tmp_path: Path, *ends: int) -> Backbone:
    """The backbone of a model whose generation configuration names more end tokens."""
    copy = tmp_path / folder.name
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    configuration = json.loads((copy / "generation_config.json").read_text())
    configuration["eos_token_id"] = [configuration["eos_token_id"], *ends]
    (copy / "generation_config.json").write_text(json.dumps(configuration))
    return Backbone.load(copy, device="cpu", dtype=torch.float32)


def by_id(groups: list[list[Sample]]) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in group] for group in groups]


def test_greedy_writes_what_transformers_writes(backbone: Backbone, oracle: Any):
    samples = rollout(backbone, PROMPTS, SamplingParameters(temperature=0, max_tokens=24))
    for prompt, [sample] in zip(PROMPTS, samples, strict=True):
        expected = oracle.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)
        assert sample.token_ids == expected[0, len(prompt) :].tolist()


def test_log_probabilities_are_those_of_a_forward_pass_over_the_whole_row(backbone: Backbone, oracle: Any):
    parameters = SamplingParameters(temperature=0.7, max_tokens=16, alternatives=3, seed=11)
    for prompt, group in zip(PROMPTS, rollout(backbone, PROMPTS, parameters, n=3), strict=True):
        for sample in group:
            logits = forced_logits(oracle, prompt, sample.token_ids)
            rows = range(len(sample.tokens))
            drawn_by = torch.log_softmax(logits / 0.7, -1)[rows, sample.token_ids]
            model = torch.log_softmax(logits, -1)
            assert [t.log_prob for t in sample.tokens] == pytest.approx(drawn_by.tolist(), abs=1e-4)
            model_log_probs = model[rows, sample.token_ids].tolist()
            assert [t.model_log_prob for t in sample.tokens] == pytest.approx(model_log_probs, abs=1e-4)
            best = model.topk(3).values
            alternatives = torch.tensor(
                [[value for _, value in token.alternatives] for token in sample.tokens]
            )
            torch.testing.assert_close(alternatives, best, rtol=0, atol=1e-4)


def test_filtered_log_probabilities_are_those_of_the_kept_tokens(backbone: Backbone, oracle: Any):
    parameters = SamplingParameters(temperature=0.9, top_k=5, max_tokens=12, seed=4)
    [[sample]] = rollout(backbone, PROMPTS[:1], parameters)
    logits = forced_logits(oracle, PROMPTS[0], sample.token_ids) / 0.9
    for token, row in zip(sample.tokens, logits, strict=True):
        top = row.topk(5)
        place = top.indices.tolist().index(token.id)
        assert token.log_prob == pytest.approx(torch.log_softmax(top.values, -1)[place].item(), abs=1e-4)


def test_first_tokens_are_as_frequent_as_the_model_says(backbone: Backbone, oracle: Any):
    count = 3000
    parameters = SamplingParameters(temperature=0.5, top_k=4, max_tokens=1)
    [group] = rollout(backbone, PROMPTS[:1], parameters, n=count)
    frequencies = Counter(sample.token_ids[0] for sample in group)
    with torch.inference_mode():
        best = oracle(torch.tensor(PROMPTS[:1])).logits[0, -1].topk(4)
    expected = torch.softmax(best.values / 0.5, -1)
    assert set(frequencies) <= set(best.indices.tolist())
    for token, probability in zip(best.indices.tolist(), expected.tolist(), strict=True):
        allowed = 4 * math.sqrt(probability * (1 - probability) / count)
        assert abs(frequencies[token] / count - probability) < allowed


def test_each_sample_can_be_drawn_again_alone_by_its_seed(backbone: Backbone):
    parameters = SamplingParameters(temperature=1.0, top_p=0.9, max_tokens=20, seed=100)
    together = rollout(backbone, PROMPTS, parameters, n=4)
    assert [sample.seed for sample in together[1]] == [100, 101, 102, 103]
    for prompt, group in zip(PROMPTS, together, strict=True):
        for sample in group:
            alone = SamplingParameters(temperature=1.0, top_p=0.9, max_tokens=20, seed=sample.seed)
            assert by_id(rollout(backbone, [prompt], alone)) == [[sample.token_ids]]


def test_samples_of_one_prompt_differ(backbone: Backbone):
    [group] = rollout(backbone, PROMPTS[:1], SamplingParameters(max_tokens=16), n=6)
    assert len({tuple(sample.token_ids) for sample in group}) == 6


def test_every_prompt_can_have_a_first_seed_of_its_own(backbone: Backbone):
    groups = rollout(backbone, [PROMPTS[0]] * 2, SamplingParameters(max_tokens=8), n=2, seeds=[5, 7])
    assert [[sample.seed for sample in group] for group in groups] == [[5, 6], [7, 8]]
    again = rollout(backbone, [PROMPTS[0]], SamplingParameters(max_tokens=8, seed=6), n=2)
    assert by_id(again)[0] == [groups[0][1].token_ids, groups[1][0].token_ids]


def test_the_end_token_is_among_the_ids_and_not_in_the_text(folder: Path, backbone: Backbone, tmp_path: Path):
    [[free]] = rollout(backbone, PROMPTS[:1], SamplingParameters(temperature=0, max_tokens=12))
    # Some token that greedy writes, made an end token by the generation configuration alone.
    end = free.token_ids[6]
    first = free.token_ids.index(end)
    ending = ending_with(folder, tmp_path, end)
    [[sample]] = rollout(ending, PROMPTS[:1], SamplingParameters(temperature=0, max_tokens=12))
    assert sample.token_ids == free.token_ids[: first + 1]
    assert sample.finish_reason == "stop"
    assert sample.text == backbone.tokenizer.decode(free.token_ids[:first])
    assert sample.visible_tokens == first


def test_a_prompt_is_read_once_and_finished_rows_cost_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # A third of the vocabulary ends a sample: rows end at different steps.
    ending = ending_with(folder, tmp_path, *range(3, 110))
    tokens: list[int] = []
    original = Backbone.packed_states

    def spy(self: Backbone, input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        tokens.append(input_ids.shape[1])
        return original(self, input_ids, *arguments)

    monkeypatch.setattr(Backbone, "packed_states", spy)
    [group] = rollout(ending, PROMPTS[:1], SamplingParameters(max_tokens=40, seed=1), n=8)
    assert tokens[0] == len(PROMPTS[0])
    lengths = [len(sample.tokens) for sample in group]
    assert len(set(lengths)) > 2
    # Step s runs exactly the rows that go on after their s-th token.
    expected = [sum(length > step for length in lengths) for step in range(1, max(lengths))]
    assert tokens[1:] == expected


def test_rows_that_go_on_are_not_disturbed_by_those_that_end(folder: Path, tmp_path: Path):
    # Prompts of different lengths: what is masked differs between the row that ends and the others.
    ending = ending_with(folder, tmp_path, *range(3, 60))
    together = rollout(ending, PROMPTS, SamplingParameters(max_tokens=30, seed=1), n=3)
    lengths = [len(sample.tokens) for group in together for sample in group]
    assert min(lengths) < max(lengths)
    for prompt, group in zip(PROMPTS, together, strict=True):
        for sample in group:
            alone = rollout(ending, [prompt], SamplingParameters(max_tokens=30, seed=sample.seed))
            assert by_id(alone) == [[sample.token_ids]]


def test_a_stop_string_ends_its_own_sample_only(backbone: Backbone):
    free = SamplingParameters(max_tokens=24, seed=3)
    [group] = rollout(backbone, PROMPTS[:1], free, n=4)
    # Three characters of the first sample's text that no other sample has.
    text = group[0].text
    stop = next(
        text[at : at + 3]
        for at in range(4, len(text) - 3)
        if not any(text[at : at + 3] in other.text for other in group[1:])
        and "\N{REPLACEMENT CHARACTER}" not in text[at : at + 3]
    )
    [stopped] = rollout(backbone, PROMPTS[:1], SamplingParameters(max_tokens=24, seed=3, stop=(stop,)), n=4)
    assert stopped[0].text == text[: text.index(stop)]
    assert stopped[0].finish_reason == "stop"
    assert [sample.text for sample in stopped[1:]] == [sample.text for sample in group[1:]]


def test_deltas_make_up_the_samples(backbone: Backbone):
    deltas: list[Delta] = []
    parameters = SamplingParameters(max_tokens=24, alternatives=0, seed=9, stop=("the",))
    groups = rollout(backbone, PROMPTS, parameters, n=2, on_delta=deltas.append)
    for prompt, group in enumerate(groups):
        for index, sample in enumerate(group):
            of_sample = [delta for delta in deltas if (delta.prompt, delta.sample) == (prompt, index)]
            assert "".join(delta.text for delta in of_sample) == sample.text
            assert of_sample[-1].finished == sample
            assert [delta.finished for delta in of_sample[:-1]] == [None] * (len(of_sample) - 1)
            tokens = [token for delta in of_sample for token in delta.tokens]
            assert tokens == list(sample.tokens[: sample.visible_tokens])


def test_streaming_changes_no_text(backbone: Backbone):
    parameters = SamplingParameters(max_tokens=24, seed=9)
    silent = rollout(backbone, PROMPTS, parameters, n=2)
    assert rollout(backbone, PROMPTS, parameters, n=2, on_delta=lambda _: None) == silent


def test_it_stops_between_two_tokens_when_called_off(backbone: Backbone):
    deltas: list[Delta] = []
    [[sample]] = rollout(
        backbone,
        PROMPTS[:1],
        SamplingParameters(max_tokens=1000, seed=2),
        on_delta=deltas.append,
        cancelled=lambda: len(deltas) >= 5,
    )
    assert sample.finish_reason == "cancelled"
    assert len(sample.tokens) < 50


def test_the_end_of_the_context_ends_a_sample(backbone: Backbone):
    prompt = [5] * 2045
    [[sample]] = rollout(backbone, [prompt], SamplingParameters(max_tokens=100))
    assert len(sample.tokens) == 3
    assert sample.finish_reason == "length"


def test_an_adapter_writes_its_own_text_and_the_base_is_back_after(folder: Path):
    backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
    backbone.add_adapter("zero", LoraSettings(rank=4), seed=1)
    backbone.add_adapter("other", LoraSettings(rank=4), seed=1)
    state = backbone.adapter_state("other")
    backbone.restore("other", {name: torch.full_like(value, 0.2) for name, value in state.items()}, {})
    parameters = SamplingParameters(max_tokens=16, seed=1)
    base = by_id(rollout(backbone, PROMPTS, parameters))
    assert by_id(rollout(backbone, PROMPTS, parameters, adapter="zero")) == base
    assert by_id(rollout(backbone, PROMPTS, parameters, adapter="other")) != base
    assert by_id(rollout(backbone, PROMPTS, parameters)) == base


@pytest.mark.parametrize(
    ("prompts", "n", "seeds", "message"),
    [
        ([[]], 1, None, "prompt 0 is empty"),
        ([[1], [1] * 2048], 1, None, "prompt 1 has 2048 tokens; the model's context holds 2048"),
        ([[1]], 0, None, "n must be"),
        ([[1]], 1, [1, 2], "2 numbers for 1 prompts"),
    ],
)
def test_bad_input_is_refused(
    backbone: Backbone, prompts: list[list[int]], n: int, seeds: list[int] | None, message: str
):
    with pytest.raises(ValueError, match=message):
        rollout(backbone, prompts, SamplingParameters(max_tokens=4), n=n, seeds=seeds)


def test_no_prompt_gives_no_sample(backbone: Backbone):
    assert rollout(backbone, [], SamplingParameters()) == []
