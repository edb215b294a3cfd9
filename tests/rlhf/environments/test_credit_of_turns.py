"""Credit by turn, worked out by hand."""

from __future__ import annotations

import pytest
import torch

from training.contract.methods.policy import AdvantageSettings, KlSettings
from training.rlhf.policy_gradient.credit import Credit, CreditAssignment, EpisodeBatch

# Two episodes of one start. The first has turns of 2 and 1 tokens that earn 1 and 2, the second one turn of 3
# tokens that earns 5; each turn is paid on its last token.
MASK = torch.tensor([[True, True, True], [True, True, True]])
TURNS = torch.tensor([[0, 0, 1], [0, 0, 0]])
REWARDS = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 5.0]])
NONE = KlSettings(place="none")


def credit(advantage: AdvantageSettings, values: torch.Tensor | None = None, **more: torch.Tensor) -> Credit:
    episodes = EpisodeBatch(
        **{
            "mask": MASK,
            "rewards": REWARDS,
            "scored": torch.ones(2, dtype=torch.bool),
            "group": torch.zeros(2, dtype=torch.long),
            "turns": TURNS,
            "old_values": values,
            **more,
        }
    )
    return CreditAssignment(advantage, NONE).assign(episodes)


def test_the_same_turns_of_a_group_are_compared_by_what_they_earned_from_there_on() -> None:
    # γ = ½. First turns: 1 + ½·2 = 2 and 5, mean 3.5. The second turn of the first episode stands alone.
    result = credit(AdvantageSettings(kind="group_relative", scale=False, unit="turn", gamma=0.5))
    torch.testing.assert_close(result.advantages, torch.tensor([[-1.5, -1.5, 0.0], [1.5, 1.5, 1.5]]))
    # Against the other alone: 2 − 5 and 5 − 2.
    result = credit(AdvantageSettings(kind="leave_one_out", unit="turn", gamma=0.5))
    torch.testing.assert_close(result.advantages, torch.tensor([[-3.0, -3.0, 0.0], [3.0, 3.0, 3.0]]))


def test_returns_of_turns_are_discounted_by_turns() -> None:
    result = credit(AdvantageSettings(kind="return", unit="turn", gamma=0.5))
    torch.testing.assert_close(result.advantages, torch.tensor([[2.0, 2.0, 2.0], [5.0, 5.0, 5.0]]))


def test_advantages_over_turns_read_the_value_where_a_turn_begins() -> None:
    # γ = ½, λ = ½. Values at the first tokens: 0.5 and 1 in the first episode, 2 in the second; those in
    # between are not read.
    values = torch.tensor([[0.5, 90.0, 1.0], [2.0, 90.0, 90.0]])
    # Second turn: 2 − 1 = 1. First: 1 + ½·1 − 0.5 = 1, plus ½·½·1 = 1.25. Other episode: 5 − 2 = 3.
    result = credit(AdvantageSettings(kind="gae", unit="turn", gamma=0.5, lam=0.5), values)
    torch.testing.assert_close(result.advantages, torch.tensor([[1.25, 1.25, 1.0], [3.0, 3.0, 3.0]]))
    # Returns: advantage plus the value of the turn.
    torch.testing.assert_close(result.returns, torch.tensor([[1.75, 1.75, 2.0], [5.0, 5.0, 5.0]]))


def test_what_could_not_be_scored_and_what_lies_after_an_episode_teaches_nothing() -> None:
    # The second episode has one token of a turn, and its padding is not a number.
    mask = torch.tensor([[True, True, True], [True, False, False]])
    turns = torch.tensor([[0, 0, 1], [0, -1, -1]])
    rewards = torch.tensor([[0.0, 1.0, 2.0], [5.0, torch.nan, torch.nan]])
    advantage = AdvantageSettings(kind="group_relative", scale=False, unit="turn")
    result = credit(advantage, mask=mask, turns=turns, rewards=rewards)
    # 1 + 2 = 3 against 5: mean 4.
    torch.testing.assert_close(result.advantages, torch.tensor([[-1.0, -1.0, 0.0], [1.0, 0.0, 0.0]]))
    scored = torch.tensor([True, False])
    result = credit(advantage, mask=mask, turns=turns, rewards=rewards, scored=scored)
    assert not result.advantages.any()


def test_turns_are_needed_where_they_are_the_unit() -> None:
    with pytest.raises(ValueError, match="turns"):
        credit(AdvantageSettings(kind="return", unit="turn"), turns=None)
