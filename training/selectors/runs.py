"""Runs of a project: their pages, metrics and charts, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from django.conf import settings
from django.core.cache import cache
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.functional import Promise

from annotation.models import Project
from training.choices import Method, RunState, StepState
from training.contract.log_lines import search_lines, tail
from training.contract.run import (
    DROPPED_FILE,
    LOG_FILE,
    MACHINE_FILE,
    METRICS_FILE,
    SAMPLES_FILE,
    STATUS_FILE,
    MachineUse,
    SampledAnswer,
    SampledToken,
    read_machine_use,
    read_samples,
    read_watch_warnings,
)
from training.figures.curves import MOST_LINES, Folded, Metric, folded_metrics, metric_of, points_since
from training.figures.held_out import BASELINE_FIGURES, HeldOutFigure
from training.files.shared import folder_of
from training.models import BaseModel, Checkpoint, Launch, Run
from training.selectors.base_models import same_tokenizer
from training.selectors.checkpoints import rewarding_names
from training.selectors.run_table import (
    HEADLINES,
    SETTINGS,
    Better,
    better_of,
    is_objective,
    leaves,
    title_of,
)

# Samples of a run's step for display: each token shaded by its measure.
#
# Reads the trainer's output; uses no database and no torch.

Measure = Literal["advantage", "reward", "kl"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
SHADES = 4
"""Steps of colour on either side of 0."""
_END = "∎"
"""Shown for a token without text: the end of the answer, or a part of a character."""


@dataclass(frozen=True, slots=True)
class ShadedToken:
    """A token with the class of its colour."""

    token: SampledToken
    shade: int
    """-SHADES to SHADES: its measure relative to the largest of the step; 0 also without one."""

    @property
    def text(self) -> str:
        """Return the displayed text."""
        return self.token.text or _END

    @property
    def css(self) -> str:
        """Return the class of its colour, `shade-n4` to `shade-p4`."""
        side = "n" if self.shade < 0 else "p"
        return f"shade-{side}{abs(self.shade)}" if self.shade else ""


@dataclass(frozen=True, slots=True)
class ShadedAnswer:
    """An answer with its tokens shaded."""

    sample: SampledAnswer
    tokens: tuple[ShadedToken, ...]

    @property
    def parts(self) -> list[tuple[str, float | None]]:
        """Return the parts of the reward with their scores, sorted by name."""
        return sorted(self.sample.parts.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """One step's samples on the page."""

    step: int
    last_step: int
    measure: Measure
    answers: tuple[ShadedAnswer, ...]
    largest: float
    """Magnitude that has the deepest colour."""
    has_reference: bool
    """True if any token has a divergence."""

    @property
    def before(self) -> int | None:
        """Return the step before, if there is one."""
        return self.step - 1 if self.step > 1 else None

    @property
    def after(self) -> int | None:
        """Return the step after, if there is one."""
        return self.step + 1 if self.step < self.last_step else None


def shaded(answers: Sequence[SampledAnswer], *, step: int, last_step: int, measure: Measure) -> Samples:
    """Return the answers of a step, each token shaded by `measure` on a common scale."""
    values = [_value(token, measure) for answer in answers for token in answer.tokens]
    largest = max(map(abs, values), default=0.0)
    return Samples(
        step=step,
        last_step=last_step,
        measure=measure,
        answers=tuple(
            ShadedAnswer(
                answer,
                tuple(ShadedToken(token, _shade(_value(token, measure), largest)) for token in answer.tokens),
            )
            for answer in answers
        ),
        largest=largest,
        has_reference=any(token.kl is not None for answer in answers for token in answer.tokens),
    )


def _value(token: SampledToken, measure: Measure) -> float:
    value: float | None = getattr(token, measure)
    return value or 0.0


def _shade(value: float, largest: float) -> int:
    """Return the nearest shade; never 0 for a value that is not 0."""
    if not value:
        return 0
    nearest = max(round(abs(value) / largest * SHADES), 1)
    return nearest if value > 0 else -nearest


# ── Runs ──

# ── Differences between runs ──


