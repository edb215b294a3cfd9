"""Every family of transformers that writes text, as a tiny random base: it computes what transformers does
with attention written out, or is refused with a reason and a remedy. No traceback, and no other numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.rlhf.model.architectures import NotTinyError, architecture_folder
from tests.rlhf.model.test_families import (
    PROMPTS,
    assert_close,
    assert_own_log_probabilities,
    one_thread,  # noqa: F401 - for all tests here
    packed,
)
from training.contract import ContractError
from training.contract.methods.common import LoraSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.inspection import inspect_folder
from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters

SOME = {
    "apertus": True,
    "biogpt": True,
    "ernie4_5_moe": True,
    "exaone4": True,
    "gpt_bigcode": True,
    "olmoe": True,
    "opt": True,
    "qwen2_moe": True,
    "starcoder2": True,
    "llama4_text": True,
    "mpt": True,
    "bert-generation": False,
    "xglm": True,
}
"""Families beside those of `families.FAMILIES`, and whether they are accepted."""

# fmt: off
OWN_SIZES = frozenset({
    "blenderbot", "blt", "cohere_compass_text", "dbrx", "dots1", "dots3_note", "dots3_note_text",
    "emu3", "fuyu", "gemma3", "gemma3n", "gemma3n_text", "gemma4", "gemma4_assistant", "gemma4_text",
    "gemma4_unified", "gemma4_unified_assistant", "git", "got_ocr2", "gpt_neo", "inkling2_loop_text",
    "inkling2_text", "lfm2_moe", "llama4", "mamba2", "mllama", "modernbert-decoder",
    "moss_transcribe_diarize", "musicgen", "musicgen_melody", "nemotron", "phi4_multimodal", "plbart",
    "qwen3_5", "qwen3_5_moe", "qwen4_exp", "qwen4_exp_text", "reformer", "whisper", "xlm", "zamba",
    "zamba2", "zaya",
})
# fmt: on
"""Families whose configurations are not cut down by the names of their sizes."""

REMEDIES = ("choose ", "save its text part by", "fetch the base model again", "update Rondo")


def accepted(folder: Path) -> bool:
    """Return whether the base is accepted; where it is not, the reason comes with a remedy."""
    refusal = ""
    try:
        inspect_folder(folder)
    except ContractError as error:
        refusal = str(error)
    assert not refusal or any(remedy in refusal for remedy in REMEDIES), refusal
    return not refusal


@torch.no_grad()
def assert_equal_to_transformers(folder: Path) -> None:
    backbone = Backbone.load(folder, device="cpu", dtype=torch.float32)
    oracle: Any = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    row = packed(backbone.device)
    logits = backbone.logits(backbone.packed_states(row.ids, row.positions, row.layout))
    for places in row.rows:
        assert_close(logits[places], oracle(row.ids[:, places], use_cache=False).logits[0], within=1e-4)
    greedy = SamplingParameters(temperature=0, max_tokens=16)
    for prompt, [sample] in zip(PROMPTS, rollout(backbone, PROMPTS, greedy), strict=True):
        # By whole rows: some families' own caches are not exact.
        whole = torch.tensor([[*prompt, *sample.token_ids]])
        logits = oracle(whole, use_cache=False).logits[0, len(prompt) - 1 : -1]
        assert sample.token_ids == logits.argmax(-1).tolist()
    drawn = rollout(backbone, PROMPTS, SamplingParameters(max_tokens=16), n=2, seeds=[1, 2, 3, 4], max_rows=5)
    for prompt, group in zip(PROMPTS, drawn, strict=True):
        for sample in group:
            assert_own_log_probabilities(oracle, prompt, sample, within=1e-4)
    backbone.add_adapter("policy", LoraSettings(rank=2), seed=0)


@pytest.mark.parametrize("kind", SOME)
def test_a_family_computes_what_transformers_computes_or_is_refused(kind: str, tmp_path: Path) -> None:
    folder = architecture_folder(tmp_path / kind, kind)
    assert accepted(folder) == SOME[kind]
    if SOME[kind]:
        assert_equal_to_transformers(folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - SOME.keys() - OWN_SIZES))
def test_every_family_computes_what_transformers_computes_or_is_refused(kind: str, tmp_path: Path) -> None:
    folder = architecture_folder(tmp_path / kind, kind)
    if accepted(folder):
        assert_equal_to_transformers(folder)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(OWN_SIZES))
def test_a_family_with_sizes_of_its_own_is_not_cut_down_by_their_names(kind: str, tmp_path: Path) -> None:
    with pytest.raises(NotTinyError):
        architecture_folder(tmp_path / kind, kind)
