"""A base model from its folder: loaded without network and foreign code, frozen, and refused where
Rondo would compute something else with it than its makers do.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from training.contract import ContractError
from training.contract.chat_template import require_template
from training.contract.run import Quantization
from training.rlhf.model.attention import NAME as PACKED_ATTENTION
from training.rlhf.model.attention import Layout, Segment, packed_states
from training.rlhf.model.families import (
    decoder_in,
    is_text_part,
    output_head,
    read_supported_config,
    sliding_window,
    why_not_packed,
)
from training.rlhf.model.linear_layers import quantise, refuse_unable
from training.rlhf.model.padded_rows import RowCache, attends_by, packs_rows, pad_rows, padded_states
from training.rlhf.model.segmented_attention import AttentionScores
from training.rlhf.model.sharding import local, local_rows, shard_model
from training.rlhf.model.templates import renderer, whole_row
from training.rlhf.runtime.processes import Processes
from training.rlhf.runtime.run_folder import log

# ── A base model is tried before it is used: packed rows must give what its makers' own code gives ──
#
# The trial runs on a few layers of the model in float32. Rounding there is a hundred times below the
# tolerance, so a sound model is never refused by chance, whatever precision it is loaded in; a mask, scale,
# window or cap that packing does not know changes the states far more. A sliding window is cut to a few
# tokens in the trial: its rows are longer than the window, however long the model's own is.

TOLERANCE = 1e-4
"""Largest difference that rounding in float32 may make, as a share of the largest state or logit."""
_VOCABULARY = 64
_WINDOW = 4
_PROMPT, _ANSWERS = 9, (5, 6)
_LARGE = 100.0
"""Size of the largest logit in the trial: a cap that nobody has named shows there."""


def choose_way(model: Any, folder: Path) -> None:
    """Let a model compute packed rows or, where these would not be as its makers compute them, padded ones.

    Both are tried on its first layers. Raises `ContractError` with the reason where neither will do.
    """
    try:
        trial = _trial_model(model)
        _refuse_changed_logits(trial, model, folder)
        refusal = _refusal_of_packing(trial, model, folder)
        if refusal is None:
            return
        _pad_rows(trial, model, folder, refusal)
    except (ContractError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # What a family of models that nobody here has met may raise has no end.
        raise ContractError(
            f"{folder}: model type {model.config.model_type!r} cannot be computed row by row "
            f"({type(error).__name__}: {error}); choose another base model"
        ) from error
    log.info("%s: rows are padded, not packed: the model %s", folder.name, refusal)


def _refusal_of_packing(trial: Any, model: Any, folder: Path) -> str | None:
    """Return why packed rows would be wrong; None where they are right."""
    # Some layers see tokens in chunks, or keep a state instead of keys: a short trial may not show it.
    if reason := why_not_packed(model.config):
        return reason
    if not attends_by(model, PACKED_ATTENTION):
        return "computes attention in its own code"
    try:
        return _other_attention(trial, model)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        return f"does not compute packed rows ({error})"


_FALLBACKS = (("sdpa", True), ("eager", True), ("sdpa", False), ("eager", False))
"""Implementations of attention, and whether what was read is kept, the fastest first."""


@torch.no_grad()
def _pad_rows(trial: Any, model: Any, folder: Path, refusal: str) -> None:
    """Leave a model's rows, and all attention in them, to transformers."""
    trial.set_attn_implementation("eager")
    ids, segments = _trial_row(trial, model)
    expected = _expected_states(trial, ids, segments)
    for implementation, keeps in _FALLBACKS:
        try:
            for some in (trial, model):
                pad_rows(some, implementation, keeps=keeps)
            if _alike(padded_states(trial, ids[None], Layout(segments, model.device)), expected) and _alike(
                *_written(trial, ids, segments, expected)
            ):
                return
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            log.debug("%s, %s: %s", folder, implementation, error)
    raise ContractError(
        f"{folder}: model type {model.config.model_type!r} {refusal}, and its rows cannot be padded either: "
        "its tokens see what follows them, or read one by one they give other states than at once; choose "
        "another base model"
    )


