"""Agent traces as text: one canonical serialisation of steps, with the place of each.

    [assistant]
    I look it up.

    [tool call search]
    {
      "query": "green tea"
    }

    [tool result search]
    Two minutes at 80 °C.

The same steps always give the same text, so hashes, spans and training stand on it as on any other response.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from annotation.choices import TraceStepKind

SEPARATOR = "\n\n"
LONGEST_TOOL = LONGEST_CALL = 120
STEP_ROLES = ("system", "user", "assistant", "tool")
_SPACE = re.compile(r"[\s\[\]]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnwrittenStep:
    """One step before it is written: who speaks, and the content."""

    kind: TraceStepKind
    role: str = "assistant"
    content: str = ""
    """The text; of a tool call its arguments as they were sent, where those are no JSON."""
    tool: str = ""
    call: str = ""
    is_error: bool = False
    arguments: Any = None
    """Arguments of a tool call, decoded; None where there are none or they are no JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedStep:
    """A step in its text: [start, end) with its heading, [body, end) without, in code points."""

    kind: str
    role: str
    start: int
    body: int
    end: int
    tool: str = ""
    call: str = ""
    is_error: bool = False
    arguments: Any = None

    @property
    def is_agents(self) -> bool:
        """True if the agent took this step, so that it can be labelled."""
        return is_agents(self.kind, self.role)


def is_agents(kind: str, role: str) -> bool:
    """Return True for a step that the agent took, so that it can be labelled."""
    return kind != TraceStepKind.TOOL_RESULT and role == "assistant"


def tool_name(name: str) -> str:
    """Return a tool's name on one line, without brackets and bounded."""
    return _SPACE.sub(" ", name).strip()[:LONGEST_TOOL]


def arguments_as_text(arguments: Any) -> str:
    """Return arguments as they are shown: JSON, indented, in the order in which they were sent."""
    return json.dumps(arguments, ensure_ascii=False, indent=2)


def written(steps: Iterable[UnwrittenStep]) -> tuple[str, tuple[PlacedStep, ...]]:
    """Return the text of a trace and the places of its steps."""
    parts: list[str] = []
    placed = []
    start = 0
    for step in steps:
        heading, content = _heading(step), step.content
        if step.kind == TraceStepKind.TOOL_CALL and step.arguments is not None:
            content = arguments_as_text(step.arguments)
        whole = f"{heading}\n{content}" if content else heading
        end = start + len(whole)
        placed.append(
            PlacedStep(
                kind=step.kind,
                role=step.role,
                start=start,
                body=end - len(content),
                end=end,
                tool=step.tool,
                call=step.call,
                is_error=step.is_error,
                arguments=step.arguments,
            )
        )
        parts.append(whole)
        start = end + len(SEPARATOR)
    return SEPARATOR.join(parts), tuple(placed)


def _heading(step: UnwrittenStep) -> str:
    if step.kind == TraceStepKind.MESSAGE:
        return f"[{step.role}]"
    if step.kind == TraceStepKind.REASONING:
        return "[reasoning]"
    if step.kind == TraceStepKind.TOOL_CALL:
        words = "tool call"
    else:
        words = "tool error" if step.is_error else "tool result"
    return f"[{words} {step.tool}]" if step.tool else f"[{words}]"
