"""`samples.jsonl` of a run's folder: some of the answers that a policy gave at each step, token by token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from training.contract.files import ContractError, known_fields, require, require_types

SAMPLES_FILE = "samples.jsonl"
WATCH_MARK = "Watch: "
"""How a line of `log.txt` begins, after its time, that says what the reward-hacking watch warns of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledToken:
    """One drawn token. A number is None where it was not finite."""

    text: str
    """Empty for the token that ends an answer, and for all but the last of those that make one character."""
    reward: float | None
    """What it earned by itself; what the whole answer earned stands at its last token."""
    advantage: float | None
    logp: float | None = None
    """Under the policy that drew it, nats."""
    kl: float | None = None
    """log π − log π_ref, nats; None without a reference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledAnswer:
    """One answer, what it earned, and why."""

    step: int
    """Counted from 1."""
    prompt: str
    """The prompt's id in the snapshot."""
    message: str
    """The prompt's last message."""
    text: str
    finish_reason: Literal["stop", "length"]
    """length: it was cut off."""
    reward: float | None
    """None where it could not be scored."""
    reason: str
    """Why it could not be scored; empty where it was."""
    parts: dict[str, Any]
    """Score of each part of the reward by its name; None where a part has none."""
    tokens: tuple[SampledToken, ...]

    def __post_init__(self) -> None:
        require_types(self, f"sample of step {self.step}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str) -> Self:
        """Build a sample from decoded JSON; `where` begins every error message."""
        known = known_fields(cls, values, where)
        require(isinstance(known["tokens"], list), where, "field 'tokens' must be a list")
        tokens = [SampledToken(**known_fields(SampledToken, one, where)) for one in known["tokens"]]
        for token in tokens:
            require_types(token, f"{where}, field 'tokens'")
        return cls(**{**known, "tokens": tuple(tokens)})


def read_samples(run_folder: Path, step: int) -> list[SampledAnswer]:
    """The samples of one step, in the order in which they were written; none before a step has written any.

    A last line that is still being written is left out.
    """
    path = run_folder / SAMPLES_FILE
    if not path.is_file():
        return []
    found = []
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
            sample = SampledAnswer.from_json(values, where=where)
            if sample.step == step:
                found.append(sample)
    return found


def read_watch_warnings(log_file: Path) -> list[str]:
    """What the reward-hacking watch warned of, as the run's log tells it; each warning once, in order."""
    if not log_file.is_file():
        return []
    with log_file.open(encoding="utf-8", errors="replace") as stream:
        # Before the mark stands the time, "2026-01-31 12:00:00 ".
        said = (line[20:].rstrip("\n") for line in stream)
        return list(
            dict.fromkeys(line.removeprefix(WATCH_MARK) for line in said if line.startswith(WATCH_MARK))
        )
