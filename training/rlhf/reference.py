"""The policy that training starts from, which never changes: its log-probabilities are computed once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from training.contract import LoraSettings, RunSpec, canonical_json, manifest_digest
from training.rlhf.backbone import Backbone
from training.rlhf.config import library_versions
from training.rlhf.data import Example
from training.rlhf.log_probabilities import answer_log_probabilities
from training.rlhf.methods import start_adapter
from training.rlhf.packing import Batch, pack
from training.rlhf.reference_file import ReferenceFile

_REFERENCE = "reference"


class Reference:
    """The base, adapters off, for a run that starts from it; else a frozen copy of the parent's adapter.

    Where all weights are trained the base is read again from its folder, the first time that it is asked.
    """

    def __init__(
        self, backbone: Backbone, spec: RunSpec, lora: LoraSettings | None, *, cache: Path | None = None
    ) -> None:
        """With `cache`, a folder, what is computed is kept there for the next run on the same snapshot."""
        self._backbone = backbone
        self.adapter: str | None = None
        """The frozen copy's name; None is the base."""
        if spec.parent is not None:
            start_adapter(backbone, _REFERENCE, spec, lora, trainable=False)
            self.adapter = _REFERENCE
        self._remembered: dict[bytes, Tensor] = {}
        self._file: ReferenceFile | None = None
        if cache is not None:
            key = reference_key(backbone, spec)
            self._file = ReferenceFile(cache / f"reference-{key[:32]}.bin", key)
            self._remembered = self._file.read()

    @torch.no_grad()
    def log_probabilities(self, batch: Batch, examples: list[Example]) -> Tensor:
        """(R,) float32. Each example is computed once, by itself: what is remembered must not depend on the
        batch it was first met in, or a resumed run would compute other bits."""
        parts = []
        for example in examples:
            key = example_key(example)
            if key not in self._remembered:
                alone = pack([example], device=batch.input_ids.device)
                found = answer_log_probabilities(self._backbone, self.adapter, alone).cpu()
                self._remembered[key] = found
                if self._file is not None:
                    self._file.append(key, found)
            parts.append(self._remembered[key])
        return torch.cat(parts).to(batch.input_ids.device)


def example_key(example: Example) -> bytes:
    """16 bytes that follow from the tokens of an example's answers and from where each begins."""
    rows = [[answer.answer_start, *answer.ids] for answer in example.answers]
    return hashlib.blake2b(canonical_json(rows).encode(), digest_size=16).digest()


def reference_key(backbone: Backbone, spec: RunSpec) -> str:
    """SHA-256 over all that the log-probabilities of a snapshot's answers depend on, to the last bit.

    How prompts become tokens is not among it: what differs in its tokens has another `example_key`.
    """
    said = {
        "snapshot": spec.snapshot_digest,
        "base": backbone.base_digest,
        "parent": manifest_digest(Path(spec.parent)) if spec.parent else None,
        "dtype": str(backbone.dtype),
        "device": backbone.device.type,
        # The order of sums depends on both.
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "libraries": library_versions(),
    }
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()
