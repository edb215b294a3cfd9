"""Balance a pole on a cart: REINFORCE and PPO on a policy that is a small network.

The cart is pushed left or right; each push that leaves the pole up earns 1, and the game ends when the pole
falls, when the cart leaves the track, or after 500 pushes. So 500 is the best there is; the task counts as
solved at a mean of 475 over 100 games (Barto, Sutton & Anderson 1983, in the form of `gymnasium`'s
CartPole-v1, which a test compares it with).

    python -m training.rlhf.examples.cart_pole
"""

from __future__ import annotations

import math
import random
import time

import torch
from torch import nn

from training.contract.methods.policy import AdvantageSettings, UpdateSettings
from training.rlhf.examples.games import GameSettings, Played, Player, drawn_curve, learn, play

BEST, SOLVED = 500.0, 475.0
GRAVITY, CART_MASS, POLE_MASS, HALF_POLE, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
"""m/s², kg, kg, m, N, and the time from one push to the next."""
TRACK, MOST_ANGLE = 2.4, math.radians(12)
"""A game ends beyond them: metres from the middle, and the pole's angle to the vertical."""
HIDDEN = 64

REINFORCE = GameSettings(
    name="REINFORCE: the discounted return of each push, against the mean of earlier ones",
    advantage=AdvantageSettings(kind="running_mean", gamma=0.99, whiten=True),
    update=UpdateSettings(),
    learning_rate=0.01,
    steps=100,
    games=16,
    # Without a critic a good policy is soon left again.
    enough=495.0,
)
PPO = GameSettings(
    name="PPO: generalised advantages of a value network, several passes over each step's games",
    advantage=AdvantageSettings(kind="gae", gamma=0.99, lam=0.95, whiten=True),
    update=UpdateSettings(inner_epochs=4, minibatches=4, value_clip=None),
    learning_rate=0.003,
    steps=30,
    games=16,
)


class CartPole:
    """A pole on a cart. What is seen: position, speed, angle and angular speed."""

    def start(self, seed: int) -> list[float]:
        """Return a pole that stands nearly upright; how nearly, the seed says."""
        source = random.Random(seed)  # noqa: S311 - a scene
        self.state = [source.uniform(-0.05, 0.05) for _ in range(4)]
        self._pushes = 0
        return list(self.state)

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Push: 0 left, 1 right. The equations of motion of Florian 2007 without friction, one Euler step."""
        position, speed, angle, spin = self.state
        sine, cosine, mass = math.sin(angle), math.cos(angle), CART_MASS + POLE_MASS
        thrust = ((FORCE if action else -FORCE) + POLE_MASS * HALF_POLE * spin**2 * sine) / mass
        turn = (GRAVITY * sine - cosine * thrust) / (HALF_POLE * (4 / 3 - POLE_MASS * cosine**2 / mass))
        push = thrust - POLE_MASS * HALF_POLE * turn * cosine / mass
        self.state = [
            position + SECONDS * speed,
            speed + SECONDS * push,
            angle + SECONDS * spin,
            spin + SECONDS * turn,
        ]
        self._pushes += 1
        fallen = abs(self.state[0]) > TRACK or abs(self.state[2]) > MOST_ANGLE
        return list(self.state), 1.0, fallen or self._pushes == BEST


def network(outputs: int, *, gain: float) -> nn.Module:
    """Two layers of 64; the last begins near 0 in a policy, so that both pushes are tried."""
    last = nn.Linear(HIDDEN, outputs)
    nn.init.orthogonal_(last.weight, gain)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(4, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), last)


def run(method: GameSettings, *, seed: int = 0, games: int = 100) -> tuple[list[dict[str, float]], Played]:
    """Learn; the figures of all steps, and fresh games played with the likelier pushes afterwards."""
    torch.manual_seed(seed)
    critic = network(1, gain=1.0) if method.advantage.kind == "gae" else None
    player = Player(network(2, gain=0.01), critic)
    records = list(learn(player, CartPole, method, seed=seed))
    draws = torch.Generator().manual_seed(seed + 1)
    return records, play(player.policy, [CartPole() for _ in range(games)], draws, greedy=True)


def main() -> None:
    """Learn by both methods, and draw what their games earned."""
    for method in (REINFORCE, PPO):
        began = time.monotonic()
        records, last = run(method)
        print(drawn_curve(method.name, records, least=0, most=BEST))
        print(
            f"afterwards, 100 games, the likelier pushes: {last.mean_return:.1f} of {BEST:.0f} on average; "
            f"solved from {SOLVED:.0f}. {time.monotonic() - began:.0f} s\n"
        )


if __name__ == "__main__":
    main()
