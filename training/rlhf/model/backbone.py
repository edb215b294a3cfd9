"""One frozen transformer that carries many LoRA adapters and small heads.

Policy, reward model and every older checkpoint are adapters on one copy of the weights;
with all adapters off the model is the base, and so the reference. The base keeps the dtype
it was loaded in, adapters and heads are float32. A backbone has one active adapter at a
time, so it serves one thread at a time. Where all weights are trained (`add_adapter` with None) the adapter
is a transformer of its own, float32, which takes the place of the base until that is asked for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from training.contract import ContractError
from training.rlhf.model.adapters import AdaptedModel
from training.rlhf.model.attention import Layout, packed_states
from training.rlhf.model.base_model import load_base_model
from training.rlhf.model.sharding import Turnstile, shard_base
from training.rlhf.runtime.processes import Processes

SCORE = "score"
"""Name of the scalar head of a reward model."""


class Encoded(NamedTuple):
    """Hidden states of token ids."""

    states: Tensor
    """Last hidden states after the final norm, (batch, tokens, hidden)."""
    cache: Any
    """Keys and values for the next call; None unless asked for."""


class Backbone(AdaptedModel):
    """One frozen transformer, its tokenizer, and named adapters with their heads."""

    def __init__(self, model: Any, tokenizer: Any, *, folder: Path) -> None:
        super().__init__(model, folder=folder)
        self.tokenizer = tokenizer
        self.turnstile: Turnstile | None = None
        """Where processes wait for each other when the base is sharded over them."""

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        shard_over: Processes | None = None,
    ) -> Backbone:
        """Load the base model in `folder` (transformers format, safetensors), frozen, on `device`.

        With `shard_over` each of these processes keeps a part of it, and they must make their backward
        passes by `backward`; `turnstile` is what they wait at before they exchange anything else.

        Never downloads and never runs code that comes with a model. Raises `ContractError`
        where the folder holds no such model, has no fast tokenizer or no chat template.
        """
        if shard_over is None or shard_over.world == 1:
            return cls(*load_base_model(folder, device=device, dtype=dtype), folder=folder)
        model, tokenizer = load_base_model(folder, device="cpu", dtype=dtype)
        shard_base(model, shard_over, torch.device(device))
        backbone = cls(model, tokenizer, folder=folder)
        backbone.turnstile = Turnstile(backbone._idle_pass)
        return backbone

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Encoded:
        """Run the transformer with the active adapter, without the LM head.

        input_ids: (batch, tokens). attention_mask: (batch, past + tokens), 1 for real tokens.
        position_ids: (batch, tokens); left out, they count the mask's ones, so that padding on
        either side changes nothing.
        """
        if position_ids is None:
            position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        self._before_forward()
        output = self._computing(self._active).get_decoder()(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )
        return Encoded(output.last_hidden_state, output.past_key_values if use_cache else None)

    def packed_states(self, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
        """Run the transformer with the active adapter over one packed row: (1, T) to (T, hidden)."""
        self._before_forward()
        return packed_states(self._computing(self._active), input_ids, position_ids, layout)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a loss, at the same time in all processes where they share the base."""
        if self.turnstile is not None:
            self.turnstile.backward()
        loss.backward()  # type: ignore[no-untyped-call]

    def _before_forward(self) -> None:
        if self.turnstile is not None:
            active = self._active is not None and self._adapter(self._active).trainable
            self.turnstile.forward(learning=active and torch.is_grad_enabled())

    def _idle_pass(self, learning: bool) -> Tensor:
        """Run a pass over one token, which the other processes wait for."""
        name = next((name for name, adapter in self._adapters.items() if adapter.trainable), None)
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        with self.using(name if learning else None), torch.set_grad_enabled(learning):
            output = self._model.get_decoder()(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
            )
        states: Tensor = output.last_hidden_state
        return states

    def checkpoint_activations(self, on: bool) -> None:
        """Return whether a backward pass computes each block's activations again instead of keeping them."""
        for model in self._transformers:
            if on:
                model.activation_checkpointing_enable({"use_reentrant": False, "context_fn": self._as_it_was})
            else:
                model.activation_checkpointing_disable()
            for layer in model.get_decoder().layers:
                # The blocks' own flag alone, which is what transformers asks for: dropout is not theirs.
                layer.training = on

    def _as_it_was(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The backward pass comes when another adapter may be active: blocks are computed again under the
        one that they were computed under."""
        return nullcontext(), self.using(self._active, dropout=self._dropout)

    def logits(self, states: Tensor) -> Tensor:
        """The LM head under the active adapter: (…, hidden) to (…, vocabulary), in the base's dtype."""
        logits: Tensor = self.lm_head(self._active)(states)
        return logits

    def lm_head(self, name: str | None) -> nn.Module:
        """The LM head that belongs to adapter `name`, whatever is active. It is trained where the adapter is
        all of the weights."""
        head: nn.Module = self._computing(name).get_output_embeddings()
        return head

    def score(self, name: str, states: Tensor, *, head: str = SCORE) -> Tensor:
        """The mean of a head's outputs, which are one score or those of an ensemble: (N, hidden) to (N,).

        `states` are those at the tokens that are scored, computed with that adapter active.
        """
        return self.outputs(name, states, head=head).mean(-1)

    def outputs(self, name: str, states: Tensor, *, head: str = SCORE) -> Tensor:
        """Return all outputs of a head: (N, hidden) to (N, outputs), float32."""
        heads = self._adapter(name).heads
        if head not in heads:
            raise ContractError(f"adapter {name!r} has no head {head!r}; it is no reward model")
        values: Tensor = heads[head](states.float())
        return values
