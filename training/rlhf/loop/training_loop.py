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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from annotation.agreement.intervals import wilson_interval
from training.contract.methods.common import OptimiserSettings
from training.contract.run import STATE_FOLDER, EvaluationReport, RunSpec, write_evaluation
from training.rlhf.data import Examples
from training.rlhf.loop.method import Outcome, TrainingMethod
from training.rlhf.loop.state import (
    VALIDATION_LOSS,
    BestState,
    MethodState,
    Saved,
    load_state,
    resume_key,
    save_state,
    validation_loss,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.sharding import clip_gradients
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import MachineWriter, RunFolder, log, seed_step
from training.rlhf.runtime.stopping import StoppedError, StopRequest
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, passes

# ── Examples and learning rate of each optimiser step: functions of the seed and the step alone ──


class _Long(Protocol):
    @property
    def tokens(self) -> int: ...


_Item = TypeVar("_Item", bound=_Long)

_ORDER_STREAM = 1
"""Keeps the order of examples apart from all else that is drawn from the run's seed."""
SCALAR_PACE = 100.0
"""Learning rate of scalar parameters over that of weights: thresholds, log odds of ties.

AdamW moves every number by about the learning rate. A head's output moves by that for each of its hundreds
of weights, so a scalar that is added to it or compared with it would hardly move in comparison."""


def steps_per_epoch(examples: int, settings: OptimiserSettings) -> int:
    """Optimiser steps of one pass. The last batch may be smaller; no example is left out."""
    return math.ceil(examples / settings.batch_size)


def steps_in_all(examples: int, settings: OptimiserSettings) -> int:
    """Optimiser steps of a run."""
    steps = settings.epochs * steps_per_epoch(examples, settings)
    return steps if settings.max_steps is None else min(steps, settings.max_steps)


def examples_of_step(
    examples: Sequence[_Item], step: int, *, seed: int, settings: OptimiserSettings
) -> list[_Item]:
    """The global batch of `step`, counted from 0. Every epoch visits every example once, in its own order.

    Within the batch the longest come first, so that every process gets about as many tokens.
    """
    epoch, place = divmod(step, steps_per_epoch(len(examples), settings))
    order = np.random.default_rng([seed, _ORDER_STREAM, epoch]).permutation(len(examples))
    chosen = order[place * settings.batch_size : (place + 1) * settings.batch_size].tolist()
    return [examples[index] for index in sorted(chosen, key=lambda index: (-examples[index].tokens, index))]


def learning_rate(step: int, total_steps: int, settings: OptimiserSettings) -> float:
    """Step size of `step`, counted from 0: a straight rise over the warm-up, then by the schedule."""
    if step < settings.warmup_steps:
        return settings.peak * (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.peak
    progress = (step - settings.warmup_steps) / max(1, total_steps - settings.warmup_steps)
    if settings.schedule == "linear":
        return settings.peak * (1 - progress)
    return settings.peak * 0.5 * (1 + math.cos(math.pi * progress))


def parameter_groups(
    parameters: Mapping[str, nn.Parameter], settings: OptimiserSettings
) -> list[dict[str, Any]]:
    """Return the trained parameters of `Backbone.parameters` as AdamW groups: weights; scalars of heads, at
    `SCALAR_PACE` times their learning rate and without decay, as 0 is no natural value for them; and the
    base's gains and biases, without decay."""
    weights = [value for value in parameters.values() if value.ndim > 1]
    flat = {name: value for name, value in parameters.items() if value.ndim == 1}
    scalars = [value for name, value in flat.items() if name.startswith("heads.")]
    gains = [value for name, value in flat.items() if not name.startswith("heads.")]
    groups = [{"params": weights, "pace": 1.0, "weight_decay": settings.weight_decay}]
    if scalars:
        groups.append({"params": scalars, "pace": SCALAR_PACE, "weight_decay": 0.0})
    if gains:
        groups.append({"params": gains, "pace": 1.0, "weight_decay": 0.0})
    return groups


def apart(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups with what is cut over processes in groups of its own: AdamW takes no mixed ones."""
    parted = []
    for group in groups:
        whole = [value for value in group["params"] if not isinstance(value, DTensor)]
        cut = [value for value in group["params"] if isinstance(value, DTensor)]
        parted += [{**group, "params": some} for some in (whole, cut) if some]
    return parted


SKIPPED_IN_A_ROW = 3
"""After so many steps in a row without a finite loss and gradient the run ends."""


class DivergedError(Exception):
    """Loss or gradient was not finite several steps in a row."""


class StepResult(NamedTuple):
    """The outcome of one step."""

    figures: dict[str, Any]
    """Its line of `metrics.jsonl`, without what every step has."""
    summary: str
    """The same in a few words for the log."""
    finite: bool
    """False: loss or gradient was not finite, and nothing was learned."""


class SteppingLoop:
    """Takes one run from its last saved step to its end."""

    def __init__(
        self,
        *,
        backbone: Backbone,
        adapter: str,
        examples: int,
        spec: RunSpec,
        folder: RunFolder,
        stop: StopRequest,
        processes: Processes,
        method: MethodState | None = None,
    ) -> None:
        """adapter: what is trained and becomes the checkpoint. examples: number in a pass over the data.
        method: further state that is trained, saved and restored."""
        self._backbone = backbone
        self._adapter = adapter
        self._examples_in_all = examples
        self._seed = spec.seed
        self._settings: OptimiserSettings = spec.settings.optimiser
        self._folder = folder
        self._stop = stop
        self._processes = processes
        named = backbone.parameters(adapter)
        self._parameters = list(named.values())
        groups = parameter_groups(named, self._settings)
        for name, pace in (method.adapters if method else {}).items():
            named = backbone.parameters(name)
            self._parameters += named.values()
            groups += [
                {**group, "pace": pace * group["pace"]} for group in parameter_groups(named, self._settings)
            ]
        betas = (self._settings.beta1, self._settings.beta2)
        self._optimiser = torch.optim.AdamW(apart(groups), lr=self._settings.peak, betas=betas, fused=True)
        self._saved_at: int | None = None
        self._skipped = 0
        self._torn = False
        self._step_seconds: list[float] = []
        self._best = BestState(folder.path, processes)
        self._state = Saved(
            run_folder=folder.path,
            backbone=backbone,
            adapter=adapter,
            optimiser=self._optimiser,
            parameters=[value for group in groups for value in group["params"]],
            best=self._best,
            trained=resume_key(spec, backbone.base_digest),
            processes=processes,
            method=method,
        )
        self._machine = MachineWriter(folder, backbone.device)
        self.total_steps = steps_in_all(examples, self._settings)

    def _learn(self, step: int, rate: float) -> StepResult:
        """Take optimiser step `step`, counted from 0, with learning rate `rate`."""
        raise NotImplementedError

    _start_is_candidate = False
    """True if the state before the first step may become the checkpoint."""

    def _evaluate(self, step: int) -> dict[str, float]:
        """Held-out figures after `step` steps; none where nothing is held out."""
        raise NotImplementedError

    def run(self) -> tuple[int, dict[str, float]]:
        """Train to the end, or until nothing gets better; the steps that made the checkpoint, and its
        held-out figures.

        Raises `StoppedError` after saving when asked to stop, and `DivergedError`.
        """
        step = self._resume()
        held_out: dict[str, float] | None = None
        try:
            if step == 0 and self._start_is_candidate and self._settings.keep_best:
                self._evaluate(0)
            while not self._is_over(step):
                self._check_all()
                self._tell(step)
                held_out = self._one_step(step)
                step += 1
                if step % self._settings.save_every == 0 or step == self.total_steps or self._given_up:
                    self._save(step)
            if held_out is None:
                held_out = self._evaluate(step)
        except StoppedError:
            if self._torn:
                # The weights are one step further, so metrics not yet logged are dropped.
                step = self._saved_at or 0
            else:
                self._save(step)
            self._tell(step)
            raise
        self._tell(step)
        return self._chosen(step, held_out)

    def _is_over(self, step: int) -> bool:
        """Return whether no step follows after `step` steps. Called before every step and after the last."""
        return step >= self.total_steps or self._given_up

    @property
    def _given_up(self) -> bool:
        return self._settings.patience is not None and self._best.stale >= self._settings.patience

    def _chosen(self, step: int, held_out: dict[str, float]) -> tuple[int, dict[str, float]]:
        """Return the last state, or the best one put back in its place."""
        if not self._settings.keep_best or not self._best.figures or self._best.step == step:
            return step, held_out
        log.info(
            "The state after step %d had the lowest %s loss (%.4f): it becomes the checkpoint",
            self._best.step,
            "validation" if VALIDATION_LOSS in self._best.figures else "held-out",
            validation_loss(self._best.figures),
        )
        self._best.put_back(self._backbone, self._adapter)
        return self._best.step, self._best.figures

    def _resume(self) -> int:
        self._folder.trim_metrics()
        step = load_state(self._state)
        if step:
            self._saved_at = step
            log.info("Going on after step %d of %d, from %s/", step, self.total_steps, STATE_FOLDER)
        return step

    def _one_step(self, step: int) -> dict[str, float] | None:
        """Take optimiser step `step`, counted from 0, and write it down; held-out figures where due."""
        started = time.monotonic()
        rate = learning_rate(step, self.total_steps, self._settings)
        result = self._learn(step, rate)
        self._skipped = 0 if result.finite else self._skipped + 1
        every = self._settings.evaluate_every
        due = step + 1 == self.total_steps or (every > 0 and (step + 1) % every == 0) or self._given_up
        self._torn = due
        held_out = self._evaluate(step + 1) if due else None
        self._torn = False
        seconds = time.monotonic() - started
        self._step_seconds.append(seconds)
        self._folder.record(
            {
                "step": step + 1,
                "epoch": (step + 1) / steps_per_epoch(self._examples_in_all, self._settings),
                "learning_rate": rate,
                "skipped": int(not result.finite),
                **result.figures,
                "seconds": round(seconds, 3),
                **(held_out or {}),
            }
        )
        self._machine.note(step=step + 1, tokens=result.figures.get("tokens"), seconds=seconds)
        log.info("Step %d of %d: %s, %.1f s", step + 1, self.total_steps, result.summary, seconds)
        if not result.finite:
            self._report_skip(step + 1)
        return held_out

    def _report(self, step: int, figures: dict[str, float], details: dict[str, Any]) -> None:
        """Keep the state where it is the best so far, and report an evaluation in detail."""
        better = True
        if self._settings.keep_best or self._settings.patience is not None:
            better = self._best.offer(
                self._backbone, self._adapter, step=step, figures=figures, keep=self._settings.keep_best
            )
        # Details describe the state that would become the checkpoint.
        if figures and self._processes.first and (better or not self._settings.keep_best):
            write_evaluation(self._folder.path, EvaluationReport(step=step, figures=figures, details=details))

    def _apply(self, rate: float) -> None:
        """The optimiser's step along the gradient that was gathered."""
        for trained in self._optimiser.param_groups:
            trained["lr"] = rate * trained["pace"]
        self._optimiser.step()

    def _report_skip(self, step: int) -> None:
        log.warning("Step %d: loss or gradient is not finite; the step is skipped", step)
        if self._skipped >= SKIPPED_IN_A_ROW:
            last_save = f"after step {self._saved_at}" if self._saved_at else "none was saved yet"
            raise DivergedError(
                f"loss or gradient was not finite in {self._skipped} steps in a row, the last being step "
                f"{step}; the last good state is kept ({last_save}). Lower the learning rate or look at the "
                "judgments of these steps, then start a new run"
            )

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
        save_state(self._state, step)
        self._saved_at = step

    def _tell(self, step: int) -> None:
        recent = self._step_seconds[-20:]
        left = (self.total_steps - step) * sum(recent) / len(recent) if recent else None
        self._folder.tell("running", "training", step=step, total_steps=self.total_steps, seconds_left=left)


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


class HeldOutEvaluation(NamedTuple):
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
) -> HeldOutEvaluation:
    """Return loss and figures over `examples`, named `held_out_…`, and details; empty for no examples.

    The 95 % interval of the accuracy takes the judgments, not their pairs, as trials: the pairs of one
    ranking are not independent. `check` is called before every forward pass.
    """
    if not examples:
        return HeldOutEvaluation({}, {})
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
    return HeldOutEvaluation(figures, total.details)


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

    def _evaluation(self, examples: list[Example]) -> HeldOutEvaluation:
        return evaluate(
            self._method,
            examples,
            micro_batch_tokens=self._settings.micro_batch_tokens,
            device=self._backbone.device,
            processes=self._processes,
            check=self._check_this,
        )
