"""A tokenizer's chat template: rendered, the end of its turns, and the control tokens that a text keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from training.contract import ContractError
from training.contract.chat_template import Chat, ChatTemplate, Placed, Render, delimiters_in
from training.contract.snapshot import Message

_QUESTION = (Message(role="user", content="A question?"),)
_ANSWER = "An answer."


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

    def render(chat: Chat, generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        try:
            text: str = tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generation_prompt, **variables
            )
        except TemplateError as error:
            raise ContractError(f"the base model's chat template refuses this chat ({error})") from error
        return text

    return render


class TurnEnd:
    """The end of an answer's turn in a tokenizer's rows: the token that its chat template writes after the
    answer, a control token or another added one, else `eos_token`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        self._special = {str(token) for token in added if token.special} | set(tokenizer.all_special_tokens)
        # Some tokenizers have added tokens for runs of spaces, which end nothing.
        plain = {str(token) for token in added if str(token).strip()} - self._special
        self._tails = [re.compile(rf"\s*({token_pattern(some).pattern})") for some in (self._special, plain)]

    @cached_property
    def control(self) -> re.Pattern[str]:
        """Finds control tokens, and the token that ends a turn, in a text."""
        return token_pattern(self._special | self.tokens)

    @cached_property
    def tokens(self) -> frozenset[str]:
        """Return the token that ends a turn; none where the template cannot be used, as encoding with it
        refuses."""
        with suppress(ContractError):
            return frozenset({self.after(_placed(self._tokenizer).rest).strip()})
        return frozenset()

    def after(self, rest: str) -> str:
        """Return the end of a row from `rest`, the template's text after the answer.

        Raises `ContractError` where the template ends no turn and the tokenizer has no `eos_token`.
        """
        for tail in self._tails:
            if match := tail.match(rest):
                return match.group()
        if self._tokenizer.eos_token is None:
            raise ContractError(
                "the base model's chat template writes no end token after an answer, and its tokenizer "
                "has no eos_token"
            )
        return str(self._tokenizer.eos_token)


def whole_row(tokenizer: Any) -> list[int]:
    """Return the ids of a short chat with its answer, as rows are trained on.

    Raises `ContractError` where the template rewrites answers or does not end them.
    """
    placed = _placed(tokenizer)
    text = placed.prompt + placed.written + TurnEnd(tokenizer).after(placed.rest)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def turn_end_id(tokenizer: Any) -> int | None:
    """Return the id that ends a trained row; None without a chat template."""
    return whole_row(tokenizer)[-1] if tokenizer.chat_template else None


def _placed(tokenizer: Any) -> Placed:
    return ChatTemplate(renderer(tokenizer), str(tokenizer.chat_template)).place(_QUESTION, _ANSWER)


def token_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of these tokens, the longest first; of none of them, one that matches nothing."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")


# ── The generation configuration of a model's folder: its end tokens, complete ──

GENERATION_FILE = "generation_config.json"


def end_ids(folder: Path) -> list[int]:
    """Return the end tokens that the generation configuration names, else those of the configuration."""
    for name in (GENERATION_FILE, "config.json"):
        ends = _read(folder / name).get("eos_token_id")
        if ends is not None:
            return list(ends) if isinstance(ends, list) else [ends]
    return []


def add_turn_end(folder: Path, tokenizer: Any) -> None:
    """Add the token that ends a trained row to the end tokens of the model in `folder`, where it is missing:
    programs that load the model would generate past the end of the turn."""
    known, end = end_ids(folder), turn_end_id(tokenizer)
    if end is None or end in known:
        return
    path = folder / GENERATION_FILE
    settings = _read(path) | {"eos_token_id": [*known, end]}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return settings
