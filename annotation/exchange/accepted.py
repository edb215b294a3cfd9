"""Judgments that an import is about to write, and the project that gets them."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from annotation.exchange.formats.items import ImportedItem, ImportedJudgment
from annotation.models import Project


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportScene:
    """The project that gets it, with ids of what items name by key."""

    project: Project
    categories: Mapping[str, int]
    criteria: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """One judgment that is to be written."""

    item: ImportedItem
    judgment: ImportedJudgment
    comparison: int
    completions: Sequence[int]
    annotator: int
    slot: int
    key: uuid.UUID
    origin: Mapping[str, Any]
