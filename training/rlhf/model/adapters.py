"""Named LoRA adapters, each with its heads, on one frozen transformer: added, loaded, saved, dropped.
An adapter may also be a copy of all the base's weights, for full fine-tuning; the same calls serve it.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.functional import (
    cast_adapter_dtype,
    delete_adapter,
    get_peft_model_state_dict,
    inject_adapter_in_model,
    set_adapter,
    set_peft_model_state_dict,
    set_requires_grad,
)
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.pytorch_utils import Conv1D

from training.contract import ContractError, read_manifest
from training.contract.checkpoint import HEADS_FILE, TOKENIZER_FILES, Manifest, base_digest
from training.contract.methods.common import ALL_LINEAR, LoraSettings
from training.contract.run import Quantization
from training.rlhf.model.base_model import load_base_model, refuse_not_finite
from training.rlhf.model.families import decoder_in
from training.rlhf.model.linear_layers import AdapterSlice, LoraLinear, mixing

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"


def read_lora_settings(folder: Path) -> LoraSettings:
    """Return the LoRA shape of a checkpoint folder's adapter. Raises `ContractError` if it is no LoRA."""
    path = folder / ADAPTER_CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        chosen = values.get("layers_to_transform")
        return LoraSettings(
            rank=values["r"],
            alpha=float(values["lora_alpha"]),
            dropout=float(values["lora_dropout"]),
            targets=tuple(values["target_modules"]),
            layers=None if chosen is None else len(chosen),
            last=None if chosen is None else max(chosen) + 1,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ContractError(f"{path}: no LoRA adapter is described here ({error})") from error


def last_adapted_block(folder: Path) -> int | None:
    """Return the last block that a checkpoint's adapter lies on; None where it lies on all, or is none."""
    return read_lora_settings(folder).last if (folder / ADAPTER_CONFIG_FILE).is_file() else None


def lora_config(settings: LoraSettings, *, blocks: int) -> Any:
    """peft's configuration of an adapter shaped as `settings` say, for a base of so many blocks."""
    last = settings.last or blocks
    layers = settings.layers or last
    chosen = None if layers == blocks else list(range(last - layers, last))
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.targets),
        layers_to_transform=chosen,
        task_type="CAUSAL_LM",
    )
    # One entry: peft looks at the first alone.
    config._register_custom_module({(nn.Linear, Conv1D): LoraLinear})
    return config


