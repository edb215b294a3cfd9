"""A reward model as transformers' sequence classification: one label, whose logit is the score."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoModelForSequenceClassification

from training.rlhf.model.backbone import OFFSET, READS, SCORE
from training.rlhf.model.templates import turn_end_id


def classifier_of(model: Any, heads: Mapping[str, Tensor], tokenizer: Any) -> Any | None:
    """Return a reward model's transformer with its head `score` as one classifier, and let the tokenizer pad
    as that one expects it.

    An ensemble's head becomes its mean. None where the form cannot say it: heads that read elsewhere than at
    the last token, or add a constant, and families without such a form in transformers.
    """
    config = copy.deepcopy(model.config)
    known = type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if SCORE not in heads or READS in heads or OFFSET in heads or not known:
        return None
    config.num_labels = 1
    config.pad_token_id = _padding_id(tokenizer, int(config.get_text_config().vocab_size))
    with torch.device("meta"):
        classifier: Any = AutoModelForSequenceClassification.from_config(config, dtype=model.dtype)
    weight = heads[SCORE].mean(0, keepdim=True).to(model.dtype)
    score = getattr(classifier, "score", None)
    if not isinstance(score, nn.Linear) or score.weight.shape != weight.shape or score.bias is not None:
        return None
    weights = model.base_model.state_dict()
    if weights.keys() != classifier.base_model.state_dict().keys():
        return None
    classifier.base_model.load_state_dict(weights, assign=True)
    score.load_state_dict({"weight": weight}, assign=True)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    return classifier


def _padding_id(tokenizer: Any, size: int) -> int:
    """Return an id that no row ends with.

    The form reads a row's last token that is not padding: with the end of a turn as padding, which many
    tokenizers have, it would read the token before.
    """
    end = turn_end_id(tokenizer)
    special = sorted(id for id, token in tokenizer.added_tokens_decoder.items() if token.special)
    candidates = [
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
        tokenizer.bos_token_id,
        *special,
        *range(size),
    ]
    return int(next(id for id in candidates if id is not None and id != end and id < size))
