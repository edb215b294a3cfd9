"""One frozen transformer with many adapters."""

import shutil
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.rlhf.runs import ENVIRONMENT
from tests.tiny import tiny_model_folder
from training.contract import ContractError
from training.contract.checkpoint import base_digest
from training.contract.methods.common import LoraSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import RunSpec
from training.rlhf.loop.run import save_checkpoint
from training.rlhf.model.backbone import SCORE, Backbone

IDS = torch.tensor([[0, 1, 40, 50, 60], [0, 1, 70, 80, 90]])
ONES = torch.ones_like(IDS)


def states(backbone: Backbone, name: str | None) -> torch.Tensor:
    with torch.no_grad(), backbone.using(name):
        return backbone.hidden_states(IDS, ONES).states


def disturb(backbone: Backbone, name: str, seed: int = 5, *, scale: float = 0.2) -> None:
    """Give an adapter weights as if it had been trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in backbone.parameters(name).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


def save(backbone: Backbone, name: str, folder: Path) -> Path:
    spec = RunSpec(
        method="reward",
        base_model=str(backbone.folder),
        snapshot="snapshot",
        snapshot_digest="0",
        settings=RewardSettings(),
        name="saved",
    )
    save_checkpoint(
        folder, backbone=backbone, adapter=name, kind="reward", spec=spec, steps=1, metrics={}, dropped=[]
    )
    return folder


def test_with_adapters_off_the_model_is_the_base_bit_for_bit(backbone: Backbone) -> None:
    before = states(backbone, None)
    backbone.add_adapter("one.v2", LoraSettings(rank=4), seed=1)
    backbone.add_adapter("two", LoraSettings(rank=2, targets=("q_proj",)), seed=2)
    disturb(backbone, "one.v2")
    disturb(backbone, "two")
    assert torch.equal(states(backbone, None), before)
    assert not torch.allclose(states(backbone, "one.v2"), before)
    assert not torch.allclose(states(backbone, "two"), states(backbone, "one.v2"))
    backbone.drop_adapter("one.v2")
    backbone.drop_adapter("two")
    assert torch.equal(states(backbone, None), before)


def test_a_new_adapter_changes_nothing_and_its_seed_alone_decides_it(base: Path, backbone: Backbone) -> None:
    torch.manual_seed(1)
    backbone.add_adapter("a", LoraSettings(rank=4), seed=7)
    torch.manual_seed(2)
    other = Backbone.load(base, device="cpu", dtype=torch.float32)
    drawn = torch.rand(1)
    torch.manual_seed(2)
    other.add_adapter("b", LoraSettings(rank=4), seed=7)
    assert torch.equal(torch.rand(1), drawn), "the caller's random state was used up"
    first, second = backbone.adapter_state("a"), other.adapter_state("b")
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(states(backbone, "a"), states(backbone, None))


def test_what_was_active_before_is_active_again_after_an_error(backbone: Backbone) -> None:
    backbone.add_adapter("a", LoraSettings(rank=4), seed=1)
    backbone.add_adapter("b", LoraSettings(rank=4), seed=1)
    with backbone.using("a"):
        with suppress(ZeroDivisionError), backbone.using("b"):
            assert backbone.active == "b"
            raise ZeroDivisionError
        assert backbone.active == "a"
    assert backbone.active is None


def test_a_gradient_reaches_the_adapter_though_the_reference_was_used_before_the_backward_pass(
    backbone: Backbone,
) -> None:
    backbone.add_adapter("policy", LoraSettings(rank=4), seed=1)
    backbone.add_adapter("frozen", LoraSettings(rank=4), seed=1, trainable=False)
    with backbone.using("policy"):
        out = backbone.hidden_states(IDS, ONES).states
    states(backbone, "frozen")
    states(backbone, None)
    out.sum().backward()
    grads = [parameter.grad for parameter in backbone.parameters("policy").values()]
    assert all(grad is not None for grad in grads)
    assert any(grad.abs().sum() > 0 for grad in grads if grad is not None)
    assert all(parameter.grad is None for parameter in backbone.parameters("frozen").values())


def test_padding_on_either_side_changes_no_state(backbone: Backbone) -> None:
    alone = backbone.hidden_states(IDS[:1], ONES[:1]).states
    pad = torch.full((1, 3), 2)
    none = torch.zeros_like(pad)
    right = backbone.hidden_states(torch.cat([IDS[:1], pad], 1), torch.cat([ONES[:1], none], 1)).states
    left = backbone.hidden_states(torch.cat([pad, IDS[:1]], 1), torch.cat([none, ONES[:1]], 1)).states
    assert torch.allclose(right[:, :5], alone, atol=1e-5)
    assert torch.allclose(left[:, 3:], alone, atol=1e-5)


def test_a_checkpoint_comes_back_with_its_head(tmp_path: Path, base: Path, backbone: Backbone) -> None:
    backbone.add_adapter("trained", LoraSettings(rank=4), seed=1)
    backbone.add_head("trained", SCORE, seed=1)
    disturb(backbone, "trained")
    folder = save(backbone, "trained", tmp_path / "checkpoint")
    fresh = Backbone.load(base, device="cpu", dtype=torch.float32)
    fresh.load_adapter("again", folder)
    assert torch.equal(states(fresh, "again"), states(backbone, "trained"))
    last = states(fresh, "again")[:, -1]
    assert torch.equal(fresh.score("again", last), backbone.score("trained", last))
    assert not any(parameter.requires_grad for parameter in fresh.parameters("again").values())


def test_a_checkpoint_of_another_base_is_refused(tmp_path: Path, backbone: Backbone) -> None:
    backbone.add_adapter("trained", LoraSettings(rank=4), seed=1)
    folder = save(backbone, "trained", tmp_path / "checkpoint")
    other_folder = tiny_model_folder(tmp_path / "other", seed=1)
    other = Backbone.load(other_folder, device="cpu", dtype=torch.float32)
    with pytest.raises(ContractError, match=r"'saved' was trained on base tiny .* but other .* is loaded"):
        other.load_adapter("again", folder)
    assert other.adapters == ()


def test_a_changed_tokenizer_is_another_base(tmp_path: Path, base: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    assert base_digest(copy) == base_digest(base)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert base_digest(copy) != base_digest(base)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, backbone: Backbone) -> None:
    backbone.add_adapter("trained", LoraSettings(rank=4), seed=1)
    folder = save(backbone, "trained", tmp_path / "checkpoint")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ContractError, match=r"adapter_model.safetensors: digest"):
        backbone.load_adapter("again", folder)


def test_plain_peft_loads_a_checkpoint_without_rondo(tmp_path: Path, base: Path, backbone: Backbone) -> None:
    backbone.add_adapter("trained", LoraSettings(rank=4, layers=2), seed=1)
    disturb(backbone, "trained")
    folder = save(backbone, "trained", tmp_path / "checkpoint")
    script = """
        import sys, torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM
        base, checkpoint, out = sys.argv[1:]
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, checkpoint).eval()
        with torch.no_grad():
            logits = model(torch.tensor([[0, 1, 40, 50, 60]])).logits
        assert not any(name.split(".")[0] == "training" for name in sys.modules)
        torch.save(logits, out)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(base), str(folder), str(tmp_path / "logits.pt")],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        ours = backbone.logits(states(backbone, "trained")[:1])
    theirs = torch.load(tmp_path / "logits.pt", weights_only=True)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert "Missing" not in done.stderr


