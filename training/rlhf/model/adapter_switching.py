"""A frozen transformer with named adapters, of which one at a time, or none, computes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft.functional import set_adapter, set_requires_grad
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from training.contract import ContractError, LoraSettings, Quantization, base_digest
from training.rlhf.model.base_model import load_base_model
from training.rlhf.model.lora_layer import Share, mixing


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
                shares.append(Share(adapter.key, slice(start, start + tokens)))
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
