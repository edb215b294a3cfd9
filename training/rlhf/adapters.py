"""Named LoRA adapters, each with its heads, on one frozen transformer: added, switched, saved, dropped."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
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

from training.contract import ContractError, LoraSettings, Manifest, read_manifest
from training.rlhf.adapter_files import (
    ADAPTER_FILE,
    base_digest,
    load_heads,
    lora_config,
    read_lora_settings,
)
from training.rlhf.base_model import refuse_not_finite

_PEFT_PREFIX = "base_model.model."
"""How peft's own files name the wrapped model; written so that plain peft loads our adapters."""


@dataclass(slots=True)
class _Adapter:
    """One adapter. `key` is its name inside peft, where a dot is not allowed."""

    key: str
    settings: LoraSettings
    trainable: bool
    heads: dict[str, nn.Linear] = field(default_factory=dict)
    extras: dict[str, nn.Parameter] = field(default_factory=dict)
    """What else is learned with a head, as `head.name`: thresholds, log odds of ties."""


class AdaptedModel:
    """A frozen transformer with named adapters, of which one at a time, or none, is active."""

    def __init__(self, model: Any, *, folder: Path) -> None:
        self._model = model
        self._adapters: dict[str, _Adapter] = {}
        self._adapted: list[Any] = []
        self._active: str | None = None
        self._dropout = False
        self._created = 0
        self.folder = folder
        self.config: Any = model.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self._model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the frozen base."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    @property
    def hidden_size(self) -> int:
        """Width of a hidden state."""
        return int(self._model.get_output_embeddings().weight.shape[1])

    @property
    def blocks(self) -> int:
        """Transformer blocks of the base."""
        return int(self.config.num_hidden_layers)

    @functools.cached_property
    def base_digest(self) -> str:
        """SHA-256 over the names and contents of the base's weights and tokenizer files."""
        return base_digest(self.folder)

    def fitted(self, settings: LoraSettings) -> LoraSettings:
        """The same settings, with as many blocks as the base has, or more, written as all of them."""
        if settings.layers is not None and settings.layers >= self.blocks:
            return replace(settings, layers=None)
        return settings

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that are there, in the order of their adding."""
        return tuple(self._adapters)

    @property
    def active(self) -> str | None:
        """Name of the adapter in use; None when the model is the base."""
        return self._active

    def add_adapter(self, name: str, settings: LoraSettings, *, seed: int, trainable: bool = True) -> None:
        """Add a new adapter, which changes nothing until it is trained.

        Factor A is drawn from `seed` alone, factor B is 0. The caller's random state is left
        as it was. Raises `ContractError` for a taken name or a target that the base lacks.
        """
        if name in self._adapters:
            raise ContractError(f"adapter {name!r} is already there; drop it first")
        present = {module.rpartition(".")[2] for module, _ in self._model.named_modules()}
        missing = [target for target in settings.targets if target not in present]
        if missing:
            linear = {
                name.rpartition(".")[2]
                for name, module in self._model.get_decoder().named_modules()
                if getattr(module, "weight", None) is not None
                and module.weight.ndim == 2
                and not isinstance(module, nn.Embedding)
            }
            raise ContractError(
                f"lora, targets: {self.folder.name} has no layer {', '.join(missing)}; name some of "
                f"{', '.join(sorted(linear))}"
            )
        settings = self.fitted(settings)
        adapter = _Adapter(f"adapter{self._created}", settings, trainable)
        self._created += 1
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft warns of every adapter after the first: many adapters are what this class is for.
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")
            torch.manual_seed(seed)
            inject_adapter_in_model(lora_config(settings, blocks=self.blocks), self._model, adapter.key)
        cast_adapter_dtype(self._model, adapter.key)
        self._model.eval()
        self._adapters[name] = adapter
        self._activate(self._active)

    def add_head(self, name: str, head: str, *, seed: int, outputs: int = 1, scale: float = 1.0) -> None:
        """Give adapter `name` a linear head, (outputs, hidden), float32, without bias.

        Drawn from a normal distribution with standard deviation scale/√(hidden + 1) (Stiennon et al. 2020).
        """
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(outputs, self.hidden_size, generator=generator) / math.sqrt(self.hidden_size + 1)
        self._set_head(name, head, scale * weight)

    def add_extra(self, name: str, extra: str, value: Tensor) -> nn.Parameter:
        """Give adapter `name` a float32 parameter beside its heads, named `head.what`; it is learned and
        saved with them."""
        adapter = self._adapter(name)
        parameter = nn.Parameter(value.detach().to(self.device, torch.float32, copy=True))
        parameter.requires_grad_(adapter.trainable)
        adapter.extras[extra] = parameter
        return parameter

    def extra(self, name: str, extra: str) -> nn.Parameter:
        """A parameter that `add_extra` or a checkpoint brought."""
        extras = self._adapter(name).extras
        if extra not in extras:
            raise ContractError(f"adapter {name!r} has no parameter {extra!r}")
        return extras[extra]

    def extras(self, name: str) -> tuple[str, ...]:
        """Names of the parameters beside the heads of adapter `name`."""
        return tuple(self._adapter(name).extras)

    def _set_head(self, name: str, head: str, weight: Tensor) -> None:
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
        state = {key.removeprefix(_PEFT_PREFIX): value for key, value in adapter.items()}
        expected = {key.removeprefix(_PEFT_PREFIX) for key in self.adapter_state(name)}
        if set(state) != expected:
            odd = sorted(set(state) ^ expected)
            raise ContractError(f"the adapter's tensors do not fit the base, beginning with {odd[0]}")
        try:
            set_peft_model_state_dict(self._model, state, adapter_name=self._adapter(name).key)
        except RuntimeError as error:
            raise ContractError(f"the adapter's tensors do not fit the base ({error})") from error
        for head, value in heads.items():
            # A dot tells what belongs to a head from the head itself.
            if "." in head:
                self.add_extra(name, head, value)
            else:
                self._set_head(name, head, value)
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
        with warnings.catch_warnings():
            # peft warns that it activates another adapter; which one is active is set below.
            warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
            delete_adapter(self._model, adapter.key, prefix="lora_")
        del self._model.peft_config[adapter.key]
        del self._adapters[name]
        self._activate(self._active)

    def _adapter(self, name: str) -> _Adapter:
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

    def _switch(self, name: str | None, *, dropout: bool) -> None:
        """Make another adapter the active one; what takes gradients stays as `_activate` left it.

        peft's own switch goes through all parameters too. Where activations are computed again it would be
        made twice for every block.
        """
        key = None if name is None else self._adapter(name).key
        for layer in self._adapted:
            layer._disable_adapters = key is None
            if key is not None:
                layer._active_adapter = [key]
            if dropout or self._dropout:
                for dropout_key, module in layer.lora_dropout.items():
                    module.train(dropout and dropout_key == key)
        self._active, self._dropout = name, dropout

    def _activate(self, name: str | None, *, dropout: bool = False) -> None:
        key = None if name is None else self._adapter(name).key
        self._adapted = [module for module in self._model.modules() if isinstance(module, BaseTunerLayer)]
        if self._adapters:
            if key is not None:
                set_adapter(self._model, key, inference_mode=True)
            for layer in self._adapted:
                layer.enable_adapters(key is not None)
                for dropout_key, module in layer.lora_dropout.items():
                    module.train(dropout and dropout_key == key)
            # peft lets only the active adapter take gradients. A backward pass may come after
            # the switch to the reference, so what is trainable must stay trainable throughout.
            for adapter in self._adapters.values():
                set_requires_grad(self._model, adapter.key, requires_grad=adapter.trainable)
        self._active, self._dropout = name, dropout

    def lora_settings(self, name: str) -> LoraSettings:
        """How adapter `name` is shaped."""
        return self._adapter(name).settings

    def heads(self, name: str) -> tuple[str, ...]:
        """Names of the scalar heads of adapter `name`."""
        return tuple(self._adapter(name).heads)

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        """Parameters of adapter `name` and its heads by name, in an order that never changes."""
        adapter = self._adapter(name)
        marker = f".{adapter.key}."
        found = {key: value for key, value in self._model.named_parameters() if marker in key}
        for head, linear in adapter.heads.items():
            found[f"heads.{head}"] = linear.weight
        for extra, parameter in adapter.extras.items():
            found[f"heads.{extra}"] = parameter
        return found

    def adapter_state(self, name: str) -> dict[str, Tensor]:
        """Tensors of adapter `name` under the names that plain peft reads from a file."""
        key = self._adapter(name).key
        state = get_peft_model_state_dict(self._model, adapter_name=key, save_embedding_layers=False)
        return {_PEFT_PREFIX + name: value for name, value in state.items()}

    def head_state(self, name: str) -> dict[str, Tensor]:
        """Weights of the heads of adapter `name`, (outputs, hidden) each, and what is learned with them."""
        adapter = self._adapter(name)
        heads = {head: linear.weight.detach() for head, linear in adapter.heads.items()}
        return heads | {extra: parameter.detach() for extra, parameter in adapter.extras.items()}

    def adapter_config(self, name: str) -> dict[str, Any]:
        """The adapter's configuration as plain peft reads it; the same bytes on every machine."""
        values = lora_config(self._adapter(name).settings, blocks=self.blocks).to_dict()
        values = {key: sorted(value) if isinstance(value, set) else value for key, value in values.items()}
        return {**values, "base_model_name_or_path": self.folder.name, "inference_mode": True}