def test_an_adapter_on_the_last_blocks_leaves_the_others_alone(
    tmp_path: Path, base: Path, backbone: Backbone
) -> None:
    backbone.add_adapter("top", LoraSettings(rank=4, layers=2), seed=1)
    disturb(backbone, "top")
    # The tiny base has three blocks, of which 1 and 2 are the last two.
    assert {name.split(".layers.")[1][0] for name in backbone.parameters("top")} == {"1", "2"}
    folder = save(backbone, "top", tmp_path / "checkpoint")
    fresh = Backbone.load(base, device="cpu", dtype=torch.float32)
    fresh.load_adapter("again", folder)
    assert fresh.lora_settings("again").layers == 2
    assert torch.equal(states(fresh, "again"), states(backbone, "top"))
    backbone.add_adapter("all", LoraSettings(rank=4, layers=4), seed=1)
    assert backbone.lora_settings("all").layers is None


def test_a_target_that_the_base_lacks_is_named(backbone: Backbone) -> None:
    with pytest.raises(ContractError, match="no layer c_attn"):
        backbone.add_adapter("a", LoraSettings(targets=("q_proj", "c_attn")), seed=1)


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"config.json is missing"):
        Backbone.load(tmp_path, device="cpu", dtype=torch.float32)


def test_the_base_keeps_its_dtype_and_adapters_stay_float32(base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.bfloat16)
    backbone.add_adapter("a", LoraSettings(rank=4), seed=1)
    backbone.add_head("a", SCORE, seed=1)
    assert backbone.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in backbone.parameters("a").values()} == {torch.float32}
    out = states(backbone, "a")
    assert out.dtype == torch.bfloat16
    assert backbone.score("a", out[:, -1]).dtype == torch.float32
