"""Parts of the training judgments: one for the policy and its reward model, one for a second evaluator."""

from __future__ import annotations

import hashlib
from typing import Literal

JudgmentPart = Literal["policy", "evaluator"]


def part_of_prompt(prompt: str) -> JudgmentPart:
    """Return the part on which all judgments of a prompt are, by the hash of the prompt's id.

    Without a seed: a prompt stays in its part in all rounds, so that a policy that goes on from round to
    round never learns from what its evaluator learns from.
    """
    first = hashlib.sha256(f"part/{prompt}".encode()).digest()[0]
    return "policy" if first % 2 == 0 else "evaluator"
