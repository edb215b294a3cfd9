"""Records of judgments, for tests that name completions by their rows' keys."""

from collections.abc import Mapping
from typing import Any

from annotation.record.judgment import JudgmentRecord


def judgment_record(verdict: str, ranks: Mapping[int, int] | None = None, **parts: Any) -> JudgmentRecord:
    """Return a record whose ranks are given by completion id."""
    named = {str(pk): rank for pk, rank in (ranks or {}).items()}
    return JudgmentRecord(verdict=verdict, ranks=named, **parts)
