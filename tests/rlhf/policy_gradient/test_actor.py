"""A language model as the actor of a step, against separate rows and against formulas written out."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rlhf.model.test_backbone import disturb
from training.contract.methods.common import LoraSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient import actor
from training.rlhf.policy_gradient.actor import VALUE, LanguageActor, Models, token_figures
from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import EncodedAnswer

PROMPTS = ((0, 5, 9, 20, 31), (0, 7, 7), (0, 40, 41, 42, 43, 44, 45, 46))
# The first prompt's answers begin alike and two are the same: packed, they share places.
DRAWN = (
    ((50, 51, 52, 53, 54, 60), (50, 51, 52, 53, 54, 60), (50, 51, 52, 53, 61), (70,)),
    ((80, 81, 82), (83, 2)),
    ((90, 91, 92, 93, 94, 95, 96, 2),),
)
ANSWERS = [
    EncodedAnswer((*prompt, *drawn), len(prompt))
    for prompt, answers in zip(PROMPTS, DRAWN, strict=True)
    for drawn in answers
]
GROUP = [0, 0, 0, 0, 1, 1, 2]
WIDTH = 8


@pytest.fixture
def trained(backbone: Backbone) -> Backbone:
    """The tiny base with a policy and a value head as if they had been trained, and an older policy."""
    for name in ("policy", "older", VALUE):
        backbone.add_adapter(name, LoraSettings(rank=4), seed=1)
    backbone.add_head(VALUE, VALUE, seed=1)
    for seed, name in enumerate(backbone.adapters):
        disturb(backbone, name, seed, scale=0.1)
    return backbone


def actor_of(
    backbone: Backbone,
    *,
    tokens: int = 10_000,
    parameters: SamplingParameters | None = None,
    reference: str | None = None,
    answers: Sequence[EncodedAnswer] = ANSWERS,
    group: Sequence[int] = GROUP,
    entropy: bool = False,
    full_kl: bool = False,
) -> LanguageActor:
    return LanguageActor(
        backbone,
        Models(policy="policy", value=VALUE, reference=reference),
        answers=answers,
        group=group,
        parameters=parameters or SamplingParameters(),
        tokens=tokens,
        entropy=entropy,
        full_kl=full_kl,
    )


def alone(backbone: Backbone, adapter: str | None, answered: EncodedAnswer) -> Tensor:
    """(drawn, vocabulary) logits that predict an answer's tokens, from a row of its own."""
    ids = torch.tensor([answered.ids])
    with backbone.using(adapter):
        states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
        return backbone.logits(states[answered.answer_start - 1 : -1])


def drawn(answered: EncodedAnswer) -> Tensor:
    return torch.tensor(answered.ids[answered.answer_start :])


def padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.cat([row, row.new_zeros(WIDTH - len(row))]) for row in rows])


def log_softmax_of(backbone: Backbone, adapter: str | None, *, temperature: float = 1.0) -> Tensor:
    """(B, T) by separate rows."""
    return padded(
        [
            (alone(backbone, adapter, answer) / temperature)
            .log_softmax(-1)
            .gather(1, drawn(answer)[:, None])[:, 0]
            for answer in ANSWERS
        ]
    )


def gradients(backbone: Backbone, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(backbone.parameters("policy").values())))


