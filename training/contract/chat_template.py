"""Chat templates: the place of an answer in the rendered chat, and its thinking.

Most templates write an answer right after the prompt that a model generates from. Those of reasoning models
do not: they write empty thinking before an answer that has none, drop the thinking of an answer that has
some, or open the thinking in the generation prompt. An answer with thinking is placed after the generation
prompt, as it was generated; one without after all that the template writes before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from annotation.record.base import ContractError
from training.contract.snapshot import Message

Thinking = Literal["train", "mask", "strip"]
Chat = Sequence[Mapping[str, Any]]
Render = Callable[[Chat, bool, Mapping[str, Any]], str]
"""A chat, add_generation_prompt and further variables to text. Raises `ContractError`."""

_THINKS = {"enable_thinking": True, "thinking": True}
"""Variables by which templates let a model think."""
_PIECES = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
_HEADER = r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)<\|message\|>"
_THOUGHT = r"(?:(?!<\|(?:start|channel|message|end)\|>).)*"
_THOUGHTS = rf"(?:{_HEADER}{_THOUGHT}<\|end\|>)*"
_FINAL = re.compile(_THOUGHTS + r"(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>", re.DOTALL)
_NO_FINAL = re.compile(rf"{_THOUGHTS}(?:{_HEADER}{_THOUGHT})?", re.DOTALL)
_OPEN, _CLOSE = "<think>", "</think>"
_ANSWERS = ("An answer.", "Two paragraphs.\n\nAnd `code`.")


def delimiters_in(source: str) -> tuple[str, ...]:
    """Return the tokens that delimit thinking in a template, control tokens or not."""
    channels = _PIECES if _PIECES[1] in source else ()
    return (*channels, *((_OPEN, _CLOSE) if _CLOSE in source else ()))


class Placed(NamedTuple):
    """An answer in its rendered chat: `prompt`, `written` and `rest` are the whole text."""

    prompt: str
    """The text before the answer."""
    written: str
    """The answer, without `cut` characters of its front and without what the template strips of its end."""
    rest: str
    """The template's text after the answer, beginning with the end of the turn."""
    cut: int = 0
    masked: int = 0
    """Characters at the start of `written` that are read and not learned from."""


