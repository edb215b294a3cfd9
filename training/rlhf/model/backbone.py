"""One frozen transformer that carries many LoRA adapters and small heads.

Policy, reward model and every older checkpoint are adapters on one copy of the weights;
with all adapters off the model is the base, and so the reference. The base keeps the dtype
it was loaded in, adapters and heads are float32. A backbone has one active adapter at a
time, so it serves one thread at a time. Where all weights are trained (`add_adapter` with None) the adapter
is a transformer of its own, float32, which takes the place of the base until that is asked for. It computes
in the dtype of the base.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers.modeling_layers import GradientCheckpointingLayer

from training.contract import ContractError
from training.contract.run import Quantization, Sharding
from training.rlhf.model.adapters import AdaptedModel
from training.rlhf.model.attention import Layout, Segment, computing, current_layout, packed_states
from training.rlhf.model.base_model import load_base_model, load_shared_base
from training.rlhf.model.families import decoder_blocks, decoder_in, output_head
from training.rlhf.model.padded_rows import PaddedRows, RowCache, packs_rows, padded_states
from training.rlhf.model.sharding import Turnstile, make_mesh
from training.rlhf.model.templates import add_turn_end
from training.rlhf.runtime.processes import Processes

# ── Places in a transformer whose states a head on whole completions may read ──


class Place(NamedTuple):
    """The states after one block, taken over a completion's tokens or at its last one."""

    layer: int
    """Number of the block, from 1; of the last block the states after the final norm. 0: see `TEXT`."""
    mean: bool
    """True: the mean over the completion's tokens; False: the state at its last token."""

    def __str__(self) -> str:
        return f"{'mean' if self.mean else 'last token'} of layer {self.layer}"

    def to_tensor(self) -> Tensor:
        """Return the place as a checkpoint stores it, (2,)."""
        return torch.tensor([float(self.layer), float(self.mean)])

    @classmethod
    def from_tensor(cls, values: Tensor) -> Place:
        """Return the place that `to_tensor` stored."""
        layer, mean = values.tolist()
        return cls(round(layer), bool(round(mean)))


TEXT = Place(0, mean=True)
"""No block: a head there reads what can be counted in the text, in the first columns of an empty state."""


# ── Ids of a model that its tokenizer does not have: makers pad a vocabulary to a round size ──
#
# Such an id has no text. Sampling never draws one, and a policy is the distribution over the others: the
# log-probabilities that sampler and trainer compare leave them out alike. Supervised and preference losses,
# whose texts hold none, are those of the whole vocabulary.


class UnknownTokens:
    """The ids below `size` that a tokenizer does not have."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.ids = frozenset(range(size)) - frozenset(tokenizer.get_vocab().values())
        self._end = size
        """From here on all ids are unknown."""
        while self._end and self._end - 1 in self.ids:
            self._end -= 1
        self._holes = torch.tensor(sorted(id for id in self.ids if id < self._end), dtype=torch.long)

    def exclude(self, logits: Tensor) -> Tensor:
        """Make the ids impossible in logits (…, vocabulary), in place; return the logits."""
        if self.ids:
            logits[..., self._end :] = -torch.inf
        if len(self._holes):
            self._holes = self._holes.to(logits.device)
            logits[..., self._holes] = -torch.inf
        return logits


class KnownTokensHead(nn.Module):
    """An output head without the ids that the tokenizer does not have."""

    def __init__(self, head: nn.Module, unknown: UnknownTokens) -> None:
        super().__init__()
        self._head, self._unknown = head, unknown

    def forward(self, states: Tensor) -> Tensor:
        """Return the head's logits, −∞ for such ids."""
        return self._unknown.exclude(self._head(states))


