"""Linear layers of a base: quantised ones, and LoRA on them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from training.contract import ContractError
from training.contract.run import Quantization
from training.rlhf.model.families import decoder_blocks

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
        for block in decoder_blocks(model)
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


# ── peft's LoRA layer with its arithmetic in one piece ──
#
# peft adds the update in four steps, each a tensor as large as the layer's output, and keeps some of them
# for the backward pass. Here the update is added into the output where it lies, and what is kept is the
# input, which other layers share, and its narrow projection. Parameters and files stay peft's own.
#
# Where the base is bfloat16 the adapter's products are taken of bfloat16 factors too, as under autocast, and
# summed up in float32 by the processor; peft takes them in float32. Parameters and gradients stay float32.
#
# Inside `mixing` one pass computes under several adapters: the base's product is taken once for all tokens,
# and each adapter's update is added to its own stretch of them (Chen et al. 2024, Punica; Sheng et al. 2024,
# S-LoRA).


class AdapterSlice(NamedTuple):
    """Consecutive tokens of a packed row that one adapter computes."""

    key: str
    """The adapter's name inside peft."""
    tokens: slice


_SHARES: ContextVar[tuple[AdapterSlice, ...] | None] = ContextVar("shares", default=None)


@contextmanager
def mixing(shares: Sequence[AdapterSlice]) -> Iterator[None]:
    """Inside, every layer adds to each share of a packed row its own adapter's update, whichever adapter is
    active; tokens of no share are the base's."""
    token = _SHARES.set(tuple(shares))
    try:
        yield
    finally:
        _SHARES.reset(token)


class LoraLinear(Linear):  # type: ignore[misc]
    """Computes what `peft.tuners.lora.Linear` computes; whatever is not plain LoRA on a plain linear layer is
    left to that."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer with the active adapter, or those that are mixed: (…, in) to (…, out)."""
        shares = _SHARES.get()
        if shares is not None:
            return self._mixed(x, shares)
        adapter = self._plain_adapter
        if adapter is None or args or kwargs:
            result: Tensor = super().forward(x, *args, **kwargs)
            return result
        base = self.base_layer
        adapted: Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
            x,
            base.weight,
            base.bias,
            self.lora_A[adapter].weight,
            self.lora_B[adapter].weight,
            self.scaling[adapter],
        )
        return adapted

    def _mixed(self, x: Tensor, shares: Sequence[AdapterSlice]) -> Tensor:
        """The base's product of all rows, and on each share its adapter's update: nothing where that adapter
        does not reach this layer."""
        summed: Tensor = self.base_layer(x)
        rows, updated = x.view(-1, x.shape[-1]), summed.view(-1, summed.shape[-1])
        for key, tokens in shares:
            if key in self.lora_A:
                a, b = self.lora_A[key].weight.to(x.dtype), self.lora_B[key].weight.to(x.dtype)
                narrow = (rows[tokens] @ a.t()).mul_(self.scaling[key])
                updated[tokens].addmm_(narrow, b.t())
        return summed

    @property
    def _plain_adapter(self) -> str | None:
        """The one active adapter where it is low-rank and nothing else: no dropout, variant or merging."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return None
        adapter: str = self.active_adapters[0]
        plain = (
            adapter in self.lora_A
            and adapter not in self.lora_variant
            and type(self.base_layer) is nn.Linear
            and not is_quantised(self.base_layer)
            and not self.base_layer.weight.requires_grad
            and not (
                isinstance(self.lora_dropout[adapter], nn.Dropout) and self.lora_dropout[adapter].training
            )
            and self.lora_B[adapter].bias is None
        )
        return adapter if plain else None


class _Adapted(torch.autograd.Function):
    """x Wᵀ + b + s · (x Aᵀ) Bᵀ with gradients for x, A and B; W and b are frozen."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, weight, bias, a, b, scaling = arguments
        rows = x.reshape(-1, x.shape[-1])
        ctx.dtype = a.dtype
        a, b = a.to(x.dtype), b.to(x.dtype)
        narrow = (rows @ a.t()).mul_(scaling)
        summed = F.linear(rows, weight, bias).addmm_(narrow, b.t())
        ctx.save_for_backward(x, weight, a, b, narrow)
        ctx.scaling = scaling
        return summed.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b, narrow = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        of_x, of_a, of_b = ctx.needs_input_grad[0], ctx.needs_input_grad[3], ctx.needs_input_grad[4]
        back = (gradient @ b).mul_(ctx.scaling) if of_x or of_a else None
        x_gradient = (gradient @ weight).addmm_(back, a).view(x.shape) if of_x else None
        rows = x.reshape(-1, x.shape[-1])
        a_gradient = (back.t() @ rows).to(ctx.dtype) if back is not None and of_a else None
        b_gradient = (gradient.t() @ narrow).to(ctx.dtype) if of_b else None
        return x_gradient, None, None, a_gradient, b_gradient, None
