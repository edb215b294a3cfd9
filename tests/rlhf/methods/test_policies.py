"""Losses of a policy that learns without sampling: texts, preferences, rankings, thumbs."""

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch

from tests.rlhf.methods.policies import CPU, examples_of, figures, method_of, step
from tests.rlhf.runs import judgments, row
from training.contract import ContractError
from training.contract.methods import Settings
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import KtoSettings, PreferenceSettings, SftSettings
from training.contract.methods.reward import RewardSettings
from training.rlhf.loop.log_probabilities import ratio_figures
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.loop.training_loop import Account
from training.rlhf.losses import Ties, likeliest_log_tie
from training.rlhf.methods.dpo import best_answers
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

LORA = LoraSettings(rank=4)
SETTINGS: dict[str, Settings] = {
    "sft": SftSettings(lora=LORA, sources=("preferred",)),
    "sft by sequences": SftSettings(lora=LORA, sources=("preferred",), normalise="sequence"),
    "dpo, per token, imitating": PreferenceSettings(lora=LORA, length_normalised=True, sft_weight=0.5),
    "ipo": PreferenceSettings(lora=LORA, loss="ipo"),
    "plackett-luce": PreferenceSettings(lora=LORA, loss="plackett_luce"),
    "davidson-luce": PreferenceSettings(lora=LORA, loss="plackett_luce", ties="davidson", sft_weight=0.1),
    "simpo": PreferenceSettings(lora=LORA, loss="simpo", beta=2.0, target_margin=0.5, sft_weight=0.1),
    "orpo": PreferenceSettings(lora=LORA, loss="orpo"),
    "kto": KtoSettings(lora=LORA, sources=("ranks",)),
}


@pytest.fixture(params=SETTINGS)
def method(request: pytest.FixtureRequest, backbone: Backbone) -> TrainingMethod:
    """A method whose policy has left its reference."""
    return method_of(backbone, SETTINGS[request.param])


def gradient(backbone: Backbone) -> torch.Tensor:
    parameters = backbone.parameters("policy").values()
    flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    for parameter in parameters:
        parameter.grad = None
    return flat


def log_probability(backbone: Backbone, adapter: str | None, answer: EncodedAnswer) -> float:
    """Of an answer alone in a row of its own, from the whole softmax through transformers' attention."""
    ids = torch.tensor([answer.ids])
    with torch.no_grad(), backbone.using(adapter):
        logits = backbone.logits(backbone.hidden_states(ids, torch.ones_like(ids)).states)[0]
    tokens = logits.double().log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return tokens[answer.answer_start - 1 :].sum().item()


# ── Every method ──────────────────────────────────────────────────────────────────────


def test_neither_cutting_nor_order_nor_processes_change_a_step(
    backbone: Backbone, method: TrainingMethod
) -> None:
    examples = examples_of(method, backbone, judgments())
    loss, whole = step(method, examples), gradient(backbone)
    assert whole.norm() > 0.01
    for other, how in [
        (examples, {"tokens": 16}),
        (examples, {"tokens": 150}),
        (examples[::-1], {}),
        (examples, {"world": 2, "tokens": 100}),
    ]:
        assert step(method, other, **how) == pytest.approx(loss, rel=1e-5, abs=1e-5)
        assert ((gradient(backbone) - whole).norm() / whole.norm()).item() < 1e-5


def test_a_gradient_is_the_slope_of_the_loss(backbone: Backbone, method: TrainingMethod) -> None:
    # Central differences along the gradient's own direction, in which the slope is its length.
    examples = examples_of(method, backbone, judgments())[:6]
    step(method, examples)
    parameters = [p for p in backbone.parameters("policy").values() if p.grad is not None]
    length = sum((p.grad**2).sum() for p in parameters) ** 0.5
    directions = [p.grad / length for p in parameters]
    account = Account(method, examples)

    def loss(distance: float) -> float:
        # z stays what it was: the loss takes it for a constant.
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(distance * direction)
            outcome = method.outcome(pack(examples, device=CPU), examples, dropout=False)
            total = account.add(outcome, 0, examples).item()
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.sub_(distance * direction)
        return total

    distance = 2e-3
    slope = (loss(distance) - loss(-distance)) / (2 * distance)
    assert slope == pytest.approx(float(length), rel=0.01)


