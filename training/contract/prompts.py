"""Prompts of a snapshot: inputs for sampling a policy, with their references."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from annotation.record.base import ContractError, Text, decode, record
from training.contract.files import canonical_json
from training.contract.snapshot import Message, Passage, Split


@record
class SnapshotPrompt:
    """A prompt of a project, judged or not."""

    id: Text
    """The same as `SnapshotRow.prompt` of the judgments on it."""
    split: Split
    """A policy is sampled on "train" alone; "held-out" measures it."""
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    context: tuple[Passage, ...] = ()
    reference: Any = None
    """The reference answer for rewards, as decoded JSON: mostly a text, or a list of texts that are all
    right; None if unknown."""

    def __post_init__(self) -> None:
        try:
            canonical_json(self.reference)
        except (TypeError, ValueError) as error:
            raise ContractError.of([(("reference",), f"is no JSON ({error})")]) from None

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "prompt") -> Self:
        """Build a prompt from decoded JSON; `where` begins every error message."""
        return decode(cls, values, where)

    def to_json(self) -> str:
        """Return the prompt's canonical JSON, over which the snapshot's digest is computed."""
        return canonical_json(dataclasses.asdict(self))
