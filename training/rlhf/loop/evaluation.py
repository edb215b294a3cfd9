"""Loss of examples under a method, summed over passes and processes; held-out figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.rlhf.loop.method import Outcome, TrainingMethod
from training.rlhf.measures.calibration import wilson_interval
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, passes


class Total(NamedTuple):
    """Totals of a step or an evaluation."""

    loss: float
    figures: dict[str, float]
    """The method's, and `loss_…` of each part where there are several."""
    tokens: int
    details: dict[str, Any]
    """Results of an evaluation besides the figures; empty for a step."""


class Evaluation(NamedTuple):
    """Held-out figures of the present state."""

    figures: dict[str, float]
    """Named `held_out_…`; empty where nothing is held out."""
    details: dict[str, Any]


class Account:
    """Losses and observations of a step or of an evaluation, summed over its passes and processes.

    Every part of the loss is a mean over all the examples with a weight in it: how they are cut
    into passes and spread over processes must not change it.
    """

    def __init__(self, method: TrainingMethod, examples: Sequence[Example]) -> None:
        self._method = method
        weights: dict[str, list[float]] = {}
        for example in examples:
            for name, weight in method.weights(example).items():
                weights.setdefault(name, []).append(weight)
        # Exact, so that neither order nor cutting shows in it.
        self._weights = {name: math.fsum(values) for name, values in sorted(weights.items())}
        self._sums = dict.fromkeys(self._weights, 0.0)
        self._whole = 0.0
        self._tokens = 0
        self._observed: dict[str, list[Tensor]] = {}

    def add(self, outcome: Outcome, batch_tokens: int, group: Sequence[Example]) -> Tensor | None:
        """Count one pass; return its share of the loss, with gradient, or None where it has none."""
        whole: Tensor | None = None
        for name, (coefficient, loss) in outcome.parts.items():
            if not self._weights[name]:
                continue
            weight = torch.tensor([self._method.weights(example)[name] for example in group]).to(loss)
            # The loss of an example in a part where its weight is 0 may be anything.
            share = torch.where(weight > 0, weight * loss, 0.0).sum() / self._weights[name]
            self._sums[name] += share.item()
            whole = coefficient * share if whole is None else whole + coefficient * share
        self._whole += 0.0 if whole is None else whole.item()
        self._tokens += batch_tokens
        for name, values in outcome.observed.items():
            self._observed.setdefault(name, []).append(values.detach())
        return whole

    def total(self, processes: Processes, *, held_out: bool) -> Total:
        """Return the loss and the figures over all passes and processes."""
        sums = torch.tensor([self._whole, float(self._tokens), *self._sums.values()], dtype=torch.float64)
        whole, tokens, *parts = processes.sum(sums).tolist()
        observed = processes.gather({name: torch.cat(values) for name, values in self._observed.items()})
        figures = self._method.figures(observed, held_out=held_out)
        if len(parts) > 1:
            figures |= {f"loss_{name}": value for name, value in zip(self._sums, parts, strict=True)}
        return Total(whole, figures, int(tokens), self._method.details(observed) if held_out else {})


@torch.no_grad()
def evaluate(
    method: TrainingMethod,
    examples: list[Example],
    *,
    micro_batch_tokens: int,
    device: torch.device,
    processes: Processes,
    check: Callable[[], None],
) -> Evaluation:
    """Return loss and figures over `examples`, named `held_out_…`, and details; empty for no examples.

    The 95 % interval of the accuracy takes the judgments, not their pairs, as trials: the pairs of one
    ranking are not independent. `check` is called before every forward pass.
    """
    if not examples:
        return Evaluation({}, {})
    by_length = sorted(examples, key=lambda example: -example.tokens)
    method.prepare(by_length, processes)
    account = Account(method, by_length)
    for group in passes(by_length, tokens=micro_batch_tokens, rank=processes.rank, world=processes.world):
        check()
        batch = pack(group, device=device)
        account.add(method.outcome(batch, group, dropout=False), batch.tokens, group)
    total = account.total(processes, held_out=True)
    figures = {f"held_out_{name}": value for name, value in {"loss": total.loss, **total.figures}.items()}
    figures["held_out_judgments"] = float(len(examples))
    if "held_out_accuracy" in figures and "held_out_accuracy_low" not in figures:
        judged = sum(bool(example.pairs) for example in examples)
        low, high = wilson_interval(min(1.0, max(0.0, figures["held_out_accuracy"])), judged)
        figures |= {"held_out_accuracy_low": low, "held_out_accuracy_high": high}
    return Evaluation(figures, total.details)
