"""Learn a game by the policy gradient: the loop of `grid_world` and `cart_pole`, in the order of a step.

    play      games are played with the policy as it is: what a language model does in a rollout
    assign    from what each action earned to how much better than expected it was
    update    more of what went better, less of what went worse

A game is an episode as an answer is; its actions are what tokens are there. All that is learned is learned
by `training.rlhf.policy_gradient`, as it is for language models.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from training.contract.methods.policy import AdvantageSettings, KlSettings, UpdateSettings
from training.rlhf.losses import entropy
from training.rlhf.policy_gradient.credit import CreditAssignment, EpisodeBatch, figures
from training.rlhf.policy_gradient.update import Evaluated, OptimizerStep, evaluated_once, update_policy

_MOST_NORM = 0.5


class Game(Protocol):
    """One game at a time."""

    def start(self, seed: int) -> list[float]:
        """Reset and return the first observation."""
        ...

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Return the observation, the reward, and whether the game is over."""
        ...


@dataclass(frozen=True, kw_only=True)
class GameSettings:
    """Settings under which a game is learned."""

    name: str
    advantage: AdvantageSettings
    update: UpdateSettings
    learning_rate: float
    steps: int
    games: int
    """Played in each step."""
    enough: float = math.inf
    """Learning ends when a step's games earn this on average: a further update could only unlearn it."""
    kl: KlSettings = field(default_factory=lambda: KlSettings(place="none"))
    """Divergence from the policy that learning began with."""


class Played(NamedTuple):
    """B games, T actions in the longest."""

    seen: Tensor
    """(B, T, features) what was seen before each action."""
    actions: Tensor
    """(B, T)"""
    rewards: Tensor
    """(B, T), 0 after a game's end."""
    mask: Tensor
    """(B, T) True up to a game's end."""

    @property
    def mean_return(self) -> float:
        """Return the mean return of a game."""
        return float(self.rewards.sum(-1).mean())


class Player(nn.Module):
    """A policy and a value head, and the games it has played: an `Actor`."""

    def __init__(self, policy: nn.Module, critic: nn.Module | None) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.played: Played | None = None

    def passes(self, rows: Sequence[int]) -> Iterator[list[int]]:
        """All at once: games are small."""
        yield list(rows)

    def halve(self) -> bool:
        """They never need to be cut."""
        return False

    def evaluate(self, rows: list[int]) -> Evaluated:
        """Evaluate past actions under the current policy."""
        if self.played is None:
            raise ValueError("nothing was played yet")
        seen = self.played.seen[rows]
        logits: Tensor = self.policy(seen)
        logp = logits.log_softmax(-1).gather(-1, self.played.actions[rows].unsqueeze(-1)).squeeze(-1)
        values = None if self.critic is None else self.critic(seen).squeeze(-1)
        return Evaluated(logp, entropy(logits), values)


@torch.no_grad()
def play(
    policy: nn.Module, games: Sequence[Game], random: torch.Generator, *, greedy: bool = False
) -> Played:
    """Play all games to their end, side by side; actions are drawn, or the likeliest if `greedy`."""
    seeds = torch.randint(2**31, (len(games),), generator=random).tolist()
    now = [game.start(seed) for game, seed in zip(games, seeds, strict=True)]
    going = torch.ones(len(games), dtype=torch.bool)
    seen, actions, rewards, mask = [], [], [], []
    while going.any():
        before = torch.tensor(now)
        logits: Tensor = policy(before)
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=random).squeeze(-1)
        chosen = logits.argmax(-1) if greedy else drawn
        earned, still = torch.zeros(len(games)), going.clone()
        for index in going.nonzero().flatten().tolist():
            now[index], earned[index], over = games[index].act(int(chosen[index]))
            still[index] = not over
        seen.append(before)
        actions.append(chosen)
        rewards.append(earned)
        mask.append(going)
        going = still
    return Played(*(torch.stack(column, dim=1) for column in (seen, actions, rewards, mask)))


def learn(
    player: Player, game: Callable[[], Game], method: GameSettings, *, seed: int
) -> Iterator[dict[str, float]]:
    """Learn step by step, and tell of each: the mean return of its games, and the figures of its update."""
    random = torch.Generator().manual_seed(seed)
    games = [game() for _ in range(method.games)]
    assignment = CreditAssignment(method.advantage, method.kl)
    reference = None if method.kl.place == "none" else copy.deepcopy(player.policy)
    # Where games are compared with each other all are games of one prompt. Otherwise each is a prompt of its
    # own, so that minibatches are shares of the games.
    compared = method.advantage.kind in ("group_relative", "leave_one_out")
    optimiser = torch.optim.Adam(player.parameters(), lr=method.learning_rate)
    for step in range(method.steps):
        player.played = play(player.policy, games, random)
        record = {"step": step + 1.0, "return": player.played.mean_return}
        if record["return"] >= method.enough:
            yield record
            return
        episodes = EpisodeBatch(
            mask=player.played.mask,
            rewards=player.played.rewards,
            scored=torch.ones(method.games, dtype=torch.bool),
            group=torch.zeros(method.games, dtype=torch.long) if compared else torch.arange(method.games),
            ref_logp=None if reference is None else log_probabilities(reference, player.played),
        )
        with torch.no_grad():
            episodes = evaluated_once(player, episodes)
        credit = assignment.assign(episodes)
        updated = update_policy(
            player,
            episodes,
            credit,
            settings=method.update,
            kl=method.kl,
            beta=assignment.beta,
            constant=None,
            step=_Descent(player, optimiser),
            backward=lambda loss: torch.autograd.backward(loss),
            seed=seed + step,
            check=lambda: None,
        )
        assignment.observe(episodes)
        yield {**record, **figures(episodes, credit), **updated.figures}


@torch.no_grad()
def log_probabilities(policy: nn.Module, played: Played) -> Tensor:
    """log π of the actions of games: (B, T)."""
    logits: Tensor = policy(played.seen)
    return logits.log_softmax(-1).gather(-1, played.actions.unsqueeze(-1)).squeeze(-1)


class _Descent:
    """An optimiser's step, with the gradient clipped."""

    def __init__(self, player: Player, optimiser: torch.optim.Optimizer) -> None:
        self._parameters = list(player.parameters())
        self._optimiser = optimiser

    def __call__(self, apply: bool) -> OptimizerStep:
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, _MOST_NORM)
        finite = apply and bool(norm.isfinite())
        if finite:
            self._optimiser.step()
        self._optimiser.zero_grad()
        return OptimizerStep(float(norm), finite)


def drawn_curve(name: str, records: Sequence[dict[str, float]], *, least: float, most: float) -> str:
    """Returns over steps as text: one line for each twentieth of the run."""
    lines = [name]
    every = max(1, len(records) // 20)
    for figures_of_step in records[every - 1 :: every]:
        share = (figures_of_step["return"] - least) / (most - least)
        bar = "█" * round(40 * min(max(share, 0.0), 1.0))
        lines.append(f"{figures_of_step['step']:6.0f}  {figures_of_step['return']:8.1f}  {bar}")
    return "\n".join(lines)
