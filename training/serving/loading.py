"""Loading of the base model: device and precision."""

from __future__ import annotations

import torch

from training.rlhf.model.backbone import Backbone
from training.serving.catalogue import Catalogue
from training.serving.limits import Limits
from training.serving.model import Model


def choose_device(name: str) -> torch.device:
    """Return the named device; "auto" takes a GPU when there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the named precision; "auto" is bfloat16 on a GPU and float32 on a CPU.

    Few CPUs compute in bfloat16: where they do not, it is slower, and float32 gives the same
    text for the same seed whatever else is in the batch.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def load_model(catalogue: Catalogue, *, device: str, dtype: str, limits: Limits) -> Model:
    """Load the base and make ready to answer. Raises `ContractError` where the folder holds no model."""
    place = choose_device(device)
    backbone = Backbone.load(catalogue.base_folder, device=place, dtype=choose_dtype(dtype, place))
    # Read now, not in the first request for a checkpoint: it goes over all weights.
    _ = backbone.base_digest
    return Model(
        backbone,
        catalogue,
        max_adapters=limits.max_adapters,
        max_rows=limits.max_rows,
        cache_tokens=limits.cache_tokens,
        kept_tokens=limits.kept_tokens,
    )
