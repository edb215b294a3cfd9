"""Families of models: packed rows, kept keys and adapters give what transformers' own forward gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.rlhf.model.families import CONTEXT, FAMILIES, LONG_ROPE, family_folder
from tests.rlhf.rollout.test_engine import disturb, engine_of, request_of, run
from training.contract.methods.common import LoraSettings
from training.rlhf.loop.log_probabilities import token_log_probabilities
from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import StaticShapes, rollout
from training.rlhf.rollout.samples import Sample, context_length
from training.rlhf.sampling import SamplingParameters

CLOSE = 1e-5
"""Largest difference, as a share of the largest value: both are float32."""
LENGTHS = ((23, (5, 9, 14, 4, 6, 7)), (310, (3,)), (4, (40, 2)))
"""Of prompts and their answers: short ones that share a table, and one longer than a piece under a window."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are computed before a second thread has woken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Family(NamedTuple):
    backbone: Backbone
    oracle: Any
    """The same weights by transformers alone, with attention written out."""


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """`load("llama")` is that family, read once."""
    return cache(partial(read_family, tmp_path_factory.mktemp("families")))


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, load: Callable[[str], Family]) -> Family:
    return load(request.param)


@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt2", "deepseek_v3", "mixtral", "phi3"])
def kind_of_attention(request: pytest.FixtureRequest, load: Callable[[str], Family]) -> Family:
    """Grouped keys, caps and windows, learned positions, compressed keys, experts, a window alone."""
    return load(request.param)


def read_family(parent: Path, name: str) -> Family:
    folder = family_folder(parent / name, name)
    backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
    oracle = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    return Family(backbone, oracle)


class Packed(NamedTuple):
    ids: Tensor
    positions: Tensor
    layout: Layout
    rows: list[list[int]]
    """Of each answer the places of its prompt and of itself."""


def packed(device: torch.device) -> Packed:
    """Prompts, each with its answers, in one row."""
    segments: list[Segment] = []
    rows: list[list[int]] = []
    positions: list[int] = []
    for prompt, answers in LENGTHS:
        first, start = len(segments), len(positions)
        segments.append(Segment(start, prompt))
        positions += range(prompt)
        for answer in answers:
            rows.append([*range(start, start + prompt), *range(len(positions), len(positions) + answer)])
            segments.append(Segment(len(positions), answer, first))
            positions += range(prompt, prompt + answer)
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, 320, (1, len(positions)), generator=generator)
    return Packed(ids, torch.tensor([positions]), Layout(segments, device), rows)


def assert_close(actual: Tensor, expected: Tensor, *, within: float = CLOSE) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=within * float(expected.abs().max()))


@torch.no_grad()
def test_a_shared_prompt_with_several_answers_has_the_logits_of_separate_rows(family: Family) -> None:
    row = packed(family.backbone.device)
    logits = family.backbone.logits(family.backbone.packed_states(row.ids, row.positions, row.layout))
    for places in row.rows:
        assert_close(logits[places], family.oracle(row.ids[:, places]).logits[0])


@torch.no_grad()
def test_padded_rows_have_the_logits_of_separate_rows(kind_of_attention: Family) -> None:
    row = packed(kind_of_attention.backbone.device)
    short, long = row.ids[:, :20], row.ids[:, 20:51]
    ids = torch.cat([torch.nn.functional.pad(short, (11, 0)), long])
    mask = torch.tensor([[0] * 11 + [1] * 20, [1] * 31])
    logits = kind_of_attention.backbone.logits(kind_of_attention.backbone.hidden_states(ids, mask).states)
    assert_close(logits[0, 11:], kind_of_attention.oracle(short).logits[0])
    assert_close(logits[1], kind_of_attention.oracle(long).logits[0])


