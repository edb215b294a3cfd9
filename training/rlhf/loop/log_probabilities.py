"""Log-probabilities of answers under the active adapter, without logits for every token at once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from training.contract import ContractError
from training.contract.checkpoint import manifest_digest
from training.contract.files import canonical_json
from training.contract.methods.common import BASE, PARENT, LoraSettings
from training.contract.run import RunSpec
from training.rlhf.loop.method import start_adapter
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.run_folder import library_versions, log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack, passes

_CHUNK = 128
"""Tokens whose logits are held at a time: 128 × 49,152 × 4 bytes are 25 MB."""
_TRAINED_CHUNK = 1024
"""The same where the head is trained too, whose gradient, as large as itself, each chunk adds to."""
_TRAINED_AT_ONCE = 2048
"""Up to so many tokens are not cut, and their logits kept for the backward pass: 400 MB, beside weights,
gradients and two moments of all parameters."""


class _Head(Protocol):
    def __call__(self, states: Tensor, /) -> Tensor: ...


def token_log_probabilities(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """log softmax(head(states))[targets]: states (N, hidden), targets (N,), result (N,) float32.

    Gradients reach `states`, and the head where it is trained.
    """
    if torch.is_grad_enabled() and head(states[:1].detach()).requires_grad:
        return _under_a_trained_head(states, targets, head)
    return _under_a_frozen_head(states, targets, head)


def _under_a_trained_head(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """Return log softmax(head(states))[targets] with gradients of the head.

    The head's own gradient depends on how a token's value is used, which only the backward pass knows: where
    the logits of all tokens are too many to be kept they are computed again there.
    """

    def chosen(states: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = _ChosenLogProbabilities.apply(head(states).float(), targets)  # type: ignore[no-untyped-call]
        return value

    if len(targets) <= _TRAINED_AT_ONCE:
        return chosen(states, targets)
    chunks = zip(torch.split(states, _TRAINED_CHUNK), torch.split(targets, _TRAINED_CHUNK), strict=True)
    return torch.cat([checkpoint(chosen, *chunk, use_reentrant=False) for chunk in chunks])


class _ChosenLogProbabilities(torch.autograd.Function):
    """log softmax(logits)[targets], (N, vocabulary) and (N,) to (N,). The logits' own memory becomes the
    softmax, and in the backward pass their derivative: nobody else may read them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        chosen = logits.gather(1, targets[:, None])[:, 0]
        total = logits.logsumexp(1)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(targets, logits.detach().sub_(total[:, None]).exp_())
        return chosen - total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        targets, softmax = ctx.saved_tensors
        # A second backward pass finds that they have changed, and is refused by autograd.
        slope = softmax.mul_(-gradients[0][:, None])
        return slope.scatter_add_(1, targets[:, None], gradients[0][:, None]), None


def _under_a_frozen_head(states: Tensor, targets: Tensor, head: _Head) -> Tensor:
    """Gradients reach `states` only. A token's value depends on its own row of `states` alone, so value and
    derivative are both taken while a chunk's logits are there, and the logits are let go."""
    values, slopes = [], []
    for rows, chunk_targets in zip(torch.split(states, _CHUNK), torch.split(targets, _CHUNK), strict=True):
        leaf = rows.detach().requires_grad_(states.requires_grad)
        value = -F.cross_entropy(head(leaf).float(), chunk_targets, reduction="none")
        if states.requires_grad:
            slopes.append(torch.autograd.grad(value.sum(), leaf)[0])
        values.append(value.detach())
    result = torch.cat(values)
    if states.requires_grad:
        # The difference is 0 and its derivative is 1: the value stays, the slope is attached.
        result = result + ((states - states.detach()) * torch.cat(slopes)).sum(-1)
    return result


def answer_log_probabilities(
    backbone: Backbone, adapter: str | None, batch: Batch, *, dropout: bool = False
) -> Tensor:
    """Sum of the log-probabilities of each answer's tokens: (R,) float32. None is the base."""
    values = answer_token_log_probabilities(backbone, adapter, batch, dropout=dropout)
    return values.new_zeros(batch.answers).index_add(0, batch.target_answer, values)


def answer_token_log_probabilities(
    backbone: Backbone, adapter: str | None, batch: Batch, *, dropout: bool = False
) -> Tensor:
    """Log-probability of every answer token, answer by answer: (A,) float32. None is the base."""
    with backbone.using(adapter, dropout=dropout):
        states = backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)
    # What several answers share is predicted once.
    targets, predictors, where = batch.predicted()
    values = token_log_probabilities(states[predictors], targets, backbone.lm_head(adapter))
    return values[where]


# ── A reference's log-probabilities on disk: a file that only grows, one record for each example ──
#
#     header    what the numbers were computed with, one line
#     record    key (16 bytes), number of answers (4), their log-probabilities (4 each), CRC-32 of that (4)
#
# A record is appended as soon as it is computed, so a killed run has lost nothing; several processes may
# append to one file. What follows a record that is cut off or damaged is forgotten.

_START = struct.Struct("<16sI")
_END = struct.Struct("<I")


