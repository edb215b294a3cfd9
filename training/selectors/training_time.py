"""Time that the training of a round takes, by the pace of runs that finished. Reads only."""

import itertools
import math
import statistics
from dataclasses import dataclass

from annotation.choices import Split
from training.choices import RunState
from training.contract import PolicyGradientSettings, RewardSettings, Settings, read_machine_use
from training.files.run_folders import folder_of
from training.models import Round, Run
from training.selectors.judgments import decided_judgments

_RUNS_LOOKED_AT = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The measured pace of a run."""

    run: str
    seconds_per_example: float
    tokens_per_second: float | None


def pace_of(round_: Round, method: Settings) -> Pace | None:
    """Return the pace of the latest finished run of the same method on the same base; None without one.

    Fits to frozen features have none: their time is that of features, which are kept.
    """
    if _is_fitted_at_once(method):
        return None
    finished = Run.objects.filter(
        method=method.method, state=RunState.FINISHED, checkpoint__base_model=round_.policy.base_model
    )
    for run in finished.order_by("-pk")[:_RUNS_LOOKED_AT]:
        uses = read_machine_use(folder_of(run))
        paces = [
            (later.time - earlier.time) / (later.step - earlier.step)
            for earlier, later in itertools.pairwise(uses)
            if later.step > earlier.step
        ]
        batch = run.spec.get("settings", {}).get("optimiser", {}).get("batch_size")
        if paces and batch:
            tokens = [use.tokens_per_second for use in uses if use.tokens_per_second]
            return Pace(
                run=run.name,
                # A run that was paused has long gaps; the median does not mind them.
                seconds_per_example=statistics.median(paces) / batch,
                tokens_per_second=statistics.median(tokens) if tokens else None,
            )
    return None


def _is_fitted_at_once(method: Settings) -> bool:
    return isinstance(method, RewardSettings) and method.is_fitted_at_once


def steps_of(method: Settings, examples: int) -> int:
    """Optimiser steps of a run over so many examples: whole passes, or as many as are allowed.

    A head fitted to frozen features takes one.
    """
    if _is_fitted_at_once(method):
        return 1
    steps = math.ceil(examples / method.optimiser.batch_size) * method.optimiser.epochs
    most = method.optimiser.max_steps
    return steps if most is None else min(steps, most)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutlook:
    """Judgments that a round could be trained on now, and how long its reward model and policy would take."""

    judgments: int
    seconds: float | None
    """None before a run of each method has finished on the base. A second reward model is not counted."""


def training_outlook(round_: Round) -> TrainingOutlook:
    """Return what the training of a round would have to learn from, and how long it would take."""
    recipe = round_.parsed_recipe
    rounds = range(1, round_.number + 1)
    learned = decided_judgments(
        round_.project, rounds, ai_feedback=recipe.ai_feedback, first_passes=recipe.first_passes
    ).count()
    if not learned:
        return TrainingOutlook(judgments=0, seconds=None)
    seconds = 0.0
    for method in (recipe.reward, recipe.policy):
        pace = pace_of(round_, method)
        if pace is None:
            return TrainingOutlook(judgments=learned, seconds=None)
        samples = isinstance(method, PolicyGradientSettings)
        examples = round_.project.prompts.filter(split=Split.TRAIN).count() if samples else learned
        seconds += pace.seconds_per_example * steps_of(method, examples) * method.optimiser.batch_size
    return TrainingOutlook(judgments=learned, seconds=seconds)