SCORE = "score"
"""Name of the scalar head of a reward model."""
READS = f"{SCORE}.reads"
"""Place where that head reads, see `Place`; the last token of the last block without it."""
BOUNDS = f"{SCORE}.bounds"
"""Name of the bounds of what a score reads of a text, (2, features): the least and the greatest."""
OFFSET = f"{SCORE}.offset"
"""A constant added to its outputs, (1,)."""
COVARIATES = f"{SCORE}.covariates"
"""Coefficients of the answers that explained preferences beside it, (K,): a record, which no score reads."""


class _HighestReachedError(Exception):
    """The blocks above are not needed."""


def _leave(_module: nn.Module, _inputs: Any) -> None:
    raise _HighestReachedError


class Encoded(NamedTuple):
    """Hidden states of token ids."""

    states: Tensor
    """Last hidden states after the final norm, (batch, tokens, hidden)."""


class Shared(NamedTuple):
    """The processes that transformers are cut over."""

    mesh: DeviceMesh
    processes: Processes


class _Rounded(nn.Module):
    """An output head that computes in another precision than its weights have."""

    def __init__(self, head: nn.Module, precision: AbstractContextManager[None]) -> None:
        super().__init__()
        self._head, self._precision = head, precision

    def forward(self, states: Tensor) -> Tensor:
        """Return the head's logits of states."""
        with self._precision:
            logits: Tensor = self._head(states)
        return logits