@torch.no_grad()
def test_the_states_after_each_block_are_those_that_transformers_tells(family: Family) -> None:
    ids = packed(family.backbone.device).ids[:, :9]
    layout = Layout([Segment(0, 9)], family.backbone.device)
    states = family.backbone.packed_layers(ids, torch.arange(9)[None], layout, [1, 2])
    expected = family.oracle(ids, output_hidden_states=True).hidden_states
    # These two do not tell the embedding.
    first = 0 if family.backbone.config.model_type in {"mamba", "rwkv"} else 1
    assert_close(states[1], expected[first][0])
    assert_close(states[2], expected[-1][0])


PROMPTS = [
    [0, *(3 + (number * 37 + place * 11) % 300 for place in range(length))]
    for number, length in enumerate((30, 3, 11, 45))
]


@torch.no_grad()
def assert_own_log_probabilities(
    oracle: Any, prompt: list[int], sample: Sample, *, within: float = CLOSE
) -> None:
    """Check a sample's log-probabilities against one forward pass over prompt and sample."""
    logits = oracle(torch.tensor([[*prompt, *sample.token_ids]])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1)[range(len(sample.tokens)), sample.token_ids]
    assert_close(torch.tensor([token.log_prob for token in sample.tokens]), expected, within=within)


def test_samples_with_kept_keys_are_what_transformers_generates_and_as_likely(family: Family) -> None:
    greedy = SamplingParameters(temperature=0, max_tokens=24)
    expected = [
        family.oracle.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24)[0, len(prompt) :]
        for prompt in PROMPTS
    ]
    token_ids = [group[0].token_ids for group in rollout(family.backbone, PROMPTS, greedy)]
    assert token_ids == [ids.tolist() for ids in expected]
    # Samples of one prompt that part, end and make place for others.
    drawn = rollout(
        family.backbone, PROMPTS, SamplingParameters(max_tokens=24), n=3, seeds=[1, 2, 3, 4], max_rows=5
    )
    for prompt, group in zip(PROMPTS, drawn, strict=True):
        for sample in group:
            assert_own_log_probabilities(family.oracle, prompt, sample)


def test_samples_in_fixed_shapes_are_those_with_kept_keys(kind_of_attention: Family) -> None:
    parameters = SamplingParameters(max_tokens=14)
    shapes = StaticShapes(kind_of_attention.backbone, rows=3, width=64)
    samples = rollout(kind_of_attention.backbone, PROMPTS, parameters, seeds=[5, 6, 7, 8], shapes=shapes)
    for prompt, [sample] in zip(PROMPTS, samples, strict=True):
        assert_own_log_probabilities(kind_of_attention.oracle, prompt, sample)


def test_a_prompt_that_begins_with_an_earlier_sample_reads_only_what_is_new(
    kind_of_attention: Family,
) -> None:
    # A step reads at most 16 tokens of a prompt that waits, so that it is read in pieces.
    engine = engine_of(kind_of_attention.backbone, keep_tokens=1000, steady=True)
    prompt = PROMPTS[3]
    for turn in range(3):
        handle = engine.submit([request_of(prompt, seed=turn)])
        run(engine)
        [sample] = handle.samples
        assert_own_log_probabilities(kind_of_attention.oracle, prompt, sample)
        prompt = [*prompt, *sample.token_ids, *range(40 + turn, 49 + turn)]
    assert engine.tokens_reused > 2 * len(PROMPTS[3])


def loss_of(backbone: Backbone, adapter: str, states: Tensor, ids: Tensor) -> Tensor:
    """Minus the log-probability of each token but the first by the state before it."""
    return -token_log_probabilities(states[:-1], ids[1:], backbone.lm_head(adapter)).mean()


