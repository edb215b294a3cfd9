"""One run as a method sees it, and the run of every method that learns from judgments."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

from safetensors.torch import save_file
from torch import Tensor

from training.contract import ContractError
from training.contract.checkpoint import (
    HEADS_FILE,
    CheckpointKind,
    Manifest,
    manifest_digest,
    write_manifest,
)
from training.contract.files import sha256_of_file
from training.contract.methods.common import JudgedSettings, MethodSettings
from training.contract.run import RunSpec, read_evaluation, write_evaluation
from training.contract.snapshot import SnapshotRow, part_of_prompt, read_snapshot
from training.rlhf.data import Examples, build_examples, only_teaching
from training.rlhf.loop.log_probabilities import placed_reference
from training.rlhf.loop.method import Trained, TrainingMethod
from training.rlhf.loop.training_loop import TrainingLoop
from training.rlhf.model.adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.families import context_limit
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import RunFolder, code_version, library_versions, log
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.tokens.encoding import TokenCache
from training.rlhf.tokens.example import Example

# ── Checks before training: refuse what cannot train, warn of what is odd ──
#
# A warning goes to the log, and with the others into the run's last status and the checkpoint's manifest.


def refuse_too_many_tokens(backbone: Backbone, settings: MethodSettings) -> None:
    """Rows longer than the base has positions for would be computed from positions it never saw."""
    positions = context_limit(backbone.config)
    if positions is not None and settings.max_tokens > positions:
        raise ContractError(
            f"settings, max_tokens: {settings.max_tokens} is more than {backbone.folder.name} reads "
            f"({positions}, max_position_embeddings in its config.json); set it to {positions} or less"
        )


def refuse_untaught(method: TrainingMethod, train: Sequence[Example]) -> None:
    """A part of the loss that no training example speaks of would leave its head as it was drawn."""
    taught: Counter[str] = Counter()
    for example in train:
        for part, weight in method.weights(example).items():
            taught[part] += weight > 0
    silent = sorted(part for part, count in taught.items() if not count)
    if silent:
        raise ContractError(
            f"settings: no judgment to train on says anything of {', '.join(map(repr, silent))}, though "
            f"{len(train)} say something of the rest; collect such judgments or leave it out of the settings"
        )


def counts_by_reason(dropped: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Count the examples left out by reason."""
    return dict(sorted(Counter(entry["reason"] for entry in dropped).items()))


def tell_of_examples(examples: Examples, *, settings: MethodSettings, processes: Processes) -> None:
    """Say how much there is to learn from and what was left out, and warn of what is odd about it."""
    train = examples.train
    log.info(
        "%d judgments to train on (%d pairs), %d held out",
        len(train),
        sum(len(example.pairs) for example in train),
        len(examples.held_out),
    )
    for reason, count in counts_by_reason(examples.dropped).items():
        log.info("Left out, %d times: %s", count, reason)
    if not examples.held_out:
        log.warning("No judgment is held out: there are no held-out figures, and no best state is chosen")
    if examples.shortened:
        log.warning(
            "%d prompts were longer than max_tokens (%d) allows and lost their beginning",
            examples.shortened,
            settings.max_tokens,
        )
    annotators = {example.annotator for example in train if example.annotator}
    if len(annotators) == 1 and len(train) > 1:
        log.warning("All judgments to train on are by one annotator (%s)", *annotators)
    together = min(len(train), settings.optimiser.batch_size)
    if together < processes.world:
        log.warning(
            "%d processes share steps of %d judgments: some have nothing to do; start fewer",
            processes.world,
            together,
        )


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
    held_out = compared(run, learner, examples, held_out, steps=steps)
    warnings += learner.held_out_warnings(held_out)
    summary = f"{loop.total_steps} steps on {len(examples.train)} judgments"
    return RunResult(learner.adapter, learner.kind, steps, held_out, examples.dropped, warnings, summary)


def made_method(run: TrainingRun, method: Callable[..., Method]) -> Method:
    """Return the method of a run, which adds its adapter and heads to the backbone."""
    spec = placed_reference(run.spec, run.folder.path)
    return method(run.backbone, spec, run.spec.settings, cache=_cache_folder(run))


