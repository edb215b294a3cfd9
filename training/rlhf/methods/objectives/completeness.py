"""A head on the whole answer, fitted to what missing information says of two answers (Wu et al. 2023)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from training.contract import CompletenessHead, ContractError, RunSpec
from training.rlhf.loop.method import Outcome, Part
from training.rlhf.losses import bradley_terry
from training.rlhf.measures.calibration import wilson_interval
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch


class CompletenessObjective:
    """Of two answers to one prompt that were read for what they leave out, the one that lacks fewer things
    is the more complete: −log σ(r⁺ − r⁻), the mean over a judgment's pairs, plus centring.

    A corrected text lacks nothing, so it is more complete than an original that lacked something. Equal
    counts make no pair. The reward is read at the end token; it is higher for a more complete answer.

    Figures, by the head's name: `accuracy`, share of pairs ordered right, ½ where both are equal; `margin`,
    r⁺ − r⁻; `log_loss`, without centring, log 2 for a head that knows nothing; each the mean over judgments.
    Held-out also `pairs`, their number, and `accuracy_low` and `accuracy_high`, its 95 % interval with the
    judgments as trials.
    """

    def __init__(
        self, backbone: Backbone, adapter: str, spec: RunSpec, head: CompletenessHead, *, centring: float
    ) -> None:
        self.name = head.name
        self._backbone = backbone
        self._adapter = adapter
        self._head = head
        self._centring = centring
        if head.name not in backbone.heads(adapter):
            backbone.add_head(adapter, head.name, seed=spec.seed)

    def begin(self, train: Sequence[Example]) -> None:
        """Refuses training data without a pair."""
        if not any(self._pairs(example) for example in train):
            counted = f" in {', '.join(self._head.categories)}" if self._head.categories else ""
            raise ContractError(
                f"completeness head {self.name!r}: no two training answers to one prompt differ in what they "
                f"lack{counted}, and no corrected answer lacked anything; say of more answers what is "
                "missing, correct some, or leave the head out"
            )

    def weight(self, example: Example) -> float:
        """Return the judgment's weight where two of its answers differ in how much they lack."""
        return example.weight if self._pairs(example) else 0.0

    def outcome(self, states: Tensor, batch: Batch, examples: list[Example]) -> Outcome:
        """Return the loss of every judgment's pairs."""
        rewards = self._backbone.score(self._adapter, states[batch.last], head=self.name)
        pairs: list[tuple[int, int, int]] = []
        share: list[float] = []
        first = 0
        for index, example in enumerate(examples):
            measured = self._pairs(example)
            pairs += [(first + more, first + less, index) for more, less in measured]
            share += [1 / len(measured) for _ in measured]
            first += len(example.answers)
        table = torch.tensor(pairs, dtype=torch.long, device=rewards.device).reshape(-1, 3)
        shares = torch.tensor(share, device=rewards.device)
        more, less, of_example = rewards[table[:, 0]], rewards[table[:, 1]], table[:, 2]
        costs = bradley_terry(more, less, reduction="none")
        # Only differences are observed; this keeps their sum near 0 (Eisenstein et al. 2023).
        costs = costs + self._centring * (more + less) ** 2
        loss = torch.zeros(batch.examples, device=rewards.device).index_add(0, of_example, shares * costs)
        observed = {"margin": (more - less).detach(), "share": shares}
        return Outcome(
            {self.name: Part(self._head.weight, loss)},
            {f"{self.name}.{name}": values for name, values in observed.items()},
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """See the class."""
        margin, share = (observed[f"{self.name}.{name}"].double().cpu() for name in ("margin", "share"))
        if not len(margin):
            return {}
        judgments = float(share.sum())
        values = {
            "accuracy": (margin.sign() + 1) / 2,
            "margin": margin,
            "log_loss": torch.nn.functional.softplus(-margin),
        }
        result = {name: float((share * value).sum()) / judgments for name, value in values.items()}
        if held_out:
            low, high = wilson_interval(min(1.0, result["accuracy"]), round(judgments))
            result |= {"pairs": float(len(margin)), "accuracy_low": low, "accuracy_high": high}
        return {f"{self.name}_{name}": value for name, value in result.items()}

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """None."""
        del observed
        return {}

    def _pairs(self, example: Example) -> list[tuple[int, int]]:
        """(more complete, less complete) of an example's answers that were read."""
        counted = self._head.categories
        lacks = Counter(
            gap.answer for gap in example.labels.missing if not counted or gap.category in counted
        )
        read = example.labels.read_for_missing
        return [(a, b) for a in read for b in read if lacks[a] < lacks[b]]
