"""Decisions on suggestions, as a final pass sends them."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.http import QueryDict

from annotation.services.suggestions import DecisionInput

PREFIX = "suggestion-"
TIMES = "suggestion_times"
"""Field in which the script writes: suggestion → [seconds, time of the decision in milliseconds]."""


def decisions_in(sent: QueryDict) -> list[DecisionInput]:
    """Return the decisions of a page. Their times are missing without JavaScript."""
    times = _times(sent.get(TIMES, ""))
    decisions = []
    for name, value in sent.items():
        pk = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and pk.isdecimal() and len(pk) < 19:
            seconds, at = times.get(pk, (None, None))
            decisions.append(
                DecisionInput(suggestion_id=int(pk), decision=str(value), seconds=seconds, decided_at=at)
            )
    return decisions


def decided_in(fields: Mapping[str, Any]) -> dict[int, str]:
    """Return the decisions of a draft or a form that was refused, by suggestion."""
    decisions = {}
    for name, value in fields.items():
        pk = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and pk.isdecimal():
            decisions[int(pk)] = value[-1] if isinstance(value, list) and value else str(value)
    return decisions


def _times(text: str) -> dict[str, tuple[float, datetime]]:
    """Read the times of a script. What is none is left out: it must not cost an annotation."""
    try:
        times = json.loads(text or "{}")
        return {
            str(pk): (float(seconds), datetime.fromtimestamp(float(at) / 1000, tz=UTC))
            for pk, (seconds, at) in times.items()
        }
    except (ValueError, TypeError, AttributeError, OverflowError, OSError):
        return {}
