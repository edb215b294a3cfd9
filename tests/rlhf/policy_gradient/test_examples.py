"""The teaching examples reach the returns that they promise, by the code that trains language models."""

import dataclasses
import math
import random
from itertools import product
from typing import Any

import gymnasium
import pytest
import torch

from training.contract.methods.policy import AdvantageSettings, KlSettings
from training.rlhf.examples import cart_pole, grid_world
from training.rlhf.examples.games import Player, drawn_curve, learn, play
from training.rlhf.examples.grid_world import COLUMNS, GOAL, MOVES, PIT, ROWS, START, GridWorld


def best_by_value_iteration() -> float:
    """The best return from S, worked out from the rules as the map's docstring gives them."""
    value = dict.fromkeys(product(range(ROWS), range(COLUMNS)), -math.inf)
    for place in (GOAL, *PIT):
        value[place] = 0.0
    for _ in range(ROWS * COLUMNS):
        for row, column in set(value) - {GOAL, *PIT}:
            ways = []
            for down, right in MOVES:
                there = (min(max(row + down, 0), ROWS - 1), min(max(column + right, 0), COLUMNS - 1))
                ways.append(-1 + 10 * (there == GOAL) - 30 * (there in PIT) + value[there])
            value[row, column] = max(ways)
    return value[START]


def test_the_best_return_of_the_grid_world_is_the_one_it_promises():
    assert best_by_value_iteration() == grid_world.BEST


def test_a_grid_world_game_by_hand():
    game = GridWorld()
    game.start(0)
    # Left, against the wall; up; right; down into the pit.
    earned = [game.act(move)[1:] for move in (3, 0, 1, 2)]
    assert earned == [(-1, False), (-1, False), (-1, False), (-31, True)]
    game.start(0)
    assert [game.act(3)[2] for _ in range(30)] == [False] * 29 + [True]


@pytest.mark.parametrize("method", [grid_world.REINFORCE, grid_world.PPO], ids=["REINFORCE", "PPO"])
def test_both_methods_find_the_best_way_through_the_grid_world(method):
    history, last = grid_world.run(method)
    assert history[0]["return"] < -15
    assert last.mean_return == grid_world.BEST
    assert history[-1]["return"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(cart_pole.REINFORCE, id="REINFORCE"),
        pytest.param(cart_pole.PPO, id="PPO", marks=pytest.mark.long),
    ],
)
def test_both_methods_solve_cart_pole(method):
    history, last = cart_pole.run(method)
    assert history[0]["return"] < 100
    assert last.mean_return >= cart_pole.SOLVED


def test_games_of_different_length_are_played_side_by_side():
    torch.manual_seed(0)
    policy = cart_pole.network(2, gain=1.0)
    games = [cart_pole.CartPole() for _ in range(3)]
    played = play(policy, games, torch.Generator().manual_seed(0))
    lengths = played.mask.sum(-1)
    assert len(set(lengths.tolist())) > 1
    assert played.mask.shape[1] == lengths.max()
    # One point for each push, and none after the end.
    assert torch.equal(played.rewards, played.mask.float())
    assert all(row[:count].all() for row, count in zip(played.mask, lengths, strict=True))


def test_a_player_that_has_not_played_says_so():
    with pytest.raises(ValueError, match="nothing was played"):
        Player(grid_world.table(4), None).evaluate([0])


def test_a_curve_is_drawn_in_lines_of_text():
    history = [{"step": step + 1.0, "return": 10.0 * step} for step in range(40)]
    lines = drawn_curve("name", history, least=0, most=390).splitlines()
    assert len(lines) == 21
    assert lines[0] == "name"
    assert lines[-1].split() == ["40", "390.0", "█" * 40]


def test_the_cart_pole_moves_as_that_of_gymnasium():
    peer: Any = gymnasium.make("CartPole-v1").unwrapped
    peer.reset(seed=0)
    ours = cart_pole.CartPole()
    for seed in range(20):
        peer.state = ours.start(seed)
        peer.steps_beyond_terminated = None
        pushes = random.Random(seed)
        over = False
        while not over:
            push = pushes.randrange(2)
            state, reward, over = ours.act(push)
            _seen, earned, fallen, *_ = peer.step(push)
            assert state == pytest.approx(list(peer.state), abs=1e-9)
            assert (reward, over) == (earned, fallen)


def test_a_cart_pole_game_ends_after_500_pushes():
    game = cart_pole.CartPole()
    game.start(0)
    ends = []
    for push in range(500):
        game.state = [0.0, 0.0, 0.0, 0.0]
        ends.append(game.act(push % 2)[2])
    assert ends == [False] * 499 + [True]


def test_games_that_are_compared_with_each_other_are_one_group():
    method = dataclasses.replace(
        grid_world.REINFORCE, advantage=AdvantageSettings(kind="group_relative"), steps=1, games=4
    )
    (record,) = learn(Player(grid_world.table(4), None), GridWorld, method, seed=0)
    # Four games of one group have advantages; each alone would have none, and the policy no gradient.
    assert record["gradient_norm"] > 0


def test_a_penalty_on_the_divergence_keeps_a_policy_nearer_to_where_it_began():
    def divergence(beta: float) -> float:
        method = dataclasses.replace(
            grid_world.REINFORCE, steps=20, kl=KlSettings(place="reward", kind="k1", beta=beta)
        )
        return list(learn(Player(grid_world.table(4), None), GridWorld, method, seed=0))[-1]["kl"]

    assert 0 < divergence(5.0) < divergence(0.0)
