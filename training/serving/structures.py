"""Grammars of answers: JSON, a JSON schema, calls of functions; and refusals of other schemas."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.distribution import Constraint, ConstraintError, Grammars
from training.rlhf.rollout.samples import end_tokens
from training.serving.errors import RequestError
from training.serving.requests import ChatRequest
from training.serving.tool_calls import BEFORE_CLOSING, CLOSING, OPENING, head_of

_OPTIONS = {
    # A space, or a line break and what indents the next: a model can get lost in white space without a bound.
    "whitespace_pattern": r" |\n[ \t]{0,64}",
    "lenient": False,
    "coerce_one_of": False,
}
_SCHEMAS = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_BEYOND = 2**53
"""Integers from here on are not exact."""
_MOST_LOOKED_AT = 500
"""Parts of a schema that are tried to tell where it is wrong."""


class Structures:
    """Makes the constraint of a request, for the tokens of one base. For several threads."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._lock = threading.Lock()

    def constraint(self, request: ChatRequest) -> Constraint | None:
        """Return the grammar that a request's answers are of; None where it asks for none.

        Raises `RequestError` for a schema that answers cannot be held to.
        """
        if request.response_format is None and not request.callable_tools:
            return None
        for place, schema in _schemas(request):
            self._check(schema, place)
        try:
            return self._compiler.compile(grammar_of(request, self._compiler.named_tokens))
        except ConstraintError as error:
            raise _refusal(f"{error}", request.constraining_field) from error

    @property
    def _compiler(self) -> Grammars:
        # Once, though it is first asked for by several threads.
        with self._lock:
            return self._grammars

    @cached_property
    def _grammars(self) -> Grammars:
        backbone = self._backbone
        size = int(backbone.config.get_text_config().vocab_size)
        try:
            return Grammars(backbone.tokenizer, vocabulary=size, ends=end_tokens(backbone))
        except ConstraintError as error:
            raise RequestError(
                400,
                f"The answers of this base cannot be held to a format: {error}.",
                code="constrained_decoding_unsupported",
            ) from error

    def _check(self, schema: dict[str, Any], place: str) -> None:
        if (number := next(_inexact_numbers(schema, place), None)) is not None:
            raise _refusal("it has a number that JSON does not keep exactly", number)
        if not (problem := self._problem(schema)):
            return
        left = _MOST_LOOKED_AT
        part, found = schema, True
        while found:
            found = False
            for step, inner in _parts(part):
                left -= 1
                if left >= 0 and self._problem(_with_definitions(inner, schema)) == problem:
                    part, place, found = inner, f"{place}{step}", True
                    break
        raise _refusal(problem, place)

    def _problem(self, schema: Mapping[str, Any]) -> str:
        return self._compiler.schema_problem(_with_options(schema))


def _refusal(problem: str, place: str) -> RequestError:
    message = f"Answers cannot be held to the schema in '{place}': {problem.rstrip('.')}."
    return RequestError(400, message, code="invalid_schema", param=place)


def _schemas(request: ChatRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas of a request with their places."""
    form = request.response_format
    if form is not None and form.json_schema is not None:
        yield "response_format.json_schema.schema", form.json_schema.schema_
    wanted = {function.name for function in request.callable_tools}
    for index, tool in enumerate(request.tools or ()):
        if tool.function.name in wanted:
            yield f"tools[{index}].function.parameters", tool.function.arguments_schema


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas within a schema, each with its path from there."""
    for name in _MAPS:
        inner = schema.get(name)
        if isinstance(inner, dict):
            yield from ((f".{name}.{key}", part) for key, part in inner.items() if isinstance(part, dict))
    for name in _LISTS:
        inner = schema.get(name)
        if isinstance(inner, list):
            yield from ((f".{name}[{i}]", part) for i, part in enumerate(inner) if isinstance(part, dict))
    for name in _SCHEMAS:
        if isinstance(inner := schema.get(name), dict):
            yield f".{name}", inner


def _inexact_numbers(value: Any, place: str) -> Iterator[str]:
    """Yield the places of numbers that readers of JSON disagree on, as RFC 8259 warns of (6): llguidance
    rounds them."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _inexact_numbers(inner, f"{place}.{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _inexact_numbers(inner, f"{place}[{index}]")
    elif isinstance(value, int | float) and not abs(value) < (
        _BEYOND if isinstance(value, int) else math.inf
    ):
        yield place


def _with_definitions(part: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: schema[name] for name in ("$defs", "definitions") if name in schema}, **part}


# ── Grammars ──────────────────────────────────────────────────────────────────────────


def grammar_of(request: ChatRequest, named_tokens: Mapping[str, int]) -> str:
    """Return the grammar of a request that has a response format or may call tools.

    named_tokens: see `Grammars.named_tokens`.
    """
    form = request.response_format
    functions = request.callable_tools
    if form is not None and not functions:
        return f"start: {_json(form.json_schema_of_response)}"
    rules = [
        # Lazy: the first opening in a text begins a call.
        f"written_after_text[lazy]: TEXT {json.dumps(OPENING)}",
        r"TEXT: /(.|\n)*/",
        f"opening: {_tag(OPENING, named_tokens)}",
        f"closing: {json.dumps(BEFORE_CLOSING)} ({_tag(CLOSING, named_tokens)})",
        "call: " + " | ".join(f"call_{number}" for number in range(len(functions))),
    ]
    for number, function in enumerate(functions):
        head, schema = json.dumps(head_of(function.name)), _json(function.arguments_schema)
        rules.append(f"call_{number}: {head} {schema} closing")
    calls = "call" if request.parallel_tool_calls is False else r'call ("\n" opening call)*'
    if request.must_call:
        return "\n".join([*rules, f"start: opening {calls}"])
    if form is not None:
        return "\n".join([*rules, f"start: {_json(form.json_schema_of_response)} | opening {calls}"])
    others = [f"<[{id}]>" for token, id in named_tokens.items() if token not in (OPENING, CLOSING)]
    before = f"(TEXT ({' | '.join(others)}))* " if others else ""
    after = [f"written_after_text {calls}"]
    if OPENING in named_tokens:
        after.append(f"TEXT <[{named_tokens[OPENING]}]> {calls}")
    return "\n".join([*rules, f"start: {before}(TEXT | {' | '.join(after)})"])


def _tag(tag: str, named_tokens: Mapping[str, int]) -> str:
    """Return a tag by its letters, and by its token where it is one."""
    by_token = f" | <[{named_tokens[tag]}]>" if tag in named_tokens else ""
    return f"{json.dumps(tag)}{by_token}"


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps(_with_options(schema))}"


def _with_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": _OPTIONS}
