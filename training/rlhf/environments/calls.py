"""Calls of tools in a completion, as chat templates write them. On the standard library alone: a child
process imports it too.

    <tool_call>{"name": "calculator", "arguments": {"expression": "2 + 2"}}</tool_call>     Hermes, Qwen
    [TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "2 + 2"}}]              Mistral
    {"name": "calculator", "parameters": {"expression": "2 + 2"}}                           Llama 3, all of it
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LISTED = re.compile(r"\[TOOL_CALLS\]\s*(.*)", re.DOTALL)


class Call(NamedTuple):
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]


def parse_calls(completion: str) -> list[Call]:
    """Return the calls of a completion in order; what is no call by its JSON is left out."""
    tagged = _TAGGED.findall(completion)
    if tagged:
        return [call for text in tagged for call in _calls(text)]
    if match := _LISTED.search(completion):
        return _calls(match.group(1))
    return _calls(completion) if completion.lstrip().startswith("{") else []


def spoken(completion: str) -> str:
    """Return a completion's text before its calls."""
    if completion.lstrip().startswith("{") and parse_calls(completion):
        return ""
    return re.split(r"<tool_call>|\[TOOL_CALLS\]", completion)[0].strip()


def _calls(text: str) -> list[Call]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            arguments = entry.get("arguments", entry.get("parameters", {}))
            if isinstance(arguments, dict):
                calls.append(Call(entry["name"], arguments))
    return calls
