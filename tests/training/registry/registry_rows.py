"""Rows and folders of the registry for tests: runs, and checkpoints with their files and manifests."""

import dataclasses
from pathlib import Path
from typing import Any

from django.conf import settings

from annotation.choices import SourceKind
from annotation.models import CompletionSource, Judgment, Project
from training.choices import CheckpointKind, RunState
from training.contract.checkpoint import Manifest, manifest_digest, write_manifest
from training.contract.files import sha256_of_file
from training.models import Checkpoint, Run, Snapshot


def make_snapshot(
    project: Project, judgments: list[Judgment] | None = None, *, rounds: list[int] | None = None
) -> Snapshot:
    """A snapshot that holds these judgments; its folder is not there."""
    number = Snapshot.objects.count()
    made = Snapshot.objects.create(
        project=project,
        digest=f"{number:064x}",
        folder=f"snapshots/{number}",
        rounds=rounds or [1],
        counts={
            "judgments": len(judgments or []),
            "annotators": 2,
            "decided_pairs": {"train": 7, "held-out": 3},
        },
    )
    made.judgments.set(judgments or [])
    return made


def make_trained(
    name: str,
    project: Project,
    *,
    kind: CheckpointKind = CheckpointKind.POLICY,
    parent: Checkpoint | None = None,
    snapshot: Snapshot | None = None,
    spec: dict[str, Any] | None = None,
    metrics: dict[str, float] | None = None,
) -> Checkpoint:
    """A checkpoint of a finished run, with two files and the manifest that names them."""
    home = Path(settings.RONDO_HOME)
    run = Run.objects.create(
        name=name,
        method="reward" if kind == CheckpointKind.REWARD else "preference",
        snapshot=snapshot or make_snapshot(project),
        parent=parent if parent and parent.kind == CheckpointKind.POLICY else None,
        spec=spec or {"settings": {}},
        folder=f"runs/{name}",
        state=RunState.FINISHED,
    )
    run.path.mkdir(parents=True)
    folder = home / "checkpoints" / name
    folder.mkdir(parents=True)
    files = {"adapter_model.safetensors": f"weights of {name}", "adapter_config.json": "{}"}
    for file, text in files.items():
        (folder / file).write_text(text)
    manifest = Manifest(
        kind="reward" if kind == CheckpointKind.REWARD else "policy",
        name=name,
        base_model="base",
        base_digest="b" * 64,
        spec={"method": run.method, "settings": {"beta": 0.1}},
        snapshot_digest=run.snapshot.digest,
        seed=3,
        commit="c0ffee",
        steps=12,
        metrics=metrics or {},
        dropped=[],
        heads=["score"] if kind == CheckpointKind.REWARD else [],
        files={file: sha256_of_file(folder / file) for file in files},
        versions={"torch": "2.13"},
    )
    write_manifest(folder, manifest)
    source = None
    if kind != CheckpointKind.REWARD:
        source = CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT)
    return Checkpoint.objects.create(
        name=name,
        kind=kind,
        project=project,
        base_model="base",
        parent=parent,
        run=run,
        folder=f"checkpoints/{name}",
        digest=manifest_digest(folder),
        manifest=dataclasses.asdict(manifest),
        source=source,
    )


def make_starter(name: str = "base") -> Checkpoint:
    """The base model's row."""
    source = CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT)
    return Checkpoint.objects.create(
        name=name, kind=CheckpointKind.STARTER, base_model=name, folder=f"models/{name}", source=source
    )
