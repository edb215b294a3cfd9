"""The validation part: judgments that choose a run's best state, so that the held-out ones only report."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from training.contract import OptimiserSettings
from training.rlhf.data import Examples
from training.rlhf.loop.schedule import steps_in_all
from training.rlhf.tokens.example import Example

SHARE = 0.1
"""Share of the training prompts that are not learned from where the best state is chosen."""
FEWEST = 20
"""With fewer judgments in the validation part none is cut off: the held-out loss chooses."""


def chooses_state(settings: OptimiserSettings, *, examples: int, start_is_candidate: bool) -> bool:
    """Return whether a run chooses among several evaluated states, or ends early by their loss."""
    on_the_way = 0 < settings.evaluate_every < steps_in_all(examples, settings)
    return (settings.keep_best and (on_the_way or start_is_candidate)) or settings.patience is not None


def split_validation(examples: Examples) -> tuple[Examples, list[Example]]:
    """Return the examples without those of the validation part, and these; none where they would be few.

    Cut by prompt, by the hash of its id alone: a resumed run cuts the same way, and a prompt is on one side
    in all rounds.
    """
    learned: list[Example] = []
    validation: list[Example] = []
    for example in examples.train:
        (validation if _is_validation(example.prompt) else learned).append(example)
    if len(validation) < FEWEST:
        return examples, []
    return replace(examples, train=learned), validation


def _is_validation(prompt: str) -> bool:
    first = hashlib.sha256(f"validation/{prompt}".encode()).digest()[:4]
    return int.from_bytes(first) < SHARE * 2**32
