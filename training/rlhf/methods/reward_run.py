"""The run of a reward model: step by step with an adapter, or at once on frozen features."""

from __future__ import annotations

import time

from training.contract import EvaluationReport, RewardSettings, write_evaluation
from training.rlhf.loop.evaluation import evaluate
from training.rlhf.loop.run import (
    RunResult,
    TrainingRun,
    compared,
    examples_of_run,
    made_method,
    train_on_judgments,
)
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.runtime.run_folder import log

_STEPS = 1
"""A fit counts as one step."""


def train_reward_model(run: TrainingRun) -> RunResult:
    """Train a reward model as its settings say."""
    settings = run.spec.settings
    if isinstance(settings, RewardSettings) and settings.features == "frozen":
        return _fit_to_frozen_features(run)
    return train_on_judgments(run, method=RewardModelling)


def _fit_to_frozen_features(run: TrainingRun) -> RunResult:
    """Fit the score's head to all training judgments at once, evaluate and compare it.

    A run that was stopped computes only the features that it had not kept.
    """
    folder, processes = run.folder, run.processes
    check = run.stop.check if processes.world == 1 else lambda: None
    learner = made_method(run, RewardModelling)
    examples = examples_of_run(run, learner)
    learner.begin(examples.train)
    warnings = list(folder.warnings)
    folder.tell("running", "reading frozen features", step=0, total_steps=_STEPS)
    started = time.monotonic()
    decided = [example for example in examples.train if example.pairs]
    head = learner.fit_to_frozen_features(decided, check=check, writes=processes.first)
    figures, details = evaluate(
        learner,
        examples.held_out,
        micro_batch_tokens=run.spec.settings.optimiser.micro_batch_tokens,
        device=run.backbone.device,
        processes=processes,
        check=check,
    )
    if figures and processes.first:
        write_evaluation(folder.path, EvaluationReport(step=_STEPS, figures=figures, details=details))
    figures = compared(run, learner, examples, figures)
    row = {"step": _STEPS, "epoch": 1.0, "loss": head.score.log_loss, "skipped": 0}
    folder.trim_metrics()
    folder.record({**row, "seconds": round(time.monotonic() - started, 3), **figures})
    folder.tell("running", "fitted", step=_STEPS, total_steps=_STEPS)
    log.info("Fitted to %d judgments in %.1f s", len(decided), time.monotonic() - started)
    warnings += learner.held_out_warnings(figures)
    summary = f"a head on the {head.place}, fitted to {len(decided)} judgments"
    return RunResult(learner.adapter, learner.kind, _STEPS, figures, examples.dropped, warnings, summary)
