"""The starter package's GGUF file in transformers' format, which transformers itself reads."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

_CONTEXT = 8192
_ROPE = {"rope_type": "default", "rope_theta": 100000.0}
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def convert(gguf_file: Path, into: Path) -> None:
    """Write model and tokenizer of the starter package's file into the folder `into`.

    The configuration stands here: the package is pinned by its digest, and transformers needs a fourth of
    the conversion's time to read it from the file.
    """
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=_CONTEXT,
        rms_norm_eps=9.999999747378752e-06,  # 1e-5 as the file's float32 has it
        rope_parameters=_ROPE,
        tie_word_embeddings=True,
        **_TOKENS,
    )
    # The precision that the model was published in; its rounding is far below that of four bits.
    model = LlamaForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        config=config,
        dtype=torch.bfloat16,
        # Without this the weights stay in blocks of four bits, which cannot be saved.
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    model.generation_config = GenerationConfig(**{**_TOKENS, "eos_token_id": [_TOKENS["eos_token_id"]]})
    model.save_pretrained(into)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        clean_up_tokenization_spaces=False,
        model_max_length=_CONTEXT,
        local_files_only=True,
    )
    backend = tokenizer.backend_tokenizer
    # transformers does not know the split that the file names ("smollm"): each digit is a token.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    # The rest changes no token: it keeps the bytes of the files that 1.0 wrote, by whose digest models that
    # share a tokenizer are recognised.
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    backend.model.continuing_subword_prefix = None
    backend.model.end_of_word_suffix = None
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    tokenizer.save_pretrained(into)
