"""Sizes of the GPU benchmark: shapes of the random bases, work of each part, and the operations it needs.

Knows no torch. An operation is a multiplication or an addition. What LoRA on a frozen base needs: 2 for
each weight and token forward, 2 backward for the gradient of inputs; attention's two products over what a
token sees, 2 × 2 × width of all heads forward and twice that backward; the LM head at tokens that are
predicted. Adapters, recomputation and the reference's pass, which both trainers make before the steps that
count, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.services.runs.memory import Shape

CHAT = 6
"""Tokens that the chat template puts around a prompt."""
ANSWERS = 4
"""Answers of a ranking."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A random base, and the work that is measured on it. Lengths are in tokens, end tokens included."""

    shape: Shape
    prompt: int = 512
    answer: int = 128
    judgments: int = 64
    """Rankings, or pairs, of an optimiser step."""
    micro_batch_tokens: int
    prompts: int = 16
    """Of a step of GRPO."""
    samples: int = 8
    """Of each of these prompts."""
    streams: int = 64
    """Completions that are generated at a time."""
    generated: int = 256
    """Tokens of each."""
    steps: int = 5
    """Optimiser steps that count."""
    warm: int = 2
    """Steps before them: compilation, and the reference's log-probabilities."""


def _shape(vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, key_heads: int) -> Shape:
    return Shape(
        vocabulary=vocabulary,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head_size=hidden // heads,
        tied=False,
        context=4096,
    )


SIZES = {
    # TinyLlama's shape.
    "1.1b": Size(shape=_shape(32_000, 2048, 5632, 22, 32, 4), micro_batch_tokens=16_384),
    # Llama 2's.
    "7b": Size(shape=_shape(32_000, 4096, 11_008, 32, 32, 32), micro_batch_tokens=4096, steps=3),
    "smoke": Size(
        shape=_shape(512, 64, 128, 2, 4, 2),
        prompt=24,
        answer=8,
        judgments=8,
        micro_batch_tokens=512,
        prompts=2,
        samples=4,
        streams=8,
        generated=8,
        steps=2,
        warm=1,
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Tokens that a step computes, and the operations that these take."""

    tokens: int
    operations: float


def need_of(size: Size, part: str, *, shared: bool) -> Need:
    """Return tokens and operations of a step of a part.

    shared: a prompt is computed once for all of its answers, as Rondo does; else once for each, and a ranking
    is all the pairs that it decides, as in TRL.
    """
    if part == "generation":
        return _generated(size, size.streams, 1, shared=True, new=size.generated)
    if part == "grpo":
        learned = _learned(size, size.prompts, size.samples, shared=shared, predicts=True)
        drawn = _generated(size, size.prompts, size.samples, shared=shared, new=size.answer)
        return Need(tokens=learned.tokens, operations=learned.operations + drawn.operations)
    if part == "dpo":
        return _learned(size, size.judgments, 2, shared=shared, predicts=True)
    if shared:
        return _learned(size, size.judgments, ANSWERS, shared=True, predicts=False)
    return _learned(size, size.judgments * pairs_of_a_ranking(), 2, shared=False, predicts=False)


def pairs_of_a_ranking() -> int:
    """Return the pairs that a ranking without ties decides."""
    return ANSWERS * (ANSWERS - 1) // 2


def _learned(size: Size, groups: int, answers: int, *, shared: bool, predicts: bool) -> Need:
    """Forward and backward of groups of answers to one prompt."""
    tokens, seen = _row(size, answers, size.answer, shared=shared)
    forward = _forward(size.shape, tokens, seen, answers * size.answer if predicts else 0)
    # Products of weights once more for the gradient of their inputs, those of attention twice.
    operations = 2 * forward + _attention(size.shape, seen)
    return Need(tokens=groups * tokens, operations=float(groups * operations))


def _generated(size: Size, groups: int, answers: int, *, shared: bool, new: int) -> Need:
    """Forward passes that draw answers, each of `new` tokens."""
    tokens, seen = _row(size, answers, new, shared=shared)
    operations = _forward(size.shape, tokens, seen, answers * new)
    return Need(tokens=groups * answers * new, operations=float(groups * operations))


def _row(size: Size, answers: int, length: int, *, shared: bool) -> tuple[int, int]:
    """Return the tokens of a prompt with its answers, and the tokens that all of these see together."""
    prompts = 1 if shared else answers
    in_answers = answers * (length * size.prompt + length * (length + 1) // 2)
    seen = prompts * size.prompt * (size.prompt + 1) // 2 + in_answers
    return prompts * size.prompt + answers * length, seen


def _forward(shape: Shape, tokens: int, seen: int, predicted: int) -> int:
    block = sum(inside * outside for inside, outside in shape.linear.values())
    head = shape.vocabulary * shape.hidden * predicted
    return 2 * (shape.layers * block * tokens + head) + _attention(shape, seen)


def _attention(shape: Shape, seen: int) -> int:
    return 4 * shape.heads * shape.head_size * seen * shape.layers
