"""The policy that training starts from, which never changes: its log-probabilities are computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from training.contract import LoraSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.data import Example
from training.rlhf.log_probabilities import answer_log_probabilities
from training.rlhf.methods import start_adapter
from training.rlhf.packing import Batch, pack

_REFERENCE = "reference"


class Reference:
    """The base, adapters off, for a run that starts from it; else a frozen copy of the parent's adapter."""

    def __init__(self, backbone: Backbone, spec: RunSpec, lora: LoraSettings) -> None:
        self._backbone = backbone
        self.adapter: str | None = None
        """The frozen copy's name; None is the base."""
        if spec.parent is not None:
            start_adapter(backbone, _REFERENCE, spec, lora, trainable=False)
            self.adapter = _REFERENCE
        self._remembered: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    @torch.no_grad()
    def log_probabilities(self, batch: Batch, examples: list[Example]) -> Tensor:
        """(R,) float32. Each example is computed once, by itself: what is remembered must not depend on the
        batch it was first met in, or a resumed run would compute other bits."""
        parts = []
        for example in examples:
            key = tuple(answer.ids for answer in example.answers)
            if key not in self._remembered:
                alone = pack([example], device=batch.input_ids.device)
                self._remembered[key] = answer_log_probabilities(self._backbone, self.adapter, alone)
            parts.append(self._remembered[key])
        return torch.cat(parts)
