"""The output head: states to logits, with the scale and the cap that some families apply to these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Changed(nn.Module):
    """Logits times a factor, then bent towards ± cap (Gemma Team 2024, §2)."""

    def __init__(self, factor: float, cap: float | None) -> None:
        super().__init__()
        self._factor, self._cap = factor, cap

    def forward(self, logits: Tensor) -> Tensor:
        """Return the logits as the family's own code changes them."""
        if self._factor != 1:
            logits = logits * self._factor
        if self._cap is not None:
            logits = torch.tanh(logits / self._cap) * self._cap
        return logits


def output_head(model: Any) -> nn.Module:
    """Return what turns the model's last states into its logits. Where nothing follows the LM head, that is
    the LM head itself."""
    head: nn.Module = model.get_output_embeddings()
    config = model.config.get_text_config()
    # Cohere multiplies, Granite divides, Gemma 2 caps.
    factor = float(getattr(config, "logit_scale", None) or 1) / float(
        getattr(config, "logits_scaling", None) or 1
    )
    cap = getattr(config, "final_logit_softcapping", None)
    return head if factor == 1 and cap is None else nn.Sequential(head, _Changed(factor, cap))
