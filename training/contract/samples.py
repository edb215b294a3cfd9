"""Samples of a policy's answers at each step, token by token: `samples.jsonl` in a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from annotation.record.base import ContractError, Number, decode, record

SAMPLES_FILE = "samples.jsonl"
WATCH_MARK = "Watch: "
"""Start, after its time, of a line of `log.txt` with a warning of the reward-hacking watch."""


@record
class SampledToken:
    """A sampled token. A number is None where it was not finite."""

    text: str
    """Empty for the token that ends an answer, and for all but the last of those that make one character."""
    reward: Number | None
    """Its immediate reward; the answer's reward is at the last token."""
    advantage: Number | None
    logp: Number | None = None
    """Under the policy that drew it, nats."""
    kl: Number | None = None
    """log π − log π_ref, nats; None without a reference."""


@record
class SampledAnswer:
    """A sampled answer with its rewards."""

    step: int
    """Counted from 1."""
    prompt: str
    """The prompt's id in the snapshot."""
    message: str
    """The prompt's last message."""
    text: str
    finish_reason: Literal["stop", "length"]
    """length: it was cut off."""
    reward: Number | None
    """None where it could not be scored."""
    reason: str
    """The reason why it could not be scored; empty if it was."""
    parts: dict[str, Any]
    """Score of each part of the reward by its name; None where a part has none."""
    tokens: tuple[SampledToken, ...]
    version: int | None = None
    """Optimiser steps that the policy which sampled it had taken; None where the trainer samples."""


def read_samples(run_folder: Path, step: int) -> list[SampledAnswer]:
    """Return the samples of one step in the order written; empty before the step has any.

    A last line that is still being written is left out.
    """
    path = run_folder / SAMPLES_FILE
    if not path.is_file():
        return []
    samples = []
    # The file holds every step: what is no candidate is not decoded.
    mark = f'"step":{step},'
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if mark not in line or not line.endswith("\n"):
                continue
            where = f"{path.name} line {number}"
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise ContractError(f"{where}: not JSON ({error})") from None
            sample = decode(SampledAnswer, values, where)
            if sample.step == step:
                samples.append(sample)
    return samples


def read_watch_warnings(log_file: Path) -> list[str]:
    """Return the reward-hacking watch's warnings in the run's log, each once, in order."""
    if not log_file.is_file():
        return []
    with log_file.open(encoding="utf-8", errors="replace") as stream:
        # Before the mark stands the time, "2026-01-31 12:00:00 ".
        messages = (line[20:].rstrip("\n") for line in stream)
        return list(
            dict.fromkeys(line.removeprefix(WATCH_MARK) for line in messages if line.startswith(WATCH_MARK))
        )
