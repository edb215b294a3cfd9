"""A small shop as text: search, open, buy."""

from __future__ import annotations

import random
from typing import Any

TURNS = 6
_THINGS = ("kettle", "lamp", "chair", "mug", "rug")
_COLOURS = ("red", "blue", "green", "white")


class Environment:
    """Buy what is wanted in a shop as text. 1 for the right thing, 0.5 for one of another colour or too dear.

    Each turn is one command: `search WORDS`, `open NUMBER` or `buy`.
    """

    success = 1.0

    def reset(self, seed: int) -> list[dict[str, Any]]:
        """Fill the shelves, one thing of each kind and colour, and choose the wish."""
        source = random.Random(seed)  # noqa: S311 - an exercise
        shelf = [(thing, colour, source.randint(5, 60)) for thing in _THINGS for colour in _COLOURS]
        source.shuffle(shelf)
        self._shelf = shelf
        self._wish = source.choice(shelf)
        self._open: int | None = None
        self._turns = 0
        thing, colour, price = self._wish
        text = (
            f"Buy a {colour} {thing} for at most {price} euros. Write one command a turn: search WORDS, "
            "open NUMBER, or buy."
        )
        return [{"role": "user", "content": text}]

    def step(self, completion: str) -> tuple[list[dict[str, Any]], float, bool]:
        """Carry out the command in the first line."""
        self._turns += 1
        lines = completion.strip().lower().splitlines()
        command, _, rest = (lines[0] if lines else "").partition(" ")
        if command == "buy":
            return self._buy()
        if command == "search" and rest.strip():
            page = self._search(rest.split())
        elif command == "open" and rest.strip().isdecimal() and 0 < int(rest[:4]) <= len(self._shelf):
            self._open = int(rest[:4]) - 1
            thing, colour, price = self._shelf[self._open]
            page = f"{self._open + 1}: {colour} {thing}, {price} euros. buy takes it."
        else:
            page = "Unknown command. Write search WORDS, open NUMBER, or buy."
        return [{"role": "user", "content": page}], 0.0, self._turns >= TURNS

    def _search(self, words: list[str]) -> str:
        rows = [
            f"{number}: {colour} {thing}"
            for number, (thing, colour, _) in enumerate(self._shelf, start=1)
            if all(word in (thing, colour) for word in words)
        ]
        return "\n".join(rows) or "Nothing found."

    def _buy(self) -> tuple[list[dict[str, Any]], float, bool]:
        if self._open is None:
            return (
                [{"role": "user", "content": "Nothing is open. Open a number first."}],
                0.0,
                (self._turns >= TURNS),
            )
        bought = self._shelf[self._open]
        fits = bought[:2] == self._wish[:2] and bought[2] <= self._wish[2]
        reward = 1.0 if fits else 0.5 if bought[0] == self._wish[0] else 0.0
        return [{"role": "user", "content": "Sold."}], reward, True
