"""Limits of a completion: the model's end tokens and its context."""

from __future__ import annotations

import json

from training.contract import ContractError
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.base_config import context_of
from training.rlhf.model.templates import turn_end_id


def context_length(backbone: Backbone) -> int:
    """Tokens that fit into the model: prompt and completion together."""
    context = context_of(backbone.config)
    if context is None:
        raise ContractError(f"{backbone.folder}: config.json tells no max_position_embeddings")
    return context


def end_tokens(backbone: Backbone) -> frozenset[int]:
    """Ids that end a completion: those of the tokenizer, the model's and the generation configuration, and
    the end of a trained row.

    A base model whose template ends turns with another token than `eos_token` may name that token nowhere.
    """
    tokenizer = backbone.tokenizer
    candidates = [tokenizer.eos_token_id, turn_end_id(tokenizer)]
    candidates.append(getattr(backbone.config, "eos_token_id", None))
    path = backbone.folder / "generation_config.json"
    if path.is_file():
        # Some chat models name their end of turn only here.
        candidates.append(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))
    ids = [id for entry in candidates for id in (entry if isinstance(entry, list | tuple) else [entry])]
    return frozenset(id for id in ids if id is not None)