class ReferenceFile:
    """One such file."""

    def __init__(self, path: Path, computed_with: str) -> None:
        """`computed_with`: a word for model, snapshot and machine; a file with another is not read."""
        self._path = path
        self._header = f"rondo reference log-probabilities 1 {computed_with}\n".encode()
        self._broken = False

    def read(self) -> dict[bytes, Tensor]:
        """Return all records, by key; a file with anything but whole records is cut to those before."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            return self._give_up(error)
        if not content.startswith(self._header):
            log.info("%s is damaged or another's; the reference is computed again", self._path)
            self._cut(0)
            return {}
        records, whole = _records(content, len(self._header))
        if whole < len(content):
            log.info("%s is damaged after %d records; the rest is computed again", self._path, len(records))
            self._cut(whole)
        return records

    def append(self, key: bytes, values: Tensor) -> None:
        """Add a record. On a disk without room the run goes on without it."""
        if self._broken:
            return
        numbers = values.detach().cpu().to(torch.float32).numpy().astype("<f4")
        record = _START.pack(key, len(numbers)) + numbers.tobytes()
        record += _END.pack(zlib.crc32(record))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.fstat(handle).st_size == 0:
                    record = self._header + record
                # One call: records of several processes stand one after the other.
                if os.write(handle, record) < len(record):
                    raise OSError("the disk is full")
            finally:
                os.close(handle)
        except OSError as error:
            self._give_up(error)

    def _cut(self, size: int) -> None:
        try:
            os.truncate(self._path, size)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> dict[bytes, Tensor]:
        log.warning("The reference cannot be kept for the next run: %s (%s)", self._path, error)
        self._broken = True
        return {}


def _records(content: bytes, place: int) -> tuple[dict[bytes, Tensor], int]:
    """Return the whole records from `place` on, and where they end."""
    records: dict[bytes, Tensor] = {}
    while place + _START.size + _END.size <= len(content):
        key, count = _START.unpack_from(content, place)
        values = place + _START.size
        end = values + 4 * count
        if end + _END.size > len(content) or _END.unpack_from(content, end)[0] != zlib.crc32(
            content[place:end]
        ):
            break
        records[key] = torch.from_numpy(np.frombuffer(content, "<f4", count, values).copy())
        place = end + _END.size
    return records, place


# ── Figures on a policy and its reference: how far one has moved from the other, on the answers given ──
#
#     log_ratio             mean over the answers of log π(y|x) − log π_ref(y|x)
#     log_ratio_per_token   the same, all answers' sum divided by all their tokens
#     log_ratio_base, log_ratio_base_per_token   the same against the base, whatever the reference is
#     answer_tokens         mean tokens of an answer, its end token included
#
# Were the answers sampled from π, the first would estimate KL(π ‖ π_ref) and the second the KL per token.
# They are those that people judged or wrote, so both are what they are called and no KL: below 0 where
# training has made the given answers less likely, as preference optimisation often does.


@torch.no_grad()
def ratio_observations(
    batch: Batch, policy: Tensor, reference: Tensor, base: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the observations for `ratio_figures`, (R,) each. Arguments: (R,) sums over a completion."""
    return {
        **({} if base is None else {"log_ratio_base": (policy - base).detach()}),
        "log_ratio": (policy - reference).detach(),
        "answer_tokens": batch.answer_tokens.to(policy.dtype),
    }


def ratio_figures(observed: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the figures above; nothing where there is no answer."""
    tokens = observed["answer_tokens"].double()
    if not len(tokens):
        return {}
    figures = {"answer_tokens": float(tokens.mean())}
    for name in ("log_ratio", "log_ratio_base"):
        if len(ratios := observed.get(name, tokens[:0]).double()):
            figures[name] = float(ratios.mean())
            figures[f"{name}_per_token"] = float(ratios.sum() / tokens.sum())
    return figures


_REFERENCE = "reference"


def placed_reference(spec: RunSpec, run_folder: Path) -> RunSpec:
    """The spec with the folder of a reference that is a checkpoint made absolute; it starts at the run's."""
    name = reference_name(spec)
    if name in (PARENT, BASE):
        return spec
    folder = str((run_folder / name).resolve())
    changed: Any = dataclasses.replace(cast(Any, spec.settings), reference=folder)
    return dataclasses.replace(spec, settings=changed)


def reference_name(spec: RunSpec) -> str:
    """`parent`, `base`, or the folder of a checkpoint; `parent` for methods that have no such setting."""
    return str(getattr(spec.settings, "reference", PARENT))


def _reference_folder(spec: RunSpec) -> Path | None:
    """Return the checkpoint that is the reference; None is the base."""
    name = reference_name(spec)
    if name == BASE or (name == PARENT and spec.parent is None):
        return None
    return Path(spec.parent if name == PARENT and spec.parent else name)


def _add_frozen(backbone: Backbone, spec: RunSpec, lora: LoraSettings | None) -> str | None:
    """Add the reference under the policy; its adapter's name, None for the base."""
    folder = _reference_folder(spec)
    if folder is None:
        return None
    if reference_name(spec) == PARENT:
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
