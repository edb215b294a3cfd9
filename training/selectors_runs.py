"""What the page of a run shows. Reads only."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.db.models import QuerySet
from django.utils import timezone

from training.choices import Method, RunState, StepState
from training.contract import (
    DROPPED_FILE,
    LOG_FILE,
    MACHINE_FILE,
    METRICS_FILE,
    SAMPLES_FILE,
    STATUS_FILE,
    MachineUse,
    read_machine_use,
    read_samples,
    read_watch_warnings,
)
from training.curves import MOST_LINES, Curve, Panel, panel, points_since
from training.launcher import tail
from training.metrics import Folded, folded_metrics
from training.models import Run
from training.run_folders import folder_of
from training.samples import Measure, Samples, shaded

DRAWN_METRICS = (
    "reward",
    "kl",
    "kl_base",
    "sampler_gap",
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
BASELINE_METRICS = ("held_out_constant_log_loss", "held_out_length_log_loss", "held_out_scaled_log_loss")
"""Hardly move during a run: they are drawn with the rest, not first."""
IS_GOING_ON = (RunState.WAITING, RunState.STARTING, RunState.RUNNING)
_MOST_SECONDS = 0.06
"""A page reads so much of a long file of metrics at a time; the next request goes on where it stopped."""
_MOST_DROPPED_SHOWN = 50
_CHOICES = 50
_LOG_LINES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """A run with what its folder tells."""

    run: Run
    curves: list[Curve]
    log: str
    is_interrupted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """What a run could not learn from."""

    total: int
    reasons: list[tuple[str, int]]
    """How often each reason stands there, the most frequent first."""
    first: list[dict[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plots:
    """The metrics of one or several runs, drawn on common axes."""

    main: list[Panel]
    """What people look at first."""
    more: list[Panel]
    """All other metrics, by name."""
    first_step: int
    last_step: int
    is_behind: bool
    """Whether a part of the file has yet to be read: the next request goes on."""


def folded_of(run: Run, *, most_seconds: float = _MOST_SECONDS) -> Folded:
    """A run's metrics, folded; what was folded is kept in `cache/metrics`."""
    kept = Path(settings.RONDO_HOME) / "cache" / "metrics" / f"{run.name}.json"
    return folded_metrics(folder_of(run), kept=kept, most_seconds=most_seconds)


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
    """A run with its curves and the end of its log, for a round's page."""
    folded = folded_of(run)
    drawn = (panel([(run.name, folded, run.total_steps)], name) for name in drawn_first([folded]))
    return RunView(
        run=run,
        curves=[one.lines[0] for one in drawn if one is not None],
        log=tail(folder_of(run) / LOG_FILE, lines=log_lines),
        is_interrupted=is_interrupted(run),
    )


def plots_of(runs: Sequence[Run]) -> Plots:
    """The curves of runs, the first being the one whose page it is."""
    folded = [folded_of(run, most_seconds=_MOST_SECONDS / len(runs)) for run in runs]
    drawn = [(run.name, one, run.total_steps) for run, one in zip(runs, folded, strict=True)]
    first = drawn_first(folded)
    others = sorted({name for one in folded for name in one.cells} - set(first))
    return Plots(
        main=[one for name in first if (one := panel(drawn, name))],
        more=[one for name in others if (one := panel(drawn, name))],
        first_step=min((one.first_step for one in folded if one.first_step >= 0), default=0),
        last_step=max((one.last_step for one in folded), default=0),
        is_behind=any(one.is_behind for one in folded),
    )


def news_of(runs: Sequence[Run], *, marks: Sequence[str]) -> dict[str, Any]:
    """The metrics of runs for the script that draws them, only what is new since `marks`, one of each run.

    A mark is what the answer before told; an empty or an outdated one gets everything.
    """
    told = []
    padded = [*marks, *[""] * len(runs)]
    for run, mark in zip(runs, padded, strict=False):
        folded = folded_of(run, most_seconds=_MOST_SECONDS / len(runs))
        known, _, after = mark.rpartition("-")
        era = f"{folded.inode}-{len(folded.rewinds)}-{folded.width}"
        since = int(after) if known == era and after.isdecimal() else 0
        told.append(
            {
                "run": run.name,
                "total_steps": run.total_steps,
                "goes_on": run.state in IS_GOING_ON,
                "is_behind": folded.is_behind,
                "mark": f"{era}-{max(folded.last_step, 0)}",
                "all": since == 0,
                "width": folded.width,
                "metrics": {name: points_since(folded, name, since=since) for name in sorted(folded.cells)}
                if folded.last_step > since or since == 0
                else {},
            }
        )
    return {"runs": told}


