"""Figures on a policy and its reference: how far one has moved from the other, on the answers given.

    log_ratio             mean over the answers of log π(y|x) − log π_ref(y|x)
    log_ratio_per_token   the same, all answers' sum divided by all their tokens
    log_ratio_base, log_ratio_base_per_token   the same against the base, whatever the reference is
    answer_tokens         mean tokens of an answer, its end token included

Were the answers sampled from π, the first would estimate KL(π ‖ π_ref) and the second the KL per
token. They are those that people judged or wrote, so both are what they are called and no KL: below 0
where training has made the given answers less likely, as preference optimisation often does.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from training.rlhf.tokens.packing import Batch


@torch.no_grad()
def ratio_observations(
    batch: Batch, policy: Tensor, reference: Tensor, base: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the observations for `ratio_figures`, (R,) each. Arguments: (R,) sums over a completion."""
    return {
        **({} if base is None else {"log_ratio_base": (policy - base).detach()}),
        "log_ratio": (policy - reference).detach(),
        "answer_tokens": batch.answer_tokens.to(policy.dtype),
    }


def ratio_figures(observed: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the figures above; nothing where there is no answer."""
    tokens = observed["answer_tokens"].double()
    if not len(tokens):
        return {}
    figures = {"answer_tokens": float(tokens.mean())}
    for name in ("log_ratio", "log_ratio_base"):
        if len(ratios := observed.get(name, tokens[:0]).double()):
            figures[name] = float(ratios.mean())
            figures[f"{name}_per_token"] = float(ratios.sum() / tokens.sum())
    return figures
