"""The next token of every row, each drawn by its own parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from training.rlhf.rollout.distribution import Noise, draw, sampling_log_probs
from training.rlhf.rollout.rows import Row
from training.rlhf.rollout.samples import TokenLogProb
from training.rlhf.sampling import SamplingParameters


def draw_tokens(rows: Sequence[Row], logits: Tensor) -> list[TokenLogProb]:
    """One token per row of the logits (rows, vocabulary). Rows that are drawn alike are drawn at once."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, row in enumerate(rows):
        chosen = row.wanted.parameters
        key = (chosen.temperature, chosen.top_p, chosen.top_k, chosen.alternatives)
        alike.setdefault(key, []).append(number)
    if len(alike) == 1:
        return _draw(logits, rows[0].wanted.parameters, [row.generator for row in rows])
    drawn: dict[int, TokenLogProb] = {}
    for numbers in alike.values():
        some = [rows[number] for number in numbers]
        tokens = _draw(logits[numbers], some[0].wanted.parameters, [row.generator for row in some])
        drawn.update(zip(numbers, tokens, strict=True))
    return [drawn[number] for number in range(len(rows))]


def _draw(logits: Tensor, parameters: SamplingParameters, generators: Sequence[Noise]) -> list[TokenLogProb]:
    if parameters.temperature == 0:
        # Nothing is left to chance, and a pass over the vocabulary is a tenth of a step.
        drawn = logits.argmax(-1)
        likeliest = logits.gather(-1, drawn[:, None])[:, 0].float()
        # The logarithm of 1, except where the logits are no numbers.
        chosen = (likeliest - likeliest).tolist()
    else:
        log_probs = sampling_log_probs(logits, parameters)
        drawn = draw(log_probs, generators).to(log_probs.device)
        chosen = log_probs.gather(-1, drawn[:, None])[:, 0].tolist()
    ids = drawn.tolist()
    if parameters.alternatives is None:
        return [TokenLogProb(id=id, log_prob=value) for id, value in zip(ids, chosen, strict=True)]
    model = torch.log_softmax(logits.float(), -1)
    model_log_probs = model.gather(-1, drawn[:, None])[:, 0].tolist()
    values, indices = torch.topk(model, parameters.alternatives, dim=-1)
    best = [
        # A grammar may allow fewer tokens than were asked for.
        tuple((id, value) for id, value in zip(row_ids, row_values, strict=True) if value > -torch.inf)
        for row_ids, row_values in zip(indices.tolist(), values.tolist(), strict=True)
    ]
    return [
        TokenLogProb(id=id, log_prob=value, model_log_prob=own_value, alternatives=others)
        for id, value, own_value, others in zip(ids, chosen, model_log_probs, best, strict=True)
    ]
