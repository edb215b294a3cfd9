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

import math

from training.contract import RunSpec
from training.rlhf.data import Examples
from training.rlhf.loop.best import VALIDATION_LOSS
from training.rlhf.loop.evaluation import Account, Evaluation, evaluate
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.loop.schedule import examples_of_step
from training.rlhf.loop.stepping import SteppingLoop, StepResult
from training.rlhf.loop.validation import chooses_state, split_validation
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.sharding import clip_gradients
from training.rlhf.runtime.config import seed_step
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import RunFolder, log
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, passes


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
