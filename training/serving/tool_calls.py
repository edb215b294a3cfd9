"""Calls of functions as text: the prompt that offers tools, and calls read from an answer as it is written.

One format for all bases, that of Hermes and Qwen: `<tool_call>`, a JSON object with `name` and `arguments`,
and `</tool_call>`, a line each. A chat template that writes it renders tools and calls itself; for any other
base tools are written into the system's message, calls into the assistant's and results into the user's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import regex

from training.contract import ContractError, Message
from training.rlhf.model.templates import renderer
from training.serving.requests import ChatMessage, Function

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


def head_of(name: str) -> str:
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
        written = re.sub(r"\s", "", f'{OPENING}{head_of("probe_call")}{{"probe_key": 1}}{_TAIL}')
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
        f"{OPENING}{head_of(call.function.name)}{call.function.arguments}{_TAIL}"
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
