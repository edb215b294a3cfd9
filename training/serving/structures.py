"""Grammars of answers: JSON, a JSON schema, calls of functions; and refusals of other schemas."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import regex

from training.contract import ContractError
from training.contract.snapshot import Message
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.templates import renderer
from training.rlhf.rollout.distribution import Constraint, ConstraintError, Grammars
from training.rlhf.rollout.samples import end_tokens
from training.serving.http import RequestError
from training.serving.requests import ChatMessage, ChatRequest, Function

# ── Calls of functions as text: the prompt that offers tools, and calls read from an answer as it is
# written ──
#
# One format for all bases, that of Hermes and Qwen: `<tool_call>`, a JSON object with `name` and
# `arguments`, and `</tool_call>`, a line each. A chat template that writes it renders tools and calls
# itself; for any other base tools are written into the system's message, calls into the assistant's and
# results into the user's.


OPENING, CLOSING = "<tool_call>", "</tool_call>"
BEFORE_CLOSING = "}\n"
_HEAD = regex.compile(r'\n\{"name": "([A-Za-z0-9_-]+)", "arguments": ')
_TAIL = BEFORE_CLOSING + CLOSING
"""End of a call: no JSON text holds it, for a line break within a string is written as an escape."""

_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within {opening}{closing} \
XML tags:
{opening}
{{"name": <function-name>, "arguments": <args-json-object>}}
{closing}"""


def call_head(name: str) -> str:
    """Return the text of a call between its opening and its arguments."""
    return f'\n{{"name": "{name}", "arguments": '


# ── Prompts ───────────────────────────────────────────────────────────────────────────


class ToolPrompts:
    """Chats with tools, for one base's chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._render = renderer(tokenizer)

    @cached_property
    def template_knows_tools(self) -> bool:
        """Return whether the chat template itself writes tools, calls in our format, and results."""
        call = {"type": "function", "function": {"name": "probe_call", "arguments": {"probe_key": 1}}}
        chat: list[dict[str, Any]] = [
            {"role": "user", "content": "A question?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "probe_result"},
        ]
        tool = {"type": "function", "function": {"name": "probe_tool", "parameters": {"type": "object"}}}
        try:
            text = self._render(chat, True, {"tools": [tool]})
        except (ContractError, TypeError, AttributeError, KeyError):
            return False
        # White space aside, the call is written as the grammar has it.
        written = re.sub(r"\s", "", f'{OPENING}{call_head("probe_call")}{{"probe_key": 1}}{_TAIL}')
        return all(part in re.sub(r"\s", "", text) for part in (written, "probe_tool", "probe_result"))

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Function], *, thinks: bool) -> str:
        """Return the chat as the template writes it, up to where the answer begins."""
        variables: dict[str, Any] = {"tools": [_described(tool) for tool in tools] or None}
        if not thinks:
            variables["enable_thinking"] = False
        return self._render([_turn(message) for message in messages], True, variables)

    def plain(self, messages: Sequence[ChatMessage], tools: Sequence[Function]) -> list[Message]:
        """Return the chat as one without tools, for a template that does not know them."""
        chat: list[Message] = []
        within_results = False
        for message in messages:
            turn = _as_plain(message)
            if message.role == "tool" and within_results:
                turn = Message(role="user", content=f"{chat.pop().content}\n{turn.content}")
            within_results = message.role == "tool"
            chat.append(turn)
        if not tools:
            return chat
        listed = "\n".join(json.dumps(_described(tool), ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=listed, opening=OPENING, closing=CLOSING)
        if chat[0].role == "system":
            return [Message(role="system", content=f"{chat[0].content}\n\n{text}"), *chat[1:]]
        return [Message(role="system", content=text), *chat]


def _described(tool: Function) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.arguments_schema}
    known = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": known}


def _turn(message: ChatMessage) -> dict[str, Any]:
    turn: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content or "",
    }
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": json.loads(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _as_plain(message: ChatMessage) -> Message:
    content = message.content or ""
    if message.role == "tool":
        return Message(role="user", content=f"<tool_response>\n{content}\n</tool_response>")
    calls = [
        f"{OPENING}{call_head(call.function.name)}{call.function.arguments}{_TAIL}"
        for call in message.tool_calls or ()
    ]
    text = "\n".join([*filter(None, [content]), *calls])
    return Message(role="system" if message.role == "developer" else message.role, content=text)


# ── Reading ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call as far as it is written."""

    name: str
    arguments: str


@dataclass(slots=True)
class CallReader:
    """Content and calls of one answer, as its text comes."""

    text: str = ""
    content: str = ""
    """Text before the calls, as far as it is certain."""
    calls: list[ReadCall] = field(default_factory=list)
    _begun: int = 0
    """Number of calls of which a delta was sent."""
    _told: int = 0
    """Number of characters sent of the last of them."""

    def push(self, text: str, *, ended: bool) -> dict[str, Any]:
        """Take a further piece; return OpenAI's delta, without ids: what became certain of content and
        calls."""
        self.text += text
        before = len(self.content)
        self._read(ended)
        delta: dict[str, Any] = {}
        if self.content[before:]:
            delta["content"] = self.content[before:]
        if calls := self._new():
            delta["tool_calls"] = calls
        return delta

    def _read(self, ended: bool) -> None:
        content, opening, rest = self.text.partition(OPENING)
        if opening and not _HEAD.match(rest, partial=True):
            # Text that happens to hold the tag.
            content, opening = self.text, ""
        self.content = content.rstrip() if opening else content[: _certain(content, OPENING, ended)]
        self.calls = []
        while opening and (head := _HEAD.match(rest)):
            arguments, closing, after = rest[head.end() :].partition(_TAIL)
            if not closing:
                arguments = arguments[: _certain(arguments, _TAIL, ended)]
            self.calls.append(ReadCall(head.group(1), arguments))
            _, opening, rest = after.partition(OPENING) if closing else ("", "", "")

    def _new(self) -> list[dict[str, Any]]:
        new = []
        for index in range(max(self._begun - 1, 0), len(self.calls)):
            call = self.calls[index]
            if index >= self._begun:
                self._begun, self._told = index + 1, 0
                named = {"name": call.name, "arguments": call.arguments}
                new.append({"index": index, "type": "function", "function": named})
            elif call.arguments[self._told :]:
                new.append({"index": index, "function": {"arguments": call.arguments[self._told :]}})
            self._told = len(call.arguments)
        return new


def _certain(text: str, end: str, ended: bool) -> int:
    """Return how many characters of `text` are no part of `end`, which may have begun, nor white space before
    it."""
    if ended:
        return len(text)
    certain = len(text)
    for length in range(min(len(end) - 1, len(text)), 0, -1):
        if text.endswith(end[:length]):
            certain -= length
            break
    return len(text[:certain].rstrip())


# ── Structures ──


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
            return self._compiler.compile(request_grammar(request, self._compiler.named_tokens))
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


def request_grammar(request: ChatRequest, named_tokens: Mapping[str, int]) -> str:
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
        head, schema = json.dumps(call_head(function.name)), _json(function.arguments_schema)
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
