"""Named LoRA adapters, each with its heads, on one frozen transformer: added, loaded, saved, dropped.
An adapter may also be a copy of all the base's weights, for full fine-tuning; the same calls serve it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from training.contract import ContractError, LoraSettings, Manifest, read_manifest
from training.rlhf.model import lora_targets
from training.rlhf.model.adapter_files import ADAPTER_FILE, load_heads, lora_config, read_lora_settings
from training.rlhf.model.adapter_switching import Adapter, SwitchedModel
from training.rlhf.model.base_model import refuse_not_finite
from training.rlhf.model.full_weights import (
    all_weights,
    gathered_weights,
    holds_all_weights,
    save_model_folder,
    write_all_weights,
)
from training.rlhf.model.low_rank import add_low_rank, drop_low_rank, low_rank_state, write_low_rank


class AdaptedModel(SwitchedModel):
    """A frozen transformer whose adapters are added, trained, saved and dropped by name."""

    def fitted(self, settings: LoraSettings) -> LoraSettings:
        """Return the same settings in terms of the base: layers that it has, and all of its blocks as all."""
        return lora_targets.fitted(self._model, settings, base=self.folder.name)

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
