"""Attention over packed rows: several prompts, each followed by all its answers, without padding.

A token sees its own prompt and its own answer up to itself, and nothing of any other answer or
judgment. So the states are those of separate rows of prompt + answer, while a prompt is computed once
however many answers it has.

On a CPU each prompt and each group of answers, or each answer, is one call of scaled dot-product
attention: nothing is computed for pairs of tokens in different judgments. On a GPU the whole row is one
call of FlexAttention with a block mask, which skips empty blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "rondo_packed"
"""Under this name transformers finds the function below; without a layout it is plain SDPA."""


@dataclass(frozen=True, slots=True)
class Tree:
    """One prompt and its answers in a packed row: tokens [start, end)."""

    start: int
    prompt: int
    """Tokens that all answers share; they come first."""
    answers: tuple[int, ...]
    """Tokens of each answer, one after the other."""

    @property
    def end(self) -> int:
        return self.start + self.prompt + sum(self.answers)


class Layout:
    """Where the judgments of one packed row lie, and the masks that follow from it."""

    def __init__(self, trees: Sequence[Tree], device: torch.device) -> None:
        self.trees = tuple(trees)
        self.device = device
        self._masks: dict[int, Tensor] = {}
        self._answer_masks: dict[tuple[int, int], Tensor] = {}

    @property
    def tokens(self) -> int:
        """Length of the row."""
        return self.trees[-1].end if self.trees else 0

    @functools.cached_property
    def members(self) -> tuple[Tensor, Tensor]:
        """For each token its tree and its answer within it, 0 for the prompt: (tokens,) int32 each."""
        trees, answers = [], []
        for index, tree in enumerate(self.trees):
            lengths = (tree.prompt, *tree.answers)
            trees.append(torch.full((sum(lengths),), index, dtype=torch.int32))
            answers += [
                torch.full((length,), place, dtype=torch.int32) for place, length in enumerate(lengths)
            ]
        return torch.cat(trees).to(self.device), torch.cat(answers).to(self.device)

    def answers_mask(self, index: int) -> Tensor:
        """What the answers of tree `index` see: (answer tokens, prompt + answer tokens), True where seen."""
        if index not in self._masks:
            tree = self.trees[index]
            lengths = torch.tensor(tree.answers)
            answer = torch.arange(len(lengths)).repeat_interleave(lengths)
            own = (answer[:, None] == answer[None, :]).tril()
            seen = torch.ones(len(own), tree.prompt, dtype=torch.bool)
            self._masks[index] = torch.cat([seen, own], dim=1).to(self.device)
        return self._masks[index]

    def answer_mask(self, prompt: int, answer: int) -> Tensor:
        """What one answer sees of its prompt and itself: (answer, prompt + answer), True where seen."""
        if (prompt, answer) not in self._answer_masks:
            places = torch.ones(answer, prompt + answer, dtype=torch.bool).tril(prompt)
            self._answer_masks[prompt, answer] = places.to(self.device)
        return self._answer_masks[prompt, answer]

    @functools.cached_property
    def block_mask(self) -> Any:
        """The same for the whole row at once, as FlexAttention wants it."""
        from torch.nn.attention.flex_attention import create_block_mask

        tree, answer = self.members

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = (answer[key] == answer[query]) | (answer[key] == 0)
            return (tree[key] == tree[query]) & own & (key <= query)

        return create_block_mask(sees, None, None, self.tokens, self.tokens, device=str(self.device))


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: (1, heads, tokens, width) to (1, tokens, heads, width).

    Without a layout this is transformers' own SDPA.
    """
    if layout is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **more
        )
        return plain
    if query.device.type == "cuda":
        mixed = _flex()(
            query,
            key,
            value,
            block_mask=layout.block_mask,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    else:
        mixed = _tree_by_tree(query, key, value, layout, scaling)
    return mixed.transpose(1, 2).contiguous(), None


def _tree_by_tree(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
    attend = functools.partial(
        F.scaled_dot_product_attention, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    parts = []
    for index, tree in enumerate(layout.trees):
        rows = slice(tree.start, tree.end)
        q, k, v = query[:, :, rows], key[:, :, rows], value[:, :, rows]
        if len(tree.answers) < 2:
            parts.append(attend(q, k, v, is_causal=True))
            continue
        if tree.prompt:
            shared = slice(0, tree.prompt)
            parts.append(attend(q[:, :, shared], k[:, :, shared], v[:, :, shared], is_causal=True))
        if sum(tree.answers) <= tree.prompt:
            parts.append(attend(q[:, :, tree.prompt :], k, v, attn_mask=layout.answers_mask(index)))
        else:
            parts += _answer_by_answer(attend, q, k, v, tree, layout)
    return torch.cat(parts, dim=2)


def _answer_by_answer(
    attend: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, tree: Tree, layout: Layout
) -> list[Tensor]:
    """One call for each answer, with a copy of the prompt's keys and values before its own.

    Where answers outweigh their prompt the copies cost less than computing every answer against all
    others, only to mask it.
    """
    parts, begin = [], tree.prompt
    for length in tree.answers:
        rows = slice(begin, begin + length)
        seen = [torch.cat([whole[:, :, : tree.prompt], whole[:, :, rows]], dim=2) for whole in (key, value)]
        parts.append(attend(query[:, :, rows], *seen, attn_mask=layout.answer_mask(tree.prompt, length)))
        begin += length
    return parts


@functools.cache
def _flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


AttentionInterface.register(NAME, packed_attention)
# What is not packed (sampling, single rows) gets the mask that plain SDPA gets.
AttentionMaskInterface.register(NAME, sdpa_mask)