def gradients(backbone: Backbone, adapter: str) -> dict[str, Tensor]:
    """Of the adapter's parameters; they are cleared."""
    by_name = {}
    for name, parameter in backbone.parameters(adapter).items():
        by_name[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = None
    return by_name


def test_the_default_adapter_learns_from_packed_rows_as_from_separate_ones(family: Family) -> None:
    backbone = family.backbone
    before = {name: value.clone() for name, value in backbone._model.state_dict().items()}
    backbone.add_adapter("learned", LoraSettings(rank=2), seed=0)
    disturb(backbone, "learned", 1, scale=0.1)
    row = packed(backbone.device)
    with backbone.using("learned"):
        states = backbone.packed_states(row.ids, row.positions, row.layout)
        sum(
            (loss_of(backbone, "learned", states[places], row.ids[0, places]) for places in row.rows),
            torch.zeros(()),
        ).backward()
        together = gradients(backbone, "learned")
        for places in row.rows:
            ids = row.ids[:, places]
            alone = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
            loss_of(backbone, "learned", alone, ids[0]).backward()
        separate = gradients(backbone, "learned")
    largest = max(float(value.abs().max()) for value in separate.values())
    for name, gradient in separate.items():
        torch.testing.assert_close(together[name], gradient, rtol=0, atol=1e-4 * largest, msg=name)
    optimiser = torch.optim.SGD(backbone.parameters("learned").values(), lr=0.1)
    for name, parameter in backbone.parameters("learned").items():
        parameter.grad = together[name]
    stale = {name: value.detach().clone() for name, value in backbone.parameters("learned").items()}
    optimiser.step()
    for name, parameter in backbone.parameters("learned").items():
        assert not torch.equal(parameter, stale[name]), f"{name} did not learn"
    backbone.drop_adapter("learned")
    # An adapter's layers stay around those of the base.
    after = {name.replace(".base_layer.", "."): value for name, value in backbone._model.state_dict().items()}
    assert [name for name, value in before.items() if not torch.equal(value, after[name])] == []


@pytest.mark.parametrize("kind", ["gemma2", "stablelm", "gpt_neox"])
def test_activations_computed_again_in_the_backward_pass_see_the_same_row(tmp_path: Path, kind: str) -> None:
    backbone = Backbone.load(family_folder(tmp_path / kind, kind), device="cpu", dtype=torch.float32)
    backbone.add_adapter("learned", LoraSettings(rank=2), seed=0)
    disturb(backbone, "learned", 1, scale=0.1)
    row = packed(backbone.device)
    results = []
    for again in (False, True):
        backbone.checkpoint_activations(again)
        with backbone.using("learned"):
            states = backbone.packed_states(row.ids, row.positions, row.layout)
        # Nothing of the row is active any more when the backward pass comes.
        loss_of(backbone, "learned", states, row.ids[0]).backward()
        results.append(gradients(backbone, "learned"))
    for name, gradient in results[0].items():
        assert torch.equal(gradient, results[1][name]), name


def test_rows_of_several_adapters_in_one_pass_are_those_of_each_alone(kind_of_attention: Family) -> None:
    backbone = kind_of_attention.backbone
    for number, name in enumerate(("low", "high")):
        backbone.add_adapter(name, LoraSettings(rank=2 + number), seed=number)
        disturb(backbone, name, number, scale=0.2)
    engine = engine_of(backbone)
    requests = [request_of(PROMPTS[2], name, seed=3, max_tokens=6) for name in (None, "low", "high")]
    handles = [engine.submit([query]) for query in requests]
    run(engine)
    for request, handle in zip(requests, handles, strict=True):
        [sample] = handle.samples
        ids = torch.tensor([[*request.prompt, *sample.token_ids]])
        with torch.no_grad(), backbone.using(request.adapter):
            states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0, len(request.prompt) - 1 : -1]
            expected = backbone.logits(states).log_softmax(-1)[range(len(sample.tokens)), sample.token_ids]
        assert_close(torch.tensor([token.log_prob for token in sample.tokens]), expected)
    for name in ("low", "high"):
        backbone.drop_adapter(name)


def test_positions_that_would_change_with_the_rows_beside_are_not_used(tmp_path: Path) -> None:
    # LongRoPE: beyond half of this context, all positions would be turned by other factors.
    folder = family_folder(
        tmp_path / "long", "phi3", rope_parameters=LONG_ROPE, original_max_position_embeddings=CONTEXT // 2
    )
    assert context_length(Backbone.load(folder, device="cpu", dtype=torch.float32)) == CONTEXT // 2
