"""A tokenizer's chat template: rendered, and which of its control tokens a text keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import TemplateError

from training.contract import ContractError
from training.contract.chat_template import Chat, Render, delimiters_in


def hidden_ids(tokenizer: Any) -> frozenset[int] | None:
    """Control tokens that a text leaves out where it keeps those that delimit thinking in the chat template;
    None where no control token does, so that a text leaves out all."""
    delimiters = delimiters_in(str(getattr(tokenizer, "chat_template", None) or ""))
    if not delimiters:
        return None
    special = {id: str(token) for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    hidden = frozenset(id for id, token in special.items() if token not in delimiters)
    return hidden if len(hidden) < len(special) else None


def renderer(tokenizer: Any) -> Render:
    """Return the tokenizer's chat template as a function."""

    def render(chat: Chat, generation_prompt: bool, variables: Mapping[str, bool]) -> str:
        try:
            text: str = tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generation_prompt, **variables
            )
        except TemplateError as error:
            raise ContractError(f"the base model's chat template refuses this chat ({error})") from error
        return text

    return render
