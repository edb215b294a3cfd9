"""A base model is tried before it is used: packed rows must give what its makers' own code gives.

The trial runs on a few layers of the model in float32. Rounding there is a hundred times below the tolerance,
so a sound model is never refused by chance, whatever precision it is loaded in; a mask, scale, window or cap
that packing does not know changes the states far more. A sliding window is cut to a few tokens in the trial:
its rows are longer than the window, however long the model's own is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from training.contract import ContractError
from training.rlhf.model.attention import NAME as PACKED_ATTENTION
from training.rlhf.model.attention import Layout, Segment, packed_states
from training.rlhf.model.attention_scores import Scores
from training.rlhf.model.families import FULL, SLIDING, output_head, window_of

TOLERANCE = 1e-4
"""Largest difference that rounding in float32 may make, as a share of the largest state or logit."""
_VOCABULARY = 64
_WINDOW = 4
_PROMPT, _ANSWERS = 9, (5, 6)
_LARGE = 100.0
"""Size of the largest logit in the trial: a cap that nobody has named shows there."""


def refuse_unknown_family(model: Any, folder: Path) -> None:
    """Raise `ContractError` where packed rows of this model would not be computed as its makers compute them.

    Tries attention over a packed prompt with two answers, and the head that turns states into logits.
    """
    _refuse_unknown_layers(model, folder)
    try:
        trial = _trial_model(model)
        _refuse_changed_logits(trial, model, folder)
        _refuse_other_attention(trial, model, folder)
    except (ContractError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # What a family of models that nobody here has met may raise has no end.
        raise ContractError(
            f"{folder}: model type {model.config.model_type!r} does not compute packed rows ({error}); "
            "choose another base model"
        ) from error


def _refuse_unknown_layers(model: Any, folder: Path) -> None:
    """Some layers see tokens in chunks, or keep a state instead of keys: a short trial may not show it."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if unknown := sorted(kinds - {FULL, SLIDING}):
        raise ContractError(
            f"{folder}: model type {model.config.model_type!r} has layers of the kind {unknown[0]!r}, which "
            "cannot be computed over packed rows; choose another base model"
        )


def _trial_model(model: Any) -> Any:
    """The first layers of the model, one of each kind at least, with few words, in float32 and eager."""
    config = first_layers(copy.deepcopy(model.config))
    text = config.get_text_config()
    text.vocab_size = min(_VOCABULARY, text.vocab_size)
    text.pad_token_id = None
    if window_of(model.config) is not None:
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
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=1)


@torch.no_grad()
def _refuse_other_attention(trial: Any, model: Any, folder: Path) -> None:
    segments = [Segment(0, _PROMPT)]
    for length in _ANSWERS:
        segments.append(Segment(segments[-1].end, length, 0))
    total = segments[-1].end
    ids = (torch.arange(total, device=model.device) * 7 + 3) % trial.config.get_text_config().vocab_size
    places = torch.cat([torch.arange(_PROMPT), *(torch.arange(n) + _PROMPT for n in _ANSWERS)])
    expected = torch.cat(
        [_row_alone(trial, ids, segments[:1], _PROMPT)]
        + [_row_alone(trial, ids, [segments[0], segment], segment.length) for segment in segments[1:]]
    )
    trial.set_attn_implementation(PACKED_ATTENTION)
    layout = _Counted(segments, model.device)
    packed = packed_states(trial, ids[None], places.to(model.device)[None], layout)
    kind = model.config.model_type
    layers = trial.config.get_text_config().num_hidden_layers
    if sorted(layout.attended) != list(range(layers)):
        raise ContractError(
            f"{folder}: layers of model type {kind!r} attend {len(layout.attended)} times where each of "
            f"{layers} should once, so that keys cannot be kept for generation; choose another base model"
        )
    if not _alike(packed, expected):
        window = window_of(model.config)
        seen = f"with its window of {window} tokens " if window is not None else ""
        raise ContractError(
            f"{folder}: the attention of model type {kind!r} {seen}cannot be computed over packed answers; "
            "choose another base model"
        )


class _Counted(Layout):
    """A layout that knows which layers attended: keys are kept by layer when samples are written."""

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        super().__init__(segments, device)
        self.attended: list[int] = []

    def attend(
        self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: Scores
    ) -> Tensor:
        self.attended.append(int(module.layer_idx))  # type: ignore[arg-type]
        return super().attend(module, query, key, value, scores)


def _row_alone(trial: Any, ids: Tensor, segments: Sequence[Segment], last: int) -> Tensor:
    """The states of the last tokens of a row without any other answer, by the family's own attention."""
    row = torch.cat([ids[segment.start : segment.end] for segment in segments])[None]
    output = trial.get_decoder()(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False)
    states: Tensor = output.last_hidden_state[0, -last:]
    return states


@torch.no_grad()
def _refuse_changed_logits(trial: Any, model: Any, folder: Path) -> None:
    """Some families scale or cap their logits after the LM head in ways that `output_head` does not know."""
    ids = torch.tensor([[0, 1]], device=model.device)
    head = trial.get_output_embeddings()
    weight = head.weight.clone()
    # The head may be tied to the embedding: its states are read after it was changed.
    head.weight.mul_(_LARGE / _largest(head(trial.get_decoder()(input_ids=ids, use_cache=False)[0])))
    states = trial.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    alike = _alike(output_head(trial)(states), trial(ids).logits)
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
