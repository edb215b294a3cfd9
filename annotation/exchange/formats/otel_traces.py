"""Agent traces as OpenTelemetry spans of generative models, as JSON: in.

Rows are what an exporter writes in OTLP/JSON (`resourceSpans`), or spans, one a row. After the semantic
conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/):

| what                | where                                                                          |
|---------------------|--------------------------------------------------------------------------------|
| messages            | `gen_ai.input.messages`, `gen_ai.output.messages`, `gen_ai.system_instructions` |
|                     | of a span, or of its event `gen_ai.client.inference.operation.details`          |
| messages, to v1.36  | events `gen_ai.system.message`, `gen_ai.user.message`, `gen_ai.assistant.message`, |
|                     | `gen_ai.tool.message`, `gen_ai.choice`                                          |
| tools               | `gen_ai.tool.definitions`; spans of the operation `execute_tool`                |
| who acted           | `gen_ai.agent.name`, `gen_ai.response.model`, `gen_ai.request.model`            |

All spans of one `traceId` become traces: a request that begins with all that was sent before continues a
conversation, another one begins a new one, as of a sub-agent. Results that no request repeats come from the
spans of the tools. Spans with the attribute `rondo.comparison` are compared with those of other traces that
have the same value.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import TraceStepKind
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, Reader, Row
from annotation.exchange.formats.traces import (
    Trace,
    call_step,
    decoded,
    item_of,
    result_step,
    steps_of,
    trace_of,
)
from annotation.text.traces import UnwrittenStep

# Spans of OpenTelemetry as JSON: OTLP (`resourceSpans`), or one span an object.

Event = tuple[str, Mapping[str, Any], str]
"""Name, attributes, and where it stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceSpan:
    """A span with its attributes and events as plain JSON."""

    trace: str
    at: str
    """Its place in the file, for error messages."""
    start: int
    values: Mapping[str, Any]
    events: Sequence[Event]

    @property
    def operation(self) -> str:
        return str(self.values.get("gen_ai.operation.name", ""))


def spans_in(row: Row) -> Iterator[TraceSpan]:
    """Yield the spans of a row: of an export, of a list `spans`, or the row itself."""
    if "resourceSpans" in row:
        for at, resource in _inside(row, "", "resourceSpans"):
            for within, scope in _inside(resource, at, "scopeSpans"):
                for place, span in _inside(scope, within, "spans"):
                    yield _span(span, place)
    elif "spans" in row:
        for number, value in enumerate(fields.items_of(row["spans"], "spans")):
            place = f"spans[{number}]"
            yield value if isinstance(value, TraceSpan) else _span(fields.object_of(value, place), place)
    else:
        yield _span(row, "span")


