"""The linear layers that adapters lie on: their names in a base, and those that settings ask for.

Blocks of the Llama kind have seven linear layers under seven names. Other families join them into fewer, name
them otherwise, or keep their experts' weights in one tensor, which is no linear layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from transformers.pytorch_utils import Conv1D

from training.contract import ALL_LINEAR, ContractError, LoraSettings

_ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Linear layers that choose experts, or weigh them. Adapters leave the choice as it was trained."""
_EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""Attributes of the modules that hold a router."""
_EXPERTS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Names that peft takes for those of experts where a base has these as one tensor. It would adapt all of
them, which rows of several adapters cannot mix."""

_DEFAULT = frozenset(LoraSettings().targets)


def fitted(model: Any, settings: LoraSettings, *, base: str) -> LoraSettings:
    """Return the settings with names of layers that the model, called `base`, has. A last block that is the
    model's last is written as None, and so are as many blocks as there are up to it, or more.

    The default names those of Llama; on a base that lacks some it is every linear layer. Raises
    `ContractError` for a target that names no linear layer.
    """
    present = _linear_layers(model)
    adaptable = tuple(sorted(present - _routers(model)))
    requested = set(settings.targets)
    if ALL_LINEAR in requested or (requested == _DEFAULT and not requested <= present):
        targets = adaptable
    else:
        targets = settings.targets
    missing = [target for target in targets if target not in present]
    if missing and _EXPERTS.intersection(missing) and _has_experts(model):
        raise ContractError(
            f"lora, targets: {', '.join(missing)} are layers of experts in {base}, which adapters leave "
            f"as they are; name some of {', '.join(adaptable)}, or {ALL_LINEAR} for all of them"
        )
    if missing:
        raise ContractError(
            f"lora, targets: {base} has no layer {', '.join(missing)}; name some of "
            f"{', '.join(adaptable)}, or {ALL_LINEAR} for all of them"
        )
    if not targets:
        raise ContractError(
            f"lora, targets: {base} has no linear layer that an adapter can lie on; set settings, adapter to "
            "'none', which trains all of its weights"
        )
    blocks = int(model.config.num_hidden_layers)
    last = None if settings.last is not None and settings.last >= blocks else settings.last
    layers = None if settings.layers is not None and settings.layers >= (last or blocks) else settings.layers
    return replace(settings, targets=targets, layers=layers, last=last)


def _linear_layers(model: Any) -> frozenset[str]:
    """Return the names of the decoder's linear layers, without those of the blocks around them.

    peft finds layers by their last names: one that other modules have too, as those in a sequence that are
    numbered like blocks, is left out.
    """
    decoder = model.get_decoder()
    linear = {name.removeprefix(".") for name, _ in _linear_in(decoder, "")}
    inside = tuple(f"{name}." for name in linear)
    others = {
        name.rpartition(".")[2]
        for name, _ in decoder.named_modules()
        if name not in linear and not name.startswith(inside)
    }
    names = frozenset(name.rpartition(".")[2] for name in linear) - others
    return names - _EXPERTS if _has_experts(model) else names


def _has_experts(model: Any) -> bool:
    """Return whether experts' weights are one tensor of three dimensions."""
    return any(parameter.ndim > 2 for parameter in model.get_decoder().parameters())


def _routers(model: Any) -> frozenset[str]:
    """Return the names of layers that choose experts: those of `_ROUTERS`, and those with as many outputs as
    the module that they are in counts experts."""
    decoder = model.get_decoder()
    found = {
        name.rpartition(".")[2]
        for name, outputs in _linear_in(decoder, "")
        if outputs in _experts_of(decoder.get_submodule(name.rpartition(".")[0].removeprefix(".")))
    }
    return _ROUTERS | found


def _experts_of(module: nn.Module) -> set[int]:
    counts = (getattr(module, name, None) for name in _EXPERT_COUNTS)
    return {count for count in counts if isinstance(count, int)}


def _linear_in(module: nn.Module, name: str) -> Iterator[tuple[str, int]]:
    """Yield the path and the number of outputs of each linear layer; GPT-2's are of a kind of their own."""
    if isinstance(module, BaseTunerLayer):
        module = module.get_base_layer()
    if isinstance(module, nn.Linear | Conv1D):
        yield name, module.out_features if isinstance(module, nn.Linear) else int(module.nf)
        return
    for child, inner in module.named_children():
        yield from _linear_in(inner, f"{name}.{child}")