def distance(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Length of the difference of two gradients, as a share of the second."""
    mine, other = (torch.cat([part.flatten().double() for part in parts]) for parts in (ours, theirs))
    return float((mine - other).norm() / other.norm())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_samples_packed_behind_their_prompt_equal_separate_rows_in_value_and_gradient(
    trained: Backbone, temperature: float
) -> None:
    weights = torch.randn(len(ANSWERS), WIDTH, generator=torch.Generator().manual_seed(0))
    actor = actor_of(trained, parameters=SamplingParameters(temperature=temperature))
    log_probs = actor.evaluate(list(range(len(ANSWERS)))).logp
    expected = log_softmax_of(trained, "policy", temperature=temperature)
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=0)
    ours, theirs = (gradients(trained, (weights * logp).sum()) for logp in (log_probs, expected))
    assert distance(ours, theirs) < 1e-5


def test_how_rows_are_cut_into_passes_changes_nothing(trained: Backbone) -> None:
    whole = actor_of(trained).log_probabilities()
    for tokens in (40, 12, 1):
        actor = actor_of(trained, tokens=tokens)
        parts = list(actor.passes(range(len(ANSWERS))))
        assert [row for part in parts for row in part] == list(range(len(ANSWERS)))
        torch.testing.assert_close(actor.log_probabilities(), whole, atol=1e-5, rtol=0)
    # 5 tokens of the first prompt, then 5 + 1, 1 (the third leaves the first after four), 1: one pass.
    assert list(actor_of(trained, tokens=13).passes(range(4))) == [[0, 1, 2, 3]]
    # Together with the second prompt they do not fit; one by one nothing is shared.
    assert list(actor_of(trained, tokens=13).passes([0, 1, 2, 3, 4])) == [[0, 1, 2, 3], [4]]
    assert list(actor_of(trained, tokens=1).passes(range(4))) == [[0], [1], [2], [3]]


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (7, 1.0), (0, 0.8), (20, 0.9)])
def test_the_trainer_finds_the_log_probabilities_that_the_sampler_drew_by(
    trained: Backbone, top_k: int, top_p: float
) -> None:
    parameters = SamplingParameters(temperature=0.8, top_k=top_k, top_p=top_p, max_tokens=6)
    samples = rollout(trained, PROMPTS, parameters, n=3, adapter="policy")
    answers = [
        EncodedAnswer((*prompt, *sample.token_ids), len(prompt))
        for prompt, some in zip(PROMPTS, samples, strict=True)
        for sample in some
    ]
    group = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    actor = actor_of(trained, parameters=parameters, answers=answers, group=group)
    log_probs = actor.log_probabilities()
    recorded = [[token.log_prob for token in sample.tokens] for some in samples for sample in some]
    for row, values in zip(log_probs, recorded, strict=True):
        torch.testing.assert_close(row[: len(values)], torch.tensor(values), atol=1e-5, rtol=0)


def test_a_drawn_token_that_the_policy_would_no_longer_draw_keeps_a_finite_probability(
    trained: Backbone,
) -> None:
    parameters = SamplingParameters(top_k=2)
    log_probs = actor_of(trained, parameters=parameters).log_probabilities()
    for row, answer in zip(log_probs, ANSWERS, strict=True):
        for place, (logits, token) in enumerate(
            zip(alone(trained, "policy", answer), drawn(answer), strict=True)
        ):
            allowed = set(logits.topk(2).indices.tolist()) | {int(token)}
            expected = logits[token] - logits[sorted(allowed)].logsumexp(0)
            assert row[place].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("reference", [None, "older"])
def test_entropy_and_full_divergence_are_those_of_the_whole_distribution(
    trained: Backbone, reference: str | None
) -> None:
    parameters = SamplingParameters(temperature=0.7, top_k=12)
    actor = actor_of(trained, parameters=parameters, reference=reference, entropy=True, full_kl=True)
    evaluation = actor.evaluate(list(range(len(ANSWERS))))
    entropies, divergences = [], []
    for answer in ANSWERS:
        policy = alone(trained, "policy", answer) / 0.7
        allowed = torch.zeros_like(policy, dtype=torch.bool).scatter(1, policy.topk(12).indices, True)
        allowed[torch.arange(len(policy)), drawn(answer)] = True
        logp = policy.masked_fill(~allowed, -torch.inf).log_softmax(-1)
        ref = (alone(trained, reference, answer) / 0.7).log_softmax(-1)
        # Zeroed before the product: 0 · ∞ has no gradient.
        inside = logp.masked_fill(~allowed, 0.0)
        entropies.append(-(logp.exp() * inside).sum(-1))
        divergences.append((logp.exp() * (inside - ref)).sum(-1))
    assert evaluation.entropy is not None
    assert evaluation.full_kl is not None
    torch.testing.assert_close(evaluation.entropy, padded(entropies), atol=1e-5, rtol=0)
    torch.testing.assert_close(evaluation.full_kl, padded(divergences), atol=1e-5, rtol=0)
    torch.testing.assert_close(actor.full_divergence(), padded(divergences), atol=1e-5, rtol=0)
    ours = gradients(trained, evaluation.entropy.sum() + evaluation.full_kl.sum())
    theirs = gradients(trained, torch.cat(entropies).sum() + torch.cat(divergences).sum())
    assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize("reference", [None, "older"])
def test_the_reference_is_the_base_or_a_frozen_adapter_under_the_same_temperature(
    trained: Backbone, reference: str | None
) -> None:
    parameters = SamplingParameters(temperature=0.7, top_k=3)
    log_probs = actor_of(trained, parameters=parameters, reference=reference).reference_log_probabilities()
    torch.testing.assert_close(
        log_probs, log_softmax_of(trained, reference, temperature=0.7), atol=1e-5, rtol=0
    )


def test_a_value_is_read_before_its_token_and_teaches_the_value_adapter_alone(trained: Backbone) -> None:
    evaluation = actor_of(trained).evaluate(list(range(len(ANSWERS))))
    weight = trained.head_state(VALUE)[VALUE][0]
    expected = []
    for answer in ANSWERS:
        ids = torch.tensor([answer.ids])
        with trained.using(VALUE):
            states = trained.hidden_states(ids, torch.ones_like(ids)).states[0]
        expected.append(states[answer.answer_start - 1 : -1] @ weight)
    assert evaluation.values is not None
    torch.testing.assert_close(evaluation.values, padded(expected), atol=1e-4, rtol=0)
    evaluation.values.sum().backward()
    assert all(value.grad is None for value in trained.parameters("policy").values())
    assert all(value.grad is not None for value in trained.parameters(VALUE).values())


def test_figures_computed_in_chunks_equal_those_of_one_piece_also_under_a_head_that_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actor, "_CHUNK", 3)
    random = torch.Generator().manual_seed(3)
    states = torch.randn(8, 5, generator=random, requires_grad=True)
    weight = torch.randn(11, 5, generator=random, requires_grad=True)
    reference = torch.randn(8, 5, generator=random)
    targets = torch.randint(11, (8,), generator=random)
    computed = token_figures(
        states,
        targets,
        lambda rows: rows @ weight.T,
        SamplingParameters(temperature=1.5),
        entropy=True,
        reference=(reference, lambda rows: rows @ weight.T),
    )
    logp = (states @ weight.T / 1.5).log_softmax(-1)
    ref = (reference @ weight.T / 1.5).log_softmax(-1).detach()
    expected = (
        logp[torch.arange(8), targets],
        -(logp.exp() * logp).sum(-1),
        (logp.exp() * (logp - ref)).sum(-1),
    )
    upstream = [torch.randn(8, generator=random) for _ in expected]
    sums = []
    for figures in (computed, expected):
        columns = [column for column in figures if column is not None]
        assert len(columns) == 3
        sums.append(torch.stack([column @ way for column, way in zip(columns, upstream, strict=True)]).sum())
    for actual, other in zip(computed, expected, strict=True):
        torch.testing.assert_close(actual, other)
    ours, theirs = (torch.autograd.grad(total, [states, weight]) for total in sums)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_where_memory_runs_out_passes_become_smaller_until_they_fit(
    trained: Backbone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = actor_of(trained).log_probabilities()
    plain = Backbone.packed_states

    def cramped(self: Backbone, input_ids: Tensor, *rest: Any) -> Tensor:
        if input_ids.shape[1] > 20:
            raise torch.OutOfMemoryError("no room")
        return plain(self, input_ids, *rest)

    monkeypatch.setattr(Backbone, "packed_states", cramped)
    monkeypatch.setattr("training.rlhf.policy_gradient.actor._LEAST_TOKENS", 10)
    actor = actor_of(trained, tokens=80)
    torch.testing.assert_close(actor.log_probabilities(), expected, atol=1e-5, rtol=0)
    assert actor.tokens == 20
    # Where even the smallest passes do not fit, it says so.
    monkeypatch.setattr("training.rlhf.policy_gradient.actor._LEAST_TOKENS", 40)
    with pytest.raises(torch.OutOfMemoryError):
        actor_of(trained, tokens=80).log_probabilities()