class Backbone(AdaptedModel):
    """One frozen transformer, its tokenizer, and named adapters with their heads."""

    def __init__(self, model: Any, tokenizer: Any, *, folder: Path) -> None:
        super().__init__(model, folder=folder)
        self.tokenizer = tokenizer
        self.turnstile: Turnstile | None = None
        """Barrier of the processes that a sharded base is cut over; None without sharding."""
        self._shared: Shared | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        quantization: Quantization = "none",
        shard_over: Processes | None = None,
        sharding: Sharding = "full",
    ) -> Backbone:
        """Load the base model in `folder` (transformers format, safetensors), frozen, on `device`.

        With `shard_over` each of these processes reads and keeps a part of it (sharding: of one copy, or of a
        copy on each machine), and they must make their backward passes by `backward`; `turnstile` is what
        they wait at before they exchange anything else.

        quantization: bits of its linear layers; a base that is sharded cannot be quantised.

        Never downloads and never runs code that comes with a model. Raises `ContractError`
        where the folder holds no such model, has no fast tokenizer or no chat template.
        """
        if shard_over is None or shard_over.world == 1:
            model, tokenizer = load_base_model(folder, device=device, dtype=dtype, quantization=quantization)
            backbone = cls(model, tokenizer, folder=folder)
            backbone.quantization = quantization
            return backbone
        device = torch.device(device)
        mesh = make_mesh(shard_over, device, sharding)
        model, tokenizer = load_shared_base(
            folder, device=device, dtype=dtype, mesh=mesh, processes=shard_over
        )
        backbone = cls(model, tokenizer, folder=folder)
        backbone.device = device
        backbone._shared = Shared(mesh, shard_over)
        backbone.turnstile = Turnstile(backbone._idle_pass, mesh)
        return backbone

    @property
    def shares_base(self) -> bool:
        """Return whether transformers are cut over several processes."""
        return self._shared is not None

    def _add_whole(self, name: str, model: Any, *, trainable: bool) -> None:
        super()._add_whole(name, model, trainable=trainable)
        if trainable and self.turnstile is not None:
            self.turnstile.wait_for_copies()

    def _loaded(self, folder: Path, dtype: torch.dtype) -> Any:
        if self._shared is None:
            return super()._loaded(folder, dtype)
        model, _ = load_shared_base(
            folder,
            device=self.device,
            dtype=dtype,
            mesh=self._shared.mesh,
            processes=self._shared.processes,
            computes_in=self.dtype,
        )
        return model

    def save_whole(self, name: str, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the transformer that adapter `name` is, see `AdaptedModel.save_whole`, with the end of a turn
        among the end tokens of its generation configuration."""
        super().save_whole(name, folder, weights)
        add_turn_end(folder, self.tokenizer)

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        position_ids: Tensor | None = None,
    ) -> Encoded:
        """Run the transformer with the active adapter, without the LM head.

        input_ids: (batch, tokens). attention_mask: (batch, tokens), 1 for real tokens.
        position_ids: (batch, tokens); left out, they count the mask's ones, so that padding on
        either side changes nothing.
        """
        if not self.packs:
            return Encoded(self._padded_batch(input_ids, attention_mask.bool()))
        if position_ids is None:
            position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        self._before_forward()
        with self._precision(self._active):
            output = decoder_in(self._computing(self._active))(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                use_cache=False,
            )
        return Encoded(output.last_hidden_state)

    @property
    def packs(self) -> bool:
        """Return whether packed rows are computed as such, which is cheaper; if not, see `padded_rows`."""
        return packs_rows(self._computing(self._active))

    def _padded_batch(self, input_ids: Tensor, real: Tensor) -> Tensor:
        """Return the states of a padded batch, 0 at padding, by rows that are padded at their end."""
        lengths = real.sum(-1).tolist()
        starts = itertools.accumulate(lengths, initial=0)
        segments = [Segment(start, length) for start, length in zip(starts, lengths, strict=False) if length]
        ids = input_ids[real][None]
        states = self.packed_states(ids, torch.zeros_like(ids), Layout(segments, ids.device))
        return states.new_zeros(*input_ids.shape, states.shape[-1]).masked_scatter(real[..., None], states)

    def packed_states(self, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
        """Run the transformer with the active adapter over one packed row: (1, T) to (T, hidden)."""
        self._before_forward()
        with self._precision(self._active):
            if not self.packs:
                return padded_states(self._computing(self._active), input_ids, layout)
            return packed_states(self._computing(self._active), input_ids, position_ids, layout)

    def begin_rows(self) -> RowCache:
        """Return an empty cache of rows that the active adapter reads: of a model that packs none."""
        return RowCache(self._computing(self._active))

    def read_rows(self, cache: RowCache, input_ids: Tensor) -> Tensor:
        """Read further tokens of rows with the active adapter, (rows, tokens); their last states, (rows,
        hidden)."""
        with self._precision(self._active):
            return cache.read(input_ids)

    def packed_layers(
        self, input_ids: Tensor, position_ids: Tensor, layout: Layout, layers: Collection[int]
    ) -> dict[int, Tensor]:
        """Return the states after some blocks, counted from 1: (T, hidden) each.

        Blocks above the highest of them are not run, except where processes share the base: these pass
        through all blocks together. Those of the last block are the ones that `packed_states` gives.
        """
        blocks = decoder_blocks(self._computing(self._active))
        passes: dict[int, list[Tensor]] = defaultdict(list)
        requested = set(layers)
        highest = max(requested, default=self.blocks)

        def keep(number: int, output: Any) -> None:
            passes[number].append(output[0] if isinstance(output, tuple) else output)

        with ExitStack() as hooks:
            for number in sorted(requested - {self.blocks}):
                handle = blocks[number - 1].register_forward_hook(
                    lambda _module, _inputs, output, number=number: keep(number, output)
                )
                hooks.callback(handle.remove)
            if highest < self.blocks and self.turnstile is None and self.packs:
                hooks.callback(blocks[highest].register_forward_pre_hook(_leave).remove)
                hooks.enter_context(suppress(_HighestReachedError))
            passes[self.blocks] = [self.packed_states(input_ids, position_ids, layout)[None]]
        rows = None if self.packs else PaddedRows(layout)
        return {
            number: some[0][0] if rows is None or number == self.blocks else rows.gathered(some)
            for number, some in passes.items()
            if number in requested or not requested
        }

    def reads(self, name: str) -> Place:
        """Return where the head `score` of adapter `name` reads."""
        if READS not in self.extras(name):
            return Place(self.blocks, mean=False)
        return Place.from_tensor(self.extra(name, READS).detach())  # noqa: S610 - not Django's

    def set_reads(self, name: str, place: Place) -> None:
        """Let the head `score` of adapter `name` read at another place."""
        self.add_extra(name, READS, place.to_tensor()).requires_grad_(False)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a loss, at the same time in all processes where they share the base."""
        if self.turnstile is not None:
            self.turnstile.backward()
        loss.backward()  # type: ignore[no-untyped-call]

    def _before_forward(self) -> None:
        if self.turnstile is not None:
            active = self._active is not None and self._adapter(self._active).trainable
            computing = self._computing(self._active)
            which = next(i for i, model in enumerate(self._transformers) if model is computing)
            self.turnstile.forward(which, learning=active and torch.is_grad_enabled())

    def _idle_pass(self, transformer: int, learning: bool) -> Tensor:
        """Run a pass over one token, which the other processes wait for."""
        model = self._transformers[transformer]
        name = next(
            (
                name
                for name, adapter in self._adapters.items()
                if (adapter.trainable if learning else adapter.whole is not None)
                and self._computing(name) is model
            ),
            None,
        )
        ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        with self.using(name), self._precision(name), torch.set_grad_enabled(learning):
            output = decoder_in(model)(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        states: Tensor = output.last_hidden_state
        return states

    def checkpoint_activations(self, on: bool) -> None:
        """Set whether a backward pass computes each block's activations again instead of keeping them."""
        for model in self._transformers:
            if on:
                model.activation_checkpointing_enable({"use_reentrant": False, "context_fn": self._as_it_was})
            else:
                model.activation_checkpointing_disable()
            for module in decoder_in(model).modules():
                if isinstance(module, GradientCheckpointingLayer):
                    # The blocks' own flag alone, which is what transformers asks for: dropout is not theirs.
                    module.training = on

    def _as_it_was(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """The backward pass comes when another adapter may be active: blocks are computed again under the
        one that they were computed under."""
        return nullcontext(), self._again(self._active, dropout=self._dropout, layout=current_layout())

    @contextmanager
    def _again(self, active: str | None, *, dropout: bool, layout: Layout | None) -> Iterator[None]:
        with computing(layout), self.using(active, dropout=dropout):
            yield

    def logits(self, states: Tensor) -> Tensor:
        """The LM head under the active adapter: (…, hidden) to (…, vocabulary), in the base's dtype."""
        logits: Tensor = self.lm_head(self._active)(states)
        return logits

    def lm_head(self, name: str | None) -> nn.Module:
        """The LM head that belongs to adapter `name`, whatever is active, and what its family does to logits
        after it. It is trained where the adapter is all of the weights."""
        head = output_head(self._computing(name))
        return _Rounded(head, self._precision(name)) if self._is_rounded(name) else head

    @cached_property
    def unknown_tokens(self) -> UnknownTokens:
        """Return the ids of the model that its tokenizer does not have."""
        return UnknownTokens(self.tokenizer, int(self.config.get_text_config().vocab_size))

    def policy_head(self, name: str | None) -> nn.Module:
        """The LM head of adapter `name` as samples are drawn by it: without ids that the tokenizer does not
        have."""
        head = self.lm_head(name)
        return KnownTokensHead(head, self.unknown_tokens) if self.unknown_tokens.ids else head

    def _is_rounded(self, name: str | None) -> bool:
        """Return whether an adapter's float32 weights compute in bfloat16."""
        return name is not None and self.is_whole(name) and self.dtype == torch.bfloat16

    def _precision(self, name: str | None) -> AbstractContextManager[None]:
        """Inside, products are computed in the base's precision where all weights are trained in float32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._is_rounded(name))

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
        offset = self._adapter(name).extras.get(f"{head}.offset")
        return values if offset is None else values + offset
