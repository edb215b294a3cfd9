"""Conversations of any of three vendors as steps: OpenAI messages, Anthropic messages, OpenTelemetry parts.

A message has a `role` and `content`, which is a text or a list of blocks. `steps_of` makes the steps of a
whole conversation, the system's and the user's too; `trace_of` divides it into the prompt and the trajectory.

| OpenAI                          | Anthropic           | OpenTelemetry part   | step        |
|---------------------------------|---------------------|----------------------|-------------|
| `content`                       | `text`              | `text`               | message     |
| `reasoning_content`             | `thinking`          | `reasoning`          | reasoning   |
| `tool_calls`, `function_call`   | `tool_use`          | `tool_call`          | tool call   |
| role `tool` with `tool_call_id` | `tool_result`       | `tool_call_response` | tool result |

Images, audio and files are no texts: a note stands where one was.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import TraceStepKind
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import DECODER, FieldError, excerpt, refuse_unstorable, unknown_value
from annotation.exchange.formats.items import (
    LONGEST_SOURCE,
    ImportedCompletion,
    ImportedItem,
    Reader,
    Row,
    neighbours,
)
from annotation.text.traces import LONGEST_CALL, UnwrittenStep, tool_name, written

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "gpt"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function"), "tool"),
}
_TEXTS = ("text", "input_text", "output_text", "refusal")
_MEDIA = (
    *("image", "image_url", "input_image", "audio", "input_audio", "file", "input_file", "document", "video"),
    *("blob", "uri"),
)
_CALLS = ("tool_use", "server_tool_use", "tool_call", "server_tool_call")
_KNOWN = ("text", "thinking", "tool_use", "tool_result", "reasoning", "tool_call", "tool_call_response")
_RESULTS = ("tool_result", "tool_call_response", "server_tool_call_response", "web_search_tool_result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """A trace: prompt, steps and source of an agent."""

    prompt: list[dict[str, str]]
    steps: tuple[UnwrittenStep, ...]
    source: str = ""


def trace_of(
    conversation: Iterable[UnwrittenStep],
    where: str,
    *,
    system: str = "",
    tools: Any = None,
    source: str = "",
) -> Trace:
    """Divide a conversation into its prompt and the steps after it.

    The prompt is all up to the first of the user's turns; `tools` are described in its system message.
    Refuses a conversation without a user's turn, and one in which the assistant does nothing after it.
    """
    steps = _named(list(conversation))
    first = next((number for number, step in enumerate(steps) if step.role == "user"), None)
    if first is None:
        raise FieldError(
            "user_missing",
            _("No message is the user's. Begin with what the assistant was asked."),
            field=where,
        )
    length = first + sum(1 for _ in takewhile(lambda step: step.role == "user", steps[first:]))
    before, after = steps[:length], steps[length:]
    if strange := next((step for step in before if step.kind != TraceStepKind.MESSAGE), None):
        raise FieldError(
            "step_before_user",
            _("A step of the kind %(kind)s stands before the user's first message."),
            field=where,
            kind=strange.kind.value,
        )
    if not any(step.role == "assistant" for step in after):
        raise FieldError(
            "step_missing",
            _("The trace ends with the user. It needs at least one step of the assistant."),
            field=where,
        )
    parts = [system, *(step.content for step in before if step.role == "system"), _described(tools, "tools")]
    heading = "\n\n".join(text for text in parts if text)
    prompt = [{"role": "system", "content": heading}] if heading else []
    prompt += [{"role": s.role, "content": s.content} for s in before if s.role != "system"]
    return Trace(prompt=_joined(prompt), steps=tuple(after), source=source[:LONGEST_SOURCE])


def item_of(traces: Sequence[Trace], where: str) -> ImportedItem:
    """Return traces of one prompt as one item, to be compared."""
    prompt = traces[0].prompt
    for number, trace in enumerate(traces):
        if trace.prompt != prompt:
            raise FieldError(
                "prompts_differ",
                _("The trace begins with another prompt. Only traces of one prompt are compared."),
                field=f"{where}[{number}]",
            )
    return ImportedItem(messages=prompt, completions=tuple(map(_completion, traces)))


def _completion(trace: Trace) -> ImportedCompletion:
    """Return a trace as a completion. A single message of the assistant is a plain response."""
    if len(trace.steps) == 1 and trace.steps[0].kind == TraceStepKind.MESSAGE:
        return ImportedCompletion(text=trace.steps[0].content, source=trace.source)
    text, placed = written(trace.steps)
    return ImportedCompletion(text=text, source=trace.source, steps=placed)


def _named(steps: Sequence[UnwrittenStep]) -> list[UnwrittenStep]:
    """Results with the name of the tool whose call they answer."""
    names = {step.call: step.tool for step in steps if step.kind == TraceStepKind.TOOL_CALL and step.call}
    return [
        replace(step, tool=names[step.call])
        if step.kind == TraceStepKind.TOOL_RESULT and step.call in names
        else step
        for step in steps
    ]


def _joined(prompt: list[dict[str, str]]) -> list[dict[str, str]]:
    """Messages with neighbours of one role made one, as chat templates want them."""
    joined: list[dict[str, str]] = []
    for message in prompt:
        if joined and joined[-1]["role"] == message["role"]:
            joined[-1]["content"] += "\n\n" + message["content"]
        else:
            joined.append(message)
    return joined


def _described(tools: Any, where: str) -> str:
    """Return definitions of tools as text for a system message; empty where there are none."""
    lines = []
    for number, value in enumerate(fields.items_of(tools, where)):
        tool = fields.object_of(value, f"{where}[{number}]")
        inner = tool.get("function")
        tool = inner if isinstance(inner, dict) else tool
        name = tool.get("name") or tool.get("type")
        if not isinstance(name, str):
            raise FieldError(
                "field_missing",
                _("The name of the tool is missing. Write it."),
                field=f"{where}[{number}].name",
            )
        words = tool.get("description")
        lines.append(f"- {tool_name(name)}" + (f": {words}" if isinstance(words, str) and words else ""))
        schema = tool.get("parameters", tool.get("input_schema"))
        if schema:
            lines.append(f"  {json.dumps(schema, ensure_ascii=False)}")
    return "\n".join(["Tools:", *lines]) if lines else ""


def steps_of(messages: Any, where: str) -> Iterator[UnwrittenStep]:
    """Yield the steps of a list of messages, one or more a message; empty messages have none."""
    for number, value in enumerate(fields.items_of(messages, where)):
        at = f"{where}[{number}]"
        yield from _steps_of_message(fields.object_of(value, at), at)


def _steps_of_message(message: Mapping[str, Any], at: str) -> Iterator[UnwrittenStep]:
    role = _role(message, at)
    if role == "tool" and "parts" not in message:
        yield _openai_result(message, at)
        return
    for name in ("reasoning_content", "reasoning", "thinking"):
        if role == "assistant" and isinstance(message.get(name), str) and message[name].strip():
            yield UnwrittenStep(
                kind=TraceStepKind.REASONING, content=fields.text(message[name], f"{at}.{name}")
            )
            break
    name = next((name for name in ("parts", "content", "value") if message.get(name) is not None), "")
    content = message.get(name)
    if isinstance(content, list):
        for number, block in enumerate(content):
            place = f"{at}.{name}[{number}]"
            yield from _block(fields.object_of(block, place), role, place)
    elif content is not None:
        yield from _message(content, role, f"{at}.{name}")
    yield from _message(message.get("refusal"), role, f"{at}.refusal")
    calls = fields.items_of(message.get("tool_calls"), f"{at}.tool_calls")
    if message.get("function_call") is not None:
        calls = [*calls, {"function": message["function_call"]}]
    for number, call in enumerate(calls):
        place = f"{at}.tool_calls[{number}]"
        if role != "assistant":
            raise FieldError(
                "tool_called",
                _("Only the assistant calls tools, not %(role)s."),
                field=place,
                role=excerpt(role),
            )
        yield _openai_call(fields.object_of(call, place), place)


def _role(message: Mapping[str, Any], at: str) -> str:
    """Return the role of a message as one of four; refuses others."""
    role = message.get("role", message.get("from"))
    if role is None:
        raise FieldError(
            "field_missing",
            _("The role is missing. Write system, user, assistant or tool."),
            field=f"{at}.role",
        )
    if not isinstance(role, str) or role not in _ROLES:
        raise unknown_value(role, ("system", "user", "assistant", "tool"), f"{at}.role")
    return _ROLES[role]


def _message(value: Any, role: str, at: str) -> Iterator[UnwrittenStep]:
    text = fields.optional_text(value, at)
    if text and not text.isspace():
        yield UnwrittenStep(kind=TraceStepKind.MESSAGE, role=role, content=text)


def _block(block: Mapping[str, Any], role: str, at: str) -> Iterator[UnwrittenStep]:
    kind = block.get("type")
    if kind in _TEXTS:
        yield from _message(_first(block, "text", "content", "refusal"), role, at)
    elif kind in ("thinking", "reasoning"):
        text = fields.optional_text(_first(block, "thinking", "content", "text"), at)
        if text.strip():
            yield UnwrittenStep(kind=TraceStepKind.REASONING, content=text)
    elif kind == "redacted_thinking":
        yield UnwrittenStep(kind=TraceStepKind.REASONING, content="(redacted)")
    elif kind in _CALLS:
        yield call_step(
            name=block.get("name"),
            arguments=_first(block, "input", "arguments"),
            call=block.get("id"),
            at=at,
        )
    elif kind in _RESULTS:
        yield result_step(
            tool=block.get("name"),
            call=_first(block, "tool_use_id", "id"),
            result=_first(block, "content", "response", "result"),
            is_error=block.get("is_error") is True,
            at=at,
        )
    elif kind in _MEDIA:
        yield UnwrittenStep(kind=TraceStepKind.MESSAGE, role=role, content=_omitted(kind))
    else:
        raise unknown_value(kind, _KNOWN, f"{at}.type")


def _openai_call(call: Mapping[str, Any], at: str) -> UnwrittenStep:
    function = fields.object_of(_first(call, "function", "custom") or call, f"{at}.function")
    return call_step(
        name=function.get("name"),
        arguments=_first(function, "arguments", "input"),
        call=call.get("id"),
        at=at,
    )


def _openai_result(message: Mapping[str, Any], at: str) -> UnwrittenStep:
    return result_step(
        tool=message.get("name"),
        call=message.get("tool_call_id"),
        result=message.get("content"),
        is_error=message.get("is_error") is True,
        at=at,
    )


def call_step(*, name: Any, arguments: Any, call: Any, at: str) -> UnwrittenStep:
    """Return the step of a tool call; arguments as JSON in a text are decoded, what is none stays a text."""
    if not isinstance(name, str) or not name.strip():
        raise FieldError("field_missing", _("The name of the tool is missing. Write it."), field=f"{at}.name")
    content = ""
    if isinstance(arguments, str):
        try:
            arguments = decoded(arguments) if arguments.strip() else None
        except ValueError:
            content, arguments = fields.text(arguments, f"{at}.arguments"), None
    return UnwrittenStep(
        kind=TraceStepKind.TOOL_CALL,
        tool=tool_name(name),
        call=_call_id(call, at),
        content=content,
        arguments=arguments,
    )


def decoded(text: str) -> Any:
    """Return JSON that stands in a text. Raises `ValueError`, also for values that cannot be stored."""
    try:
        value = DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    refuse_unstorable({"": value})
    return value


def result_step(*, tool: Any, call: Any, result: Any, is_error: bool, at: str) -> UnwrittenStep:
    """Return the step of a tool's result, whose content is a text, blocks of text, or JSON."""
    return UnwrittenStep(
        kind=TraceStepKind.TOOL_RESULT,
        role="tool",
        tool=tool_name(tool) if isinstance(tool, str) else "",
        call=_call_id(call, at),
        content=_result_text(result, at),
        is_error=is_error,
    )