def load_heads(folder: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Return the heads in a checkpoint folder, with what was learned beside them under `head.name`.

    Raises `ContractError` unless the heads are those of the manifest.
    """
    # A policy may have no head, and yet log odds of ties beside it.
    tensors = load_file(folder / HEADS_FILE) if HEADS_FILE in manifest.files else {}
    heads = sorted(name for name in tensors if "." not in name)
    if heads != sorted(manifest.heads):
        raise ContractError(f"{HEADS_FILE} holds heads {heads}, the manifest names {manifest.heads}")
    return tensors


# ── The linear layers that adapters lie on: their names in a base, and those that settings ask for ──
#
# Blocks of the Llama kind have seven linear layers under seven names. Other families join them into fewer,
# name them otherwise, or keep their experts' weights in one tensor, which is no linear layer.

_ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Linear layers that choose experts, or weigh them. Adapters leave the choice as it was trained."""
_EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""Attributes of the modules that hold a router."""
_EXPERTS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"})
"""Names that peft takes for those of experts where a base has these as one tensor. It would adapt all of
them, which rows of several adapters cannot mix."""

_FUSED = frozenset({"out_proj", "dt_proj"})
"""Linear layers whose weights Mamba's kernels read for themselves, past whatever lies on the layer; peft
refuses the first."""
_FUSING = frozenset({"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"})

_DEFAULT = frozenset(LoraSettings().targets)


def fitted_targets(model: Any, settings: LoraSettings, *, base: str) -> LoraSettings:
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
    decoder = decoder_in(model)
    linear = {name.removeprefix(".") for name, _ in _linear_in(decoder, "")}
    inside = tuple(f"{name}." for name in linear)
    others = {
        name.rpartition(".")[2]
        for name, _ in decoder.named_modules()
        if name not in linear and not name.startswith(inside)
    }
    names = frozenset(name.rpartition(".")[2] for name in linear) - others
    if model.config.model_type in _FUSING:
        names -= _FUSED
    return names - _EXPERTS if _has_experts(model) else names


def _has_experts(model: Any) -> bool:
    """Return whether experts' weights are one tensor of three dimensions."""
    return any(parameter.ndim > 2 for parameter in decoder_in(model).parameters())


def _routers(model: Any) -> frozenset[str]:
    """Return the names of layers that choose experts: those of `_ROUTERS`, and those with as many outputs as
    the module that they are in counts experts."""
    decoder = decoder_in(model)
    found = {
        name.rpartition(".")[2]
        for name, outputs in _linear_in(decoder, "")
        if outputs in _expert_counts(decoder.get_submodule(name.rpartition(".")[0].removeprefix(".")))
    }
    return _ROUTERS | found


def _expert_counts(module: nn.Module) -> set[int]:
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


# ── All weights of a transformer as one adapter: its tensors, and a folder that transformers loads ──


def holds_all_weights(folder: Path) -> bool:
    """Return whether a checkpoint's folder is a model of its own."""
    return (folder / "config.json").is_file() and not (folder / ADAPTER_FILE).exists()


def all_weights(model: Any) -> dict[str, Tensor]:
    """Return every weight by its name in the model; what several layers share stands here once."""
    return {name: value.detach() for name, value in model.named_parameters()}


@torch.no_grad()
def write_all_weights(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite a model's weights with those that `all_weights` gave."""
    there = all_weights(model)
    odd = sorted(
        name
        for name in there.keys() | tensors.keys()
        if name not in there or name not in tensors or there[name].shape != tensors[name].shape
    )
    if odd:
        raise ContractError(f"the weights do not fit the base, beginning with {odd[0]}")
    for name, value in there.items():
        value.copy_(tensors[name])


def gathered_weights(model: Any, *, keep: bool) -> dict[str, Tensor]:
    """Return all weights of a model that is cut over processes, which all call this; on the CPU.

    keep: whether this process wants them; one that does not never holds more than one tensor.
    """
    weights: dict[str, Tensor] = {}
    for name, value in all_weights(model).items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            weights[name] = whole.cpu()
    return weights


def save_model_folder(
    model: Any, folder: Path, *, base: Path, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write weights and configuration in transformers' format, and the tokenizer's files that `base` has.

    weights: those of a model that is cut.
    """
    model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
    for name in TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


# ── LoRA layers of one transformer, by an adapter's key in peft ─────────────────────────

_PEFT_PREFIX = "base_model.model."
"""Prefix of the wrapped model in peft's own files; written so that plain peft loads our adapters."""


def add_low_rank(model: Any, key: str, settings: LoraSettings, *, seed: int) -> None:
    """Add factors A, drawn from `seed` alone, and B, which are 0. The caller's random state is left as it
    was.

    settings: with targets that the model has (`fitted_targets`).
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft warns of every adapter after the first: many adapters are what this is for.
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        torch.manual_seed(seed)
        config = lora_config(settings, blocks=int(model.config.num_hidden_layers))
        with _whole_shapes(model):
            inject_adapter_in_model(config, model, key)
    cast_adapter_dtype(model, key)
    model.eval()


@contextmanager
def _whole_shapes(model: Any) -> Iterator[None]:
    """Inside, weights that are cut over processes have the shape of the whole, without memory for it: peft
    takes cut rows for those that the layer computes."""
    cut = [
        (module, module.weight)
        for module in model.modules()
        if isinstance(module, nn.Linear | Conv1D) and isinstance(module.weight, DTensor)
    ]
    for module, weight in cut:
        shown = torch.empty(1, 1, dtype=weight.dtype, device=weight.device).expand(weight.shape)
        module.weight = nn.Parameter(shown, requires_grad=False)
    try:
        yield
    finally:
        for module, weight in cut:
            module.weight = weight


def low_rank_state(model: Any, key: str) -> dict[str, Tensor]:
    """Return the adapter's tensors under the names that plain peft reads from a file."""
    state = get_peft_model_state_dict(model, adapter_name=key, save_embedding_layers=False)
    return {_PEFT_PREFIX + name: value for name, value in state.items()}


def write_low_rank(model: Any, key: str, tensors: Mapping[str, Tensor]) -> None:
    """Overwrite the adapter with tensors as `low_rank_state` gave them."""
    expected, actual = low_rank_state(model, key).keys(), tensors.keys()
    if expected != actual:
        odd = sorted(name.removeprefix(_PEFT_PREFIX) for name in expected ^ actual)
        raise ContractError(f"the adapter's tensors do not fit the base, beginning with {odd[0]}")
    state = {name.removeprefix(_PEFT_PREFIX): value for name, value in tensors.items()}
    try:
        set_peft_model_state_dict(model, state, adapter_name=key)
    except RuntimeError as error:
        raise ContractError(f"the adapter's tensors do not fit the base ({error})") from error


def drop_low_rank(model: Any, key: str) -> None:
    """Take the adapter away."""
    with warnings.catch_warnings():
        # peft warns that it activates another adapter; which one is active is the caller's to say.
        warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
        delete_adapter(model, key, prefix="lora_")
    del model.peft_config[key]


# ── A frozen transformer with named adapters, of which one at a time, or none, computes ──


@dataclass(slots=True)
class Adapter:
    """One adapter. `key` is its name inside peft, where a dot is not allowed."""

    key: str
    settings: LoraSettings | None
    trainable: bool
    whole: Any = None
    """A transformer of its own where the adapter is all of the base's weights; else None."""
    heads: dict[str, nn.Linear] = field(default_factory=dict)
    extras: dict[str, nn.Parameter] = field(default_factory=dict)
    """Further parameters learned with a head, as `head.name`: thresholds, log odds of ties."""


class SwitchedModel:
    """A frozen transformer and the adapters on it: which of them is active, and what computes then."""

    def __init__(self, model: Any, *, folder: Path) -> None:
        self._base: Any | None = model
        """The frozen transformer with its low-rank adapters; None once its weights are trained themselves,
        until somebody asks for the base again."""
        self._adapters: dict[str, Adapter] = {}
        self._adapted: list[Any] = []
        self._active: str | None = None
        self._dropout = False
        self._created = 0
        self.folder = folder
        self.config: Any = model.config
        self.device: torch.device = model.device
        """Device of the weights."""
        self.dtype: torch.dtype = model.dtype
        """Precision of the frozen base."""
        self.quantization: Quantization = "none"
        """Bits of its linear layers; they cannot be trained themselves."""
        self.hidden_size = int(model.get_output_embeddings().weight.shape[1])
        """Width of a hidden state."""

    @property
    def precision(self) -> str:
        """Return what the base computes in, as caches of its results name it."""
        return str(self.dtype) if self.quantization == "none" else f"{self.dtype} {self.quantization}"

    @property
    def _model(self) -> Any:
        """Return the frozen transformer, read again from its folder where its weights went into training."""
        if self._base is None:
            self._base = self._loaded(self.folder, self.dtype)
        return self._base

    def _computing(self, name: str | None) -> Any:
        """Return the transformer that computes while adapter `name` is active."""
        whole = None if name is None else self._adapter(name).whole
        return self._model if whole is None else whole

    @property
    def _transformers(self) -> list[Any]:
        """Return all of them that are loaded."""
        models = [self._base, *(adapter.whole for adapter in self._adapters.values())]
        return [model for model in models if model is not None]

    def is_whole(self, name: str) -> bool:
        """Return whether adapter `name` is all of the base's weights."""
        return self._adapter(name).whole is not None

    @property
    def shares_base(self) -> bool:
        """Return whether transformers are cut over several processes."""
        return False

    @property
    def blocks(self) -> int:
        """Transformer blocks of the base."""
        return int(self.config.num_hidden_layers)

    @functools.cached_property
    def base_digest(self) -> str:
        """SHA-256 over the names and contents of the base's weights and tokenizer files."""
        return base_digest(self.folder)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of the adapters that are there, in the order of their adding."""
        return tuple(self._adapters)

    @property
    def active(self) -> str | None:
        """Return the name of the adapter in use; None when the model is the base."""
        return self._active

    @property
    def _low_rank(self) -> list[Adapter]:
        """Return the adapters that lie on the frozen base."""
        return [adapter for adapter in self._adapters.values() if adapter.whole is None]

    def _loaded(self, folder: Path, dtype: torch.dtype) -> Any:
        """The transformer in `folder`, frozen, in this precision."""
        return load_base_model(folder, device=self.device, dtype=dtype)[0]

    def _adapter(self, name: str) -> Adapter:
        if name not in self._adapters:
            there = ", ".join(self._adapters) or "none"
            raise ContractError(f"adapter {name!r} is not loaded; loaded are: {there}")
        return self._adapters[name]

    @contextmanager
    def using(self, name: str | None, *, dropout: bool = False) -> Iterator[None]:
        """Inside, adapter `name` is active; None turns all adapters off, which is the base exactly.

        `dropout` turns the adapter's dropout on. What was active before is active again after.
        """
        previous, dropped = self._active, self._dropout
        self._switch(name, dropout=dropout)
        try:
            yield
        finally:
            self._switch(previous, dropout=dropped)

    @contextmanager
    def mixing(self, stretches: Sequence[tuple[str | None, int]]) -> Iterator[None]:
        """Inside, one pass over a packed row computes under several adapters, without gradient: so many of
        its tokens, in their order, under each; None is the base.

        Raises `ContractError` for an adapter that is all of the weights: it shares no product with others.
        """
        shares, start = [], 0
        for name, tokens in stretches:
            if name is not None:
                adapter = self._adapter(name)
                if adapter.whole is not None:
                    raise ContractError(f"adapter {name!r} is all of the weights and computes by itself")
                shares.append(AdapterSlice(adapter.key, slice(start, start + tokens)))
            start += tokens
        with self.using(None), mixing(shares):
            yield

    def _switch(self, name: str | None, *, dropout: bool) -> None:
        """Make another adapter the active one; what takes gradients stays as `_activate` left it.

        peft's own switch goes through all parameters too. Where activations are computed again it would be
        made twice for every block.
        """
        key = self._peft_key(name)
        for layer in self._adapted:
            layer._disable_adapters = key is None
            if key is not None:
                layer._active_adapter = [key]
            if dropout or self._dropout:
                for dropout_key, module in layer.lora_dropout.items():
                    module.train(dropout and dropout_key == key)
        self._active, self._dropout = name, dropout

    def _activate(self, name: str | None, *, dropout: bool = False) -> None:
        key = self._peft_key(name)
        modules = [] if self._base is None else self._base.modules()
        self._adapted = [module for module in modules if isinstance(module, BaseTunerLayer)]
        if self._low_rank:
            if key is not None:
                set_adapter(self._model, key, inference_mode=True)
            for layer in self._adapted:
                layer.enable_adapters(key is not None)
                for dropout_key, module in layer.lora_dropout.items():
                    module.train(dropout and dropout_key == key)
            # peft lets only the active adapter take gradients. A backward pass may come after
            # the switch to the reference, so what is trainable must stay trainable throughout.
            for adapter in self._low_rank:
                set_requires_grad(self._model, adapter.key, requires_grad=adapter.trainable)
        self._active, self._dropout = name, dropout

    def _peft_key(self, name: str | None) -> str | None:
        """Return the PEFT name active in the base's layers; None for an adapter outside them."""
        adapter = None if name is None else self._adapter(name)
        return None if adapter is None or adapter.whole is not None else adapter.key


class AdaptedModel(SwitchedModel):
    """A frozen transformer whose adapters are added, trained, saved and dropped by name."""

    def fitted(self, settings: LoraSettings) -> LoraSettings:
        """Return the same settings in terms of the base: layers that it has, and all of its blocks as all."""
        return fitted_targets(self._model, settings, base=self.folder.name)

    def add_adapter(
        self, name: str, settings: LoraSettings | None, *, seed: int, trainable: bool = True
    ) -> None:
        """Add a new adapter, which changes nothing until it is trained; with None, all of the base's weights.

        Factor A is drawn from `seed` alone, factor B is 0. The caller's random state is left
        as it was. Raises `ContractError` for a taken name or a target that the base lacks.
        """
        if name in self._adapters:
            raise ContractError(f"adapter {name!r} is already there; drop it first")
        if settings is None:
            self._add_whole(name, self._released(self.folder), trainable=trainable)
        else:
            self._add_low_rank(name, settings, seed=seed, trainable=trainable)

    def _released(self, folder: Path) -> Any:
        """The transformer in `folder`, to be trained: the base's own where nothing else lies on it, so that
        memory holds its weights once."""
        if self.shares_base:
            # Some processes may ask for the base when others do not: it stays. Its part is small.
            return self._loaded(folder, torch.float32)
        if folder == self.folder and self._base is not None and not self._low_rank:
            model, self._base = self._base, None
            return model
        return self._loaded(folder, torch.float32)

    def _add_whole(self, name: str, model: Any, *, trainable: bool) -> None:
        if trainable and self.quantization != "none":
            raise ContractError(
                f"the base is quantised ({self.quantization}) and cannot be trained; set quantization to "
                "'none'"
            )
        # AdamW's steps are smaller than bfloat16 resolves.
        model.float().requires_grad_(trainable)
        self._adapters[name] = Adapter(f"adapter{self._created}", None, trainable, model)
        self._created += 1

    def _add_low_rank(self, name: str, settings: LoraSettings, *, seed: int, trainable: bool) -> None:
        shape = self.fitted(settings)
        adapter = Adapter(f"adapter{self._created}", shape, trainable)
        add_low_rank(self._model, adapter.key, shape, seed=seed)
        self._created += 1
        self._adapters[name] = adapter
        self._activate(self._active)

    def reshape_adapter(self, name: str, settings: LoraSettings, *, seed: int) -> None:
        """Give adapter `name` new factors of another shape, as `add_adapter` draws them; its heads stay."""
        adapter, shape = self._adapter(name), self.fitted(settings)
        drop_low_rank(self._model, adapter.key)
        add_low_rank(self._model, adapter.key, shape, seed=seed)
        adapter.settings = shape
        self._activate(self._active)

    def freeze_head(self, name: str, head: str) -> None:
        """Keep a head of adapter `name` as it is."""
        self._adapter(name).heads[head].requires_grad_(False)

    def add_head(self, name: str, head: str, *, seed: int, outputs: int = 1, scale: float = 1.0) -> None:
        """Give adapter `name` a linear head, (outputs, hidden), float32, without bias.

        Drawn from a normal distribution with standard deviation scale/√(hidden + 1) (Stiennon et al. 2020).
        """
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(outputs, self.hidden_size, generator=generator) / math.sqrt(self.hidden_size + 1)
        self.set_head(name, head, scale * weight)

    def add_extra(self, name: str, extra: str, value: Tensor) -> nn.Parameter:
        """Give adapter `name` a float32 parameter besides its heads, named `head.what`; it is learned and
        saved with them."""
        adapter = self._adapter(name)
        parameter = nn.Parameter(value.detach().to(self.device, torch.float32, copy=True))
        parameter.requires_grad_(adapter.trainable)
        adapter.extras[extra] = parameter
        return parameter

    def extra(self, name: str, extra: str) -> nn.Parameter:
        """Return a parameter that `add_extra` or a checkpoint brought."""
        extras = self._adapter(name).extras
        if extra not in extras:
            raise ContractError(f"adapter {name!r} has no parameter {extra!r}")
        return extras[extra]

    def extras(self, name: str) -> tuple[str, ...]:
        """Return the names of the parameters besides the heads of adapter `name`."""
        return tuple(self._adapter(name).extras)

    def set_head(self, name: str, head: str, weight: Tensor) -> None:
        """Give adapter `name` a linear head of this weight, (outputs, hidden), or another one."""
        if weight.ndim != 2 or weight.shape[1] != self.hidden_size:
            raise ContractError(
                f"head {head!r} has shape {tuple(weight.shape)}, the base needs (outputs, {self.hidden_size})"
            )
        adapter = self._adapter(name)
        linear = nn.Linear(self.hidden_size, len(weight), bias=False, device=self.device, dtype=torch.float32)
        with torch.no_grad():
            linear.weight.copy_(weight)
        adapter.heads[head] = linear.requires_grad_(adapter.trainable)

    def load_adapter(self, name: str, folder: Path, *, trainable: bool = False) -> Manifest:
        """Add the adapter and heads of the checkpoint in `folder` under `name`; return its manifest.

        Every file is checked against the manifest first. Raises `ContractError` where the
        checkpoint is damaged, holds no adapter, or was trained on another base.
        """
        manifest = read_manifest(folder, verify=True)
        if manifest.base_digest != self.base_digest:
            raise ContractError(
                f"{folder}: checkpoint {manifest.name!r} was trained on base {manifest.base_model} "
                f"({manifest.base_digest[:12]}), but {self.folder.name} ({self.base_digest[:12]}) is loaded; "
                "load that base instead"
            )
        if holds_all_weights(folder):
            heads = load_heads(folder, manifest)
            if trainable and not self._low_rank and not self.shares_base:
                self._base = None
            self._add_whole(name, self._released(folder), trainable=trainable)
            self.restore(name, self.adapter_state(name), heads)
            return manifest
        if not (folder / ADAPTER_FILE).is_file():
            raise ContractError(f"{folder}: checkpoint {manifest.name!r} holds no adapter ({ADAPTER_FILE})")
        settings = read_lora_settings(folder)
        tensors, heads = load_file(folder / ADAPTER_FILE), load_heads(folder, manifest)
        refuse_not_finite({**tensors, **heads}, folder, remedy="train this checkpoint again")
        self.add_adapter(name, settings, seed=0, trainable=trainable)
        try:
            self.restore(name, tensors, heads)
        except ContractError as error:
            self.drop_adapter(name)
            raise ContractError(f"{folder}: {error}") from None
        return manifest

    def restore(self, name: str, adapter: Mapping[str, Tensor], heads: Mapping[str, Tensor]) -> None:
        """Overwrite adapter `name` with tensors as `adapter_state` and `head_state` gave them."""
        target = self._adapter(name)
        if target.whole is not None:
            write_all_weights(target.whole, adapter)
        else:
            write_low_rank(self._model, target.key, adapter)
        for head, value in heads.items():
            # A dot distinguishes what belongs to a head from the head itself.
            if "." in head:
                self.add_extra(name, head, value)
            else:
                self.set_head(name, head, value)
        self._activate(self._active)

    def overwrite(self, name: str, adapter: Mapping[str, Tensor], heads: Mapping[str, Tensor]) -> None:
        """Like `restore`, into the parameters that are there: who holds them (an optimiser) keeps them."""
        self.restore(name, adapter, {})
        named = self.parameters(name)
        with torch.no_grad():
            for head, value in heads.items():
                named[f"heads.{head}"].copy_(value)

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter and its heads. The base is again in use where it was active."""
        adapter = self._adapter(name)
        if self._active == name:
            self._activate(None)
        if adapter.whole is None:
            drop_low_rank(self._model, adapter.key)
        del self._adapters[name]
        self._activate(self._active)

    def lora_settings(self, name: str) -> LoraSettings | None:
        """Return the LoRA shape of adapter `name`; None for full weights."""
        return self._adapter(name).settings

    def heads(self, name: str) -> tuple[str, ...]:
        """Return the names of the scalar heads of adapter `name`."""
        return tuple(self._adapter(name).heads)

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        """Return parameters of adapter `name` and its heads by name, in an order that never changes."""
        adapter = self._adapter(name)
        marker = f".{adapter.key}."
        named = dict(self._computing(name).named_parameters())
        if adapter.whole is None:
            named = {key: value for key, value in named.items() if marker in key}
        for head, linear in adapter.heads.items():
            named[f"heads.{head}"] = linear.weight
        for extra, parameter in adapter.extras.items():
            named[f"heads.{extra}"] = parameter
        return named

    def adapter_state(self, name: str) -> dict[str, Tensor]:
        """Tensors of adapter `name` under the names that plain peft reads from a file, or transformers where
        they are all of the weights."""
        adapter = self._adapter(name)
        if adapter.whole is not None:
            return all_weights(adapter.whole)
        return low_rank_state(self._model, adapter.key)

    def head_state(self, name: str) -> dict[str, Tensor]:
        """Weights of the heads of adapter `name`, (outputs, hidden) each, and what is learned with them."""
        adapter = self._adapter(name)
        heads = {head: linear.weight.detach() for head, linear in adapter.heads.items()}
        return heads | {extra: parameter.detach() for extra, parameter in adapter.extras.items()}

    def adapter_config(self, name: str) -> dict[str, Any]:
        """Return the adapter's configuration as plain peft reads it; the same bytes on every machine."""
        settings = self.lora_settings(name)
        if settings is None:
            raise ContractError(f"adapter {name!r} is all of the weights and has no configuration of its own")
        values = lora_config(settings, blocks=self.blocks).to_dict()
        values = {key: sorted(value) if isinstance(value, set) else value for key, value in values.items()}
        return {**values, "base_model_name_or_path": self.folder.name, "inference_mode": True}

    def gathered(self, name: str, *, keep: bool) -> dict[str, Tensor] | None:
        """Return all weights of adapter `name`, put together by all processes; None where each has them all.

        keep: True if this process wants them.
        """
        if not (self.shares_base and self.is_whole(name)):
            return None
        return gathered_weights(self._adapter(name).whole, keep=keep)

    def save_whole(self, name: str, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the transformer that adapter `name` is, with its tokenizer, as transformers reads it.

        weights: as `gathered` returned them.
        """
        save_model_folder(self._adapter(name).whole, folder, base=self.folder, weights=weights)
