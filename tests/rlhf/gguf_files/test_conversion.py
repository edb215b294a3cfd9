"""A GGUF file becomes a base model with exactly its dequantised weights, or is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.rlhf.gguf_files.writer import quantised, type_of, write_gguf
from tests.rlhf.model.families import family_folder
from training.contract import ContractError
from training.rlhf.gguf_files import convert
from training.rlhf.gguf_files.__main__ import main
from training.rlhf.model.inspection import inspect_folder

_SLIDING = "sliding_attention"
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FAMILIES: dict[str, tuple[Type, dict[str, Any], dict[str, Any]]] = {
    "llama": (Type.F16, {}, {"llama.rope.dimension_count": 8, "llama.vocab_size": 320}),
    "qwen2": (
        Type.Q8_0,
        {"use_sliding_window": False, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"qwen2.rope.freq_base": 1e6},
    ),
    "qwen3": (
        Type.Q4_0,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        {"qwen3.rope.scaling.type": "linear", "qwen3.rope.scaling.factor": 2.0},
    ),
    "phi3": (
        Type.Q5_1,
        {},
        {"phi3.attention.sliding_window": 24, "phi3.rope.scaling.original_context_length": 512},
    ),
    "gemma": (Type.Q5_0, {}, {}),
    "gemma2": (
        Type.BF16,
        {"query_pre_attn_scalar": 12},
        {
            "gemma2.attn_logit_softcapping": 1.5,
            "gemma2.final_logit_softcapping": 2.0,
            "gemma2.attention.sliding_window": 8,
        },
    ),
    "gemma3_text": (
        Type.F32,
        {
            "query_pre_attn_scalar": 12,
            "num_hidden_layers": 6,
            "layer_types": [*[_SLIDING] * 5, "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {
            "gemma3.attention.sliding_window": 8,
            "gemma3.rope.freq_base": 1e6,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
        },
    ),
}
"""By model type: the matrices' type, what the configuration has besides, and the keys that tell it."""
_STORED = {Type.F32: torch.float32, Type.BF16: torch.bfloat16}
IDS = torch.randint(0, 320, (2, 40), generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_converted_model_computes_what_the_original_does_with_dequantised_weights(
    kind: str, tmp_path: Path
):
    matrices, more, metadata = FAMILIES[kind]
    folder = family_folder(tmp_path / "original", kind, **more)
    write_gguf(folder, tmp_path / "model.gguf", matrices, metadata=metadata)
    convert(tmp_path / "model.gguf", tmp_path / "converted")
    stored = _STORED.get(matrices, torch.float16)
    original = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        for parameter in original.parameters():
            of = type_of(parameter.numpy(), matrices)
            rounded = gguf.dequantize(quantised(parameter.numpy(), of), of)
            parameter.copy_(torch.from_numpy(np.array(rounded)).to(stored))
        converted = AutoModelForCausalLM.from_pretrained(tmp_path / "converted", dtype=torch.float32)
        torch.testing.assert_close(converted(IDS).logits, original(IDS).logits, rtol=1e-4, atol=1e-4)
    assert load_file(tmp_path / "converted" / "model.safetensors")["model.norm.weight"].dtype == stored
    if kind == "gemma2":
        assert inspect_folder(tmp_path / "converted")["context"] == 512
    tokenizer, known = (AutoTokenizer.from_pretrained(source) for source in (tmp_path / "converted", folder))
    text = "  The answer is 123, isn't it?\n<|im_end|> \u00e9\u4f60"
    assert tokenizer(text)["input_ids"] == known(text)["input_ids"]
    assert tokenizer.chat_template == known.chat_template
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (known.bos_token_id, known.eos_token_id)
    assert "quantization_config" not in json.loads((tmp_path / "converted" / "config.json").read_text())


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose rows hold blocks of 256 weights, with the positions of Llama 3."""
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "max_position_embeddings": 512,
    }
    return family_folder(tmp_path_factory.mktemp("wide") / "llama", "llama", rope_parameters=_LLAMA3, **sizes)


def llama3_factors() -> np.ndarray:
    """As llama.cpp's converter writes them for heads of 64: 1 for short waves, 8 for long ones."""
    factors = []
    for place in range(32):
        wave = 2 * np.pi * 500000 ** (2 * place / 64)
        smooth = (8192 / wave - 1) / 3
        factors.append(1.0 if wave < 2048 else 8.0 if wave > 8192 else 1 / ((1 - smooth) / 8 + smooth))
    return np.array(factors, dtype=np.float32)


@pytest.mark.parametrize(
    "kind", [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS, Type.IQ2_XS, Type.Q4_1]
)
def test_weights_of_every_type_are_those_that_gguf_dequantises(kind: Type, wide: Path, tmp_path: Path):
    path = tmp_path / "model.gguf"
    write_gguf(
        wide,
        path,
        kind,
        metadata={"llama.rope.freq_base": 5e5},
        tensors={"rope_freqs.weight": llama3_factors()},
    )
    assert main([str(path), str(tmp_path / "converted")]) == 0
    weights = load_file(tmp_path / "converted" / "model.safetensors")
    for written, name in (("token_embd", "embed_tokens"), ("blk.0.ffn_down", "layers.0.mlp.down_proj")):
        tensor = next(
            candidate for candidate in gguf.GGUFReader(path).tensors if candidate.name == f"{written}.weight"
        )
        assert tensor.tensor_type == kind
        expected = torch.from_numpy(gguf.dequantize(tensor.data, kind)).to(torch.float16)
        assert torch.equal(weights[f"model.{name}.weight"], expected)
    config = json.loads((tmp_path / "converted" / "config.json").read_text())
    assert config["rope_parameters"] == _LLAMA3
    source = json.loads((tmp_path / "converted" / "source.json").read_text())
    assert source["types"] == {kind.name: 8, "F32": 4}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family_folder(tmp_path_factory.mktemp("tiny") / "llama", "llama")


def refused(tmp_path: Path, tiny: Path, **how: Any) -> str:
    """Return the reason for which a file is refused; nothing of its weights is written."""
    path = tmp_path / "model.gguf"
    write_gguf(tiny, path, Type.Q8_0, **how)
    return reason(path, tmp_path)


def reason(path: Path, tmp_path: Path) -> str:
    with pytest.raises(ContractError) as error:
        convert(path, tmp_path / "converted")
    assert not list((tmp_path / "converted").glob("*.safetensors"))
    return str(error.value)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"without": ("tokenizer.chat_template",)}, "no chat template"),
        ({"without": ("tokenizer.ggml.tokens",)}, "lacks tokenizer.ggml.tokens"),
        ({"metadata": {"tokenizer.ggml.pre": "strange"}}, "split as 'strange'"),
        ({"metadata": {"tokenizer.ggml.model": "llama"}}, "put the model's tokenizer.json"),
        ({"metadata": {"general.architecture": "mamba"}}, "architecture 'mamba'"),
        ({"metadata": {"split.count": 3}}, "part of a split file"),
        ({"metadata": {"llama.expert_count": 8}}, "llama.expert_count = 8"),
        ({"metadata": {"llama.rope.scaling.type": "yarn"}}, "llama.rope.scaling.type = yarn"),
        ({"metadata": {"llama.attention.head_count": 8}}, "the metadata say (64, 32)"),
        ({"without": ("blk.1.ffn_down.weight",)}, "lacks the tensor blk.1.ffn_down.weight"),
        ({"without": ("llama.block_count",)}, "lacks llama.block_count"),
        (
            {"tensors": {"blk.0.strange.weight": np.zeros(32, np.float32)}},
            "has the tensor blk.0.strange.weight",
        ),
        ({"tensors": {"rope_freqs.weight": np.full(4, 3.0, np.float32)}}, "not those of Llama 3"),
        ({"tensors": {"blk.0.strange": np.zeros(32, np.int32)}}, "type I32"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_reason(how: Any, says: str, tiny: Path, tmp_path: Path):
    assert says in refused(tmp_path, tiny, **how)


def test_files_that_are_cut_off_damaged_or_of_an_unknown_type_are_refused(tiny: Path, tmp_path: Path):
    path = tmp_path / "model.gguf"
    write_gguf(tiny, path, Type.F16)
    whole = path.read_bytes()
    for length in (len(whole) - 100, len(whole) // 2, 600, 30, 6):
        path.write_bytes(whole[:length])
        assert "not a whole GGUF file" in reason(path, tmp_path)
    # The type of the first tensor follows its name, the number of dimensions and two of them.
    name = b"token_embd.weight"
    place = whole.index(name) + len(name) + 4 + 2 * 8
    path.write_bytes(whole[:place] + (99).to_bytes(4, "little") + whole[place + 4 :])
    assert "does not know" in reason(path, tmp_path)
    path.write_bytes(b"PK\x03\x04 something else")
    assert "is no GGUF file" in reason(path, tmp_path)


def test_a_tokenizer_beside_the_file_counts_more_than_its_metadata_and_must_have_its_tokens(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "model.gguf"
    write_gguf(tiny, path, Type.Q8_0, metadata={"tokenizer.ggml.pre": "strange"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny / name).read_bytes())
    assert main([str(path), str(tmp_path / "converted")]) == 0
    written = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = written["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    assert main([str(path), str(tmp_path / "other")]) == 2
    assert "belongs to another model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("split", "pieces"),
    [
        ("smollm", ["\u0120\u0120", "1", "2", "3", "4"]),
        ("qwen2", ["\u0120", "\u0120", "1", "2", "3", "4"]),
        ("llama-bpe", ["\u0120", "\u0120", "123", "4"]),
    ],
)
def test_texts_are_split_as_the_makers_of_a_vocabulary_split_them(
    split: str, pieces: list[str], tiny: Path, tmp_path: Path
):
    write_gguf(tiny, tmp_path / "model.gguf", Type.Q8_0, metadata={"tokenizer.ggml.pre": split})
    convert(tmp_path / "model.gguf", tmp_path / "converted")
    splitter = AutoTokenizer.from_pretrained(tmp_path / "converted").backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in splitter.pre_tokenize_str("  1234")] == pieces
