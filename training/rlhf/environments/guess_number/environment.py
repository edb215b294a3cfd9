"""Guess a number from 1 to 10; each guess is answered with higher or lower."""

from __future__ import annotations

import random
import re
from typing import Any

HIGHEST, GUESSES = 10, 4
"""Halving finds every number within four guesses."""


class Environment:
    """Guess a number from 1 to 10 in four turns. 1 for the number, 0.1 for a guess that was possible."""

    success = 1.0

    def reset(self, seed: int) -> list[dict[str, Any]]:
        """Choose the number."""
        self._number = random.Random(seed).randint(1, HIGHEST)  # noqa: S311 - a game
        self._low, self._high, self._left = 1, HIGHEST, GUESSES
        text = f"I think of a number from 1 to {HIGHEST}. Which one? Answer with the number only."
        return [{"role": "user", "content": text}]

    def step(self, completion: str) -> tuple[list[dict[str, Any]], float, bool]:
        """Take the first whole number as the guess."""
        self._left -= 1
        match = re.search(r"\d{1,4}", completion)
        guess = int(match.group()) if match else 0
        if guess == self._number:
            return [{"role": "user", "content": "Right."}], 1.0, True
        reward = 0.1 if self._low <= guess <= self._high else 0.0
        if match is None:
            hint = "That is no number."
        elif guess < self._number:
            hint, self._low = f"Higher than {guess}.", max(self._low, guess + 1)
        else:
            hint, self._high = f"Lower than {guess}.", min(self._high, guess - 1)
        return [{"role": "user", "content": f"{hint} Which one?"}], reward, not self._left