def _result_text(result: Any, at: str) -> str:
    if result is None or isinstance(result, str):
        return fields.optional_text(result, at)
    if isinstance(result, list) and all(isinstance(block, dict) and "type" in block for block in result):
        return "\n".join(_result_block(block, at) for block in result)
    return json.dumps(result, ensure_ascii=False, indent=2)


def _result_block(block: Mapping[str, Any], at: str) -> str:
    if block["type"] in _TEXTS:
        return fields.optional_text(_first(block, "text", "content"), at)
    if block["type"] in _MEDIA:
        return _omitted(block["type"])
    return json.dumps(block, ensure_ascii=False, indent=2)


def _omitted(kind: str) -> str:
    return f"({kind.removeprefix('input_').removesuffix('_url')}, not imported)"


def _call_id(value: Any, at: str) -> str:
    """Return the id that a call and its result share, bounded; empty where there is none."""
    return fields.optional_text(None if value is None else str(value), at)[:LONGEST_CALL]


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


# Sessions and agent traces as messages, of OpenAI and of Anthropic: in.
#
# {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "tool_calls": […]}, …],
# "tools": […], "system": "…", "model": "agent-7", "comparison": "task-12"}
#
# | field        | value                                                                                  |
# |--------------|----------------------------------------------------------------------------------------|
# | `messages`   | a conversation; up to the first of the user's turns it is the prompt                    |
# | `system`     | optional, Anthropic: a text or blocks of text                                           |
# | `tools`      | optional: definitions of tools; they are described in the system message                |
# | `model`      | optional, or `source`: who acted                                                        |
# | `comparison` | optional: rows that stand together with the same value are compared with each other     |
# | `traces`     | instead of `messages`: a list of such objects, which are compared with each other       |
#
# A trace alone is put before annotators alone, two of one prompt side by side. A session without tools
# comes in the same way: each turn after the first is a step. A single answer is a plain response without
# steps.

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


def _messages_joined(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
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
        group=_messages_joined,
        reads=_READS,
    ),
    Reader(
        name="openai_traces",
        sentence="Sessions and agent traces as OpenAI messages, with tool_calls and the role tool.",
        read=_read,
        matches=_is_session,
        group=_messages_joined,
        reads=_READS,
    ),
)
