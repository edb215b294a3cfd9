"""Learning from a batch of samples: against plain arithmetic, finite differences and other ways to cut it."""

import dataclasses
import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rlhf.policy_gradient.tabular import (
    LONGEST,
    B,
    Descent,
    T,
    Tabular,
    credit_of,
    everything,
    gradients,
    scene,
    update,
)
from training.contract import ContractError
from training.contract.methods import settings_from_json
from training.contract.methods.policy import KlSettings
from training.rlhf.advantages import best_and_worst
from training.rlhf.policy_gradient.credit import Credit, EpisodeBatch
from training.rlhf.policy_gradient.update import Evaluated, evaluated_once

AGGREGATES = ("token", "sequence", "constant")


def loss_by_definition(actor: Tabular, episodes: EpisodeBatch, credit: Credit, aggregate: str) -> float:
    """All terms of `everything`, token by token in plain arithmetic."""
    logits, values = actor.logits.tolist(), actor.values.tolist()
    answers, critic, tokens = [], 0.0, 0
    for row in range(B):
        losses = []
        for time in range(T):
            if not episodes.mask[row, time]:
                continue
            state, action = int(actor.states[row, time]), int(actor.actions[row, time])
            total = sum(math.exp(logit) for logit in logits[state])
            chances = [math.exp(logit) / total for logit in logits[state]]
            logp, old = math.log(chances[action]), float(episodes.old_logp[row, time])
            advantage, ratio = float(credit.advantages[row, time]), math.exp(logp - old)
            weight = min(math.exp(old - float(episodes.behaviour_logp[row, time])), 1.2)
            losses.append(
                -min(ratio * advantage, min(max(ratio, 0.9), 1.25) * advantage) * weight
                + 0.3 * (logp - float(episodes.ref_logp[row, time])) ** 2 / 2
                + 0.05 * sum(chance * math.log(chance) for chance in chances)
            )
            before, aim = float(episodes.old_values[row, time]), float(credit.returns[row, time])
            near = before + min(max(values[state] - before, -0.05), 0.05)
            critic += max((values[state] - aim) ** 2, (near - aim) ** 2) / 2
            tokens += 1
        answers.append(losses)
    summed = [sum(losses) for losses in answers]
    policy = {
        "token": sum(summed) / tokens,
        "sequence": sum(sum(losses) / len(losses) for losses in answers) / B,
        "constant": sum(summed) / LONGEST / B,
    }[aggregate]
    return policy + 0.5 * critic / tokens


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_the_gradient_is_that_of_the_loss_in_plain_arithmetic_by_finite_differences(aggregate):
    actor, episodes, credit = scene()
    actual = gradients(actor, episodes, credit, **everything(aggregate))
    for parameter, gradient in zip(actor.parameters, actual, strict=True):
        for place in product(*(range(size) for size in parameter.shape)):
            around = []
            for shift in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter[place] += shift
                around.append(loss_by_definition(actor, episodes, credit, aggregate))
                with torch.no_grad():
                    parameter[place] -= shift
            slope = (around[0] - around[1]) / 2e-6
            assert gradient[place].item() == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_the_terms_told_add_up_to_the_loss_in_plain_arithmetic(aggregate):
    actor, episodes, credit = scene()
    expected = loss_by_definition(actor, episodes, credit, aggregate)
    descent = Descent(actor.parameters, rate=0.0)
    figures = update(actor, episodes, credit, descent, **everything(aggregate)).figures
    assert sum(value for name, value in figures.items() if name.endswith("_loss")) == pytest.approx(expected)


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("at_once", [1, 4])
def test_how_a_minibatch_is_cut_into_passes_changes_nothing(aggregate, at_once):
    def run(**cut: Any):
        actor, episodes, credit = scene(**cut)
        descent = Descent(actor.parameters, rate=0.0)
        figures = update(actor, episodes, credit, descent, **everything(aggregate)).figures
        return figures, descent.gradients[0], len(actor.seen)

    whole, cut = run(), run(at_once=at_once)
    assert (whole[2], cut[2]) == (1, math.ceil(B / at_once))
    assert cut[0] == pytest.approx(whole[0])
    for actual, expected in zip(cut[1], whole[1], strict=True):
        assert torch.allclose(actual, expected, atol=1e-14)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_padding_never_leaks(aggregate):
    plain = gradients(*scene(), **everything(aggregate))
    padded = gradients(*scene(padding=3), **everything(aggregate))
    for actual, expected in zip(padded, plain, strict=True):
        assert expected.abs().sum() > 0
        assert torch.allclose(actual, expected, atol=1e-14)


