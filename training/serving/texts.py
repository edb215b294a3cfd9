"""Requests' texts as token ids, refused where the model would read something else than was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from training.contract import ContractError, Message
from training.contract.chat_template import Thinking
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.templates import TurnEnd, any_of
from training.rlhf.rollout.samples import context_length
from training.rlhf.tokens.encoding import Answered, Encoder, shorten
from training.serving.errors import RequestError
from training.serving.requests import ChatMessage, ChatRequest
from training.serving.tool_calls import ToolPrompts


class Texts:
    """Chats, raw prompts and answers, for one base model."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._encoders = {
            thinking: Encoder(backbone.tokenizer, thinking=thinking) for thinking in get_args(Thinking)
        }
        self._encoder = self._encoders["train"]
        tokenizer = backbone.tokenizer
        self._tools = ToolPrompts(tokenizer)
        self._control = any_of({*tokenizer.all_special_tokens, *TurnEnd(tokenizer).tokens})

    def chat(self, request: ChatRequest) -> list[int]:
        """Return token ids of a chat up to where the answer begins, or up to the end of its prefix."""
        self._check(request)
        messages, tools = request.answered, request.callable_tools
        # What is JSON or a call from its first token on is no thinking.
        thinks = not request.must_call and (request.response_format is None or bool(tools))
        try:
            if (tools or _has_calls(messages)) and self._tools.template_knows_tools:
                text = self._tools.render(messages, tools, thinks=thinks)
                return list(self._backbone.tokenizer(text, add_special_tokens=False)["input_ids"])
            plain = self._tools.plain(messages, tools)
            if request.prefix is not None:
                return list(self._encoder.begun(plain, request.prefix))
            return list(self._encoder.chat(plain) if thinks else self._encoder.chat_answered_at_once(plain))
        except ContractError as error:
            raise RequestError(400, f"{error}.", code="invalid_value", param="messages") from error

    def _check(self, request: ChatRequest) -> None:
        """Raise `RequestError` for a control token in a text, and a result of a tool that was not called."""
        called: set[str] = set()
        for index, message in enumerate(request.messages):
            content = message.content or ""
            if message.role == "assistant":
                content = self._encoder.undelimited(Message(role="assistant", content=content))
            self._refuse_control(content, f"messages[{index}].content")
            for number, call in enumerate(message.tool_calls or ()):
                place = f"messages[{index}].tool_calls[{number}].function.arguments"
                self._refuse_control(call.function.arguments, place)
                called.add(call.id)
            if message.role == "tool" and message.tool_call_id not in called:
                reason = "No call of an earlier message of the assistant has this id."
                place = f"messages[{index}].tool_call_id"
                raise RequestError(400, reason, code="invalid_value", param=place)
        for index, tool in enumerate(request.tools or ()):
            self._refuse_control(tool.model_dump_json(by_alias=True), f"tools[{index}]")

    def _refuse_control(self, text: str, place: str) -> None:
        if match := self._control.search(text):
            raise RequestError(
                400,
                f"The text holds the control token {match.group()!r}. Take it out.",
                code="control_token",
                param=place,
            )

    def prompt(self, prompt: str | list[int], index: int) -> list[int]:
        """Return token ids of a raw prompt; with ids given, those, if the model knows them."""
        size = int(self._backbone.config.vocab_size)
        ids: list[int] = prompt if isinstance(prompt, list) else self._backbone.tokenizer(prompt)["input_ids"]
        if not ids:
            raise RequestError(400, "The prompt is empty.", code="invalid_value", param=f"prompt[{index}]")
        unknown = self._backbone.unknown_tokens.ids
        if not all(0 <= id < size and id not in unknown for id in ids):
            message = f"Token ids must be the tokenizer's, which lie between 0 and {size - 1}."
            raise RequestError(400, message, code="invalid_value", param=f"prompt[{index}]")
        return ids

    def answers(
        self,
        messages: Sequence[Message],
        texts: Sequence[str],
        *,
        max_tokens: int | None = None,
        offsets: bool = False,
        thinking: Thinking = "train",
        field: str = "completions[{}]",
    ) -> tuple[Answered, ...]:
        """Each text as the answer that ends the chat, in at most so many tokens; the front of a long prompt
        is cut for all alike. thinking: what becomes of theirs. field: how an error names the text that it
        is about."""
        encoded = []
        for index, text in enumerate(texts):
            try:
                encoded.append(self._encoders[thinking].encode(messages, text, offsets=offsets))
            except ContractError as error:
                param = field.format(index)
                raise RequestError(400, f"{error}.", code="invalid_value", param=param) from error
        context = context_length(self._backbone)
        rows = shorten(encoded, min(max_tokens or context, context), self._encoder)
        for index, row in enumerate(rows):
            if len(row.ids) > context:
                message = f"The completion has {len(row.ids)} tokens; the model's context holds {context}."
                param = field.format(index)
                raise RequestError(400, message, code="context_length_exceeded", param=param)
        return rows


def _has_calls(messages: Sequence[ChatMessage]) -> bool:
    return any(message.tool_calls or message.role == "tool" for message in messages)