def test_weight_2_costs_what_the_judgment_twice_does(backbone: Backbone, method: TrainingMethod) -> None:
    rows = judgments()[:3]
    first = rows[0]
    heavier = examples_of(method, backbone, [replace(first, weight=2.0), *rows[1:]])
    loss, whole = step(method, heavier), gradient(backbone)
    twice = examples_of(method, backbone, [first, first, *rows[1:]])
    assert step(method, twice) == pytest.approx(loss, abs=1e-5)
    assert ((gradient(backbone) - whole).norm() / whole.norm()).item() < 1e-5
    once = examples_of(method, backbone, rows)
    assert step(method, once) != pytest.approx(loss, abs=1e-4)


def test_figures_tell_how_far_a_policy_has_gone_from_its_reference(
    backbone: Backbone, method: TrainingMethod
) -> None:
    examples = examples_of(method, backbone, judgments())[:4]
    answers = [answer for example in examples for answer in example.answers]
    ratios = [
        log_probability(backbone, "policy", answer) - log_probability(backbone, None, answer)
        for answer in answers
    ]
    tokens = [len(answer.ids) - answer.answer_start for answer in answers]
    measured = figures(method, examples, held_out=True)
    assert measured["log_ratio"] == pytest.approx(sum(ratios) / len(ratios), abs=1e-3)
    assert measured["log_ratio_per_token"] == pytest.approx(sum(ratios) / sum(tokens), abs=1e-4)
    assert measured["answer_tokens"] == pytest.approx(sum(tokens) / len(tokens))


def test_ratios_are_means_over_answers_and_over_tokens() -> None:
    # Three answers of 2, 3 and 5 tokens: (1 − 4 + 6)/3 = 1 each, 3/10 per token.
    observed = {"log_ratio": torch.tensor([1.0, -4.0, 6.0]), "answer_tokens": torch.tensor([2.0, 3.0, 5.0])}
    expected = {"log_ratio": 1.0, "log_ratio_per_token": 0.3, "answer_tokens": 10 / 3}
    assert ratio_figures(observed) == pytest.approx(expected)
    assert ratio_figures({"log_ratio": torch.empty(0), "answer_tokens": torch.empty(0)}) == {}


# ── SFT ───────────────────────────────────────────────────────────────────────────────

WRITTEN = [
    row("a", ["?"], [0], verdict="not_asked", prompt="Where?", demonstration="in the east, where it rises"),
    row("b", ["?"], [0], verdict="not_asked", prompt="Why? " * 4, demonstration="because", weight=0.5),
]


@pytest.mark.parametrize("normalise", ["token", "sequence"])
def test_only_the_answers_tokens_cost_anything_and_each_as_much_as_is_said(
    backbone: Backbone, normalise: Any
) -> None:
    method = method_of(backbone, SftSettings(lora=LORA, normalise=normalise))
    examples = examples_of(method, backbone, WRITTEN)
    answers = [example.answers[0] for example in examples]
    sums = [log_probability(backbone, "policy", answer) for answer in answers]
    tokens = [len(answer.ids) - answer.answer_start for answer in answers]
    assert tokens[0] == 2 * tokens[1]
    if normalise == "token":
        expected = -(sums[0] + 0.5 * sums[1]) / (tokens[0] + 0.5 * tokens[1])
    else:
        expected = -(sums[0] / tokens[0] + 0.5 * sums[1] / tokens[1]) / 1.5
    assert step(method, examples) == pytest.approx(expected, abs=1e-5)
    measured = figures(method, examples)
    assert measured["log_loss"] == pytest.approx(-sum(sums) / sum(tokens), abs=1e-5)
    assert measured["perplexity"] == pytest.approx(math.exp(-sum(sums) / sum(tokens)), rel=1e-4)


def texts_of(backbone: Backbone, method: TrainingMethod, *rows: Any) -> list[str]:
    return [
        backbone.tokenizer.decode(answer.ids[answer.answer_start : -1])
        for example in examples_of(method, backbone, list(rows))
        for answer in example.answers
    ]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (("demonstrations",), ["shown"]),
        (("corrections",), ["mended"]),
        (("preferred",), ["good", "good too"]),
        (("demonstrations", "corrections", "preferred"), ["shown", "mended", "good", "good too"]),
    ],
)
def test_what_is_taught_is_what_the_sources_name(backbone: Backbone, sources: Any, expected: Any) -> None:
    method = method_of(backbone, SftSettings(lora=LORA, sources=sources))
    judged = row(
        "j",
        ["good", "bad", "good too"],
        [1, 2, 1],
        demonstration="shown",
        corrections=[{"completion": "j.1", "text": "mended"}],
    )
    assert texts_of(backbone, method, judged) == expected


