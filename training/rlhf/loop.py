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
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch

from training.contract import STATE_FOLDER, EvaluationReport, OptimiserSettings, RunSpec, write_evaluation
from training.rlhf.backbone import Backbone
from training.rlhf.best import BestState
from training.rlhf.config import seed_step
from training.rlhf.data import Examples
from training.rlhf.evaluation import Account, evaluate
from training.rlhf.methods import TrainingMethod
from training.rlhf.packing import pack, passes
from training.rlhf.processes import Processes
from training.rlhf.run_folder import RunFolder, log
from training.rlhf.schedule import (
    examples_of_step,
    learning_rate,
    parameter_groups,
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
    figures: dict[str, float]
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
        method.begin(examples.train)
        self._parameters = list(backbone.parameters(method.adapter).values())
        self._optimiser = torch.optim.AdamW(
            parameter_groups(self._parameters, self._settings), lr=self._settings.learning_rate
        )
        self._trained = what_is_trained(spec, backbone.base_digest)
        self._saved_at: int | None = None
        self._skipped = 0
        self._step_seconds: list[float] = []
        self._best = BestState()
        backbone.checkpoint_activations(self._settings.gradient_checkpointing)
        self.total_steps = steps_in_all(len(examples.train), self._settings)

    def run(self) -> tuple[int, dict[str, float]]:
        """Train to the end, or until nothing gets better; the steps that made the checkpoint, and its
        held-out figures.

        Raises `StoppedError` after saving when asked to stop, and `DivergedError`.
        """
        step = self._resume()
        held_out: dict[str, float] | None = None
        try:
            while step < self.total_steps and not self._given_up:
                self._check_all()
                self._tell(step)
                held_out = self._one_step(step)
                step += 1
                if step % self._settings.save_every == 0 or step == self.total_steps:
                    self._save(step)
            if held_out is None and not self._given_up:
                held_out = self._evaluate(step)
        except StoppedError:
            self._save(step)
            self._tell(step)
            raise
        self._tell(step)
        return self._chosen(step, held_out or {})

    @property
    def _given_up(self) -> bool:
        return self._settings.patience is not None and self._best.stale >= self._settings.patience

    def _chosen(self, step: int, held_out: dict[str, float]) -> tuple[int, dict[str, float]]:
        """The last state, or the best one put back in its place."""
        if not self._settings.keep_best or self._best.step in (0, step):
            return step, held_out
        log.info(
            "The state after step %d had the lowest held-out loss (%.4f): it becomes the checkpoint",
            self._best.step,
            self._best.figures["held_out_loss"],
        )
        self._best.put_back(self._backbone, self._method.adapter)
        return self._best.step, self._best.figures

    def _resume(self) -> int:
        self._folder.trim_metrics()
        step = load_state(
            self._folder.path,
            backbone=self._backbone,
            adapter=self._method.adapter,
            parameters=self._parameters,
            optimiser=self._optimiser,
            best=self._best,
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
        held_out = self._evaluate(step + 1) if due else None
        seconds = time.monotonic() - started
        self._step_seconds.append(seconds)
        self._folder.record(
            {
                "step": step + 1,
                "epoch": (step + 1) / steps_per_epoch(len(self._examples.train), self._settings),
                "loss": outcome.loss,
                "learning_rate": rate,
                "gradient_norm": outcome.gradient_norm,
                **outcome.figures,
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
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_gradient_norm)
        taken = _Step(total.loss, total.figures, float(norm), total.tokens)
        if taken.finite:
            for trained in self._optimiser.param_groups:
                trained["lr"] = rate * trained["pace"]
            self._optimiser.step()
        return taken

    def _report_skip(self, step: int) -> None:
        log.warning("Step %d: loss or gradient is not finite; the step is skipped", step)
        if self._skipped >= SKIPPED_IN_A_ROW:
            kept = f"after step {self._saved_at}" if self._saved_at else "none was saved yet"
            raise DivergedError(
                f"loss or gradient was not finite in {self._skipped} steps in a row, the last being step "
                f"{step}; the last good state is kept ({kept}). Lower the learning rate or look at the "
                "judgments of these steps, then start a new run"
            )

    def _evaluate(self, step: int) -> dict[str, float]:
        figures, details = evaluate(
            self._method,
            self._examples.held_out,
            micro_batch_tokens=self._settings.micro_batch_tokens,
            device=self._backbone.device,
            processes=self._processes,
            check=self._check_this,
        )
        better = True
        if self._settings.keep_best or self._settings.patience is not None:
            better = self._best.offer(self._backbone, self._method.adapter, step=step, figures=figures)
        # What is told in detail is told of the state that would become the checkpoint.
        if figures and self._processes.first and (better or not self._settings.keep_best):
            write_evaluation(self._folder.path, EvaluationReport(step=step, figures=figures, details=details))
        return figures

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
                best=self._best,
                trained=self._trained,
            )
        self._saved_at = step

    def _tell(self, step: int) -> None:
        recent = self._step_seconds[-20:]
        left = (self.total_steps - step) * sum(recent) / len(recent) if recent else None
        self._folder.tell("running", "training", step=step, total_steps=self.total_steps, seconds_left=left)
