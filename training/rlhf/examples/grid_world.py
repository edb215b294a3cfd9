"""Find the way past a pit: REINFORCE and PPO on a policy that is a table.

    . . . . .      S start, G goal (+10), X pit (−30). Every move costs 1. The game ends at the goal, in the
    . . . . .      pit, and after 30 moves. Who moves against a wall stays where they are.
    . . . . .
    S X X X G

The best way is up, four to the right, and down: 6 moves and the goal, 10 − 6 = 4. Nothing is better: the goal
is four columns away, and the pit forces one row up and down.

    python -m training.rlhf.examples.grid_world
"""

from __future__ import annotations

import torch
from torch import nn

from training.contract.methods.policy import AdvantageSettings, UpdateSettings
from training.rlhf.examples.games import GameSettings, Played, Player, drawn_curve, learn, play

ROWS, COLUMNS = 4, 5
START, GOAL, PIT = (3, 0), (3, 4), ((3, 1), (3, 2), (3, 3))
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down, left."""
MOST_MOVES = 30
BEST = 4.0

REINFORCE = GameSettings(
    name="REINFORCE: the return of each move, against the mean of earlier ones",
    advantage=AdvantageSettings(kind="running_mean", whiten=True),
    update=UpdateSettings(entropy=0.1),
    learning_rate=0.1,
    steps=80,
    games=32,
)
PPO = GameSettings(
    name="PPO: generalised advantages of a value table, four passes over each step's games",
    advantage=AdvantageSettings(kind="gae", whiten=True),
    update=UpdateSettings(inner_epochs=4, minibatches=2, entropy=0.1, value_clip=None),
    learning_rate=0.1,
    steps=30,
    games=32,
)


class GridWorld:
    """The map above. What is seen is the place, as a row of zeros with a one."""

    def start(self, seed: int) -> list[float]:
        """Return the start S, whatever the seed."""
        self._place = START
        self._moves = 0
        return self._seen()

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Move; see `MOVES`."""
        row, column = (here + by for here, by in zip(self._place, MOVES[action], strict=True))
        self._place = (min(max(row, 0), ROWS - 1), min(max(column, 0), COLUMNS - 1))
        self._moves += 1
        reward = -1.0 + 10.0 * (self._place == GOAL) - 30.0 * (self._place in PIT)
        return self._seen(), reward, self._place in (GOAL, *PIT) or self._moves == MOST_MOVES

    def _seen(self) -> list[float]:
        place = self._place[0] * COLUMNS + self._place[1]
        return [float(index == place) for index in range(ROWS * COLUMNS)]


def table(outputs: int) -> nn.Module:
    """Return a number for each place and output: of a row with a one, a linear layer picks a column."""
    layer = nn.Linear(ROWS * COLUMNS, outputs, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


def run(method: GameSettings, *, seed: int = 0) -> tuple[list[dict[str, float]], Played]:
    """Learn; the figures of all steps, and one game played with the likeliest moves afterwards."""
    player = Player(table(len(MOVES)), table(1) if method.advantage.kind == "gae" else None)
    records = list(learn(player, GridWorld, method, seed=seed))
    return records, play(player.policy, [GridWorld()], torch.Generator().manual_seed(seed), greedy=True)


def main() -> None:
    """Learn by both methods, and draw what their games earned."""
    for method in (REINFORCE, PPO):
        records, last = run(method)
        print(drawn_curve(method.name, records, least=-30, most=BEST))
        print(
            f"afterwards, with the likeliest moves: {last.mean_return:.0f}; the best there is: {BEST:.0f}\n"
        )


if __name__ == "__main__":
    main()
