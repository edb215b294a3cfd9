"""Memory that a run needs, estimated from the base model's shape and the run's settings. Knows no torch.

    base         parameters × bytes of the base's precision: 4 on a processor, 2 on a GPU; none in
                 supervised fine-tuning without an adapter, which asks for no reference, unless the base is
                 sharded. Of a quantised base
                 the blocks' linear layers count 1 byte a weight and 4 an output (int8), or 4 bits a weight
                 and 4 bytes every 64 (nf4)
    adapter      Σ over adapted blocks and targets of rank × (in + out) parameters
    trained      16 bytes per trained parameter: weight, gradient and AdamW's two moments, all float32;
                 without an adapter every parameter of the base, and 2 bytes more of each where products
                 are computed in bfloat16: rounded weights are kept for the backward pass
    frozen       4 bytes per parameter of every further adapter: what training continues, reward models
    activations  tokens of a micro-batch × what the backward pass keeps of each trained block:
                 12 hidden + 4 intermediate + 2 keys and values, in the base's precision;
                 with gradient checkpointing one hidden state per block, and three times what one block keeps
                 (fitted to a measured peak), but never more than without
    logits       tokens at a time × vocabulary × 4 bytes, twice: the logits and their gradient
    samples      keys and values of all answers of a step, for methods that sample
    gathered     sharding: two blocks of the base whole for a moment, and the buffers that they arrive in;
                 where all weights are trained, one block's gradients in float32 with their buffer
    summed       several processes: gradients of what is not cut once more, 4 bytes each, to be summed
    process      Python, torch and its libraries

With sharding `full` the processes of a run share one copy of the base, with `node` those of a machine do: of
each block, and where all weights are trained of its gradients and moments, a process holds its part alone.
Embedding, LM head, last norm and adapters stay whole. All figures are those of one process.

Base, adapter, trained and frozen are counts; activations are an estimate by the largest tensors that a
Llama-like block keeps. `tests/benchmarks/memory_estimate.py` holds the sum against measured peaks.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from training.contract.methods import Settings
from training.contract.methods.common import ALL_LINEAR, LoraSettings
from training.contract.methods.policy import PolicyGradientSettings, SftSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import Quantization, Sharding

PROCESS_BYTES = 700 * 1024**2
_FLOAT = 4
_TRAINED = 4 * _FLOAT
_LOGITS_AT_ONCE = 128
_TRAINED_LOGITS_AT_ONCE = 2048


_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_TIED = frozenset(
    {"cohere", "cohere2", "gemma", "gemma2", "gemma3_text", "gpt2", "opt", "smollm3", "starcoder2"}
)
"""Model types that tie head and embedding where their configuration does not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The sizes of a decoder, as its `config.json` tells them."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    tied: bool
    context: int

    experts: int = 0
    """Expert networks of a block, of which a token uses some; 0 where a block has one network."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the shape of the model in `folder`; None without a usable configuration."""
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            heads = int(config["num_attention_heads"])
            hidden = int(config["hidden_size"])
            experts = next((int(config[name]) for name in _EXPERTS if config.get(name)), 0)
            inner = (config.get("moe_intermediate_size") if experts else None) or config.get(
                "intermediate_size"
            )
            tied = config.get("tie_word_embeddings")
            return cls(
                vocabulary=int(config["vocab_size"]),
                hidden=hidden,
                intermediate=int(inner or 4 * hidden),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                key_heads=int(config.get("num_key_value_heads") or heads),
                head_size=int(config.get("head_dim") or hidden // heads),
                tied=config.get("model_type") in _TIED if tied is None else bool(tied),
                context=_context_in(config),
                experts=experts,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def parameters(self) -> int:
        """Return the parameter count of a Llama-like decoder of this shape."""
        attention = sum(inside * outside for inside, outside in self._attention.values())
        network = sum(inside * outside for inside, outside in self._network.values())
        # Experts are chosen by one more matrix.
        networks = self.experts * (network + self.hidden) if self.experts else network
        return self.whole + self.layers * (attention + networks + 2 * self.hidden)

    @property
    def whole(self) -> int:
        """Return the parameters that no process gives up a part of: embedding, LM head and last norm."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def block(self) -> int:
        """Return the parameters of a block."""
        return (self.parameters - self.whole) // self.layers

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a block's linear layers, by name; adapters leave experts as they are."""
        return self._attention if self.experts else self._attention | self._network

    @property
    def _attention(self) -> dict[str, tuple[int, int]]:
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
        }

    @property
    def _network(self) -> dict[str, tuple[int, int]]:
        return {
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def adapter_parameters(self, lora: LoraSettings) -> int:
        """Parameters of one adapter; targets that a Llama-like block does not have count nothing."""
        names = self.linear if ALL_LINEAR in lora.targets else lora.targets
        sizes = (self.linear[name] for name in names if name in self.linear)
        return self.adapted_layers(lora) * lora.rank * sum(map(sum, sizes))

    def adapted_layers(self, lora: LoraSettings | None) -> int:
        """Return the number of trained blocks."""
        return self.layers if lora is None or lora.layers is None else min(lora.layers, self.layers)


def _context_in(config: Mapping[str, Any]) -> int:
    """Return the tokens that a model is used with: with LongRoPE those of its first training, as in the
    trainer's `context_limit`."""
    context = int(config.get("max_position_embeddings") or 2**31)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    first = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    longrope = "longrope" in (rope.get("rope_type"), rope.get("type"))
    return min(context, int(first)) if longrope and first else context


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The bytes of one run, part by part."""

    base: int
    trained: int
    frozen: int
    activations: int
    logits: int
    samples: int
    gathered: int = 0
    summed: int = 0
    process: int = PROCESS_BYTES

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(dataclasses.astuple(self))


def parameters_in(folder: Path) -> int | None:
    """Return the parameter count in the headers of a model's safetensors files; None without any."""
    files = sorted(folder.glob("*.safetensors"))
    try:
        return sum(map(_parameters_of_file, files)) if files else None
    except (OSError, ValueError, KeyError, struct.error):
        return None


def dtype_in(folder: Path) -> str:
    """Return the precision of most weights in a model's safetensors files; empty without any."""
    sizes: Counter[str] = Counter()
    try:
        for path in sorted(folder.glob("*.safetensors")):
            for tensor in _tensors_of_file(path):
                sizes[tensor["dtype"]] += math.prod(tensor["shape"])
    except (OSError, ValueError, KeyError, struct.error):
        return ""
    most = max(sizes, key=lambda name: sizes[name], default="")
    return _DTYPES.get(most, most.lower())


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSpread:
    """The processes of a run, and those of them that share a copy of the base."""

    processes: int = 1
    shards: int = 1

    @classmethod
    def of(cls, sharding: Sharding, *, nodes: int, per_node: int) -> Self:
        """Return the spread over machines that each run so many processes."""
        processes = nodes * per_node
        return cls(processes=processes, shards={"none": 1, "full": processes, "node": per_node}[sharding])

    def kept_bytes(self, shape: Shape, size: int) -> int:
        """Return the bytes in one process of what has `size` bytes for all parameters of a base."""
        whole = shape.whole / shape.parameters
        return round(size * (whole + (1 - whole) / self.shards))


ALONE = ProcessSpread()


def memory_of(
    settings: Settings,
    shape: Shape,
    *,
    parameters: int | None = None,
    base_bytes: int = _FLOAT,
    continues: bool = False,
    quantization: Quantization = "none",
    spread: ProcessSpread = ALONE,
) -> Memory:
    """Return the memory of one process of a run of `settings` on a base of this shape.

    parameters: of the base, where they were counted. base_bytes: for each of them. continues: whether
    training goes on from an adapter, of which a frozen copy is the reference. quantization: of the base.
    spread: over how many processes.
    """
    parameters = shape.parameters if parameters is None else parameters
    lora = settings.trained
    adapters = _further_adapters(settings) + int(continues and not isinstance(settings, RewardSettings))
    tokens = max(settings.optimiser.micro_batch_tokens, settings.max_tokens)
    # A base that is cut stays beside the weights that are trained, whoever asks for it.
    holds_base = lora is not None or not isinstance(settings, SftSettings) or spread.shards > 1
    needs_logits = not isinstance(settings, RewardSettings)
    at_once = min(tokens, _TRAINED_LOGITS_AT_ONCE if lora is None else _LOGITS_AT_ONCE)
    base = parameters * base_bytes - _spared(shape, base_bytes, quantization) if holds_base else 0
    trained = trained_parameters(settings, shape, parameters=parameters)
    return Memory(
        base=spread.kept_bytes(shape, base),
        trained=_trained(trained, shape, whole=lora is None, base_bytes=base_bytes, spread=spread),
        frozen=adapters * shape.adapter_parameters(settings.lora) * _FLOAT,
        activations=_activations(settings, shape, tokens, base_bytes),
        logits=2 * at_once * shape.vocabulary * _FLOAT if needs_logits else 0,
        samples=_samples(settings, shape, base_bytes),
        gathered=_gathered(shape, whole=lora is None, base_bytes=base_bytes) if spread.shards > 1 else 0,
        summed=_summed(trained, shape, whole=lora is None, spread=spread),
    )


def _trained(trained: int, shape: Shape, *, whole: bool, base_bytes: int, spread: ProcessSpread) -> int:
    """Return the bytes of trained parameters. whole: whether they are all of the base's."""
    if not whole:
        return trained * _TRAINED
    # A block that is cut is rounded before it is gathered, which is counted there.
    rounded = base_bytes if base_bytes < _FLOAT and spread.shards == 1 else 0
    return spread.kept_bytes(shape, trained * (_TRAINED + rounded))


def _gathered(shape: Shape, *, whole: bool, base_bytes: int) -> int:
    # Of the block that computes and the next one, each with the buffer that it arrives in; of gradients those
    # of one block, with the buffer that they leave by.
    return shape.block * (4 * base_bytes + (2 * _FLOAT if whole else 0))


def _summed(trained: int, shape: Shape, *, whole: bool, spread: ProcessSpread) -> int:
    if spread.processes == 1:
        return 0
    return _FLOAT * (shape.whole if whole and spread.shards > 1 else trained)


def _spared(shape: Shape, base_bytes: int, quantization: Quantization) -> int:
    """Return the bytes that quantised linear layers take less than those of the base's precision."""
    if quantization == "none":
        return 0
    spared = 0
    for inside, outside in shape.linear.values():
        weights = inside * outside
        few = weights + _FLOAT * outside if quantization == "int8" else weights // 2 + _FLOAT * weights // 64
        spared += weights * base_bytes - few
    return shape.layers * spared


def trained_parameters(settings: Settings, shape: Shape, *, parameters: int | None = None) -> int:
    """Return the number of parameters that a run trains. parameters: of the base, where they were counted."""
    if isinstance(settings, RewardSettings) and settings.is_fitted_at_once:
        return 0
    lora = settings.trained
    if lora is None:
        return shape.parameters if parameters is None else parameters
    return shape.adapter_parameters(lora) * (2 if _has_value(settings) else 1)


def _activations(settings: Settings, shape: Shape, tokens: int, base_bytes: int) -> int:
    values = 12 * shape.hidden + 4 * shape.intermediate + 2 * shape.key_heads * shape.head_size
    # Without a gradient one block's activations are there at a time.
    frozen = isinstance(settings, RewardSettings) and settings.is_fitted_at_once
    layers = 1 if frozen else shape.adapted_layers(settings.trained)
    if settings.optimiser.gradient_checkpointing:
        return tokens * min(layers * shape.hidden + 3 * values, layers * values) * base_bytes
    return tokens * layers * values * base_bytes


def _samples(settings: Settings, shape: Shape, base_bytes: int) -> int:
    if not isinstance(settings, PolicyGradientSettings):
        return 0
    answers = settings.optimiser.batch_size * settings.rollout.samples
    per_token = 2 * shape.layers * shape.key_heads * shape.head_size * base_bytes
    return answers * settings.max_tokens * per_token


def _further_adapters(settings: Settings) -> int:
    if not isinstance(settings, PolicyGradientSettings):
        return 0
    return len({part.checkpoint for part in settings.rewards_of_all if part.is_adapter})


def _has_value(settings: Settings) -> bool:
    return isinstance(settings, PolicyGradientSettings) and settings.advantage.kind == "gae"


def _parameters_of_file(path: Path) -> int:
    return sum(math.prod(tensor["shape"]) for tensor in _tensors_of_file(path))


def _tensors_of_file(path: Path) -> list[Mapping[str, Any]]:
    """Return shape and precision of each tensor, from the header alone."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: Mapping[str, Any] = json.loads(stream.read(length))
    return [tensor for name, tensor in header.items() if name != "__metadata__"]