class Careless(Tabular):
    """Says NaN of all that is no action of the policy's."""

    kept = torch.ones(0)

    def evaluate(self, rows: list[int]) -> Evaluated:
        hole = ~self.kept[rows]
        return Evaluated(*(values.masked_fill(hole, math.nan) for values in super().evaluate(rows)))


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_what_the_actor_says_outside_the_mask_never_leaks(aggregate):
    actor, episodes, credit = scene()
    careless = Careless(actor.logits, actor.states, actor.actions, values=actor.values, base=actor.base)
    careless.kept = episodes.mask
    expected = gradients(actor, episodes, credit, **everything(aggregate))
    for actual, other in zip(
        gradients(careless, episodes, credit, **everything(aggregate)), expected, strict=True
    ):
        assert torch.allclose(actual, other, atol=1e-14)


def test_later_epochs_are_held_against_the_first_whether_it_was_given_or_not():
    ends = []
    for evaluated_before in (True, False):
        actor, episodes, credit = scene(old=False, at_once=2)
        if evaluated_before:
            episodes = evaluated_once(actor, episodes)
        done = update(actor, episodes, credit, Descent(actor.parameters, rate=1.0), inner_epochs=3)
        assert (done.epochs, done.steps) == (3, 3)
        assert done.figures["ratio_max"] > 1.01
        ends.append(actor.logits.detach())
    assert torch.equal(*ends)


def test_what_the_actor_says_before_the_update_is_kept():
    actor, episodes, _ = scene(old=False, at_once=4)
    evaluated = evaluated_once(actor, episodes)
    expected = actor.evaluate(list(range(B)))
    assert torch.allclose(evaluated.old_logp, expected.logp)
    assert torch.allclose(evaluated.old_values, expected.values)
    assert not evaluated.old_logp.requires_grad


def test_asymmetric_clipping_by_hand():
    # Two actions of even chance; old ones of ½ / 1.5, ½ / 1.25 and ½ / 0.7: ratios 1.5, 1.25 and 0.7.
    # Advantages 1, 1, −1; clips [0.8, 1.3] take the first and the third: −(1.3 + 1.25 − 0.8) / 3.
    actor = Tabular(torch.zeros(1, 2), torch.zeros(1, 3, dtype=torch.long), torch.tensor([[0, 1, 0]]))
    episodes = EpisodeBatch(
        mask=torch.ones(1, 3, dtype=torch.bool),
        rewards=torch.zeros(1, 3),
        scored=torch.ones(1, dtype=torch.bool),
        group=torch.zeros(1, dtype=torch.long),
        old_logp=torch.tensor([[0.5 / 1.5, 0.5 / 1.25, 0.5 / 0.7]]).log(),
    )
    descent = Descent(actor.parameters, rate=0.0)
    credit = credit_of(torch.tensor([[1.0, 1.0, -1.0]]))
    figures = update(actor, episodes, credit, descent, clip_low=0.2, clip_high=0.3).figures
    assert figures["policy_loss"] == pytest.approx(-(1.3 + 1.25 - 0.8) / 3)
    assert figures["clip_fraction"] == pytest.approx(2 / 3)
    assert figures["clip_fraction_low"] == pytest.approx(1 / 3)
    assert figures["ratio_mean"] == pytest.approx((1.5 + 1.25 + 0.7) / 3)
    assert figures["entropy"] == pytest.approx(math.log(2))
    # Only the second takes a gradient: −1.25 / 3 · (1 − ½) for its own logit.
    assert descent.gradients[0][0][0].tolist() == pytest.approx([1.25 / 6, -1.25 / 6])
    assert figures["gradient_norm"] == pytest.approx(1.25 / 6 * math.sqrt(2))


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_what_could_not_be_scored_takes_no_gradient(aggregate):
    actor, episodes, credit = scene()
    unscored = torch.tensor([True, True, False, True, True, True])
    left = [0, 1, 3, 4, 5]

    def of(rows: list[int], scored: Tensor) -> list[Tensor]:
        fields = {field.name: getattr(episodes, field.name) for field in dataclasses.fields(EpisodeBatch)}
        columns = {name: values[rows] for name, values in fields.items() if values is not None}
        part = EpisodeBatch(**{**columns, "scored": scored})
        states, actions = actor.states[rows], actor.actions[rows]
        chosen = Tabular(actor.logits.detach(), states, actions, values=actor.values.detach())
        return gradients(
            chosen,
            part,
            credit_of(credit.advantages[rows], credit.returns[rows]),
            **everything(aggregate),
        )

    without = of(left, torch.ones(5, dtype=torch.bool))
    for actual, expected in zip(of(list(range(B)), unscored), without, strict=True):
        assert torch.allclose(actual, expected, atol=1e-14)


