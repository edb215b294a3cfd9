"""From a GGUF file to a folder in transformers' format."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from training.rlhf.starter.progress import StarterError


def convert_gguf(gguf_file: Path, into: Path) -> None:
    """Write a SmolLM2 GGUF file as a transformers folder: bfloat16 safetensors and tokenizer.

    bfloat16 is the precision that the model was published in, half the size of float32 (269
    against 538 MB), and its rounding is far below what four-bit quantisation has already
    taken: see `tests/benchmarks/README.md`. Raises `StarterError` when the file is not SmolLM2.
    """
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    place = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    # The reader draws a progress bar on stderr that no setting turns off.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # What GGUF calls "smollm": each digit by itself first. The reader leaves that out, and
    # then spaces before a digit become other tokens than those of the model's training.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.clean_up_tokenization_spaces = False
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    if (
        tokenizer.eos_token_id != end
        or tokenizer.chat_template is None
        or "<|im_start|>" not in tokenizer.chat_template
    ):
        raise StarterError(
            f"{gguf_file.name} is not SmolLM2-Instruct: its end of sequence or chat template is another"
        )
    model.generation_config = GenerationConfig(bos_token_id=start, eos_token_id=end, pad_token_id=end)
    plain = _without_quantisation(model)
    plain.to(torch.bfloat16).save_pretrained(into)
    tokenizer.save_pretrained(into)


def _without_quantisation(model: Any) -> Any:
    """Return the same weights in a model that does not believe itself quantised and can be saved."""
    from transformers import AutoModelForCausalLM

    config = type(model.config).from_dict(
        {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    )
    plain = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain
