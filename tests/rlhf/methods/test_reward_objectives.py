"""Costs of rankings: against brute force, by hand, and however a step is cut."""

import math
from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.rlhf.methods.reward_scene import (
    examples_of,
    gradients,
    mixed,
    ranking,
    reward_method,
    scores_of,
    step,
)
from tests.rlhf.methods.test_methods import batch_of, loss_of
from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.runs import row
from training.contract import ContractError
from training.contract.methods.reward import RewardSettings
from training.rlhf.methods.objectives.rankings import LOG_TIE, costs_of_rankings
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import SCORE, Backbone


def mean_squared_sum(scores: Sequence[float]) -> float:
    pairs = list(combinations(scores, 2))
    return sum((first + other) ** 2 for first, other in pairs) / len(pairs)


# ── Against brute force ───────────────────────────────────────────────────────────────


def probability_of_order(scores: Sequence[float], order: Sequence[int]) -> float:
    """Plackett-Luce: each is chosen among those that are left."""
    probability, left = 1.0, list(order)
    while left:
        probability *= math.exp(scores[left[0]]) / sum(math.exp(scores[item]) for item in left)
        left.pop(0)
    return probability


@pytest.mark.parametrize("ranks", [[1, 2], [3, 1, 2], [2, 3, 1, 3], [1, 1, 2, 2]])
def test_a_ranking_costs_what_all_orders_that_agree_with_it_come_to(
    backbone: Backbone, ranks: list[int]
) -> None:
    method = reward_method(backbone, loss="plackett_luce", centring=0.1)
    disturb(backbone, "reward")
    (example,) = examples_of(backbone, [ranking("a", ranks)])
    scores = scores_of(backbone, example)
    agreeing = [
        order for order in permutations(range(len(ranks))) if sorted(ranks) == [ranks[item] for item in order]
    ]
    probability = sum(probability_of_order(scores, order) for order in agreeing)
    # Divided by the choices that a ranking is made of, so that it counts as one judgment.
    expected = -math.log(probability) / (len(ranks) - 1) + 0.1 * mean_squared_sum(scores)
    assert loss_of(method, [example]).item() == pytest.approx(expected, abs=1e-5)
    observed = method.outcome(batch_of([example]), [example], dropout=False).observed
    assert observed["ranking_log_loss"].tolist() == pytest.approx([-math.log(probability)], abs=1e-5)


def davidson_luce(scores: Sequence[float], ranks: Sequence[int], log_delta: Sequence[float]) -> float:
    """p(ranking): at each stage every set of what is left may win, by its size and its mean score."""
    probability, left = 1.0, list(range(len(ranks)))

    def worth(group: tuple[int, ...]) -> float:
        return math.exp(log_delta[len(group) - 1] + sum(scores[item] for item in group) / len(group))

    for rank in sorted(set(ranks) - {0}):
        winners = tuple(item for item in left if ranks[item] == rank)
        sets = [group for size in range(1, len(left) + 1) for group in combinations(left, size)]
        probability *= worth(winners) / sum(worth(group) for group in sets)
        left = [item for item in left if item not in winners]
    return probability


@pytest.mark.parametrize("ranks", [[1, 2], [1, 1], [2, 3, 1, 3], [1, 1, 1], [2, 0, 1, 1], [0, 1, 0, 2]])
def test_with_davidson_luce_a_tie_is_an_outcome_of_its_own(backbone: Backbone, ranks: list[int]) -> None:
    method = reward_method(backbone, loss="plackett_luce", ties="davidson", centring=0.0)
    disturb(backbone, "reward")
    (example,) = examples_of(backbone, [ranking("a", ranks)])
    scores = scores_of(backbone, example)
    log_delta = [0.0, *backbone.extra("reward", LOG_TIE).tolist()]
    assert any(log_delta), "the test needs log odds that are not all 0"
    probability = davidson_luce(scores, ranks, log_delta)
    # One left over is the last without a choice; of two, the last ranked one was chosen among three.
    ranked = sum(rank > 0 for rank in ranks)
    expected = -math.log(probability) / (ranked if ranked < len(ranks) else ranked - 1)
    assert loss_of(method, [example]).item() == pytest.approx(expected, abs=1e-5)


def test_davidsons_model_counts_every_pair_of_a_ranking_tied_or_not(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="davidson", centring=0.05)
    disturb(backbone, "reward")
    ranks = [2, 1, 2]
    (example,) = examples_of(backbone, [ranking("a", ranks)])
    scores = scores_of(backbone, example)
    nu = math.exp(backbone.extra("reward", LOG_TIE)[0].item())
    expected = 0.0
    for first, other in combinations(range(3), 2):
        wins, loses = math.exp(scores[first]), math.exp(scores[other])
        tie = nu * math.sqrt(wins * loses)
        happened = tie if ranks[first] == ranks[other] else wins if ranks[first] < ranks[other] else loses
        expected -= math.log(happened / (wins + loses + tie)) / 3
    expected += 0.05 * mean_squared_sum(scores)
    assert loss_of(method, [example]).item() == pytest.approx(expected, abs=1e-5)


def test_davidsons_model_takes_no_pair_of_two_that_have_no_order(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="davidson", centring=0.05)
    disturb(backbone, "reward")
    (example,) = examples_of(backbone, [ranking("a", [0, 1, 0])])
    scores = scores_of(backbone, example)
    nu = math.exp(backbone.extra("reward", LOG_TIE)[0].item())
    expected = 0.0
    for worse in (0, 2):
        wins, loses = math.exp(scores[1]), math.exp(scores[worse])
        expected -= math.log(wins / (wins + loses + nu * math.sqrt(wins * loses))) / 2
        expected += 0.05 * (scores[1] + scores[worse]) ** 2 / 2
    assert loss_of(method, [example]).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ties", ["exact", "efron", "breslow"])
def test_a_partial_ranking_costs_the_choices_that_were_made(backbone: Backbone, ties: Any) -> None:
    method = reward_method(backbone, loss="plackett_luce", ties=ties, centring=0.0)
    disturb(backbone, "reward")
    (example,) = examples_of(backbone, [ranking("a", [0, 2, 1, 0])])
    worth = [math.exp(score) for score in scores_of(backbone, example)]
    chosen = worth[2] / sum(worth) * worth[1] / (worth[0] + worth[1] + worth[3])
    assert loss_of(method, [example]).item() == pytest.approx(-math.log(chosen) / 2, abs=1e-5)
    assert example.weight == method.weights(example)["score"]


# ── Scale ─────────────────────────────────────────────────────────────────────────────


def test_all_models_agree_on_a_decided_pair(base: Path) -> None:
    losses = []
    for more in ({}, {"loss": "plackett_luce"}, {"loss": "plackett_luce", "ties": "efron"}):
        backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
        method = reward_method(backbone, **more)
        disturb(backbone, "reward")
        losses.append(loss_of(method, examples_of(backbone, [ranking("a", [2, 1])])).item())
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("loss", ["bradley_terry", "plackett_luce"])
def test_at_equal_scores_the_best_answers_slope_is_one_over_the_number_of_answers(
    backbone: Backbone, loss: Literal["bradley_terry", "plackett_luce"], count: int
) -> None:
    examples = examples_of(backbone, [ranking("a", range(1, count + 1))])
    batch = batch_of(examples)
    scores = torch.zeros(count, requires_grad=True)
    cost = costs_of_rankings(scores, batch, RewardSettings(loss=loss, centring=0.0), log_tie=None)
    assert cost.item() == pytest.approx(
        math.log(2) if loss == "bradley_terry" else math.log(math.factorial(count)) / (count - 1)
    )
    cost.sum().backward()
    assert scores.grad is not None
    assert scores.grad[0].item() == pytest.approx(-1 / count)


def test_a_judgment_without_a_winner_teaches_models_of_ties_alone(backbone: Backbone) -> None:
    (tied,) = examples_of(backbone, [ranking("a", [1, 1, 1])])
    for more, counts in [
        ({}, 0.0),
        ({"loss": "plackett_luce"}, 0.0),
        ({"loss": "plackett_luce", "ties": "davidson"}, 1.0),
        ({"loss": "davidson"}, 1.0),
    ]:
        if "reward" in backbone.adapters:
            backbone.drop_adapter("reward")
        method = reward_method(backbone, **more)
        assert method.weights(tied) == {SCORE: counts}
        assert (method.wanted.ranks == "tied") is bool(counts)


def test_log_odds_of_ties_begin_where_the_judgments_put_them(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="davidson")
    # One pair in four is tied: p(tie) = ν / (2 + ν) = 1/4 for equal scores, so ν = 2/3.
    rows = [ranking(f"r{index}", [1, 1] if index % 4 == 0 else [1, 2]) for index in range(400)]
    method.begin(examples_of(backbone, rows))
    assert backbone.extra("reward", LOG_TIE)[0].item() == pytest.approx(math.log(2 / 3), abs=0.01)


def test_more_answers_than_plackett_luce_takes_are_refused_by_name(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="plackett_luce")
    many = row("long", [f"answer {index}" for index in range(13)], range(1, 14))
    (example,) = examples_of(backbone, [many])
    with pytest.raises(ContractError, match=r"judgment long: it ranks 13 answers.*'bradley_terry'"):
        method.weights(example)


def test_a_model_of_ties_that_sees_ties_alone_is_warned_of(
    backbone: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    method = reward_method(backbone, loss="davidson")
    tied = examples_of(backbone, [ranking("a", [1, 1]), ranking("b", [1, 1, 1])])
    with caplog.at_level("WARNING", logger="rondo.trainer"):
        method.begin([*tied, *examples_of(backbone, [ranking("c", [1, 2])])])
        assert not caplog.text
        method.begin(tied)
    assert "In none of 2 rankings an answer is judged better" in caplog.text


# ── Cutting ───────────────────────────────────────────────────────────────────────────


MODELS: dict[str, dict[str, Any]] = {
    "exact": {"loss": "plackett_luce"},
    "efron": {"loss": "plackett_luce", "ties": "efron"},
    "breslow": {"loss": "plackett_luce", "ties": "breslow"},
    "davidson-luce": {"loss": "plackett_luce", "ties": "davidson"},
    "davidson": {"loss": "davidson"},
    "ensemble": {"loss": "plackett_luce", "ensemble": 3},
    "annotators": {"annotator_heads": True},
    "all": {"loss": "davidson", "ensemble": 2, "annotator_heads": True},
}


@pytest.fixture(params=MODELS)
def method(backbone: Backbone, request: pytest.FixtureRequest) -> RewardModelling:
    """A model of each kind, as far from its beginning as training takes it."""
    made = reward_method(backbone, **MODELS[request.param])
    made.begin(examples_of(backbone, mixed()))
    disturb(backbone, "reward", scale=0.05)
    return made


def test_how_a_step_is_cut_and_ordered_changes_nothing(backbone: Backbone, method: RewardModelling) -> None:
    examples = examples_of(backbone, mixed())
    loss, figures, gradient = step(backbone, method, examples, [examples])
    assert gradient.norm() > 0.01
    for groups in (
        [[example] for example in examples],
        [examples[::-1]],
        [examples[:3], examples[3:5], examples[5:]],
    ):
        other_loss, other_figures, other = step(backbone, method, examples, groups)
        assert other_loss == pytest.approx(loss, abs=1e-5)
        assert other_figures == pytest.approx(figures, abs=1e-4)
        assert ((other - gradient).norm() / gradient.norm()).item() < 1e-5


def test_a_gradient_is_that_of_separate_rows_through_plain_attention(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="plackett_luce", centring=0.0)
    disturb(backbone, "reward", scale=0.05)
    (example,) = examples_of(backbone, [ranking("a", [3, 1, 4, 2])])
    loss_of(method, [example]).sum().backward()
    packed = torch.cat(list(gradients(backbone)))

    scores = []
    for answer in example.answers:
        ids = torch.tensor([answer.ids])
        with backbone.using("reward"):
            states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
        scores.append(backbone.score("reward", states[-1:])[0])
    # Ranked second first, then fourth, first, third: each against what is left.
    best_first = torch.stack([scores[1], scores[3], scores[0], scores[2]])
    surprise = sum(best_first[place:].logsumexp(0) - best_first[place] for place in range(3))
    assert isinstance(surprise, torch.Tensor)
    (surprise / 3).backward()
    separate = torch.cat(list(gradients(backbone)))
    assert ((separate - packed).norm() / packed.norm()).item() < 1e-5


def test_the_slope_of_the_log_odds_of_a_tie_is_that_of_finite_differences(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="plackett_luce", ties="davidson", centring=0.0)
    examples = examples_of(backbone, mixed())
    method.begin(examples)
    disturb(backbone, "reward", scale=0.05)
    log_tie = backbone.extra("reward", LOG_TIE)
    loss_of(method, examples).sum().backward()
    assert log_tie.grad is not None
    slope, numeric = log_tie.grad.clone(), []
    with torch.no_grad():
        for place in range(3):
            ends = []
            for change in (0.05, -0.05):
                log_tie[place] += change
                ends.append(loss_of(method, examples).double().sum().item())
                log_tie[place] -= change
            numeric.append((ends[0] - ends[1]) / 0.1)
    assert numeric[0] != pytest.approx(0.0, abs=0.01)
    assert slope[:3].tolist() == pytest.approx(numeric, abs=2e-3)