def test_minibatches_are_shares_of_the_prompts_and_each_is_seen_once_an_epoch():
    actor, episodes, credit = scene()
    descent = Descent(actor.parameters, rate=0.0)
    done = update(actor, episodes, credit, descent, minibatches=2, inner_epochs=4, seed=6)
    assert done.steps == 8
    orders = [actor.seen[index] + actor.seen[index + 1] for index in range(0, 8, 2)]
    assert all(sorted(order) == list(range(B)) for order in orders)
    assert all(rows[::2] == [row - 1 for row in rows[1::2]] for rows in actor.seen)
    assert len({tuple(order) for order in orders}) > 1
    again, *_ = scene()
    update(again, episodes, credit, Descent(again.parameters, 0.0), minibatches=2, inner_epochs=4, seed=6)
    assert again.seen == actor.seen


def test_a_minibatch_is_normalised_by_itself():
    # With a share of its own for each prompt, the steps are those of three updates.
    actor, episodes, credit = scene()
    descent = Descent(actor.parameters, rate=0.0)
    update(actor, episodes, credit, descent, minibatches=3, **everything("token"))
    for rows, actual in zip(actor.seen, descent.gradients, strict=True):
        alone = torch.zeros(B, dtype=torch.bool)
        alone[rows] = True
        other, _, _ = scene()
        only = dataclasses.replace(episodes, mask=episodes.mask & alone.unsqueeze(-1))
        expected = gradients(other, only, credit, **everything("token"))
        assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(actual, expected, strict=True))


def test_full_divergence_is_that_of_the_whole_distribution():
    # π = (¾, ¼), π_ref = (½, ½): ¾ log 1.5 + ¼ log ½, wherever the answers are.
    logits = torch.tensor([[math.log(3.0), 0.0]])
    places = torch.zeros(2, 2, dtype=torch.long)
    actor = Tabular(logits, places, torch.tensor([[0, 1], [1, 1]]), base=torch.zeros(1, 2))
    episodes = EpisodeBatch(
        mask=torch.tensor([[True, True], [True, False]]),
        rewards=torch.zeros(2, 2),
        scored=torch.ones(2, dtype=torch.bool),
        group=torch.zeros(2, dtype=torch.long),
    )
    full = KlSettings(place="loss", kind="full")
    descent = Descent(actor.parameters, rate=0.0)
    figures = update(actor, episodes, credit_of(torch.ones(2, 2)), descent, kl=full, beta=2.0).figures
    assert figures["kl_loss"] == pytest.approx(2 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)))


# ── Pairs of the best and the worst answer ──


PAIRS: dict[str, Any] = {"loss": "dpo", "kl": KlSettings(place="loss", kind="k3", beta=0.1), "beta": 0.1}


