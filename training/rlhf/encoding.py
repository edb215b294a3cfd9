"""A chat and its answer as token ids: one rendered text, tokenised once, with the answer marked in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError

from training.contract import ContractError, Message
from training.rlhf.stored import Stored


class Answered(NamedTuple):
    """One prompt with one answer, tokenised as one rendered chat that ends with the turn's end token."""

    ids: tuple[int, ...] | Stored
    answer_start: int
    """Index of the first token of the answer; all from there to the end are the answer's."""
    offsets: tuple[tuple[int, int], ...] | Stored = ()
    """Where the answer's tokens stand in the answer's text, [start, end) in code points, one each; the end
    token has the empty place after the text. Empty where nobody asked for them."""


class Encoder:
    """Turns a chat and its answer into token ids with a model's own chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        special |= set(tokenizer.all_special_tokens)
        self._control = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))

    def encode(self, messages: Sequence[Message], answer: str, *, offsets: bool = False) -> Answered:
        """Tokenise prompt and answer as the one chat that the template renders.

        The answer's tokens are found by the character offsets of that text, not by a second
        tokenisation. The row ends with the token that ends the turn. Raises `ContractError`
        for text that holds a control token and for a template that rewrites answers.
        """
        self._refuse_control_tokens([*(message.content for message in messages), answer])
        text, start, shift = self._render(messages, answer)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        places = encoded["offset_mapping"]
        # A token that reaches into the answer is the answer's, also where it begins in the prompt.
        first = next(index for index, (_, end) in enumerate(places) if end > start)
        ids = tuple(encoded["input_ids"])
        if not offsets:
            return Answered(ids, first)
        within = [
            tuple(min(max(place - start + shift, 0), len(answer)) for place in pair)
            for pair in places[first:]
        ]
        return Answered(ids, first, tuple((low, high) for low, high in within))

    def encode_prompt(self, messages: Sequence[Message], *, max_tokens: int) -> tuple[tuple[int, ...], int]:
        """A chat up to where its next turn begins, and how many tokens of its front were cut off to fit.

        A beginning-of-text token stays where it is. Raises `ContractError` for text that holds a control
        token and for a chat that the template refuses.
        """
        self._refuse_control_tokens([message.content for message in messages])
        # The template writes the beginning-of-text token itself where there is one.
        ids = tuple(self._tokenizer(self._rendered(messages), add_special_tokens=False)["input_ids"])
        too_many = max(0, len(ids) - max_tokens)
        head = 1 if too_many and max_tokens > 1 and self.begins(ids) else 0
        return ids[:head] + ids[head + too_many :], too_many

    def _refuse_control_tokens(self, texts: Sequence[str]) -> None:
        for text in texts:
            if found := self._control.search(text):
                raise ContractError(f"the text holds the control token {found.group()!r}")

    def _rendered(self, messages: Sequence[Message], answer: str | None = None) -> str:
        """The chat's text up to where its next turn begins; with an answer, to the end of its turn."""
        chat = [{"role": message.role, "content": message.content} for message in messages]
        if answer is not None:
            chat.append({"role": "assistant", "content": answer})
        try:
            text: str = self._tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=answer is None
            )
        except TemplateError as error:
            raise ContractError(f"the base model's chat template refuses this chat ({error})") from error
        return text

    def begins(self, ids: Sequence[int]) -> bool:
        """Whether a row opens with the beginning-of-text token."""
        return bool(ids[0] == self._tokenizer.bos_token_id)

    def _render(self, messages: Sequence[Message], answer: str) -> tuple[str, int, int]:
        """The chat's text up to the end of the answer's turn, where the answer begins in it, and how much
        white space the template took from the answer's front."""
        prompt, whole = self._rendered(messages), self._rendered(messages, answer)
        rest = whole.removeprefix(prompt)
        # Some templates strip the white space around a message.
        written = answer if rest.startswith(answer) else answer.strip()
        if not whole.startswith(prompt) or not rest.startswith(written):
            raise ContractError("the base model's chat template does not render an answer after its prompt")
        tail = re.match(rf"\s*(?:{self._control.pattern})", rest[len(written) :])
        turn_end = tail.group() if tail else self._tokenizer.eos_token
        shift = 0 if written == answer else len(answer) - len(answer.lstrip())
        return prompt + written + turn_end, len(prompt), shift


def shorten(answers: list[Answered], max_tokens: int, encoder: Encoder) -> tuple[Answered, ...]:
    """Cut the prompt's front so that every row fits.

    All answers of one judgment lose the same tokens: they are compared on the same prompt.
    A beginning-of-text token stays where it is.
    """
    too_many = max(len(answer.ids) for answer in answers) - max_tokens
    # One token before the answer is needed to predict the answer's first from.
    too_many = min(too_many, *(answer.answer_start - 1 for answer in answers))
    if too_many <= 0:
        return tuple(answers)
    kept = []
    for ids, start, offsets in answers:
        head = 1 if encoder.begins(ids) and start - too_many > 1 else 0
        cut = (head, head + too_many)
        left = ids.without(*cut) if isinstance(ids, Stored) else ids[: cut[0]] + ids[cut[1] :]
        kept.append(Answered(left, start - too_many, offsets))
    return tuple(kept)
