"""A character-level language model, small enough to be trained from nothing, in a folder like any base's."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_BEGIN, _ASKED, _END, _UNKNOWN = "<|begin|>", "<|asked|>", "<|end|>", "<|unknown|>"
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['content'] + ('<|asked|>' if message['role'] == 'user' else eos_token) }}"
    "{% endfor %}"
)
_CONTEXT = 64
"""Tokens of a chat at most."""


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Return one token for each of a to z, and four of its own."""
    vocabulary = {
        token: id for id, token in enumerate([_BEGIN, _ASKED, _END, _UNKNOWN, *string.ascii_lowercase])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BEGIN,
        eos_token=_END,
        pad_token=_END,
        unk_token=_UNKNOWN,
        additional_special_tokens=[_ASKED],
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def character_model(folder: Path, *, seed: int, width: int = 128, blocks: int = 4) -> int:
    """Write an untrained model to `folder`; how many parameters it has.

    A Llama of `blocks` blocks with heads of width 32, drawn from `seed` alone.
    """
    tokenizer = character_tokenizer()
    ends = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
        **ends,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())
