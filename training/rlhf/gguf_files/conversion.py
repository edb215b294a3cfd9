"""From a GGUF file to a folder in transformers' format, one tensor at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig

from training.contract import SOURCE_FILE, ContractError, sha256_of_file
from training.rlhf.gguf_files.configuration import ROPE_FACTORS, read_configuration
from training.rlhf.gguf_files.header import GgufFile
from training.rlhf.gguf_files.vocabulary import end_ids, read_tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""Files beside a GGUF file that count more than its metadata."""

_SHARD_BYTES = 4 * 1024**3
_ROOM = 1.05
"""Free space that is wanted, as a multiple of the folder's size."""


def convert(path: Path, into: Path, *, dtype: torch.dtype | None = None) -> None:
    """Write the model of a GGUF file into the folder `into`, which is made where it is missing.

    Tokenizer files that lie in `into` are used in place of the file's metadata. dtype: of the weights; None
    takes float32 or bfloat16 where the largest tensor has it, and else float16: the scales of quantised
    blocks are float16, so that its rounding is below their error. Raises `ContractError` with the reason
    where the file is not whole, or not supported, before any weight is written.
    """
    file = GgufFile(path)
    config = read_configuration(file)
    names = _names(file, config)
    into.mkdir(parents=True, exist_ok=True)
    config.dtype = dtype or _dtype(file)
    config.save_pretrained(into)
    tokenizer = read_tokenizer(file, into, context=config.max_position_embeddings)
    tokenizer.save_pretrained(into)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=end_ids(file), pad_token_id=tokenizer.pad_token_id
    ).save_pretrained(into)
    _write_weights(file, names, config, into)
    source = {
        "way": "gguf",
        "gguf_file": path.name,
        "gguf_sha256": sha256_of_file(path),
        "types": file.types,
        "precision": f"dequantised and saved as {str(config.dtype).removeprefix('torch.')}",
    }
    (into / SOURCE_FILE).write_text(json.dumps(source, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _dtype(file: GgufFile) -> torch.dtype:
    largest = max(file.tensors.values(), key=lambda tensor: int(tensor.n_elements))
    exact = {"F32": torch.float32, "BF16": torch.bfloat16}
    return exact.get(largest.tensor_type.name, torch.float16)


def _names(file: GgufFile, config: PretrainedConfig) -> dict[str, str]:
    """Return the file's name of each tensor of the model, whose class is noted in the configuration.

    Refuses a tensor that is missing, of another shape, or not of the model.
    """
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    known = gguf.get_tensor_name_map(kinds[file.architecture], config.num_hidden_layers)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    names = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        written = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if written not in file.tensors:
            raise ContractError(f"{file.path.name} lacks the tensor {written or name}; fetch the file again")
        if file.shape(written) != tuple(tensor.shape):
            raise ContractError(
                f"{file.path.name}: the tensor {written} has the shape {file.shape(written)} where the "
                f"metadata say {tuple(tensor.shape)}; fetch the file again"
            )
        names[name] = written
    if over := sorted(set(file.tensors) - set(names.values()) - {ROPE_FACTORS}):
        raise ContractError(
            f"{file.path.name} has the tensor {over[0]}, which is not supported in a GGUF file of the "
            f"architecture {file.architecture!r}; add the model's original weights as a folder instead"
        )
    return names


def _write_weights(file: GgufFile, names: dict[str, str], config: PretrainedConfig, into: Path) -> None:
    shards = list(_shards(file, names, config.dtype.itemsize))
    total = sum(size for _, size in shards)
    if shutil.disk_usage(into).free < total * _ROOM:
        raise ContractError(
            f"{file.path.name} has {total / 2**30:.1f} GiB once it is dequantised, and "
            f"{shutil.disk_usage(into).free / 2**30:.1f} GiB are free; free some space, then add it again"
        )
    places: dict[str, str] = {}
    for number, (members, _) in enumerate(shards, start=1):
        several = f"model-{number:05}-of-{len(shards):05}.safetensors"
        target = several if len(shards) > 1 else "model.safetensors"
        tensors = {name: _tensor(file, name, names[name], config) for name in members}
        save_file(tensors, into / target, metadata={"format": "pt"})
        places |= dict.fromkeys(members, target)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (into / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True))


def _shards(file: GgufFile, names: dict[str, str], item: int) -> Iterator[tuple[list[str], int]]:
    """Yield the tensors of each file of weights, with their bytes together."""
    members: list[str] = []
    size = 0
    for name, written in names.items():
        tensor_size = int(file.tensors[written].n_elements) * item
        if members and size + tensor_size > _SHARD_BYTES:
            yield members, size
            members, size = [], 0
        members.append(name)
        size += tensor_size
    yield members, size


def _tensor(file: GgufFile, name: str, written: str, config: PretrainedConfig) -> Tensor:
    """Return a tensor of the model: dequantised, and what llama.cpp did to it undone."""
    numbers = file.read(written)
    if file.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
        numbers = _in_halves(numbers, config.head_dim)
    elif file.architecture.startswith("gemma") and name.endswith("norm.weight"):
        numbers = numbers - 1
    return torch.from_numpy(np.array(numbers, dtype=np.float32)).to(config.dtype)


def _in_halves(numbers: np.ndarray, head_size: int) -> np.ndarray:
    """Return rows with the pairs of rotary positions half a head apart; llama.cpp puts them side by side."""
    heads = numbers.reshape(-1, head_size // 2, 2, *numbers.shape[1:])
    return heads.swapaxes(1, 2).reshape(numbers.shape)