MOST_COMPARED = 6
_NOT_SETTINGS = ("name", "cache", "format")
"""Parts of a configuration that differ by nature, or never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparisonLine:
    """A setting or metric of each run; None for a run without it."""

    label: str | Promise
    values: Sequence[Any]
    differs: bool
    best: float | None = None
    """The best value, where one end of a metric is better and the runs differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Runs beside each other."""

    runs: Sequence[Run]
    settings: Sequence[RunComparisonLine]
    same_settings: int
    """Settings that all share."""
    metrics: Sequence[RunComparisonLine]


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


def comparison_of(runs: Sequence[Run], *, all_settings: bool) -> RunComparison:
    """Return runs beside each other; settings that all share only with `all_settings`."""
    lines = _settings(runs)
    return RunComparison(
        runs=runs,
        settings=lines if all_settings else [line for line in lines if line.differs],
        same_settings=sum(1 for line in lines if not line.differs),
        metrics=_metrics(runs),
    )


def _settings(runs: Sequence[Run]) -> list[RunComparisonLine]:
    flat = [{path: value for path, value in leaves(run.spec) if path[0] not in _NOT_SETTINGS} for run in runs]
    labels = {path: label for label, path in SETTINGS.values()}
    paths = list(dict.fromkeys(path for values in flat for path in values))
    lines = []
    for path in sorted(paths, key=lambda path: (path not in labels, path)):
        values = [run_settings.get(path) for run_settings in flat]
        name = ".".join(path[1:] if path[0] == "settings" else path)
        lines.append(_line(labels.get(path, name.replace("_", " ")), values))
    return lines


def _metrics(runs: Sequence[Run]) -> list[RunComparisonLine]:
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


def _line(label: str | Promise, values: Sequence[Any], *, better: Better = Better.NONE) -> RunComparisonLine:
    differs = any(value != values[0] for value in values[1:])
    numbers = [value for value in values if value is not None]
    best = None
    if differs and len(numbers) > 1 and better != Better.NONE:
        best = max(numbers) if better == Better.HIGHER else min(numbers)
    return RunComparisonLine(label=label, values=values, differs=differs, best=best)


# ── Runs ──


DRAWN_METRICS = (
    "reward",
    "kl",
    "kl_base",
    "sampler_gap",
    "staleness",
    "length",
    "entropy",
    "unfinished",
    "clip_fraction",
    "explained_variance",
    "loss",
    "accuracy",
    "margin",
    "log_ratio",
    "reference_kl",
    "held_out_accuracy",
    "held_out_log_loss",
)
BASELINE_METRICS = ("held_out_constant_log_loss", "held_out_scaled_log_loss", *BASELINE_FIGURES)
"""Metrics that hardly move during a run: not drawn first."""
HEADLINE_METRICS = (
    *("held_out_accuracy", "held_out_log_loss", "held_out_reward", "held_out_loss"),
    *("reward", "kl", "loss", "accuracy"),
)
"""Metrics of a run that its page shows first, the most important in front."""
_MOST_HEADLINES = 5
_LOG_BYTES_SEARCHED = 8 << 20
IS_GOING_ON = (RunState.WAITING, RunState.STARTING, RunState.RUNNING)
_MOST_SECONDS = 0.06
"""Longest reading of a file of metrics per request; the next one continues."""
_MOST_DROPPED_SHOWN = 50
_MOST_LAUNCHES = 20
_CHOICES = 50
_LOG_LINES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """A run with the content of its folder."""

    run: Run
    metrics: list[Metric]
    log: str
    is_interrupted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class LogLines:
    """Lines of a run's log: its end, or the last that contain a text."""

    text: str
    lines: list[str]
    total: int
    """Lines that contain the text."""
    is_cut: bool
    """True if the beginning of a long log was not searched."""

    @property
    def joined(self) -> str:
        """Return the lines as one text."""
        return "\n".join(self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class DroppedExamples:
    """Examples that a run could not learn from."""

    total: int
    reasons: list[tuple[str, int]]
    """Number of each reason, the most frequent first."""
    first: list[dict[str, str]]


def folded_of(run: Run, *, most_seconds: float = _MOST_SECONDS) -> Folded:
    """Return a run's metrics, folded; the folded form is kept in `cache/metrics`."""
    cache_file = Path(settings.RONDO_HOME) / "cache" / "metrics" / f"{run.name}.json"
    return folded_metrics(folder_of(run), cache_file=cache_file, most_seconds=most_seconds)


def is_interrupted(run: Run) -> bool:
    """Return whether a run has begun and not ended, and no worker has reported on it for RONDO_STALE_SECONDS.

    The next worker resumes it from the last saved step.
    """
    if run.state not in (RunState.STARTING, RunState.RUNNING):
        return False
    step = getattr(run, "round_step", None)
    if step is not None and step.state != StepState.RUNNING:
        return True
    heartbeat = run.heartbeat_at if step is None else step.heartbeat_at
    limit = timedelta(seconds=settings.RONDO_STALE_SECONDS)
    return heartbeat is None or timezone.now() - heartbeat > limit


def run_view(run: Run, *, log_lines: int = 8) -> RunView:
    """Return a run with its last values and the end of its log, for a round's page."""
    folded = [folded_of(run)]
    return RunView(
        run=run,
        metrics=[metric_of(folded, name) for name in drawn_first(folded)],
        log=tail(folder_of(run) / LOG_FILE, lines=log_lines),
        is_interrupted=is_interrupted(run),
    )


def rewards_of(run: Run) -> list[tuple[str, str]]:
    """Return the reward models that a run uses, by name, each with its base model."""
    names = list(rewarding_names(run.spec))
    elsewhere = Checkpoint.objects.filter(name__in=names) if names else Checkpoint.objects.none()
    bases = dict(elsewhere.values_list("name", "base_model"))
    # One that no checkpoint bears is an adapter of the round that goes on.
    return [(name, bases.get(name, run.base_model)) for name in names]


def metrics_of(runs: Sequence[Run]) -> tuple[list[Metric], bool]:
    """Return the metrics of runs with their last values, those drawn first in front.

    The second value is true if a part of a long file is still unread: the next request continues.
    """
    folded = _folded_of_all(runs)
    return _metrics_in(folded), any(run.is_behind for run in folded)


def _folded_of_all(runs: Sequence[Run]) -> list[Folded]:
    return [folded_of(run, most_seconds=_MOST_SECONDS / len(runs)) for run in runs]


def _metrics_in(folded: Sequence[Folded]) -> list[Metric]:
    first = drawn_first(folded)
    others = sorted({name for run in folded for name in run.latest} - set(first))
    return [metric_of(folded, name, is_first=name in first) for name in [*first, *others]]


def news_of(runs: Sequence[Run], *, marks: Sequence[str]) -> dict[str, Any]:
    """Return the new chart data of runs since `marks`, one of each run.

    A mark comes from the previous reply; an empty or outdated one gets everything.
    """
    all_folded = _folded_of_all(runs)
    news = []
    padded = [*marks, *[""] * len(runs)]
    for run, folded, mark in zip(runs, all_folded, padded, strict=False):
        known, _, after = mark.rpartition("-")
        era = f"{folded.inode}-{len(folded.rewinds)}-{folded.width}"
        since = int(after) if known == era and after.isdecimal() else 0
        news.append(
            {
                "run": run.name,
                "total_steps": run.total_steps,
                "goes_on": run.state in IS_GOING_ON,
                "is_behind": folded.is_behind,
                "mark": f"{era}-{max(folded.last_step, 0)}",
                "all": since == 0,
                "width": folded.width,
                "latest": folded.latest,
                "metrics": {name: points_since(folded, name, since=since) for name in sorted(folded.cells)}
                if folded.last_step > since or since == 0
                else {},
            }
        )
    return {
        "runs": news,
        "metrics": [
            {
                "name": metric.name,
                "title": metric.title,
                "unit": metric.unit,
                "group": metric.group,
                "first": metric.is_first,
            }
            for metric in _metrics_in(all_folded)
        ],
    }


def drawn_first(folded: Sequence[Folded]) -> list[str]:
    """Return the metrics shown first: of every run, of these rewards, of held-out heads."""
    named = {name for run in folded for name in run.latest}
    rewards = sorted(name for name in named if name.startswith(("reward/", "watched/", "held_out_reward")))
    rewards = [name for name in rewards if not name.endswith(("_low", "_high"))]
    heads = sorted(name for name in named if name.startswith("held_out_") and name.endswith("_log_loss"))
    heads = [name for name in heads if name not in BASELINE_METRICS]
    metrics = [*DRAWN_METRICS, *rewards, *(name for name in heads if name not in DRAWN_METRICS)]
    return [name for name in metrics if name in named]


def overlaid_on(run: Run, names: Sequence[str]) -> list[Run]:
    """Return the named runs of the same project overlaid on this one, at most MOST_LINES − 1."""
    selected_names = [name for name in dict.fromkeys(names) if name != run.name][: MOST_LINES - 1]
    runs = {other.name: other for other in comparable_runs(run).filter(name__in=selected_names)}
    return [runs[name] for name in selected_names if name in runs]


def comparable_runs(run: Run) -> QuerySet[Run]:
    """Return the other runs of a run's project, newest first."""
    return Run.objects.filter(snapshot__project=run.snapshot.project_id).exclude(pk=run.pk).order_by("-pk")


def overlay_choices(run: Run, chosen: Sequence[Run]) -> list[Run]:
    """Return the runs that can be overlaid: the chosen, then the newest of the same method, then others."""
    listed = list(comparable_runs(run).exclude(pk__in=[other.pk for other in chosen])[:_CHOICES])
    return [*chosen, *sorted(listed, key=lambda other: other.method != run.method)]


def samples_of(run: Run, *, step: int | None, measure: Measure) -> Samples | None:
    """Return the samples of a step that has some, by default the last; None for a run without samples."""
    if not (folder_of(run) / SAMPLES_FILE).is_file():
        return None
    last = folded_of(run).last_step
    if last < 0:
        return None
    shown = step if step is not None and 1 <= step <= last else last
    answers = read_samples(folder_of(run), shown)
    return shaded(answers, step=shown, last_step=last, measure=measure) if answers else None


def watch_warnings_of(run: Run) -> list[str]:
    """Return the warnings of a run's reward-hacking watch; only learning from samples is watched."""
    if run.method != Method.POLICY_GRADIENT:
        return []
    return read_watch_warnings(folder_of(run) / LOG_FILE)


def log_lines_of(run: Run, text: str = "") -> LogLines:
    """Return the last lines of a run's log that contain a text, in any case; all of them without one."""
    path = folder_of(run) / LOG_FILE
    if not text:
        return LogLines(text="", lines=tail(path, lines=_LOG_LINES).splitlines(), total=0, is_cut=False)
    matches, is_cut = search_lines(path, text, most_bytes=_LOG_BYTES_SEARCHED)
    return LogLines(text=text, lines=matches[-_LOG_LINES:], total=len(matches), is_cut=is_cut)


def headline_figures_of(run: Run) -> tuple[HeldOutFigure, ...]:
    """Return the figures by which a run is judged first, as its summary has them."""
    summary: dict[str, float | None] = run.summary or {}
    names = [name for name in HEADLINE_METRICS if summary.get(name) is not None]
    is_held_out = any(name.startswith("held_out_") for name in names)
    # Of a figure that was also measured on held-out data, the one on training data says little; a reward
    # model's held-out loss is its log loss.
    left_out = {"loss", "accuracy"} if is_held_out else set()
    left_out |= {"held_out_loss"} if "held_out_log_loss" in names else set()
    shown = [name for name in names if name not in left_out][:_MOST_HEADLINES]
    return tuple(
        HeldOutFigure(title=title_of(name), value=value, low=low, high=high)
        for name in shown
        if (value := summary[name]) is not None
        for low, high in [(summary.get(f"{name}_low"), summary.get(f"{name}_high"))]
    )


def launches_of(run: Run) -> list[Launch]:
    """Return the newest jobs of a run; none of one that trains as a process of the worker."""
    if run.resources.get("launcher", "local") == "local":
        return []
    return list(run.launches.all()[:_MOST_LAUNCHES])


def machine_of(run: Run) -> MachineUse | None:
    """Return the run's last reported use of its machine."""
    uses = read_machine_use(folder_of(run))
    return uses[-1] if uses else None


def dropped_of(run: Run) -> DroppedExamples | None:
    """Return the examples that the run could not learn from; None before it wrote any. Cached per file."""
    path = folder_of(run) / DROPPED_FILE
    try:
        stat = path.stat()
    except OSError:
        return None
    key = f"dropped-{run.pk}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"
    dropped: DroppedExamples | None = cache.get(key)
    if dropped is None:
        dropped = _count_dropped(path)
        cache.set(key, dropped)
    return dropped


def _count_dropped(path: Path) -> DroppedExamples:
    reasons: Counter[str] = Counter()
    first: list[dict[str, str]] = []
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            entry = json.loads(line)
            reasons[str(entry.get("reason", ""))] += 1
            if len(first) < _MOST_DROPPED_SHOWN:
                first.append({str(name): str(value) for name, value in entry.items() if value})
    return DroppedExamples(total=reasons.total(), reasons=reasons.most_common(), first=first)


def state_mark(run: Run) -> str:
    """Return a mark that changes with the live part of a run's page."""
    marks: list[object] = [
        run.state,
        run.step,
        run.message,
        run.error,
        run.seconds_left,
        run.total_steps,
        is_interrupted(run),
        *((launch.pk, launch.state, launch.nodes) for launch in launches_of(run)[:1]),
    ]
    for name in (STATUS_FILE, LOG_FILE, METRICS_FILE, MACHINE_FILE):
        try:
            stat = (folder_of(run) / name).stat()
        except OSError:
            continue
        marks.append((name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr(marks).encode()).hexdigest()[:32]