def examples_of_run(run: TrainingRun, learner: TrainingMethod) -> Examples:
    """Return the tokenised judgments that a method can use, listed and reported."""
    settings, folder, processes = run.spec.settings, run.folder, run.processes
    folder.tell("starting", "reading the judgments")
    tokens = TokenCache(
        _cache_folder(run),
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
    run: TrainingRun, learner: TrainingMethod, examples: Examples, held_out: dict[str, float], *, steps: int
) -> dict[str, float]:
    """Return the held-out figures with those of simpler predictors, and add both to the last evaluation."""
    processes = run.processes
    trained = Trained(
        examples=examples,
        rows=lambda: _rows(run),
        check=run.stop.check if processes.world == 1 else lambda: None,
        tell=lambda message: run.folder.tell("running", message),
        writes=processes.first,
        steps=steps,
    )
    figures, details = learner.compare(trained)
    report = read_evaluation(run.folder.path) if details and processes.first else None
    if report is not None:
        more = replace(report, figures={**report.figures, **figures}, details={**report.details, **details})
        write_evaluation(run.folder.path, more)
    return held_out | figures


def _cache_folder(run: TrainingRun) -> Path:
    return run.folder.path / (run.spec.cache or "cache")


def _rows(run: TrainingRun) -> Iterator[SnapshotRow]:
    return rows_of_part(read_snapshot(run.snapshot), run.spec.judgments)


def rows_of_part(rows: Iterable[SnapshotRow], part: str) -> Iterator[SnapshotRow]:
    """Yield the rows that a run may read: its part of the training prompts, and all held-out ones."""
    for row in rows:
        if part == "all" or row.split != "train" or part_of_prompt(row.prompt) == part:
            yield row


# ── Writing a checkpoint: the adapter as plain peft reads it, or the whole model as transformers does,
# the heads, the manifest last ──
#
# Reading one is `Backbone.load_adapter`.


_DROPPED_LISTED = 100
"""Of a large snapshot much may be left out: the manifest, which pages show, lists so many and counts all."""


def save_checkpoint(
    folder: Path,
    *,
    backbone: Backbone,
    adapter: str,
    kind: CheckpointKind,
    spec: RunSpec,
    steps: int,
    metrics: dict[str, float],
    dropped: list[dict[str, str]],
    warnings: Sequence[str] = (),
    weights: Mapping[str, Tensor] | None = None,
) -> Manifest:
    """Write a checkpoint so that `folder` is there as a whole or not at all. Returns its manifest.

    weights: all of them, gathered, where they are cut over processes.

    Equal runs write equal bytes: nothing here tells of time, machine or folder.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if backbone.is_whole(adapter):
        backbone.save_whole(adapter, partial, weights)
        for path in partial.iterdir():
            _sync(path)
    else:
        save_adapter(partial, backbone, adapter)
    heads = backbone.head_state(adapter)
    if heads:
        _save_tensors(partial / HEADS_FILE, heads)
    manifest = Manifest(
        kind=kind,
        name=spec.name or kind,
        base_model=backbone.folder.name,
        base_digest=backbone.base_digest,
        spec=_portable(spec),
        snapshot_digest=spec.snapshot_digest,
        seed=spec.seed,
        commit=code_version(spec),
        steps=steps,
        metrics=metrics,
        dropped=dropped[:_DROPPED_LISTED],
        dropped_counts=counts_by_reason(dropped),
        warnings=list(warnings),
        heads=sorted(name for name in heads if "." not in name),
        files={path.name: sha256_of_file(path) for path in sorted(partial.iterdir())},
        versions=library_versions(),
        parent_digest=manifest_digest(Path(spec.parent)) if spec.parent else None,
    )
    write_manifest(partial, manifest)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return manifest


def save_adapter(folder: Path, backbone: Backbone, adapter: str) -> None:
    """Write an adapter's two files as plain peft reads them."""
    _save_tensors(folder / ADAPTER_FILE, backbone.adapter_state(adapter))
    config = json.dumps(backbone.adapter_config(adapter), indent=2, sort_keys=True)
    (folder / ADAPTER_CONFIG_FILE).write_text(config + "\n", encoding="utf-8")


def _portable(spec: RunSpec) -> dict[str, Any]:
    """Return the spec with the names of folders in place of where they lie; digests say which they were."""
    values = spec.to_json()
    for name in ("base_model", "snapshot", "parent"):
        if values[name] is not None:
            values[name] = PurePath(values[name]).name
    return values


def _save_tensors(path: Path, tensors: dict[str, Any]) -> None:
    save_file(
        {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())},
        path,
        metadata={"format": "pt"},
    )
    _sync(path)


def _sync(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
