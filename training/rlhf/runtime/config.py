"""Device, precision and random seeds of a run."""

from __future__ import annotations

import os
import random
import subprocess
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from training.contract import ContractError, RunSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_device(requested: str, *, local_rank: int = 0) -> torch.device:
    """The device a run asks for; `auto` takes a GPU when there is one. Refuses one that is not there."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = (
        next(name for name in ("cuda", "mps", "cpu") if available[name]) if requested == "auto" else requested
    )
    if not available[kind]:
        raise ContractError(f"spec, device: {kind} is not available on this machine; use 'auto' or 'cpu'")
    if kind != "cuda":
        return torch.device(kind)
    if local_rank >= (count := torch.cuda.device_count()):
        raise ContractError(
            f"spec, processes: process {local_rank} of this machine has no GPU, because it sees {count}; "
            "lower processes in the recipe, one for each GPU, or give the run more GPUs"
        )
    return torch.device(kind, local_rank)


def resolve_dtype(requested: str, device: torch.device) -> torch.dtype:
    """Precision of the frozen base; `auto` is float32 on a CPU and bfloat16 on a GPU."""
    if requested == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[requested]


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether matrices of bfloat16 are multiplied by instructions made for them."""
    # What torch itself asks before it hands them to oneDNN.
    return device.type != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def make_deterministic(device: torch.device) -> None:
    """Ask torch for the same bits every time: a must on a CPU, best effort on a GPU."""
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=device.type != "cpu")


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed every generator for one optimiser step of one process.

    A step's random numbers follow from seed, step and rank alone. So there is no generator
    state to save, and a resumed run draws what an uninterrupted one would have drawn.
    """
    mixed = np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64).item()
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed % 2**63)


def code_version(spec: RunSpec) -> str:
    """The version of Rondo that trains: as the spec says it, else the checkout's commit, else empty."""
    root = Path(__file__).resolve().parents[3]
    if spec.commit or not (root / ".git").exists():
        return spec.commit
    try:
        completed = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 - whichever git the machine has
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return completed.stdout.strip()


def library_versions() -> dict[str, str]:
    """Versions of the libraries that a checkpoint's numbers depend on."""
    return {name: version(name) for name in ("torch", "transformers", "peft")}