def test_an_answer_is_preferred_by_the_reviewer_where_one_has_decided(backbone: Backbone) -> None:
    method = method_of(backbone, SftSettings(lora=LORA, sources=("preferred",)))
    decision = {"verdict": "ranked", "ranks": {"x.0": 2, "x.1": 1}}
    votes = [
        row("x", ["first", "second"], ranks, review=decision, comparison="disputed")
        for ranks in ([1, 2], [2, 1])
    ]
    assert texts_of(backbone, method, *votes) == ["second"]


def test_a_ranking_in_which_all_are_tied_prefers_nothing(backbone: Backbone) -> None:
    method = method_of(backbone, SftSettings(lora=LORA, sources=("preferred",)))
    equal = row("e", ["one", "two"], [1, 1], verdict="equal")
    with pytest.raises(ContractError, match="no text to be imitated"):
        examples_of(method, backbone, [equal])


# ── Preferences ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, math.log(2)),
        ({"length_normalised": True, "beta": 2.0}, math.log(2)),
        ({"loss": "robust", "label_smoothing": 0.1}, math.log(2)),
        ({"loss": "hinge"}, 1.0),
        ({"loss": "ipo", "beta": 0.25}, 4.0),  # (0 − 1/(2β))²
        ({"loss": "plackett_luce"}, math.log(24) / 3),  # −log 1/4! over three choices
    ],
)
def test_the_first_loss_of_a_ranking_is_that_of_equal_rewards(
    backbone: Backbone, chosen: dict[str, Any], expected: float
) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, **chosen), moved=0)
    ranked = row("r", ["the sun", "no", "in the east it rises", "why why"], [2, 4, 1, 3])
    examples = examples_of(method, backbone, [ranked])
    assert step(method, examples) == pytest.approx(expected, abs=1e-4)


def test_a_ranking_costs_minus_log_p_of_all_orders_that_agree_with_it(backbone: Backbone) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, loss="plackett_luce", beta=0.3))
    ranked = row("r", ["the sun", "no", "in the east it rises", "why why"], [2, 3, 1, 2])
    (example,) = examples_of(method, backbone, [ranked])
    rewards = [
        0.3 * (log_probability(backbone, "policy", answer) - log_probability(backbone, None, answer))
        for answer in example.answers
    ]
    p = 0.0
    for order in permutations(range(4)):
        if [example.ranks[place] for place in order] == sorted(example.ranks):
            chances = [
                math.exp(rewards[place]) / sum(math.exp(rewards[left]) for left in order[index:])
                for index, place in enumerate(order)
            ]
            p += math.prod(chances)
    assert step(method, [example]) == pytest.approx(-math.log(p) / 3, abs=1e-4)
    assert figures(method, [example])["ranking_log_loss"] == pytest.approx(-math.log(p), abs=1e-4)


@pytest.mark.parametrize("ties", ["exact", "efron", "breslow"])
def test_a_partial_ranking_costs_the_choices_that_were_made(backbone: Backbone, ties: Any) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, loss="plackett_luce", ties=ties, beta=0.3))
    ranked = row("r", ["the sun", "no", "in the east it rises", "why why"], [2, 0, 1, 0])
    (example,) = examples_of(method, backbone, [ranked])
    worth = [
        math.exp(
            0.3 * (log_probability(backbone, "policy", answer) - log_probability(backbone, None, answer))
        )
        for answer in example.answers
    ]
    first = worth[2] / sum(worth)
    second = worth[0] / (worth[0] + worth[1] + worth[3])
    # Two choices: which of four, then which of the three that are left.
    assert step(method, [example]) == pytest.approx(-math.log(first * second) / 2, abs=1e-4)
    assert figures(method, [example])["ranking_log_loss"] == pytest.approx(
        -math.log(first * second), abs=1e-4
    )


def test_dpo_takes_a_pair_for_each_ranked_answer_and_each_below_it(backbone: Backbone) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, beta=0.3))
    judged = row("r", ["the sun", "no", "in the east it rises"], [0, 1, 0])
    (example,) = examples_of(method, backbone, [judged])
    rewards = [
        0.3 * (log_probability(backbone, "policy", answer) - log_probability(backbone, None, answer))
        for answer in example.answers
    ]
    costs = [math.log1p(math.exp(rewards[worse] - rewards[1])) for worse in (0, 2)]
    assert step(method, [example]) == pytest.approx(sum(costs) / 2, abs=1e-4)


