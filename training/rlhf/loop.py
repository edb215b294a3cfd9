"""The training loop: from a method and its examples to a trained adapter, resumable at every save.

One line of `metrics.jsonl` per optimiser step:

    step              optimiser steps taken, from 1
    epoch             passes over the training examples so far
    loss              weighted mean over the step's judgments; null when it was not finite
    learning_rate     of this step
    gradient_norm     before clipping; null when it was not finite
    accuracy, margin, …   what the method reports, means over the step's judgments
    tokens            real tokens in the step, padding left out
    seconds           wall-clock time of the step
    skipped           1 where loss or gradient was not finite and nothing was learned, else 0
    held_out_…        after an evaluation, see `evaluation.evaluate`
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch

from training.contract import STATE_FOLDER, OptimiserSettings, RunSpec
from training.rlhf.backbone import Backbone
from training.rlhf.config import seed_step
from training.rlhf.data import Example, Examples, collate
from training.rlhf.evaluation import evaluate
from training.rlhf.methods import TrainingMethod
from training.rlhf.processes import Processes
from training.rlhf.run_folder import RunFolder, log
from training.rlhf.schedule import (
    examples_of_step,
    learning_rate,
    micro_batches,
    steps_in_all,
    steps_per_epoch,
)
from training.rlhf.state import load_state, save_state, what_is_trained
from training.rlhf.stopping import StoppedError, StopRequest

SKIPPED_IN_A_ROW = 3
"""After so many steps in a row without a finite loss and gradient the run ends."""


class DivergedError(Exception):
    """Loss or gradient was not finite several steps in a row."""


class _Step(NamedTuple):
    """What one optimiser step came to."""

    loss: float
    statistics: dict[str, float]
    gradient_norm: float
    tokens: int

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class TrainingLoop:
    """Takes one run from its last saved step to its end."""

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
        self._backbone = backbone
        self._method = method
        self._examples = examples
        self._seed = spec.seed
        self._settings: OptimiserSettings = spec.settings.optimiser
        self._folder = folder
        self._stop = stop
        self._processes = processes
        self._parameters = list(backbone.parameters(method.adapter).values())
        self._optimiser = torch.optim.AdamW(
            self._parameters, lr=self._settings.learning_rate, weight_decay=self._settings.weight_decay
        )
        self._trained = what_is_trained(spec, backbone.base_digest)
        self._saved_at: int | None = None
        self._skipped = 0
        self._step_seconds: list[float] = []
        self.total_steps = steps_in_all(len(examples.train), self._settings)

    def run(self) -> dict[str, float]:
        """Train to the end; the held-out figures there.

        Raises `StoppedError` after saving when asked to stop, and `DivergedError`.
        """
        step = self._resume()
        held_out: dict[str, float] | None = None
        try:
            while step < self.total_steps:
                self._check_all()
                self._tell(step)
                held_out = self._one_step(step)
                step += 1
                if step % self._settings.save_every == 0 or step == self.total_steps:
                    self._save(step)
            if held_out is None:
                held_out = self._evaluate()
        except StoppedError:
            self._save(step)
            raise
        self._tell(step)
        return held_out

    def _resume(self) -> int:
        self._folder.trim_metrics()
        step = load_state(
            self._folder.path,
            backbone=self._backbone,
            adapter=self._method.adapter,
            parameters=self._parameters,
            optimiser=self._optimiser,
            trained=self._trained,
        )
        if step:
            self._saved_at = step
            log.info("Going on after step %d of %d, from %s/", step, self.total_steps, STATE_FOLDER)
        return step

    def _one_step(self, step: int) -> dict[str, float] | None:
        """Take optimiser step `step`, counted from 0, and write it down; held-out figures where due."""
        started = time.monotonic()
        rate = learning_rate(step, self.total_steps, self._settings)
        outcome = self._learn(step, rate)
        self._skipped = 0 if outcome.finite else self._skipped + 1
        every = self._settings.evaluate_every
        due = step + 1 == self.total_steps or (every > 0 and (step + 1) % every == 0)
        held_out = self._evaluate() if due else None
        seconds = time.monotonic() - started
        self._step_seconds.append(seconds)
        self._folder.record(
            {
                "step": step + 1,
                "epoch": (step + 1) / steps_per_epoch(len(self._examples.train), self._settings),
                "loss": outcome.loss,
                "learning_rate": rate,
                "gradient_norm": outcome.gradient_norm,
                **outcome.statistics,
                "tokens": outcome.tokens,
                "seconds": round(seconds, 3),
                "skipped": int(not outcome.finite),
                **(held_out or {}),
            }
        )
        log.info("Step %d of %d: loss %.4f, %.1f s", step + 1, self.total_steps, outcome.loss, seconds)
        if not outcome.finite:
            self._report_skip(step + 1)
        return held_out

    def _learn(self, step: int, rate: float) -> _Step:
        """Accumulate the gradient of the step's mean loss over all its micro-batches, then step."""
        seed_step(self._seed, step, self._processes.rank)
        examples = examples_of_step(self._examples.train, step, seed=self._seed, settings=self._settings)
        self._optimiser.zero_grad(set_to_none=True)
        # Exact, so that neither order nor cutting shows in it.
        weight_of_step = math.fsum(example.weight for example in examples)
        sums = torch.zeros(2 + len(self._method.reported), dtype=torch.float64)
        for group in micro_batches(
            examples,
            self._settings.micro_batch_size,
            rank=self._processes.rank,
            world=self._processes.world,
        ):
            self._check_this()
            sums += self._accumulate(group, weight_of_step)
        self._processes.sum_gradients(self._parameters)
        totals = self._processes.sum(sums).tolist()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_gradient_norm)
        means = [totals[0] / weight_of_step, *(total / len(examples) for total in totals[1:-1])]
        outcome = _Step(
            means[0],
            dict(zip(self._method.reported, means[1:], strict=True)),
            float(norm),
            int(totals[-1]),
        )
        if outcome.finite:
            self._optimiser.param_groups[0]["lr"] = rate
            self._optimiser.step()
        return outcome

    def _accumulate(self, group: list[Example], weight_of_step: float) -> torch.Tensor:
        """Add one micro-batch's gradient; the sums of loss and statistics, and the tokens."""
        batch = collate(group, pad_id=self._pad_id, device=self._backbone.device)
        losses = self._method.losses(batch, group, dropout=True)
        # Divided by the weight of the whole step, over all micro-batches and processes: how a
        # batch is cut up must not change its gradient.
        weighted = losses.loss * batch.weight
        (weighted.sum() / weight_of_step).backward()  # type: ignore[no-untyped-call]
        values = [weighted.detach(), *(losses.statistics[name] for name in self._method.reported)]
        sums = [value.double().sum().item() for value in values]
        return torch.tensor([*sums, batch.tokens], dtype=torch.float64)

    def _report_skip(self, step: int) -> None:
        log.warning("Step %d: loss or gradient is not finite; the step is skipped", step)
        if self._skipped >= SKIPPED_IN_A_ROW:
            kept = f"after step {self._saved_at}" if self._saved_at else "none was saved yet"
            raise DivergedError(
                f"loss or gradient was not finite in {self._skipped} steps in a row, the last being step "
                f"{step}; the last good state is kept ({kept}). Lower the learning rate or look at the "
                "judgments of these steps, then start a new run"
            )

    def _evaluate(self) -> dict[str, float]:
        return evaluate(
            self._method,
            self._examples.held_out,
            micro_batch_size=self._settings.micro_batch_size,
            pad_id=self._pad_id,
            device=self._backbone.device,
            processes=self._processes,
            check=self._check_this,
        )

    @property
    def _pad_id(self) -> int:
        tokenizer = self._backbone.tokenizer
        return int(tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)

    def _check_all(self) -> None:
        """Between steps all processes agree on whether to stop."""
        if self._processes.any(bool(self._stop.reason), self._backbone.device):
            raise StoppedError(self._stop.reason or "stopped by another process of the run")

    def _check_this(self) -> None:
        """Within a step a lone process may stop too: what was accumulated so far is given up."""
        if self._processes.world == 1:
            self._stop.check()

    def _save(self, step: int) -> None:
        # Amid skipped steps nothing is saved: the last state that led on stays.
        if step == (self._saved_at or 0) or self._skipped:
            return
        if self._processes.first:
            save_state(
                self._folder.path,
                step=step,
                backbone=self._backbone,
                adapter=self._method.adapter,
                optimiser=self._optimiser,
                trained=self._trained,
            )
        self._saved_at = step

    def _tell(self, step: int) -> None:
        recent = self._step_seconds[-20:]
        left = (self.total_steps - step) * sum(recent) / len(recent) if recent else None
        self._folder.tell("running", "training", step=step, total_steps=self.total_steps, seconds_left=left)
