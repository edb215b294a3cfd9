"""One run as a method sees it, and the run of every method that learns from judgments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from training.contract import (
    CheckpointKind,
    JudgedSettings,
    RunSpec,
    SnapshotRow,
    part_of_prompt,
    read_evaluation,
    read_snapshot,
    write_evaluation,
)
from training.rlhf.data import Examples, build_examples, only_teaching
from training.rlhf.loop.checks import refuse_untaught, tell_of_examples
from training.rlhf.loop.method import Trained, TrainingMethod
from training.rlhf.loop.reference import placed_reference
from training.rlhf.loop.training_loop import TrainingLoop
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import RunFolder, log
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.tokens.token_cache import TokenCache

Method = TypeVar("Method", bound=TrainingMethod)


@dataclass(frozen=True)
class TrainingRun:
    """A run that is ready to train: its model is loaded, its spec and snapshot are checked."""

    backbone: Backbone
    spec: RunSpec
    snapshot: Path
    """Folder of the snapshot."""
    folder: RunFolder
    stop: StopRequest
    processes: Processes


class RunResult(NamedTuple):
    """The outcome of a run."""

    adapter: str
    """Name of the adapter that becomes the checkpoint."""
    kind: CheckpointKind
    steps: int
    held_out: dict[str, float]
    dropped: list[dict[str, str]]
    """Entries that could not be learned from: judgment, completion, reason."""
    warnings: list[str]
    """Warnings before the first step."""
    summary: str
    """In a few words."""


def train_on_judgments(run: TrainingRun, method: Callable[..., TrainingMethod]) -> RunResult:
    """Train a method that learns from judgments to the end of its run.

    `method` makes it from the backbone, the spec, the spec's settings and the folder of its caches. Raises
    `ContractError` where no judgment teaches it anything.
    """
    folder = run.folder
    learner = made_method(run, method)
    examples = examples_of_run(run, learner)
    loop = TrainingLoop(
        backbone=run.backbone,
        method=learner,
        examples=examples,
        spec=run.spec,
        folder=folder,
        stop=run.stop,
        processes=run.processes,
    )
    # A method that knows better what is lacking has said so by now.
    refuse_untaught(learner, examples.train)
    log.info("Training %s on %s, %d steps", run.spec.method, run.backbone.device, loop.total_steps)
    # Those of the steps are not among them: a resumed run does not see them again.
    warnings = list(folder.warnings)
    steps, held_out = loop.run()
    held_out = compared(run, learner, examples, held_out)
    warnings += learner.held_out_warnings(held_out)
    summary = f"{loop.total_steps} steps on {len(examples.train)} judgments"
    return RunResult(learner.adapter, learner.kind, steps, held_out, examples.dropped, warnings, summary)


def made_method(run: TrainingRun, method: Callable[..., Method]) -> Method:
    """Return the method of a run, which adds its adapter and heads to the backbone."""
    spec = placed_reference(run.spec, run.folder.path)
    return method(run.backbone, spec, run.spec.settings, cache=_cache_of(run))


def examples_of_run(run: TrainingRun, learner: TrainingMethod) -> Examples:
    """Return the tokenised judgments that say something to a method, listed and told of."""
    settings, folder, processes = run.spec.settings, run.folder, run.processes
    folder.tell("starting", "reading the judgments")
    tokens = TokenCache(
        _cache_of(run),
        snapshot_digest=run.spec.snapshot_digest,
        tokenizer=run.backbone.tokenizer,
        writes=processes.first,
    )
    examples = build_examples(
        _rows(run),
        run.backbone.tokenizer,
        max_tokens=settings.max_tokens,
        context=settings.context,
        labels=learner.wanted,
        cache=tokens,
        thinking=settings.thinking if isinstance(settings, JudgedSettings) else "train",
    )
    log.info("%d texts tokenised; all others were in the token cache", tokens.tokenised)
    examples = only_teaching(examples, lambda example: any(learner.weights(example).values()), learner.wanted)
    folder.list_dropped(examples.dropped)
    tell_of_examples(examples, settings=settings, processes=processes)
    return examples


def compared(
    run: TrainingRun, learner: TrainingMethod, examples: Examples, held_out: dict[str, float]
) -> dict[str, float]:
    """Return the held-out figures with those of simpler predictors, and add both to the last evaluation."""
    processes = run.processes
    trained = Trained(
        examples=examples,
        rows=lambda: _rows(run),
        check=run.stop.check if processes.world == 1 else lambda: None,
        tell=lambda message: run.folder.tell("running", message),
        writes=processes.first,
    )
    figures, details = learner.compare(trained)
    report = read_evaluation(run.folder.path) if details and processes.first else None
    if report is not None:
        more = replace(report, figures={**report.figures, **figures}, details={**report.details, **details})
        write_evaluation(run.folder.path, more)
    return held_out | figures


def _cache_of(run: TrainingRun) -> Path:
    return run.folder.path / (run.spec.cache or "cache")


def _rows(run: TrainingRun) -> Iterator[SnapshotRow]:
    return rows_of_part(read_snapshot(run.snapshot), run.spec.judgments)


def rows_of_part(rows: Iterable[SnapshotRow], part: str) -> Iterator[SnapshotRow]:
    """Yield the rows that a run may read: its part of the training prompts, and all held-out ones."""
    for row in rows:
        if part == "all" or row.split != "train" or part_of_prompt(row.prompt) == part:
            yield row