def test_per_token_a_long_answer_earns_nothing_by_its_length(backbone: Backbone) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, length_normalised=True, beta=2.0))
    judged = row("r", ["no", "in the east it rises, as it does every morning"], [1, 2])
    (example,) = examples_of(method, backbone, [judged])
    rewards = [
        2.0
        * (log_probability(backbone, "policy", answer) - log_probability(backbone, None, answer))
        / (len(answer.ids) - answer.answer_start)
        for answer in example.answers
    ]
    margin = rewards[0] - rewards[1]
    assert step(method, [example]) == pytest.approx(math.log1p(math.exp(-margin)), abs=1e-5)
    assert figures(method, [example])["margin"] == pytest.approx(margin, abs=1e-5)


def test_imitation_takes_the_answers_ranked_first_and_only_where_there_is_a_worse_one(
    backbone: Backbone,
) -> None:
    settings = PreferenceSettings(lora=LORA, loss="plackett_luce", ties="davidson", sft_weight=1e6, beta=1e-6)
    method = method_of(backbone, settings)
    ranked = row("r", ["the sun", "no", "in the east"], [1, 2, 1])
    tied = row("t", ["why", "because"], [1, 1], verdict="equal")
    examples = examples_of(method, backbone, [ranked, tied])
    assert [len(example.answers) for example in examples] == [3, 2]
    best = [examples[0].answers[0], examples[0].answers[2]]
    per_token = [
        log_probability(backbone, "policy", answer) / (len(answer.ids) - answer.answer_start)
        for answer in best
    ]
    assert method.weights(examples[1])["sft"] == 0
    assert method.weights(examples[1])["preference"] == 1
    assert step(method, examples) / 1e6 == pytest.approx(-sum(per_token) / 2, abs=1e-4)


def test_the_best_of_a_ranking_leave_out_who_was_not_ranked() -> None:
    answers = tuple(EncodedAnswer((1, number), 1) for number in (2, 3, 4))
    examples = [Example("a", answers, (0, 2, 3)), Example("b", answers[:2], (1, 1))]
    batch = pack(examples, device=CPU)
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    assert best_answers(batch, values).tolist() == [2.0, 12.0]


def test_log_odds_of_ties_begin_where_the_data_put_them() -> None:
    # Equal rewards: a pair ties with δ/(2 + δ), so 30 ties of 100 pairs make δ = 6/7.
    rankings = [(1, 1)] * 30 + [(1, 2)] * 40 + [(2, 1)] * 30
    log_ties = likeliest_log_tie(rankings)
    assert log_ties.shape == (11,)
    assert log_ties[0].item() == pytest.approx(math.log(6 / 7), abs=2e-3)
    # Nothing was said of larger ties, and nothing is made of it.
    assert log_ties[1:].tolist() == [0.0] * 10


def test_a_size_of_tie_that_never_occurred_is_unlikely_but_not_impossible() -> None:
    # Of 50 threes 20 have a best pair: 3 + 3δ₂ + δ₃ ways at first. δ₃ never happened, though it could have.
    log_ties = likeliest_log_tie([(1, 1, 3)] * 20 + [(1, 2, 3)] * 30)
    assert -12 < log_ties[1].item() < -2
    assert log_ties[:2].isfinite().all()
    assert likeliest_log_tie([]).tolist() == [0.0] * 11


def test_a_ranking_longer_than_plackett_luce_can_count_is_named(backbone: Backbone) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, loss="plackett_luce"))
    long = row("long", [f"answer {number}" for number in range(13)], list(range(1, 14)))
    (example,) = examples_of(method, backbone, [long])
    with pytest.raises(ContractError, match="judgment long: it ranks 13 answers"):
        method.weights(example)


def test_a_reward_models_ties_are_a_policys_too(backbone: Backbone) -> None:
    # The same rankings are wanted of a snapshot: what is tied teaches where ties are an outcome, not else.
    tied = row("t", ["why", "because"], [1, 1], verdict="equal")
    decided = row("d", ["why", "because"], [1, 2])
    kinds: list[tuple[Ties, int]] = [("davidson", 2), ("exact", 1)]
    for ties, expected in kinds:
        fresh = Backbone.load(backbone.folder, device="cpu", dtype=torch.float32)
        both: list[Settings] = [
            PreferenceSettings(lora=LORA, loss="plackett_luce", ties=ties),
            RewardSettings(lora=LORA, loss="plackett_luce", ties=ties),
        ]
        for settings in both:
            assert len(examples_of(method_of(fresh, settings), fresh, [tied, decided])) == expected
