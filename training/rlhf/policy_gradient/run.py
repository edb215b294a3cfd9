"""A run of the policy gradient, from its snapshot's prompts to a trained adapter."""

from __future__ import annotations

from typing import cast

from training.contract import PolicyGradientSettings, read_prompts
from training.rlhf.loop.checks import counts_by_reason
from training.rlhf.loop.reference import placed_reference
from training.rlhf.loop.run import RunResult, TrainingRun
from training.rlhf.policy_gradient.loop import SamplingLoop
from training.rlhf.policy_gradient.method import PolicyGradient
from training.rlhf.policy_gradient.sampling import Prompts, read_to_answer
from training.rlhf.policy_gradient.served import ServedPolicy
from training.rlhf.runtime.run_folder import log


def train_on_samples(run: TrainingRun) -> RunResult:
    """Train to the end. Several processes divide the prompts of a step, see `share`."""
    backbone, spec, folder, processes = run.backbone, run.spec, run.folder, run.processes
    settings = cast("PolicyGradientSettings", spec.settings)
    folder.tell("starting", "reading the prompts")
    prompts = read_to_answer(read_prompts(run.snapshot), backbone.tokenizer, settings)
    dropped = [
        {"judgment": entry["prompt"], "completion": "", "reason": entry["reason"]}
        for entry in prompts.dropped
    ]
    folder.list_dropped(dropped)
    _tell_of_prompts(prompts, settings)
    method = PolicyGradient(
        backbone,
        placed_reference(spec, folder.path),
        settings,
        folder=folder.path,
        cancelled=lambda: bool(run.stop.reason),
    )
    served: ServedPolicy | None = None
    try:
        if settings.rollout.server is not None and processes.first:
            served = ServedPolicy(backbone, method.adapter, spec, settings.rollout.server, run=folder.path)
        loop = SamplingLoop(
            backbone=backbone,
            method=method,
            prompts=prompts,
            spec=spec,
            folder=folder,
            stop=run.stop,
            processes=processes,
            served=served,
        )
        log.info("Training %s on %s, %d steps", spec.method, backbone.device, loop.total_steps)
        # Those of the steps are not among them: a resumed run does not see them again.
        warnings = list(folder.warnings)
        steps, held_out = loop.run()
    finally:
        method.close()
        if served is not None:
            served.close()
    summary = f"{steps} steps on {len(prompts.train)} prompts"
    return RunResult(method.adapter, method.kind, steps, held_out, dropped, warnings, summary)


def _tell_of_prompts(prompts: Prompts, settings: PolicyGradientSettings) -> None:
    log.info("%d prompts to train on, %d held out", len(prompts.train), len(prompts.held_out))
    for reason, count in counts_by_reason(prompts.dropped).items():
        log.info("Left out, %d times: %s", count, reason)
    if not prompts.held_out and settings.evaluation_prompts:
        log.warning("No prompt is held out: there are no held-out figures, and no best state is chosen")
    if prompts.shortened:
        log.warning(
            "%d prompts were longer than max_tokens (%d) less the answer's (%d) allows and lost their "
            "beginning",
            prompts.shortened,
            settings.max_tokens,
            settings.rollout.max_tokens,
        )
