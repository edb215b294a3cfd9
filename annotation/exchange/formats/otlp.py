"""Spans of OpenTelemetry as JSON: OTLP (`resourceSpans`), or one span an object."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import Row

Event = tuple[str, Mapping[str, Any], str]
"""Name, attributes, and where it stands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
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


def spans_in(row: Row) -> Iterator[Span]:
    """Yield the spans of a row: of an export, of a list `spans`, or the row itself."""
    if "resourceSpans" in row:
        for at, resource in _inside(row, "", "resourceSpans"):
            for within, scope in _inside(resource, at, "scopeSpans"):
                for place, span in _inside(scope, within, "spans"):
                    yield _span(span, place)
    elif "spans" in row:
        for number, value in enumerate(fields.items_of(row["spans"], "spans")):
            place = f"spans[{number}]"
            yield value if isinstance(value, Span) else _span(fields.object_of(value, place), place)
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


def _span(value: Mapping[str, Any], at: str) -> Span:
    trace = trace_id(value)
    if trace is None:
        raise FieldError(
            "field_missing", _("The id of the trace is missing. Write it."), field=f"{at}.traceId"
        )
    return Span(
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
