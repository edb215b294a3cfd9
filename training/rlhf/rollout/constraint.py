"""Constrained decoding: which tokens may come next, so that a sample is of a grammar (Willard & Louf 2023).

Grammars are those of llguidance: a variant of Lark with JSON schemas in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor

from training.rlhf.model.templates import hidden_ids

_LIMITS = LLParserLimits(verbose_errors=False)
"""llguidance's own bounds on the time and memory of a grammar. Its verbose errors quote the grammar."""


class ConstraintError(ValueError):
    """A grammar that is wrong or too complex, or a tokenizer whose bytes are not known."""


class Constraint:
    """A grammar and how much of it one sample has written."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary

    def begin(self) -> Constraint:
        """Return the constraint of a sample that has written as much as this one."""
        return Constraint(self._matcher.deep_copy(), self._vocabulary)

    def allowed(self) -> Tensor:
        """Return which tokens may come next, (vocabulary,) bool; end tokens where the grammar may end.

        Raises `ConstraintError` where the grammar has become too complex, and where no token goes on.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=self._vocabulary, bitorder="little")
        self._check()
        if not allowed.any():
            raise ConstraintError("no token of the model goes on from what was written")
        return torch.from_numpy(allowed).bool()

    def advance(self, token: int) -> None:
        """Take the token that was drawn, which is one of those allowed and no end token."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ConstraintError(_first_line(self._matcher.get_error()))


class Grammars:
    """Compiles grammars for the tokens of one model."""

    def __init__(self, tokenizer: Any, *, vocabulary: int, ends: Collection[int]) -> None:
        """vocabulary: ids that logits are for. ends: tokens that end a sample.

        Takes a second with a large vocabulary. Raises `ConstraintError` for a tokenizer without byte tokens.
        """
        self._vocabulary = vocabulary
        try:
            self._tokenizer: LLTokenizer = from_tokenizer(
                tokenizer, n_vocab=vocabulary, eos_token=sorted(ends)
            )
        except ValueError as error:
            raise ConstraintError(_first_line(str(error))) from error
        hidden = hidden_ids(tokenizer)
        self.named_tokens: dict[str, int] = {
            str(token): id
            for id, token in tokenizer.added_tokens_decoder.items()
            if self._tokenizer.is_special_token(id)
            and id not in ends
            and (id not in hidden if hidden is not None else not token.special)
        }
        """Added tokens that texts show and that no letters of a grammar stand for: it names them by id."""

    def compile(self, grammar: str) -> Constraint:
        """Return the constraint of a sample that begins. Raises `ConstraintError` for a bad grammar."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        constraint = Constraint(matcher, self._vocabulary)
        # An error of the grammar shows in its first step at the latest.
        constraint.allowed()
        return constraint

    def schema_problem(self, schema: Mapping[str, Any]) -> str:
        """Return what is wrong with a JSON schema, in one line; empty where nothing is."""
        grammar = LLMatcher.grammar_from_json_schema(dict(schema))
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer, limits=_LIMITS)
        return _first_line(messages[0]) if failed else ""


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # Of an error in a regular expression the last line says what it is.
    return (lines[-1] if lines and lines[0].startswith("regex parse error") else "".join(lines[:1]))[:300]