def _written(trial: Any, ids: Tensor, segments: Sequence[Segment], expected: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states of the answers' first tokens as samples are written, and what they should be."""
    cache = RowCache(trial)
    cache.read(ids[None, :_PROMPT])
    starts = [slice(segment.start, segment.start + min(_ANSWERS)) for segment in segments[1:]]
    rows = torch.stack([ids[start] for start in starts])
    # One prompt from which three go on, of which one ends at once.
    cache = cache.chosen([0, 0, 0])
    cache.keep([0, 2])
    states = [cache.read(rows[:, place : place + 1]) for place in range(rows.shape[1])]
    return torch.stack(states, dim=1), torch.stack([expected[start] for start in starts])


def _trial_model(model: Any) -> Any:
    """The first layers of the model, one of each kind at least, with few words, in float32 and eager."""
    config = first_layers(copy.deepcopy(model.config))
    text = config.get_text_config()
    text.vocab_size = min(_VOCABULARY, text.vocab_size)
    text.pad_token_id = None
    if sliding_window(model.config) is not None:
        text.sliding_window = _WINDOW
    # The weights are the model's own: drawing others must not move the generator of whoever loads it.
    with torch.random.fork_rng(devices=[]):
        trial = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    known = model.state_dict()
    state = {name: _cut(known[name], value) for name, value in trial.state_dict().items()}
    trial.load_state_dict(state)
    return trial.to(model.device).eval()


def first_layers(config: Any) -> Any:
    """Shorten a configuration to its first layers, one of each kind at least; return it."""
    text = config.get_text_config()
    layers = _layers_of_each_kind(text)
    for name, value in text.to_dict().items():
        if isinstance(value, list | tuple) and len(value) == text.num_hidden_layers:
            setattr(text, name, list(value)[:layers])
    text.num_hidden_layers = layers
    if text.num_hidden_layers < layers:
        # LongCat counts two of them as one, and rounds down.
        text.num_hidden_layers = layers + 1
    return config


def _cut(source: Tensor, like: Tensor) -> Tensor:
    return source[tuple(slice(0, length) for length in like.shape)].float()


def _layers_of_each_kind(text: Any) -> int:
    """Return the number of first layers that include every kind of layer."""
    columns = [
        value
        for value in text.to_dict().values()
        if isinstance(value, list | tuple) and len(value) == text.num_hidden_layers
    ]
    kinds = [str(kind) for kind in zip(*columns, strict=True)]
    # RWKV divides by the number of its layers less one.
    most = max((kinds.index(kind) + 1 for kind in set(kinds)), default=1)
    return max(most, 2) if text.model_type == "rwkv" else most


def _trial_row(trial: Any, model: Any) -> tuple[Tensor, list[Segment]]:
    """Return the ids of a packed row, a prompt with two answers, and its segments."""
    segments = [Segment(0, _PROMPT)]
    for length in _ANSWERS:
        segments.append(Segment(segments[-1].end, length, 0))
    ids = torch.arange(segments[-1].end, device=model.device) * 7 + 3
    return ids % trial.config.get_text_config().vocab_size, segments


def _expected_states(trial: Any, ids: Tensor, segments: Sequence[Segment]) -> Tensor:
    """Return the states of such a row, each answer read by itself behind the prompt."""
    return torch.cat(
        [_row_alone(trial, ids, segments[:1], _PROMPT)]
        + [_row_alone(trial, ids, [segments[0], segment], segment.length) for segment in segments[1:]]
    )


@torch.no_grad()
def _other_attention(trial: Any, model: Any) -> str | None:
    """Return how packed rows differ from rows of their own; None where they do not."""
    ids, segments = _trial_row(trial, model)
    places = torch.cat([torch.arange(_PROMPT), *(torch.arange(n) + _PROMPT for n in _ANSWERS)])
    expected = _expected_states(trial, ids, segments)
    trial.set_attn_implementation(PACKED_ATTENTION)
    layout = _Counted(segments, model.device)
    packed = packed_states(trial, ids[None], places.to(model.device)[None], layout)
    layers = trial.config.get_text_config().num_hidden_layers
    if sorted(layout.attended) != list(range(layers)):
        return (
            f"attends {len(layout.attended)} times where each of {layers} layers should once, so that keys "
            "cannot be kept for generation"
        )
    if not _alike(packed, expected):
        window = sliding_window(model.config)
        seen = f" under its window of {window} tokens" if window is not None else ""
        return f"computes other states in a packed row{seen}"
    return None


class _Counted(Layout):
    """A layout that knows which layers attended: keys are kept by layer when samples are written."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        super().__init__(segments, device)
        self.attended: list[int] = []

    def attend(
        self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores
    ) -> Tensor:
        self.attended.append(int(module.layer_idx))  # type: ignore[arg-type]
        return super().attend(module, query, key, value, scores)


def _row_alone(trial: Any, ids: Tensor, segments: Sequence[Segment], last: int) -> Tensor:
    """The states of the last tokens of a row without any other answer, by the family's own attention."""
    row = torch.cat([ids[segment.start : segment.end] for segment in segments])[None]
    output = decoder_in(trial)(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False)
    states: Tensor = output.last_hidden_state[0, -last:]
    return states


@torch.no_grad()
def _refuse_changed_logits(trial: Any, model: Any, folder: Path) -> None:
    """Some families scale or cap their logits after the LM head in ways that `output_head` does not know."""
    ids = torch.tensor([[0, 1]], device=model.device)
    head = trial.get_output_embeddings()
    weight = head.weight.clone()
    # The head may be tied to the embedding: its states are read after it was changed.
    head.weight.mul_(_LARGE / _largest(head(decoder_in(trial)(input_ids=ids, use_cache=False)[0])))
    states = decoder_in(trial)(input_ids=ids, use_cache=False).last_hidden_state
    alike = _alike(output_head(trial)(states), trial(ids, use_cache=False).logits)
    head.weight.copy_(weight)
    if not alike:
        raise ContractError(
            f"{folder}: model type {model.config.model_type!r} changes its logits after the LM head, "
            "which is not supported; choose another base model"
        )


def _largest(values: Tensor) -> float:
    return max(float(values.abs().max()), 1e-12)


def _alike(first: Tensor, second: Tensor) -> bool:
    largest = float(second.abs().max())
    return bool((first - second).abs().max() <= TOLERANCE * largest)


def load_base_model(
    folder: Path, *, device: torch.device | str, dtype: torch.dtype, quantization: Quantization = "none"
) -> tuple[Any, Any]:
    """The frozen transformer in `folder` (transformers format, safetensors) on `device`, and its tokenizer.

    Never downloads and never runs code that comes with a model. Raises `ContractError` where the folder
    holds no such model, has no fast tokenizer or no chat template that can be trained on, where a weight is
    not a finite number, for model types whose attention or logits Rondo would get wrong, and where it cannot
    be quantised.
    """
    tokenizer = refuse_unsupported_folder(folder)
    refuse_unable(quantization, torch.device(device))
    if quantization == "none":
        return _loaded(folder, device=device, dtype=dtype), tokenizer
    # The device need not hold it whole.
    model = _loaded(folder, device="cpu", dtype=dtype)
    quantise(model, quantization, device)
    return model, tokenizer


def try_first_layers(config: Any, folder: Path) -> bool:
    """Load the first layers alone, and compare rows with what the model's makers compute.

    Returns whether they are packed. Raises `ContractError` as `load_base_model` does.
    """
    try:
        fewer = first_layers(copy.deepcopy(config))
        # It would list the other layers as unexpected.
        with _without_warnings():
            return packs_rows(_loaded(folder, device="cpu", dtype=torch.float32, config=fewer))
    except (ContractError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # Unknown architectures may raise anything.
        raise ContractError(
            f"{folder}: the first layers of model type {config.model_type!r} cannot be loaded alone "
            f"({type(error).__name__}: {error}); choose another base model"
        ) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Let transformers log errors alone."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def _loaded(folder: Path, *, device: torch.device | str, dtype: torch.dtype, **more: Any) -> Any:
    model = read_model(folder, dtype=dtype, **more)
    model.to(device)
    model.requires_grad_(False)
    model.eval()
    refuse_not_finite(dict(model.named_parameters()), folder, remedy="fetch the base model again")
    choose_way(model, folder)
    return model


_TEXT_PART = {
    "^model.language_model": "model",
    "^model.text_model": "model",
    "^language_model.model": "model",
    "^language_model.lm_head": "lm_head",
}
"""Names of the text part's weights inside a model that also reads images or sound, and by themselves."""


def read_model(folder: Path, *, config: Any = None, **more: Any) -> Any:
    """Return the model in `folder`, with packed attention where it takes that.

    Of a model that also reads images or sound, its text part. Raises `ContractError` where it cannot be
    loaded, or not all of its weights are there. config: where it is not the folder's. more: options of
    `from_pretrained`.
    """
    config = config or read_supported_config(folder)
    attention = PACKED_ATTENTION if takes_packed_attention(config) else None
    is_part = is_text_part(folder)
    try:
        # Of a whole it would list all that is not text as unexpected.
        with _without_warnings() if is_part else nullcontext():
            model, loaded = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                key_mapping=_TEXT_PART if is_part else None,
                output_loading_info=True,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                attn_implementation=attention,
                **more,
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ContractError(f"{folder}: the model cannot be loaded ({error})") from error
    if absent := sorted(loaded["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise ContractError(
            f"{folder}: the model's files lack {len(absent)} tensors, the first being {absent[0]}; fetch the "
            "base model again"
        )
    return _by_itself(model, attention) if is_part else model


def _by_itself(model: Any, attention: str | None) -> Any:
    """Return a text part that is saved under its own names, not under those that it was loaded by."""
    part = _without_memory(model.config, model.dtype, attention)
    part.load_state_dict(model.state_dict(), assign=True)
    part.tie_weights()
    part.generation_config = model.generation_config
    return part


_TAKES_PACKED: dict[type, bool] = {}


def takes_packed_attention(config: Any) -> bool:
    """Return whether attention of a family can be computed by others than its own code."""
    family = type(config)
    if family not in _TAKES_PACKED:
        _TAKES_PACKED[family] = _try_packed_attention(config)
    return _TAKES_PACKED[family]


def _try_packed_attention(config: Any) -> bool:
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            shown = AutoModelForCausalLM.from_config(
                first_layers(copy.deepcopy(config)), attn_implementation="eager"
            )
            shown.set_attn_implementation(PACKED_ATTENTION)
    except Exception:
        # Whatever it raises: it is asked to compute attention by itself.
        return False
    return attends_by(shown, PACKED_ATTENTION)


def refuse_unsupported_folder(folder: Path) -> Any:
    """Raise `ContractError` where Rondo cannot train or serve the model in `folder`; return its tokenizer.

    Reads configuration and tokenizer alone, so that a base can be refused before its weights are fetched.
    """
    config = read_supported_config(folder)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ContractError(
            f"{folder}: the tokenizer cannot be loaded ({error}); put its tokenizer.json into the folder"
        ) from error
    if not tokenizer.is_fast:
        raise ContractError(
            f"{folder}: the tokenizer is not a fast one, which alone knows the characters of each token; "
            "save it as tokenizer.json with transformers, or choose another base model"
        )
    if not tokenizer.chat_template:
        raise ContractError(
            f"{folder}: the tokenizer has no chat template; choose a base model that was made for chats, or "
            "put its chat_template.jinja into the folder"
        )
    require_template(renderer(tokenizer), tokenizer.chat_template, str(folder))
    _refuse_other_vocabulary(tokenizer, int(config.get_text_config().vocab_size), folder)
    return tokenizer


def _refuse_other_vocabulary(tokenizer: Any, size: int, folder: Path) -> None:
    """Raise `ContractError` where a row that is trained on has no end, or where texts have ids beyond the
    model's vocabulary of `size` tokens."""
    try:
        row = whole_row(tokenizer)
    except ContractError as error:
        raise ContractError(
            f"{folder}: {error}, so responses would never end; name one as eos_token in its "
            "tokenizer_config.json, or choose another base model"
        ) from error
    # A control token beyond the vocabulary does no harm as long as the template does not write it: texts that
    # hold one are refused.
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    written = {*row, *(set(tokenizer.get_vocab().values()) - special)}
    if beyond := [id for id in written if id >= size]:
        token = tokenizer.convert_ids_to_tokens(max(beyond))
        raise ContractError(
            f"{folder}: {len(beyond)} tokens of the tokenizer, such as {token!r} with id {max(beyond)}, are "
            f"not among the {size} of the model; put the model's own tokenizer into the folder, or choose "
            "another base model"
        )


def refuse_not_finite(tensors: Mapping[str, Tensor], folder: Path, *, remedy: str) -> None:
    """Raise `ContractError` with the name of the first tensor that holds NaN or an infinity."""
    for name, value in tensors.items():
        if not torch.isfinite(value).all():
            raise ContractError(f"{folder}: the weights {name} hold values that are not finite; {remedy}")


# ── Weights of a base model in its safetensors files, read a few rows at a time ──

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightFiles:
    """The tensors of one model, by name. Files are mapped into memory, and only what is read is loaded."""

    def __init__(self, folder: Path) -> None:
        """Raise `ContractError` where `folder` has no such files, or unreadable ones."""
        self._folder = folder
        try:
            self.shapes, self._files = _contents(folder)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ContractError(f"{folder}: the model cannot be loaded ({error})") from error

    shapes: dict[str, tuple[int, ...]]
    """The shape of each tensor."""

    def read(self, selection: Iterable[tuple[str, slice | None]]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors, or these rows of them, by name; file by file, so that one is mapped at a time."""
        by_file: dict[Path, list[tuple[str, slice | None]]] = defaultdict(list)
        for name, rows in selection:
            by_file[self._files[name]].append((name, rows))
        for path, some in by_file.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for name, rows in some:
                        yield name, file.get_tensor(name) if rows is None else file.get_slice(name)[rows]
            except (OSError, SafetensorError) as error:
                raise ContractError(f"{path}: the weights cannot be read ({error})") from error


def _contents(folder: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, Path]]:
    """Return shape and file of each tensor. A folder may hold the same weights in other files as well."""
    if (folder / _SINGLE).is_file():
        paths = [folder / _SINGLE]
    else:
        index: dict[str, Any] = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        paths = [folder / name for name in sorted(set(index["weight_map"].values()))]
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, Path] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                shapes[name] = tuple(file.get_slice(name).get_shape())
                files[name] = path
    return shapes, files


def load_shared_base(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    mesh: DeviceMesh,
    processes: Processes,
    computes_in: torch.dtype | None = None,
) -> tuple[Any, Any]:
    """The frozen transformer in `folder`, its blocks cut over `mesh`, and its tokenizer.

    computes_in: the precision of its blocks where it is not `dtype`, in which weights are kept. All processes
    call it and all raise the same `ContractError`, as `load_base_model` does.
    """
    tokenizer = refuse_unsupported_folder(folder)
    config = read_supported_config(folder)
    # Tried once, and before anything large is read.
    with _together(processes):
        if processes.first and not try_first_layers(config, folder):
            raise ContractError(
                f"{folder}: rows of model type {config.model_type!r} are padded, not packed, which processes "
                "cannot share; train on one machine without sharding, or choose another base model"
            )
    model = _without_memory(config, dtype)
    shard_model(model, mesh, computes_in=computes_in or dtype)
    _allocate(model, device)
    with _together(processes):
        files = WeightFiles(folder)
        names = _names_in_files(model, files)
    if names is None:
        log.info("The base's files have other tensors than the model: the first process reads them for all")
        _receive(model, folder, dtype, processes)
    else:
        with _together(processes):
            _read(model, files, names)
    with _together(processes):
        _refuse_not_finite(model, folder)
    return model, tokenizer


@contextmanager
def _together(processes: Processes) -> Iterator[None]:
    """Raise in every process what was refused in one of them: none goes on to wait for it."""
    refusal = None
    try:
        yield
    except ContractError as error:
        refusal = str(error)
    first = next((message for message in processes.gather_objects(refusal) if message is not None), None)
    if first is not None:
        raise ContractError(first)


def _without_memory(config: Any, dtype: torch.dtype, attention: str | None = PACKED_ATTENTION) -> Any:
    """Return the model with parameters on "meta"; buffers, which are computed and not read, are real."""
    with torch.random.fork_rng(devices=[]), _parameters_on_meta():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    for part in getattr(model, "_keep_in_fp32_modules_strict", None) or ():
        for name, buffer in model.named_buffers():
            if part in name.split("."):
                buffer.data = buffer.data.float()
    model.requires_grad_(False)
    model.eval()
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _allocate(model: Any, device: torch.device) -> None:
    """Give parameters memory on the device, of cut ones for this process's part."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    # What two layers share is two tensors now.
    model.tie_weights()


def _targets(model: Any) -> dict[str, Tensor]:
    """Return parameters, and buffers that are read, by name; what several layers share stands here once."""
    saved = model.state_dict(keep_vars=True)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    return parameters | {name: value for name, value in model.named_buffers() if name in saved}


def _names_in_files(model: Any, files: WeightFiles) -> dict[str, str] | None:
    """Return the name in the files of each target; None where the files are of another form."""
    same: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        same.setdefault(id(value), []).append(name)
    aliases = {names[0]: names for names in same.values()}
    stored_names: dict[str, str] = {}
    for name, value in _targets(model).items():
        there = [
            alias for alias in aliases.get(name, [name]) if files.shapes.get(alias) == tuple(value.shape)
        ]
        if not there:
            return None
        stored_names[name] = there[0]
    return stored_names


@torch.no_grad()
def _read(model: Any, files: WeightFiles, names: dict[str, str]) -> None:
    targets = {names[name]: target for name, target in _targets(model).items()}
    for name, value in files.read((name, local_rows(target)) for name, target in targets.items()):
        local(targets[name]).copy_(value)


@torch.no_grad()
def _receive(model: Any, folder: Path, dtype: torch.dtype, processes: Processes) -> None:
    """Fill the model from the first process, which loads it as a whole."""
    state: dict[str, Tensor] = {}
    with _together(processes):
        if processes.first:
            state = load_base_model(folder, device="cpu", dtype=dtype)[0].state_dict()
    for name, target in _targets(model).items():
        whole = state[name].contiguous() if processes.first else torch.empty(target.shape, dtype=target.dtype)
        dist.broadcast(whole, 0)
        rows = local_rows(target)
        local(target).copy_(whole if rows is None else whole[rows])


def _refuse_not_finite(model: Any, folder: Path) -> None:
    for name, value in model.named_parameters():
        if not torch.isfinite(local(value)).all():
            raise ContractError(
                f"{folder}: the weights {name} hold values that are not finite; fetch the base model again"
            )
