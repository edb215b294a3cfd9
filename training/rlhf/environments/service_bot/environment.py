"""A service bot and its user, who marks the issue resolved. The user is scripted."""

from __future__ import annotations

import random
from typing import Any

TURNS = 4
_ISSUES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("My parcel has not arrived.", "order number", "It is {detail}.", ("track", "trace", "look up", "ship")),
    ("I was charged twice.", "invoice", "The invoice is {detail}.", ("refund", "money back", "reimburse")),
    ("I cannot log in.", "email", "It is user{detail}@example.org.", ("reset", "link", "new password")),
)


class Environment:
    """Serve a scripted user: ask for what is missing (0.3), then offer the remedy (1).

    The user gives the detail only when asked for it, and accepts the remedy only after that.
    """

    success = 1.3

    def reset(self, seed: int) -> list[dict[str, Any]]:
        """Draw the issue and the detail that is missing."""
        source = random.Random(seed)  # noqa: S311 - a scene
        opening, self._missing, reply, self._remedies = source.choice(_ISSUES)
        self._reply = reply.format(detail=source.randint(1000, 9999))
        self._turns, self._is_known = 0, False
        system = (
            "You are the service desk of a shop. Ask for the order number, the invoice or the email if it is "
            "missing. Then track the parcel, refund, or reset the password."
        )
        return [{"role": "system", "content": system}, {"role": "user", "content": opening}]

    def step(self, completion: str) -> tuple[list[dict[str, Any]], float, bool]:
        """Answer as the user does."""
        self._turns += 1
        text = completion.lower()
        if self._is_known and any(word in text for word in self._remedies):
            return [{"role": "user", "content": "Thank you, that resolves it."}], 1.0, True
        over = self._turns >= TURNS
        if not self._is_known and self._missing in text:
            self._is_known = True
            return [{"role": "user", "content": self._reply}], 0.3, over
        return [{"role": "user", "content": "That does not help me yet."}], 0.0, over
