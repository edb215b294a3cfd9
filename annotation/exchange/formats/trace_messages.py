"""Sessions and agent traces as messages, of OpenAI and of Anthropic: in.

    {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "tool_calls": […]}, …],
     "tools": […], "system": "…", "model": "agent-7", "comparison": "task-12"}

| field        | value                                                                                  |
|--------------|----------------------------------------------------------------------------------------|
| `messages`   | a conversation; up to the first of the user's turns it is the prompt                    |
| `system`     | optional, Anthropic: a text or blocks of text                                           |
| `tools`      | optional: definitions of tools; they are described in the system message                |
| `model`      | optional, or `source`: who acted                                                        |
| `comparison` | optional: rows that stand together with the same value are compared with each other     |
| `traces`     | instead of `messages`: a list of such objects, which are compared with each other       |

A trace alone is put before annotators alone, two of one prompt side by side. A session without tools comes in
the same way: each turn after the first is a step. A single answer is a plain response without steps.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, Reader, Row, neighbours
from annotation.exchange.formats.traces import Trace, item_of, steps_of, trace_of

_OTHER_FORMATS = {"prompt", "chosen", "rejected", "completion", "completions", "verdict", "rank"}
_ANTHROPIC_BLOCKS = {"tool_use", "tool_result", "thinking", "redacted_thinking"}


def _read(row: Row) -> Iterator[ImportedItem]:
    several = row.get("traces")
    if several is None:
        yield item_of([_trace(row, "")], "traces")
        return
    traces = [
        _trace(fields.object_of(value, f"traces[{number}]"), f"traces[{number}].")
        for number, value in enumerate(fields.items_of(several, "traces"))
    ]
    if not traces:
        raise FieldError("list_empty", _("The list is empty. Write at least one trace."), field="traces")
    yield item_of(traces, "traces")


def _trace(row: Mapping[str, Any], path: str) -> Trace:
    where = f"{path}messages"
    return trace_of(
        steps_of(fields.required(row, "messages"), where),
        where,
        system=_system(row.get("system"), f"{path}system"),
        tools=row.get("tools"),
        source=fields.optional_text(row.get("source") or row.get("model"), f"{path}source"),
    )


def _system(value: Any, where: str) -> str:
    if not isinstance(value, list):
        return fields.optional_text(value, where)
    blocks = [fields.object_of(block, f"{where}[{number}]") for number, block in enumerate(value)]
    return "\n\n".join(fields.text(block.get("text"), where) for block in blocks)


def _joined(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """One row for the rows that stand together with the same `comparison`."""
    for first, _key, together in neighbours(rows, lambda row: row.get("comparison")):
        yield first, together[0] if len(together) == 1 else {"traces": together}


def _traces(row: Row) -> list[Mapping[str, Any]]:
    """Return what may be traces of a row; none where it is of another format."""
    if _OTHER_FORMATS & row.keys():
        return []
    listed = row.get("traces", [row])
    if not isinstance(listed, list) or not all(isinstance(trace, dict) for trace in listed):
        return []
    return listed if all(_messages(trace) for trace in listed) else []


def _messages(trace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    listed = trace.get("messages")
    if not isinstance(listed, list):
        return []
    return [message for message in listed if isinstance(message, dict)]


def _is_session(row: Row) -> bool:
    """True for a conversation in which the assistant acts; a prompt ends with the user."""
    traces = _traces(row)
    return bool(traces) and all(_messages(trace)[-1].get("role") != "user" for trace in traces)


def _is_anthropic(row: Row) -> bool:
    contents = (message.get("content") for trace in _traces(row) for message in _messages(trace))
    blocks = (block for content in contents if isinstance(content, list) for block in content)
    return any(isinstance(block, dict) and block.get("type") in _ANTHROPIC_BLOCKS for block in blocks)


_READS = {
    "messages": "the prompt and the steps after it",
    "traces": "traces that are compared with each other",
    "system": "the system message",
    "tools": "the tools, in the system message",
    "model": "the source of the trace",
    "source": "the source of the trace",
    "comparison": "the traces that are compared with each other",
}
READERS = (
    Reader(
        name="anthropic_traces",
        sentence="Sessions and agent traces as Anthropic messages: text, thinking, tool_use, tool_result.",
        read=_read,
        matches=_is_anthropic,
        group=_joined,
        reads=_READS,
    ),
    Reader(
        name="openai_traces",
        sentence="Sessions and agent traces as OpenAI messages, with tool_calls and the role tool.",
        read=_read,
        matches=_is_session,
        group=_joined,
        reads=_READS,
    ),
)
