"""A frozen base with linear layers of 4 or 8 bits, on which float32 adapters are trained (QLoRA, Dettmers et
al. 2023).

    nf4     4-bit normal floats in blocks of 64 weights with a float32 scale each: bitsandbytes' `Linear4bit`
    int8    8-bit integers with a scale for each output: torchao's weight-only layout

Only the linear layers of the blocks are quantised; embeddings, norms, LM head and experts that are one tensor
stay as they are. With all adapters off the model is the quantised base, which is then the reference, too. The
packages are in the optional extra `gpu` and imported by runs that ask for them alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from training.contract import ContractError, Quantization
from training.rlhf.model.families import blocks_of

_BLOCK = 64
_PACKAGES: dict[Quantization, tuple[str, str]] = {
    "nf4": ("bitsandbytes", "0.45"),
    "int8": ("torchao", "0.14"),
}
"""By kind, the package and the first version of it that does this on a CPU and on NVIDIA GPUs."""


def refuse_unable(quantization: Quantization, device: torch.device) -> None:
    """Raise `ContractError` with the reason where a base cannot be quantised so on a device. Reads no
    weights."""
    if quantization == "none":
        return
    if device.type not in ("cpu", "cuda"):
        raise ContractError(
            f"spec, quantization: {quantization} is not computed on {device.type}; set it to 'none', or "
            "device to 'cpu'"
        )
    package, first = _PACKAGES[quantization]
    try:
        importlib.import_module(package)
        installed_version = version(package)
    except ImportError as error:
        raise ContractError(
            f"spec, quantization: {quantization} needs the package {package} ({error}); install Rondo with "
            f"the extra gpu, or pip install '{package}>={first}', or set it to 'none'"
        ) from error
    if _numbers(installed_version) < _numbers(first):
        raise ContractError(
            f"spec, quantization: {quantization} needs {package} {first} or newer, not {installed_version}; "
            "install it, or set it to 'none'"
        )


def quantise(model: Any, quantization: Quantization, device: torch.device | str) -> None:
    """Quantise the linear layers of a frozen model's blocks in place, and move all of it to `device`.

    The model may lie on the CPU while `device` is a GPU: layers are quantised one by one, so that the GPU
    never holds the weights in full. Raises `ContractError` where a layer's shape does not allow it, and where
    there is no such layer.
    """
    convert = {"nf4": _nf4, "int8": _int8}[quantization]
    # By name: a layer that is replaced is let go at once.
    layers = [
        (block, name)
        for block in blocks_of(model)
        for name, layer in block.named_modules()
        if type(layer) is nn.Linear
    ]
    if not layers:
        raise ContractError(
            f"spec, quantization: model type {model.config.model_type!r} has no plain linear layers in "
            "its blocks; set it to 'none'"
        )
    for block, name in layers:
        layer: Any = block.get_submodule(name)
        _replace(block, name, layer, convert, torch.device(device))
    model.to(device)
    model.requires_grad_(False)


def is_quantised(layer: nn.Module) -> bool:
    """Return whether a linear layer's weight is no plain matrix: only the layer itself multiplies by it."""
    return getattr(layer, "quantization", None) is not None


def dequantised(layer: nn.Module) -> torch.Tensor:
    """Return the matrix that a quantised layer multiplies by, (out, in)."""
    weight: Any = layer.weight
    if layer.quantization == "int8":
        whole: torch.Tensor = weight.dequantize()
        return whole
    functional = importlib.import_module("bitsandbytes").functional
    of_blocks: torch.Tensor = functional.dequantize_4bit(weight.data, weight.quant_state)
    return of_blocks


def _replace(
    block: nn.Module,
    name: str,
    layer: nn.Linear,
    convert: Callable[[nn.Linear, torch.device], nn.Module],
    device: torch.device,
) -> None:
    quantised = convert(layer, device)
    quantised.quantization = "int8" if convert is _int8 else "nf4"  # type: ignore[assignment]
    parent, _, child = name.rpartition(".")
    setattr(block.get_submodule(parent), child, quantised.eval())


def _nf4(layer: nn.Linear, device: torch.device) -> nn.Module:
    made: Any = importlib.import_module("bitsandbytes").nn
    if layer.weight.numel() % _BLOCK:
        raise ContractError(
            f"spec, quantization: nf4 cuts weights into blocks of {_BLOCK}, and a layer of this base has "
            f"{tuple(layer.weight.shape)}; set it to 'int8'"
        )
    with torch.device("meta"):
        quantised: nn.Module = made.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=layer.weight.dtype,
            quant_type="nf4",
            compress_statistics=False,
        )
    quantised.weight = made.Params4bit(
        layer.weight.detach(),
        requires_grad=False,
        quant_type="nf4",
        blocksize=_BLOCK,
        compress_statistics=False,
        module=quantised,
    )
    if layer.bias is not None:
        quantised.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    # With AVX512-BF16 the first pass without gradients would lay the weights out for a kernel of bfloat16
    # that has no backward pass: gradients after it would be wrong, without a word.
    quantised.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    # Moving is what quantises.
    return quantised.to(device)


def _int8(layer: nn.Linear, device: torch.device) -> nn.Module:
    quantization: Any = importlib.import_module("torchao.quantization")
    quantised = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    quantised.weight = nn.Parameter(layer.weight.detach().to(device), requires_grad=False)
    if layer.bias is not None:
        quantised.bias = nn.Parameter(layer.bias.detach().to(device), requires_grad=False)
    quantization.quantize_(quantised, quantization.Int8WeightOnlyConfig())
    return quantised


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
