"""Prompts of a snapshot: what a policy is sampled on, with what is known of the right answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from training.contract.files import ContractError, canonical_json, known_fields, require, require_types
from training.contract.snapshot import Message, Passage, Split, item_from_json


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotPrompt:
    """One prompt of a project: what there is to be answered, judged or not."""

    id: str
    """The same as `SnapshotRow.prompt` of the judgments on it."""
    split: Split
    """A policy is sampled on "train" alone; "held-out" measures it."""
    messages: tuple[Message, ...]
    context: tuple[Passage, ...] = ()
    reference: Any = None
    """What a reward is told of the right answer, as decoded JSON: mostly a text, or a list of texts that are
    all right; None where nothing is known."""

    def __post_init__(self) -> None:
        where = f"prompt {self.id}"
        require_types(self, where)
        require(bool(self.id), where, "field 'id' is empty")
        require(bool(self.messages), where, "field 'messages' is empty")
        try:
            canonical_json(self.reference)
        except (TypeError, ValueError) as error:
            raise ContractError(f"{where}: field 'reference' is no JSON ({error})") from None

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "prompt") -> Self:
        """Build a prompt from decoded JSON; `where` begins every error message."""
        known = known_fields(cls, values, where)
        for name, kind in (("messages", Message), ("context", Passage)):
            if name in known:
                require(isinstance(known[name], list), where, f"field {name!r} must be a list")
                known[name] = tuple(
                    item_from_json(kind, item, where=f"{where}, field {name!r} item {index}")
                    for index, item in enumerate(known[name])
                )
        try:
            return cls(**known)
        except ContractError as error:
            raise ContractError(f"{where}, {error}") from None

    def to_json(self) -> str:
        """The prompt's one spelling: what is written, and what the snapshot's digest is taken of."""
        return canonical_json(dataclasses.asdict(self))
