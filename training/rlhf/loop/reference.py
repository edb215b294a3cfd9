"""The policy that divergence is measured from. It never changes: what it says is computed once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from training.contract import (
    BASE,
    PARENT,
    ContractError,
    LoraSettings,
    RunSpec,
    canonical_json,
    manifest_digest,
)
from training.rlhf.loop.log_probabilities import answer_log_probabilities
from training.rlhf.loop.method import start_adapter
from training.rlhf.loop.reference_file import ReferenceFile
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.config import library_versions
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack, passes

_REFERENCE = "reference"


def placed_reference(spec: RunSpec, run_folder: Path) -> RunSpec:
    """The spec with the folder of a reference that is a checkpoint made absolute; it starts at the run's."""
    name = reference_of(spec)
    if name in (PARENT, BASE):
        return spec
    folder = str((run_folder / name).resolve())
    changed: Any = dataclasses.replace(cast(Any, spec.settings), reference=folder)
    return dataclasses.replace(spec, settings=changed)


def reference_of(spec: RunSpec) -> str:
    """`parent`, `base`, or the folder of a checkpoint; `parent` for methods that have no such setting."""
    return str(getattr(spec.settings, "reference", PARENT))


def _reference_folder(spec: RunSpec) -> Path | None:
    """Return the checkpoint that is the reference; None is the base."""
    name = reference_of(spec)
    if name == BASE or (name == PARENT and spec.parent is None):
        return None
    return Path(spec.parent if name == PARENT and spec.parent else name)


def _add_frozen(backbone: Backbone, spec: RunSpec, lora: LoraSettings | None) -> str | None:
    """Add the reference under the policy; its adapter's name, None for the base."""
    folder = _reference_folder(spec)
    if folder is None:
        return None
    if reference_of(spec) == PARENT:
        start_adapter(backbone, _REFERENCE, spec, lora, trainable=False)
        return _REFERENCE
    manifest = backbone.load_adapter(_REFERENCE, folder, trainable=False)
    if manifest.kind != "policy":
        raise ContractError(
            f"settings, reference: {manifest.name!r} is a {manifest.kind} checkpoint; name a policy, or base"
        )
    digest = getattr(spec.settings, "reference_digest", None)
    if digest is not None and manifest_digest(folder) != digest:
        raise ContractError(
            f"{folder}: the reference's digest is not {digest[:12]}, which the spec asks for; name the "
            "checkpoint that the run was made for"
        )
    return _REFERENCE


class Reference:
    """The policy that divergence is measured from: the parent's frozen adapter, the base, or a checkpoint.

    For a run that starts from the base the parent is the base, adapters off. Where all weights are trained
    the base is read again from its folder, the first time that it is asked.
    """

    def __init__(
        self,
        backbone: Backbone,
        spec: RunSpec,
        lora: LoraSettings | None,
        *,
        cache: Path | None = None,
        base: bool = False,
    ) -> None:
        """With `cache`, a folder, what is computed is kept there for the next run on the same snapshot.
        base: the base, whatever the spec's reference is."""
        self._backbone = backbone
        self.adapter: str | None = None if base else _add_frozen(backbone, spec, lora)
        """The frozen copy's name; None is the base."""
        self._remembered: dict[bytes, Tensor] = {}
        self._rows: dict[bytes, tuple[bytes, list[Example]]] = {}
        self._file: ReferenceFile | None = None
        if cache is not None:
            key = reference_key(backbone, spec, base=base)
            self._file = ReferenceFile(cache / f"reference-{key[:32]}.bin", key)
            self._remembered = self._file.read()

    def plan(self, examples: Sequence[Example], *, tokens: int) -> None:
        """Lay examples into packed rows of at most `tokens`, in this order; those that lie in one stay there.

        A row is computed as a whole, once one of its examples is asked for. What is computed follows from
        the plan, never from the batch that asks first: a resumed run computes the same bits.
        """
        fresh = [example for example in examples if example_key(example) not in self._rows]
        for group in passes(fresh, tokens=tokens):
            keys = [example_key(example) for example in group]
            row = hashlib.blake2b(b"".join(keys), digest_size=16).digest()
            for key in keys:
                self._rows.setdefault(key, (row, group))

    @torch.no_grad()
    def log_probabilities(self, batch: Batch, examples: list[Example]) -> Tensor:
        """(R,) float32. Each example is computed once: in its planned row, or by itself where it has none."""
        device = batch.input_ids.device
        parts = []
        for example in examples:
            row, group = self._rows.get(example_key(example), (b"", [example]))
            if self._key(row, group, example) not in self._remembered:
                self._compute(row, group, device)
            parts.append(self._remembered[self._key(row, group, example)])
        return torch.cat(parts).to(device)

    def _compute(self, row: bytes, group: list[Example], device: torch.device) -> None:
        logp = answer_log_probabilities(self._backbone, self.adapter, pack(group, device=device)).cpu()
        for example, values in zip(
            group, torch.split(logp, [len(item.answers) for item in group]), strict=True
        ):
            key = self._key(row, group, example)
            if key in self._remembered:
                continue
            self._remembered[key] = values
            if self._file is not None:
                self._file.append(key, values)

    @staticmethod
    def _key(row: bytes, group: list[Example], example: Example) -> bytes:
        """Under which an example is remembered: in another row its last bits are others."""
        key = example_key(example)
        return key if len(group) == 1 else hashlib.blake2b(key + row, digest_size=16).digest()


def example_key(example: Example) -> bytes:
    """16 bytes that follow from the tokens of an example's answers and from where each is learned from."""
    rows: list[list[Any]] = [
        [answer.learned_start if answer.learned is None else answer.learned, *answer.ids]
        for answer in example.answers
    ]
    return hashlib.blake2b(canonical_json(rows).encode(), digest_size=16).digest()


def reference_key(backbone: Backbone, spec: RunSpec, *, base: bool = False) -> str:
    """SHA-256 over all that the log-probabilities of a snapshot's answers depend on, to the last bit.

    How prompts become tokens is not among it: what differs in its tokens has another `example_key`.
    """
    folder = None if base else _reference_folder(spec)
    identity = {
        "snapshot": spec.snapshot_digest,
        "base": backbone.base_digest,
        "parent": manifest_digest(folder) if folder else None,
        "dtype": backbone.precision,
        "device": backbone.device.type,
        # The order of sums depends on both.
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "libraries": library_versions(),
    }
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()
