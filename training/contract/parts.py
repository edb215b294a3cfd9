"""Parts of the training judgments: one for the policy and its reward model, one for a second evaluator."""

from __future__ import annotations

import hashlib
from typing import Literal

JudgmentPart = Literal["policy", "evaluator"]


def part_of_prompt(prompt: str) -> JudgmentPart:
    """Return the part of all judgments of a prompt, by the hash of the prompt's id.

    Unseeded, so that a prompt stays in its part in all rounds: a policy trained over several rounds never
    learns from its evaluator's judgments.
    """
    first = hashlib.sha256(f"part/{prompt}".encode()).digest()[0]
    return "policy" if first % 2 == 0 else "evaluator"
