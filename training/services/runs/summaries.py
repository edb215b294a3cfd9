"""Summaries of runs: the last number of each metric as a column, by which lists of runs are sorted."""

import logging
import math

from training.choices import RunState
from training.contract import ContractError, read_evaluation
from training.files.run_folders import folder_of
from training.models import Run
from training.selectors.runs import folded_of

logger = logging.getLogger(__name__)

MOST_METRICS = 300
"""A trainer that names more metrics fills no row with them."""
_AT_A_SWEEP = 50
_ENDED = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


def summary_of(run: Run, *, most_seconds: float = math.inf) -> dict[str, float]:
    """Return the last finite number of each metric.

    Held-out figures are those of the state that is, or would be, the checkpoint.
    """
    numbers = dict(folded_of(run, most_seconds=most_seconds).latest)
    try:
        report = read_evaluation(folder_of(run))
    except (ContractError, OSError) as error:
        logger.warning("the evaluation of %s cannot be read: %s", run, error)
        report = None
    if report is not None:
        numbers |= {name: value for name, value in report.figures.items() if value is not None}
    finite = {name: float(value) for name, value in sorted(numbers.items()) if math.isfinite(value)}
    return dict(list(finite.items())[:MOST_METRICS])


def summarise(run: Run) -> None:
    """Store the summary of a run."""
    run.summary = summary_of(run)
    Run.objects.filter(pk=run.pk).update(summary=run.summary)


def sweep_summaries() -> None:
    """Summarise runs that ended without a summary: those of before summaries, and those of lost workers."""
    for run in Run.objects.filter(summary__isnull=True, state__in=_ENDED).order_by("-pk")[:_AT_A_SWEEP]:
        summarise(run)
