"""Runs beside each other: their configurations as a difference, and their metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise

from annotation.models import Project
from training.models import BaseModel, Run
from training.selectors.base_models import same_tokenizer
from training.selectors.run_columns import (
    HEADLINES,
    SETTINGS,
    Better,
    better_of,
    is_objective,
    leaves,
    title_of,
)

MOST_COMPARED = 6
_NOT_SETTINGS = ("name", "cache", "format")
"""Parts of a configuration that differ by nature, or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A setting or metric of each run; None for a run without it."""

    label: str | Promise
    values: Sequence[Any]
    differs: bool
    best: float | None = None
    """The best value, where one end of a metric is better and the runs differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs beside each other."""

    runs: Sequence[Run]
    settings: Sequence[Line]
    same_settings: int
    """Settings that all share."""
    metrics: Sequence[Line]


def runs_to_compare(project: Project, requested_ids: Sequence[str]) -> list[Run]:
    """Return the runs of the project with these ids, in this order, at most `MOST_COMPARED`."""
    ids = [
        int(text)
        for text in dict.fromkeys(requested_ids)
        if text.isascii() and text.isdecimal() and len(text) < 19
    ]
    related = ("snapshot__project", "parent", "checkpoint__base", "round_step__round")
    project_runs = Run.objects.filter(snapshot__project=project).select_related(*related)
    # A refused id takes no place from the others; what is searched for stays bounded.
    runs = project_runs.in_bulk(ids[: 10 * MOST_COMPARED])
    return [runs[pk] for pk in ids if pk in runs][:MOST_COMPARED]


def comparison_of(runs: Sequence[Run], *, all_settings: bool) -> Comparison:
    """Return runs beside each other; settings that all share only with `all_settings`."""
    lines = _settings(runs)
    return Comparison(
        runs=runs,
        settings=lines if all_settings else [line for line in lines if line.differs],
        same_settings=sum(1 for line in lines if not line.differs),
        metrics=_metrics(runs),
    )


def _settings(runs: Sequence[Run]) -> list[Line]:
    flat = [{path: value for path, value in leaves(run.spec) if path[0] not in _NOT_SETTINGS} for run in runs]
    labels = {path: label for label, path in SETTINGS.values()}
    paths = list(dict.fromkeys(path for values in flat for path in values))
    lines = []
    for path in sorted(paths, key=lambda path: (path not in labels, path)):
        values = [run_settings.get(path) for run_settings in flat]
        name = ".".join(path[1:] if path[0] == "settings" else path)
        lines.append(_line(labels.get(path, name.replace("_", " ")), values))
    return lines


def _metrics(runs: Sequence[Run]) -> list[Line]:
    summaries = [run.summary or {} for run in runs]
    names = sorted({name for summary in summaries for name in summary})
    ordered = [*(name for name in HEADLINES if name in names), *(n for n in names if n not in HEADLINES)]
    one_method = len({run.method for run in runs}) == 1
    comparable = same_tokenizer(*(_base_of(run) for run in runs))
    return [
        _line(
            title_of(name),
            [summary.get(name) for summary in summaries],
            better=better_of(name) if one_method or not is_objective(name) else Better.NONE,
        )
        for name in ordered
        if not name.endswith(("_low", "_high")) and (comparable or not _is_per_token(name))
    ]


def _base_of(run: Run) -> BaseModel | None:
    checkpoint = getattr(run, "checkpoint", None)
    return checkpoint.base if checkpoint else None


def _is_per_token(name: str) -> bool:
    """Return whether a metric is a divergence or a log-ratio, which compare within one tokenizer alone."""
    return "kl" in name.split("_") or "log_ratio" in name


def _line(label: str | Promise, values: Sequence[Any], *, better: Better = Better.NONE) -> Line:
    differs = any(value != values[0] for value in values[1:])
    numbers = [value for value in values if value is not None]
    best = None
    if differs and len(numbers) > 1 and better != Better.NONE:
        best = max(numbers) if better == Better.HIGHER else min(numbers)
    return Line(label=label, values=values, differs=differs, best=best)
