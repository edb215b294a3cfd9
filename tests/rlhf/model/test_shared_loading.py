"""A base that processes share: each reads its part, all end with the weights of one that read the whole."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.rlhf.loop.trainers import in_processes
from tests.rlhf.model.families import FAMILIES, PADDED, family_folder
from tests.tiny import tiny_tokenizer
from training.contract import ContractError
from training.contract.run import Sharding
from training.rlhf.model import base_model
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.base_model import WeightFiles
from training.rlhf.runtime.processes import Processes

MIB = 2**20
SENT = {"gpt_neox", "mixtral", "qwen3_moe", "deepseek_v3", "hunyuan_v1_moe"}
"""Families whose files have other tensors than the model, or other names for them."""


@pytest.mark.parametrize("kind", FAMILIES)
def test_files_are_read_in_parts_unless_they_have_other_tensors_than_the_model(
    kind: str, tmp_path: Path
) -> None:
    folder = family_folder(tmp_path / kind, kind)
    model = base_model._without_memory(AutoConfig.from_pretrained(folder), torch.float32)
    assert {value.device.type for value in model.parameters()} == {"meta"}
    names = base_model._names_in_files(model, WeightFiles(folder))
    assert (names is None) == (kind in SENT)


def weights_of(
    processes: Processes, folders: list[str], sharding: Sharding = "full", dtype: torch.dtype = torch.float32
) -> list[dict[str, Any]]:
    """Every base's weights and buffers, put together from all processes, and the numbers kept here."""
    loaded = []
    for folder in folders:
        backbone = Backbone.load(
            Path(folder), device="cpu", dtype=dtype, shard_over=processes, sharding=sharding
        )
        model = backbone._model
        whole = {
            name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
            for name, value in [*model.named_parameters(), *model.named_buffers()]
        }
        local_numbers = sum(
            value.to_local().numel() if isinstance(value, DTensor) else value.numel()
            for value in model.parameters()
        )
        loaded.append({"whole": whole, "kept": local_numbers, "tied": tied(model)})
    return loaded


def tied(model: Any) -> bool:
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_end_with_the_weights_of_one_that_read_the_whole(tmp_path: Path) -> None:
    # Padded rows are what processes cannot share.
    folders = {kind: family_folder(tmp_path / kind, kind) for kind in FAMILIES.keys() - PADDED}
    by_rank = in_processes(weights_of, 2, [str(folder) for folder in folders.values()])
    for number, folder in enumerate(folders.values()):
        plain = AutoModelForCausalLM.from_pretrained(folder)
        expected = dict([*plain.named_parameters(), *plain.named_buffers()])
        for loaded in (results[number] for results in by_rank):
            assert set(loaded["whole"]) == set(expected), folder.name
            for name, value in expected.items():
                assert torch.equal(loaded["whole"][name], value), (folder.name, name)
            assert loaded["tied"] == tied(plain)
            assert loaded["kept"] < plain.num_parameters()


@pytest.mark.slow
def test_weights_in_several_files_are_read_in_bfloat16_by_two_machines_of_two(
    base: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "parts"
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    plain = AutoModelForCausalLM.from_pretrained(base)
    plain.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    whole = {name: value.bfloat16() for name, value in plain.named_parameters()}
    results = in_processes(weights_of, 4, [str(folder)], "node", torch.bfloat16, per_node=2)
    for (loaded,) in results:
        for name, value in whole.items():
            assert torch.equal(loaded["whole"][name], value), name
        # Half of 3 blocks of 25,440 parameters, and 15,408 that stay whole: see test_distributed.
        assert loaded["kept"] == 3 * 25_440 // 2 + 15_408


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "refusal"),
    [
        ("nan", "layers.2.mlp.down_proj.weight hold values that are not finite"),
        ("lost", "lack 1 tensors"),
    ],
)
def test_all_processes_refuse_a_damaged_base_with_one_reason(
    base: Path, tmp_path: Path, damage: str, refusal: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(base, folder)
    plain = AutoModelForCausalLM.from_pretrained(base)
    state = {name: value.clone() for name, value in plain.state_dict().items() if name != "lm_head.weight"}
    if damage == "nan":
        # In the rows of the second process alone, of a block that is not tried.
        state["model.layers.2.mlp.down_proj.weight"][-1, -1] = torch.nan
    else:
        del state["model.layers.2.mlp.down_proj.weight"]
    plain.save_pretrained(folder, state_dict=state)
    for result in in_processes(refusal_of, 2, str(folder)):
        assert re.search(re.escape(refusal), result), result


def refusal_of(processes: Processes, folder: str) -> str:
    try:
        weights_of(processes, [folder])
    except ContractError as error:
        return str(error)
    return "not refused"


def peak_of(processes: Processes, folder: str) -> int:
    """Bytes by which the process grows at most while it loads."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    Backbone.load(Path(folder), device="cpu", dtype=torch.float32, shard_over=processes)
    return _peak() - before


def _peak() -> int:
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_no_process_holds_the_whole_base_while_it_loads(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    size = 4 * model.num_parameters()
    assert size > 400 * MIB
    model.save_pretrained(tmp_path, max_shard_size="50MB")
    tokenizer.save_pretrained(tmp_path)
    del model
    peaks = in_processes(peak_of, 4, str(tmp_path))
    # A quarter of it, once more what is being read of one file, and the trial of one block in the first.
    assert max(peaks) < 0.6 * size, [peak / size for peak in peaks]
    assert sum(peaks) / 4 < 0.45 * size, [peak / size for peak in peaks]