def marked(episodes: EpisodeBatch, marks: list[float]) -> Credit:
    """Credit of answers that are the best of their prompt, the worst, or neither."""
    per_answer = torch.tensor(marks, dtype=torch.float64).unsqueeze(-1)
    return credit_of(torch.where(episodes.mask, per_answer, 0.0))


def pairs_by_definition(actor: Tabular, episodes: EpisodeBatch, pairs: list[tuple[int, int]]) -> float:
    """Mean of −log σ(β h) over pairs, token by token in plain arithmetic."""
    logits = actor.logits.tolist()

    def gained(row: int) -> float:
        total = 0.0
        for time in range(T):
            if episodes.mask[row, time]:
                state, action = int(actor.states[row, time]), int(actor.actions[row, time])
                norm = math.log(sum(math.exp(logit) for logit in logits[state]))
                total += logits[state][action] - norm - float(episodes.ref_logp[row, time])
        return total

    losses = [math.log1p(math.exp(-0.1 * (gained(best) - gained(worst)))) for best, worst in pairs]
    return sum(losses) / len(losses)


def test_the_loss_of_pairs_is_that_of_direct_preference_optimisation_in_plain_arithmetic():
    """Prompt 0: answer 1 is better than 0. Prompt 1: its answers tie. Prompt 2: answer 4 is better than 5."""
    actor, episodes, _ = scene()
    assert episodes.group.tolist() == [0, 0, 1, 1, 2, 2]
    credit = marked(episodes, [-1, 1, 0, 0, 1, -1])
    expected = pairs_by_definition(actor, episodes, [(1, 0), (4, 5)])
    (gradient, *_) = gradients(actor, episodes, credit, **PAIRS)
    for place in product(*(range(size) for size in actor.logits.shape)):
        around = []
        for shift in (1e-6, -1e-6):
            with torch.no_grad():
                actor.logits[place] += shift
            around.append(pairs_by_definition(actor, episodes, [(1, 0), (4, 5)]))
            with torch.no_grad():
                actor.logits[place] -= shift
        assert gradient[place].item() == pytest.approx((around[0] - around[1]) / 2e-6, abs=1e-8)
    figures = update(actor, episodes, credit, Descent(actor.parameters, rate=0.0), **PAIRS).figures
    assert figures["policy_loss"] == pytest.approx(expected)
    assert 0 <= figures["pair_accuracy"] <= 1


def test_pairs_cut_into_passes_give_the_same_and_a_pair_that_is_cut_is_refused():
    def run(at_once: int):
        actor, episodes, _ = scene(at_once=at_once)
        credit = marked(episodes, [-1, 1, 0, 0, 1, -1])
        return gradients(actor, episodes, credit, **PAIRS)[0]

    # The tied prompt costs no pass, so that two answers fit into each.
    assert torch.allclose(run(2), run(10**9), atol=1e-14)
    with pytest.raises(ContractError, match="micro_batch_tokens"):
        run(1)


def test_the_best_and_the_worst_answer_to_each_prompt_are_marked():
    nan = math.nan
    rewards = torch.tensor([[1.0, 3.0, 2.0, 0.0], [nan, 5.0, 7.0, nan], [2.0, 2.0, 2.0, nan], [nan] * 4])
    expected = [[0.0, 1.0, 0.0, -1.0], [0.0, -1.0, 1.0, 0.0], [0.0] * 4, [0.0] * 4]
    assert best_and_worst(rewards).tolist() == expected


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"advantage": {"kind": "group_relative"}}, "advantage"),
        ({"kl": {"place": "none"}}, "kl"),
        ({"rollout": {"samples": 1}}, "rollout"),
        ({"update": {"loss": "dpo", "entropy": 0.1}}, "entropy"),
    ],
)
def test_settings_that_mean_nothing_for_pairs_are_refused(changes, field):
    pairs = {
        "rewards": [{"name": "brief", "kind": "length", "options": {"most": 9}}],
        "advantage": {"kind": "best_and_worst"},
        "update": {"loss": "dpo"},
    }
    settings_from_json("policy_gradient", pairs)
    with pytest.raises(ContractError, match=field):
        settings_from_json("policy_gradient", pairs | changes)
