"""The blocks of a transformer, which families keep under names of their own."""

from __future__ import annotations

from typing import Any

from torch import nn

from training.contract import ContractError


def blocks_of(model: Any) -> nn.ModuleList:
    """Return the decoder's blocks: `layers` in most families, `h` in those of GPT-2's kind.

    Raises `ContractError` where the decoder keeps none in a list.
    """
    decoder = model.get_decoder()
    lists = {name: child for name, child in decoder.named_children() if isinstance(child, nn.ModuleList)}
    for name in ("layers", "h"):
        if name in lists:
            return lists[name]
    if not lists:
        raise ContractError(
            f"model type {model.config.model_type!r} keeps no blocks in a list; choose another base model"
        )
    return max(lists.values(), key=len)