class ChatTemplate:
    """A base model's chat template."""

    def __init__(self, render: Render, source: str) -> None:
        """Take the template's text as `source`, which shows how it delimits thinking."""
        self._render = render
        self._channels = "<|channel|>" in source
        self._thinks = _CLOSE in source
        self._delimiters = delimiters_in(source)

    def prompt(self, messages: Sequence[Message]) -> str:
        """Return the chat's text up to the start of its next turn."""
        return self._render(self._chat(messages), True, {})

    def thinking_end(self, answer: str) -> int:
        """Return the start of the final answer: 0 without thinking, the length if there is only thinking."""
        if self._channels:
            if match := _FINAL.match(answer):
                return match.end()
            return len(answer) if _NO_FINAL.fullmatch(answer) else 0
        if not self._thinks:
            return 0
        if (place := answer.rfind(_CLOSE)) >= 0:
            end = place + len(_CLOSE)
            return end + len(answer[end:]) - len(answer[end:].lstrip())
        return len(answer) if answer.lstrip().startswith(_OPEN) else 0

    def without_delimiters(self, answer: str) -> str:
        """Return the answer's text without the delimiters of its thinking."""
        end = self.thinking_end(answer)
        thinking = answer[:end]
        for delimiter in self._delimiters:
            thinking = thinking.replace(delimiter, "")
        return thinking + answer[end:]

    def place(self, messages: Sequence[Message], answer: str, *, thinking: Thinking = "train") -> Placed:
        """Place an answer in its chat, with its thinking learned from, masked or stripped.

        Raises `ContractError` if the template rewrites answers or no answer is left.
        """
        end = self.thinking_end(answer)
        if thinking != "train" and end and not answer[end:].strip():
            raise ContractError("the response is all thinking: it never comes to an answer")
        if not end:
            return self._plain(messages, answer)
        if thinking == "strip":
            placed = self._plain(messages, answer[end:])
            return placed._replace(cut=placed.cut + end)
        placed = self._generated(messages, answer)
        return placed._replace(masked=max(0, end - placed.cut) if thinking == "mask" else 0)

    def check(self) -> None:
        """Raise `ContractError` if answers cannot be placed, before any is judged."""
        question = Message(role="user", content="A question?")
        turn = Message(role="assistant", content="Said before.")
        for chat in ([question], [question, turn, question]):
            for answer in _ANSWERS:
                self.place(chat, answer)
            if self._thinks:
                self.place(chat, f"{_OPEN}\nA thought.\n{_CLOSE}\n\nAn answer.")

    def _plain(self, messages: Sequence[Message], answer: str) -> Placed:
        prompt, whole = self.prompt(messages), self._answered(messages, answer)
        placed = None if self._inserts else _split(prompt, whole, answer)
        if placed is None:
            placed = _split(self._around(messages, prompt)[0], whole, answer)
        if placed is None:
            raise ContractError("the base model's chat template does not render an answer after its prompt")
        return placed

    def _generated(self, messages: Sequence[Message], answer: str) -> Placed:
        """Place an answer with thinking as it was generated."""
        prompt = self.prompt(messages)
        try:
            placed = _split(prompt, self._answered(messages, answer), answer)
        except ContractError:  # a template may refuse delimiters in a message
            placed = None
        if placed is not None:
            return placed
        rest = self._around(messages, prompt)[1]
        if prompt.rstrip().endswith(_CLOSE):
            # The prompt is that of an answer without thinking.
            prompt = self._render(self._chat(messages), True, _THINKS)
            if prompt.rstrip().endswith(_CLOSE):
                raise ContractError(
                    "the base model's chat template allows no thinking, the response has some"
                )
        opened = answer.lstrip()
        if prompt.rstrip().endswith(_OPEN) and opened.startswith(_OPEN):
            cut = len(answer) - len(opened) + len(_OPEN)
            return Placed(prompt.rstrip(), answer[cut:], rest, cut)
        return Placed(prompt, answer, rest)

    @cached_property
    def _inserts(self) -> bool:
        """Return whether the template inserts text between generation prompt and answer."""
        chat = [Message(role="user", content="A question?")]
        try:
            prompt = self.prompt(chat)
            return self._around(chat, prompt)[0] != prompt
        except ContractError:
            return False

    def _around(self, messages: Sequence[Message], prompt: str) -> tuple[str, str]:
        """Return the template's text before an answer without thinking, and after it."""
        answer = "Answer"
        while answer in prompt:
            answer += "0"
        before, separator, after = self._answered(messages, answer).rpartition(answer)
        history = self._render(self._chat(messages), False, {})
        if not separator or not (before.startswith(history) and prompt.startswith(history)):
            raise ContractError("the base model's chat template does not render an answer after its prompt")
        return before, after

    def _answered(self, messages: Sequence[Message], answer: str) -> str:
        return self._render([*self._chat(messages), {"role": "assistant", "content": answer}], False, {})

    def _chat(self, messages: Sequence[Message]) -> Chat:
        return [{"role": message.role, "content": self._content(message)} for message in messages]

    def _content(self, message: Message) -> str:
        """Return a message's text with the thinking marked, so that the template can drop it from earlier
        turns."""
        text = message.content
        if message.role != "assistant":
            return text
        if self._channels:
            # The template refuses channels in a message.
            return text[self.thinking_end(text) :]
        if self._thinks and _CLOSE in text and _OPEN not in text:
            # The generation prompt had opened it.
            return f"{_OPEN}\n{text}"
        return text


def _split(prompt: str, whole: str, answer: str) -> Placed | None:
    """Split the rendered chat after the prompt; None if the answer does not follow it."""
    rest = whole.removeprefix(prompt)
    # Some templates strip the white space around a message.
    written = answer if rest.startswith(answer) else answer.strip()
    if not whole.startswith(prompt) or not rest.startswith(written):
        return None
    cut = 0 if written == answer else len(answer) - len(answer.lstrip())
    return Placed(prompt, written, rest[len(written) :], cut)


def require_template(render: Render, source: Any, name: str) -> None:
    """Raise `ContractError` if answers cannot be placed in the chat template of the base model `name`."""
    try:
        ChatTemplate(render, str(source)).check()
    except ContractError as error:
        raise ContractError(
            f"{name}: {error}, so responses could be judged and not trained on; choose another base model, "
            "or put a template that does into its chat_template.jinja"
        ) from error
