"""A head of their own for every annotator: the shared one and an offset to it.

Preferences are long-tailed: what one annotator wants and others do not goes into their offset, and what all
want into the shared head. Offsets are saved beside the head as `HEAD.annotator.PSEUDONYM`, (1, hidden)
each, so that a checkpoint says whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch


class AnnotatorOffsets:
    """The offsets to one head. They begin at 0; who has none, or is a reviewer, has the shared head."""

    def __init__(self, backbone: Backbone, adapter: str, head: str) -> None:
        self._backbone = backbone
        self._adapter = adapter
        self._prefix = f"{head}.annotator."

    def begin(self, annotators: Iterable[str]) -> None:
        """Give an offset to everyone named who has none yet."""
        names = sorted(set(annotators) - {""})
        if len(names) == 1:
            log.warning(
                "annotator_heads: all judgments that teach are by %s, whose offset cannot be told from what "
                "is common; the score leans on what both have learned",
                names[0],
            )
        there = self._backbone.extras(self._adapter)
        for name in names:
            if self._prefix + name not in there:
                self._backbone.add_extra(
                    self._adapter, self._prefix + name, torch.zeros(1, self._backbone.hidden_size)
                )

    def known(self, examples: list[Example]) -> Tensor:
        """(E,) whether the annotator of each has an offset; on the CPU."""
        there = set(self._backbone.extras(self._adapter))
        return torch.tensor([self._prefix + example.annotator in there for example in examples])

    def offsets(self, states: Tensor, batch: Batch, examples: list[Example]) -> tuple[Tensor, Tensor]:
        """Return annotators' offsets to scores, (R,), and squared norms, (E,). states: (T, hidden)."""
        there = set(self._backbone.extras(self._adapter))
        nobody = torch.zeros(1, self._backbone.hidden_size, device=states.device)
        rows = [
            self._backbone.extra(self._adapter, name) if name in there else nobody  # noqa: S610
            for name in (self._prefix + example.annotator for example in examples)
        ]
        offsets = torch.cat(rows)
        added = (states[batch.last].float() * offsets[batch.answer_example]).sum(-1)
        return added, (offsets**2).sum(-1)
