"""From logits to a token: the distribution that is sampled from, and the draw."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor

from training.rlhf.model.templates import hidden_ids
from training.rlhf.sampling import SamplingParameters

_LIKELIEST = 1024
"""Tokens looked at first for top-p: they nearly always reach it, and a full sort costs ten times as much."""

_BLOCK = 128
"""Ids of one block of the vocabulary when a token is drawn: about as many as there are blocks, or fewer."""

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_SHIFTS = (30, 27, 31)
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""SplitMix64's constants."""


def sampling_log_probs(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """Return log-probabilities that the next token is drawn by: temperature, then top-k, then top-p.

    logits: (rows, vocabulary). Returns (rows, vocabulary) float32, -inf where a token cannot be
    drawn. Temperature 0 gives the likeliest token probability 1 (the lowest id among equals).
    """
    logits = logits.float()
    if parameters.temperature == 0:
        greedy = torch.full_like(logits, -torch.inf)
        return greedy.scatter(-1, logits.argmax(-1, keepdim=True), 0.0)
    if parameters.temperature != 1:
        logits = logits / parameters.temperature
    log_probs = torch.log_softmax(logits, -1)
    if 0 < parameters.top_k < logits.shape[-1]:
        log_probs = keep_top_k(log_probs, parameters.top_k)
    if parameters.top_p < 1:
        log_probs = keep_top_p(log_probs, parameters.top_p)
    return log_probs


def keep_top_k(log_probs: Tensor, top_k: int) -> Tensor:
    """Keep exactly the `top_k` likeliest tokens of each row, renormalised."""
    values, indices = torch.topk(log_probs, top_k, dim=-1)
    result = torch.full_like(log_probs, -torch.inf)
    return result.scatter(-1, indices, torch.log_softmax(values, -1))


def keep_top_p(log_probs: Tensor, top_p: float) -> Tensor:
    """Keep each row's smallest set of likeliest tokens that reaches `top_p`, renormalised.

    The token that crosses the line is in the set (Holtzman et al. 2020, §3.1).
    """
    count = min(_LIKELIEST, log_probs.shape[-1])
    values, indices = torch.topk(log_probs, count, dim=-1)
    if bool((values.exp().sum(-1) < top_p).any()):
        values, indices = torch.sort(log_probs, dim=-1, descending=True, stable=True)
    probabilities = values.exp()
    before = probabilities.cumsum(-1) - probabilities
    # The likeliest always stays: rounding must never empty a row.
    before[:, 0] = 0
    values = torch.log_softmax(values.masked_fill(before >= top_p, -torch.inf), -1)
    result = torch.full_like(log_probs, -torch.inf)
    return result.scatter(-1, indices, values)


class DeviceNoise:
    """Random numbers of one sample, computed on a GPU: a hash of its seed, the count of draws, and a place.

    No state lies on the device, so the numbers of all rows come of one call, and none waits for the CPU.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def next_key(self) -> int:
        """Return the key of the next draw, as an int64."""
        self._drawn += 1
        return _signed(_scrambled((_scrambled(self._seed & _WORD) + self._drawn * _GOLDEN) & _WORD))


Noise = torch.Generator | DeviceNoise


def make_noise(seed: int, device: torch.device) -> Noise:
    """Return the random numbers of a sample: on CUDA computed there, elsewhere by the CPU's generator.

    Both give the same numbers for the same seed whatever else is drawn; they are not each other's.
    """
    return DeviceNoise(seed) if device.type == "cuda" else torch.Generator().manual_seed(seed)


def draw(log_probs: Tensor, generators: Sequence[Noise]) -> Tensor:
    """Return one token per row, drawn by its probability; (rows,), where the noise is.

    The vocabulary is cut into blocks of ids. First a block is drawn by the probability of all its
    tokens, then one of its tokens, both by the Gumbel-max trick: exactly the distribution, and a few
    hundred random numbers a row where one for every token would take longer than the model does.

    Row r uses only `generators[r]`, all of them of one kind: what it draws depends on no other row. The
    maximum of log-probability plus noise changes only when the best two lie within a rounding error of each
    other, so another batch around the row changes a token about once in a million; along a
    cumulative sum over the vocabulary the errors would add up instead.
    """
    size = log_probs.shape[-1]
    blocks = -(-size // _BLOCK)
    noise = _gumbel(blocks + _BLOCK, generators, log_probs.device)
    block = _likeliest(_block_probabilities(log_probs).log(), noise[:, :blocks])
    ids = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=block.device)
    inside = log_probs.gather(-1, ids.clamp(max=size - 1).to(log_probs.device)).to(block.device)
    inside = inside.masked_fill(ids >= size, -torch.inf)
    return block * _BLOCK + _likeliest(inside, noise[:, blocks:])


def _block_probabilities(log_probs: Tensor) -> Tensor:
    """Return the probability of each block of ids, the last of which may be shorter: (rows, blocks)."""
    probabilities = log_probs.exp()
    whole = probabilities.shape[-1] // _BLOCK
    sums = probabilities[:, : whole * _BLOCK].reshape(len(log_probs), whole, _BLOCK).sum(-1)
    if whole * _BLOCK < log_probs.shape[-1]:
        rest = probabilities[:, whole * _BLOCK :].sum(-1, keepdim=True)
        sums = torch.cat([sums, rest], dim=-1)
    return sums


def _gumbel(count: int, generators: Sequence[Noise], device: torch.device) -> Tensor:
    """Noise of the standard Gumbel distribution, (rows, count) float64, each row by its own generator."""
    keys = [generator.next_key() for generator in generators if isinstance(generator, DeviceNoise)]
    if keys:
        noise = _uniform(torch.tensor(keys, device=device), count)
    else:
        rows = [generator for generator in generators if isinstance(generator, torch.Generator)]
        noise = torch.stack([torch.rand(count, generator=row, dtype=torch.float64) for row in rows])
    # The one number in 2**53 that is exactly 0 would make its token impossible.
    return -torch.log(-torch.log(noise.clamp_(min=torch.finfo(torch.float64).tiny)))


def _uniform(keys: Tensor, count: int) -> Tensor:
    """(rows, count) float64 in [0, 1): SplitMix64 (Steele et al. 2014) of each row's key and the place.

    int64 wraps around as uint64 does; only its shift to the right is another.
    """
    places = torch.arange(1, count + 1, device=keys.device)
    words = keys[:, None] + places * _signed(_GOLDEN)
    for shift, factor in zip(_SHIFTS[:2], _FACTORS, strict=True):
        words = (words ^ _shifted(words, shift)) * _signed(factor)
    return _shifted(words ^ _shifted(words, _SHIFTS[2]), 11).double() * 2.0**-53


def _shifted(words: Tensor, by: int) -> Tensor:
    """Return the logical shift to the right."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _scrambled(word: int) -> int:
    """SplitMix64's last part, in plain integers."""
    for shift, factor in zip(_SHIFTS[:2], _FACTORS, strict=True):
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> _SHIFTS[2])


def _likeliest(log_probs: Tensor, noise: Tensor) -> Tensor:
    # Added where the noise is: not every device computes in float64.
    return (log_probs.to(noise.device).double() + noise).argmax(-1)


# ── Constrained decoding: which tokens may come next, so that a sample is of a grammar (Willard & Louf
# 2023) ──
#
# Grammars are those of llguidance: a variant of Lark with JSON schemas in it.


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