def drawn_first(folded: Sequence[Folded]) -> list[str]:
    """What is drawn of every run, the rewards of these, and what their heads cost on held-out prompts."""
    named = {name for one in folded for name in one.cells}
    rewards = sorted(name for name in named if name.startswith(("reward/", "watched/", "held_out_reward")))
    rewards = [name for name in rewards if not name.endswith(("_low", "_high"))]
    heads = sorted(name for name in named if name.startswith("held_out_") and name.endswith("_log_loss"))
    heads = [name for name in heads if name not in BASELINE_METRICS]
    wanted = [*DRAWN_METRICS, *rewards, *(name for name in heads if name not in DRAWN_METRICS)]
    return [name for name in wanted if name in named]


def overlaid_on(run: Run, names: Sequence[str]) -> list[Run]:
    """The named runs of the same project that are drawn beside this one, at most MOST_LINES − 1."""
    wanted = [name for name in dict.fromkeys(names) if name != run.name][: MOST_LINES - 1]
    found = {one.name: one for one in runs_beside(run).filter(name__in=wanted)}
    return [found[name] for name in wanted if name in found]


def runs_beside(run: Run) -> QuerySet[Run]:
    """The other runs of a run's project, newest first."""
    return Run.objects.filter(snapshot__project=run.snapshot.project_id).exclude(pk=run.pk).order_by("-pk")


def overlay_choices(run: Run, chosen: Sequence[Run]) -> list[Run]:
    """What can be drawn beside a run: those that are, then the newest of the same method, then others."""
    listed = list(runs_beside(run).exclude(pk__in=[one.pk for one in chosen])[:_CHOICES])
    return [*chosen, *sorted(listed, key=lambda one: one.method != run.method)]


def samples_of(run: Run, *, step: int | None, measure: Measure) -> Samples | None:
    """What the policy answered at a step, the last one unless another that was taken is named; None for a
    run that writes no samples."""
    if not (folder_of(run) / SAMPLES_FILE).is_file():
        return None
    last = folded_of(run).last_step
    if last < 0:
        return None
    shown = step if step is not None and 1 <= step <= last else last
    answers = read_samples(folder_of(run), shown)
    return shaded(answers, step=shown, last_step=last, measure=measure) if answers else None


def watch_warnings_of(run: Run) -> list[str]:
    """What the reward-hacking watch of a run said; only learning from samples is watched."""
    if run.method != Method.POLICY_GRADIENT:
        return []
    return read_watch_warnings(folder_of(run) / LOG_FILE)


def log_of(run: Run) -> str:
    """The end of a run's log."""
    return tail(folder_of(run) / LOG_FILE, lines=_LOG_LINES)


def machine_of(run: Run) -> MachineUse | None:
    """What the run used of its machine when it last said so."""
    told = read_machine_use(folder_of(run))
    return told[-1] if told else None


def dropped_of(run: Run) -> Dropped | None:
    """What the run could not learn from; None before it has said so. Counted once for each file."""
    path = folder_of(run) / DROPPED_FILE
    try:
        stat = path.stat()
    except OSError:
        return None
    key = f"dropped-{run.pk}-{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"
    found: Dropped | None = cache.get(key)
    if found is None:
        found = _count_dropped(path)
        cache.set(key, found)
    return found


def _count_dropped(path: Path) -> Dropped:
    reasons: Counter[str] = Counter()
    first: list[dict[str, str]] = []
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            entry = json.loads(line)
            reasons[str(entry.get("reason", ""))] += 1
            if len(first) < _MOST_DROPPED_SHOWN:
                first.append({str(name): str(value) for name, value in entry.items() if value})
    return Dropped(total=reasons.total(), reasons=reasons.most_common(), first=first)


def state_mark(run: Run) -> str:
    """Changes whenever the live part of a run's page would."""
    told = [
        run.state,
        run.step,
        run.message,
        run.error,
        run.seconds_left,
        run.total_steps,
        is_interrupted(run),
    ]
    for name in (STATUS_FILE, LOG_FILE, METRICS_FILE, MACHINE_FILE):
        try:
            stat = (folder_of(run) / name).stat()
        except OSError:
            continue
        told.append((name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]
