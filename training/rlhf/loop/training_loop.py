"""The training loop: from a method and its examples to a trained adapter, resumable at every save.

One line of `metrics.jsonl` per optimiser step:

    step              optimiser steps taken, from 1
    epoch             passes over the training examples so far
    loss              weighted mean over the step's judgments; null when it was not finite
    learning_rate     of this step
    gradient_norm     before clipping; null when it was not finite
    accuracy, margin, …   what the method reports, means over the step's judgments
    tokens            tokens computed in the step; none is padding
    seconds           wall-clock time of the step
    skipped           1 where loss or gradient was not finite and nothing was learned, else 0
    held_out_…        after an evaluation, see `evaluation.evaluate`
    validation_loss   then too, of the validation part where there is one; it chooses the best state
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from annotation.agreement.shares import wilson_interval
from training.contract import OptimiserSettings, RunSpec
from training.rlhf.data import Examples
from training.rlhf.loop.method import Outcome, TrainingMethod
from training.rlhf.loop.state import VALIDATION_LOSS
from training.rlhf.loop.stepping import SteppingLoop, StepResult, examples_of_step, steps_in_all
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.sharding import clip_gradients
from training.rlhf.runtime.config import seed_step
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import RunFolder, log
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, passes

# ── The validation part: judgments that choose a run's best state, so that the held-out ones only report ──

SHARE = 0.1
"""Share of the training prompts that are not learned from where the best state is chosen."""
FEWEST = 20
"""With fewer judgments in the validation part none is cut off: the held-out loss chooses."""


def chooses_state(settings: OptimiserSettings, *, examples: int, start_is_candidate: bool) -> bool:
    """Return whether a run chooses among several evaluated states, or ends early by their loss."""
    on_the_way = 0 < settings.evaluate_every < steps_in_all(examples, settings)
    return (settings.keep_best and (on_the_way or start_is_candidate)) or settings.patience is not None


def split_validation(examples: Examples) -> tuple[Examples, list[Example]]:
    """Return the examples without those of the validation part, and these; none where they would be few.

    Cut by prompt, by the hash of its id alone: a resumed run cuts the same way, and a prompt is on one side
    in all rounds.
    """
    learned: list[Example] = []
    validation: list[Example] = []
    for example in examples.train:
        (validation if _is_validation(example.prompt) else learned).append(example)
    if len(validation) < FEWEST:
        return examples, []
    return replace(examples, train=learned), validation


def _is_validation(prompt: str) -> bool:
    first = hashlib.sha256(f"validation/{prompt}".encode()).digest()[:4]
    return int.from_bytes(first) < SHARE * 2**32


# ── Loss of examples under a method, summed over passes and processes; held-out figures ──


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
        low, high = wilson_interval(min(1.0, max(0.0, figures["held_out_accuracy"])) * judged, judged)
        figures |= {"held_out_accuracy_low": low, "held_out_accuracy_high": high}
    return Evaluation(figures, total.details)


class TrainingLoop(SteppingLoop):
    """Learns from judgments: a step is a batch of them, each of which costs what the method says."""

    def __init__(
        self,
        *,
        backbone: Backbone,
        method: TrainingMethod,
        examples: Examples,
        spec: RunSpec,
        folder: RunFolder,
        stop: StopRequest,
        processes: Processes,
    ) -> None:
        self._method = method
        self._validation: list[Example] = []
        optimiser, candidate = spec.settings.optimiser, method.start_is_candidate
        if chooses_state(optimiser, examples=len(examples.train), start_is_candidate=candidate):
            examples, self._validation = split_validation(examples)
            log.info(
                "The best state is chosen on %d judgments of %s",
                len(self._validation or examples.held_out),
                "training prompts, which nothing is learned from" if self._validation else "held-out prompts",
            )
        self._examples = examples
        method.begin(examples.train)
        super().__init__(
            backbone=backbone,
            adapter=method.adapter,
            examples=len(examples.train),
            spec=spec,
            folder=folder,
            stop=stop,
            processes=processes,
        )
        self._start_is_candidate = method.start_is_candidate
        backbone.checkpoint_activations(self._settings.gradient_checkpointing)

    def _learn(self, step: int, rate: float) -> StepResult:
        """Accumulate the gradient of the step's mean loss over all its micro-batches, then step."""
        seed_step(self._seed, step, self._processes.rank)
        examples = examples_of_step(self._examples.train, step, seed=self._seed, settings=self._settings)
        self._optimiser.zero_grad(set_to_none=True)
        self._method.prepare(examples, self._processes)
        account = Account(self._method, examples)
        for group in passes(
            examples,
            tokens=self._settings.micro_batch_tokens,
            rank=self._processes.rank,
            world=self._processes.world,
        ):
            self._check_this()
            batch = pack(group, device=self._backbone.device)
            outcome = self._method.outcome(batch, group, dropout=True)
            loss = account.add(outcome, batch.tokens, group)
            if loss is not None and loss.requires_grad:
                self._backbone.backward(loss)
        self._processes.sum_gradients(self._parameters)
        total = account.total(self._processes, held_out=False)
        norm = float(clip_gradients(self._parameters, self._settings.max_gradient_norm))
        finite = math.isfinite(total.loss) and math.isfinite(norm)
        if finite:
            self._apply(rate)
        figures = {"loss": total.loss, "gradient_norm": norm, **total.figures, "tokens": total.tokens}
        return StepResult(figures, f"loss {total.loss:.4f}", finite)

    def _evaluate(self, step: int) -> dict[str, float]:
        figures, details = self._evaluation(self._examples.held_out)
        if self._validation:
            validated, _ = self._evaluation(self._validation)
            figures[VALIDATION_LOSS] = validated["held_out_loss"]
        self._report(step, figures, details)
        return figures

    def _evaluation(self, examples: list[Example]) -> Evaluation:
        return evaluate(
            self._method,
            examples,
            micro_batch_tokens=self._settings.micro_batch_tokens,
            device=self._backbone.device,
            processes=self._processes,
            check=self._check_this,
        )