def _inside(value: Mapping[str, Any], at: str, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    place = f"{at}.{name}" if at else name
    for number, entry in enumerate(fields.items_of(value.get(name), place)):
        yield f"{place}[{number}]", fields.object_of(entry, f"{place}[{number}]")


def trace_id(span: Mapping[str, Any]) -> str | None:
    """Return the id of a span's trace, as OTLP, the SDKs and most exporters write it."""
    context = span.get("context")
    ids = {**context, **span} if isinstance(context, dict) else span
    trace = ids.get("traceId") or ids.get("trace_id")
    return trace if isinstance(trace, str) else None


def _span(value: Mapping[str, Any], at: str) -> TraceSpan:
    trace = trace_id(value)
    if trace is None:
        raise FieldError(
            "field_missing", _("The id of the trace is missing. Write it."), field=f"{at}.traceId"
        )
    return TraceSpan(
        trace=trace,
        at=at,
        start=_time(value),
        values=_attributes(value.get("attributes"), f"{at}.attributes"),
        events=tuple(_events(value, at)),
    )


def _events(span: Mapping[str, Any], at: str) -> Iterator[Event]:
    for place, event in _inside(span, at, "events"):
        values = _attributes(event.get("attributes"), f"{place}.attributes")
        body = _plain(event.get("body"))
        if isinstance(body, dict):
            values |= body
        yield str(event.get("name") or values.get("event.name") or ""), values, place


def _time(span: Mapping[str, Any]) -> int:
    """Return when a span began, as a number that orders spans: nanoseconds, or a text's place among texts."""
    names = ("startTimeUnixNano", "start_time_unix_nano", "start_time")
    text = str(next((span[name] for name in names if span.get(name) is not None), 0))
    if text.isascii() and text.isdigit():
        return int(text[:40])
    return int.from_bytes(text.encode()[:40].ljust(40, b"\0"))


def _attributes(value: Any, at: str) -> dict[str, Any]:
    """Return attributes as an object: OTLP writes a list of `key` and `value`, others an object."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    listed = [fields.object_of(entry, at) for entry in fields.items_of(value, at)]
    return {str(entry.get("key")): _plain(entry.get("value")) for entry in listed}


def _plain(value: Any) -> Any:
    """Return an OTLP value (`stringValue`, `arrayValue`, …) as plain JSON."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((kind, inner),) = value.items()
    if kind == "arrayValue":
        return [_plain(element) for element in inner.get("values") or []]
    if kind == "kvlistValue":
        return {str(entry.get("key")): _plain(entry.get("value")) for entry in inner.get("values") or []}
    if kind == "intValue":
        return int(inner)
    return inner if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue") else value


_DETAILS = "gen_ai.client.inference.operation.details"
_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_COMPARISON = "rondo.comparison"
_NOT_REQUESTS = ("invoke_agent", "create_agent", "invoke_workflow", "execute_tool")


@dataclass(slots=True)
class _Request:
    """A span with what it sent to a model and what it received."""

    span: TraceSpan
    sent: list[UnwrittenStep] = field(default_factory=list)
    received: list[UnwrittenStep] = field(default_factory=list)


@dataclass(slots=True)
class _Thread:
    """One conversation of a trace."""

    steps: list[UnwrittenStep] = field(default_factory=list)
    conversation: Any = None
    source: str = ""
    tools: Any = None


def _read(row: Row) -> Iterator[ImportedItem]:
    traces: dict[str, list[TraceSpan]] = {}
    for span in sorted(spans_in(row), key=lambda span: span.start):
        traces.setdefault(span.trace, []).append(span)
    compared: dict[str, list[Trace]] = {}
    has_messages = False
    for name, spans in traces.items():
        comparison = next((str(s.values[_COMPARISON]) for s in spans if _COMPARISON in s.values), "")
        for number, thread in enumerate(_threads(spans)):
            has_messages = True
            where = f"trace {name}"
            trace = trace_of(thread.steps, where, tools=thread.tools, source=thread.source)
            if comparison and number == 0:
                compared.setdefault(comparison, []).append(trace)
            else:
                yield item_of([trace], where)
    for name, together in compared.items():
        yield item_of(together, f"comparison {name}")
    if not has_messages:
        raise FieldError(
            "messages_missing",
            _(
                "No span has messages. Record gen_ai.input.messages and gen_ai.output.messages: "
                "instrumentations leave them out unless they are set to record them."
            ),
            field="attributes",
        )


def _request(span: TraceSpan) -> _Request:
    request = _Request(span)
    _take_messages(request, span.values, span.at)
    instructions = span.values.get("gen_ai.system_instructions")
    if instructions is not None:
        where = f"{span.at}.gen_ai.system_instructions"
        if not isinstance(instructions, str) or instructions.lstrip()[:1] == "[":
            instructions = _decoded(instructions, where)
        request.sent[:0] = steps_of([{"role": "system", "content": instructions}], where)
    for name, values, at in span.events:
        _take_event(request, name, values, at)
    return request


def _take_messages(request: _Request, values: Mapping[str, Any], at: str) -> None:
    for name, steps in (("input", request.sent), ("output", request.received)):
        key = f"gen_ai.{name}.messages"
        if key in values:
            where = f"{at}.{key}"
            steps += steps_of(_decoded(values[key], where), where)


def _take_event(request: _Request, name: str, values: Mapping[str, Any], at: str) -> None:
    """Add the messages of an event, in the form of today or in those up to v1.36."""
    if name == _DETAILS:
        _take_messages(request, values, at)
    elif name == "gen_ai.choice":
        message = _decoded(values["message"], f"{at}.message") if "message" in values else values
        request.received += _message(fields.object_of(message, f"{at}.message"), "assistant", at)
    elif name in _ROLES:
        request.sent += _message(values, _ROLES[name], at)


def _message(values: Mapping[str, Any], role: str, at: str) -> Iterator[UnwrittenStep]:
    message = {
        "role": role,
        "content": values.get("content"),
        "tool_calls": _decoded(values.get("tool_calls"), f"{at}.tool_calls"),
        "tool_call_id": values.get("id"),
        "name": values.get("name"),
    }
    return steps_of([message], at)


def _decoded(value: Any, at: str) -> Any:
    """Return a value that may be JSON in a text."""
    if not isinstance(value, str):
        return value
    try:
        return decoded(value)
    except ValueError as error:
        raise FieldError(
            "not_json",
            _("This is no JSON (%(error)s). It may have been cut off when it was recorded."),
            field=at,
            error=error,
        ) from None


def _threads(spans: Sequence[TraceSpan]) -> list[_Thread]:
    """Return the conversations of one trace, the oldest first."""
    spoken = [request for request in map(_request, spans) if request.sent or request.received]
    model_requests = [request for request in spoken if request.span.operation not in _NOT_REQUESTS]
    threads: list[_Thread] = []
    for request in model_requests or spoken:
        thread, new = _continued(threads, request)
        if thread is None:
            thread = _Thread()
            threads.append(thread)
        thread.steps += [*new, *request.received]
        _take_names(thread, request.span.values)
    tools = [span for span in spans if span.operation == "execute_tool"]
    if model_requests:
        for thread in threads:
            thread.steps = list(_with_results(thread.steps, tools))
    elif threads:
        _add_calls(threads[0], tools)
    return threads


def _take_names(thread: _Thread, values: Mapping[str, Any]) -> None:
    thread.conversation = values.get("gen_ai.conversation.id", thread.conversation)
    names = ("gen_ai.agent.name", "gen_ai.response.model", "gen_ai.request.model")
    thread.source = next((str(values[name]) for name in names if values.get(name)), thread.source)
    if "gen_ai.tool.definitions" in values:
        thread.tools = _decoded(values["gen_ai.tool.definitions"], "gen_ai.tool.definitions")


def _continued(
    threads: Sequence[_Thread], request: _Request
) -> tuple[_Thread | None, Sequence[UnwrittenStep]]:
    """Return the conversation that a request continues, and what it adds; none where it begins one."""
    for thread in reversed(threads):
        new = _after(request.sent, thread.steps)
        if new is not None:
            return thread, new
    conversation = request.span.values.get("gen_ai.conversation.id")
    answers = bool(request.sent) and request.sent[0].kind == TraceStepKind.TOOL_RESULT
    for thread in reversed(threads):
        # Only what is new was sent.
        if answers or (conversation is not None and conversation == thread.conversation):
            return thread, request.sent
    return None, request.sent


def _after(sent: Sequence[UnwrittenStep], steps: Sequence[UnwrittenStep]) -> Sequence[UnwrittenStep] | None:
    """Return what is sent after a conversation so far; None where it does not begin with that.

    Reasoning is not compared: few requests send it again.
    """
    place = 0
    for step in steps:
        if step.kind == TraceStepKind.REASONING:
            continue
        while place < len(sent) and sent[place].kind == TraceStepKind.REASONING:
            place += 1
        if place == len(sent) or _content(sent[place]) != _content(step):
            return None
        place += 1
    return sent[place:]


def _content(step: UnwrittenStep) -> tuple[Any, ...]:
    return step.kind, step.role, step.content, step.arguments


def _with_results(steps: Sequence[UnwrittenStep], tools: Sequence[TraceSpan]) -> Iterator[UnwrittenStep]:
    """Yield steps, and after a call the result that no request repeats, from the span of its tool."""
    answered = {step.call for step in steps if step.kind == TraceStepKind.TOOL_RESULT}
    results = {step.call: step for step in map(_result, tools) if step.call and step.call not in answered}
    for step in steps:
        yield step
        if step.kind == TraceStepKind.TOOL_CALL and step.call in results:
            yield results[step.call]


def _add_calls(thread: _Thread, tools: Sequence[TraceSpan]) -> None:
    """Put calls and results between what an agent was asked and its answer, where no request is recorded."""
    acted = [step for span in tools for step in (_call(span), _result(span))]
    last = len(thread.steps)
    while last and thread.steps[last - 1].role == "assistant":
        last -= 1
    thread.steps[last:last] = acted


def _call(span: TraceSpan) -> UnwrittenStep:
    return call_step(
        name=span.values.get("gen_ai.tool.name"),
        arguments=span.values.get("gen_ai.tool.call.arguments"),
        call=span.values.get("gen_ai.tool.call.id"),
        at=f"{span.at}.gen_ai.tool",
    )


def _result(span: TraceSpan) -> UnwrittenStep:
    return result_step(
        tool=span.values.get("gen_ai.tool.name"),
        call=span.values.get("gen_ai.tool.call.id"),
        result=span.values.get("gen_ai.tool.call.result"),
        is_error="error.type" in span.values,
        at=f"{span.at}.gen_ai.tool",
    )


def _joined(rows: Iterator[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """One row for the spans of each trace, and of traces to be compared: they may stand anywhere in the file,
    so all spans are held until its end."""
    first: dict[str, int] = {}
    comparisons: dict[str, str] = {}
    spans: dict[str, list[TraceSpan]] = {}
    rows_of: dict[str, list[Row]] = {}
    for number, row in rows:
        try:
            row_spans = list(spans_in(row))
        except FieldError:
            # Its reading raises the same error, which then names the row.
            yield number, row
            continue
        for span in row_spans:
            spans.setdefault(span.trace, []).append(span)
            first.setdefault(span.trace, number)
            if len(row_spans) == 1:
                # Of a span's row only what its reader passes over: the metadata that is kept.
                rest = {name: value for name, value in row.items() if name not in _READS}
                rows_of.setdefault(span.trace, []).extend([rest] if rest else [])
            if _COMPARISON in span.values:
                comparisons[span.trace] = f"comparison {span.values[_COMPARISON]}"
    together: dict[str, list[TraceSpan]] = {}
    numbers: dict[str, int] = {}
    metadata: dict[str, list[Row]] = {}
    for trace, of_trace in spans.items():
        key = comparisons.get(trace, trace)
        together.setdefault(key, []).extend(of_trace)
        metadata.setdefault(key, []).extend(rows_of.get(trace, ()))
        numbers.setdefault(key, first[trace])
    for key, of_key in together.items():
        yield numbers[key], {"spans": of_key, "rows": metadata[key]}


_READS = {
    "resourceSpans": "spans",
    "attributes": "the messages of a span",
    "events": "the messages of a span",
    **dict.fromkeys(("context", "traceId", "trace_id"), "the trace to which a span belongs"),
    **dict.fromkeys(("startTimeUnixNano", "start_time_unix_nano", "start_time"), "the order of spans"),
}
_UNREAD = (
    *("name", "kind", "status", "links", "resource", "scope", "flags", "traceState", "trace_state"),
    *("spanId", "span_id", "parentSpanId", "parent_span_id", "parent_id"),
    *("endTimeUnixNano", "end_time_unix_nano", "end_time", "status_code", "status_message", "span_kind"),
    *("droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"),
)
READERS = (
    Reader(
        name="otel_traces",
        sentence="Agent traces as OpenTelemetry GenAI spans: OTLP/JSON, or one span a row.",
        read=_read,
        matches=lambda row: "resourceSpans" in row or (trace_id(row) is not None and "attributes" in row),
        group=_joined,
        reads=_READS,
        ignores=dict.fromkeys(_UNREAD, "no message of the trace"),
        loses="spans without messages, times, costs, links",
    ),
)
