"""Requests' texts as token ids, refused where the model would read something else than was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from training.contract import ContractError, Message
from training.contract.chat_template import Thinking
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.templates import TurnEnd, any_of
from training.rlhf.rollout.limits import context_length
from training.rlhf.tokens.encoding import Answered, Encoder, shorten
from training.serving.errors import RequestError


class Texts:
    """Chats, raw prompts and answers, for one base model."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._encoders = {
            thinking: Encoder(backbone.tokenizer, thinking=thinking) for thinking in get_args(Thinking)
        }
        self._encoder = self._encoders["train"]
        tokenizer = backbone.tokenizer
        self._control = any_of({*tokenizer.all_special_tokens, *TurnEnd(tokenizer).tokens})

    def chat(self, messages: Sequence[Message], *, prefix: str | None = None) -> list[int]:
        """Return token ids of a chat up to where the answer begins, or up to the end of its prefix."""
        answer = [] if prefix is None else [Message(role="assistant", content=prefix)]
        for index, message in enumerate([*messages, *answer]):
            if match := self._control.search(self._encoder.undelimited(message)):
                raise RequestError(
                    400,
                    f"The text holds the control token {match.group()!r}. Take it out.",
                    code="control_token",
                    param=f"messages[{index}].content",
                )
        try:
            if prefix is not None:
                return list(self._encoder.begun(messages, prefix))
            return list(self._encoder.chat(messages))
        except ContractError as error:
            raise RequestError(400, f"{error}.", code="invalid_value", param="messages") from error

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
