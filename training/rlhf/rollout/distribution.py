"""From logits to a token: the distribution that is sampled from, and the draw."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training.rlhf.sampling import SamplingParameters

_LIKELIEST = 1024
"""Tokens looked at first for top-p: they nearly always reach it, and a full sort costs ten times as much."""

_BLOCK = 128
"""Ids of one block of the vocabulary when a token is drawn: about as many as there are blocks, or fewer."""


def sampling_log_probs(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """Log-probabilities that the next token is drawn by: temperature, then top-k, then top-p.

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
    kept = torch.full_like(log_probs, -torch.inf)
    return kept.scatter(-1, indices, torch.log_softmax(values, -1))


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
    kept = torch.full_like(log_probs, -torch.inf)
    return kept.scatter(-1, indices, values)


def draw(log_probs: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One token per row, drawn by its probability; (rows,), on the CPU.

    The vocabulary is cut into blocks of ids. First a block is drawn by the probability of all its
    tokens, then one of its tokens, both by the Gumbel-max trick: exactly the distribution, and a few
    hundred random numbers a row where one for every token would take longer than the model does.

    Row r uses only `generators[r]`, on the CPU: what it draws depends on no other row. The maximum
    of log-probability plus noise changes only when the best two lie within a rounding error of each
    other, so another batch around the row changes a token about once in a million; along a
    cumulative sum over the vocabulary the errors would add up instead.
    """
    size = log_probs.shape[-1]
    blocks = -(-size // _BLOCK)
    noise = _gumbel(blocks + _BLOCK, generators)
    block = _likeliest(_block_probabilities(log_probs).log(), noise[:, :blocks])
    ids = block[:, None] * _BLOCK + torch.arange(_BLOCK)
    inside = log_probs.gather(-1, ids.clamp(max=size - 1).to(log_probs.device)).cpu()
    inside = inside.masked_fill(ids >= size, -torch.inf)
    return block * _BLOCK + _likeliest(inside, noise[:, blocks:])


def _block_probabilities(log_probs: Tensor) -> Tensor:
    """The probability of each block of ids, the last of which may be shorter: (rows, blocks)."""
    probabilities = log_probs.exp()
    whole = probabilities.shape[-1] // _BLOCK
    sums = probabilities[:, : whole * _BLOCK].reshape(len(log_probs), whole, _BLOCK).sum(-1)
    if whole * _BLOCK < log_probs.shape[-1]:
        rest = probabilities[:, whole * _BLOCK :].sum(-1, keepdim=True)
        sums = torch.cat([sums, rest], dim=-1)
    return sums


def _gumbel(count: int, generators: Sequence[torch.Generator]) -> Tensor:
    """Noise of the standard Gumbel distribution, (rows, count) float64, each row by its own generator."""
    noise = torch.stack(
        [torch.rand(count, generator=generator, dtype=torch.float64) for generator in generators]
    )
    # The one number in 2**53 that is exactly 0 would make its token impossible.
    return -torch.log(-torch.log(noise.clamp_(min=torch.finfo(torch.float64).tiny)))


def _likeliest(log_probs: Tensor, noise: Tensor) -> Tensor:
    # Added where the noise is: not every device computes in float64.
    return (log_probs.cpu().double() + noise).argmax(-1)
