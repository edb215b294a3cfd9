"""Checkpoints where there is no Rondo: read by the guide's own snippet, and exported."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.guide_blocks import block
from tests.rlhf.runs import ENVIRONMENT, ROOT, make_run, train
from tests.tiny import tiny_model_folder
from training.contract import ContractError, read_manifest
from training.contract.files import sha256_of_file
from training.contract.run import EXIT_FINISHED
from training.contract.snapshot import Message
from training.rlhf.export import export_checkpoint
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.encoding import Encoder

QUESTION = "why does the sun rise in the east? "
ANSWER = "the earth turns; so — it seems — the sun rises 🌅"


@pytest.fixture(scope="module")
def checkpoints(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Policies and reward models; one of each with more learned beside the adapter or the head."""
    folder = tmp_path_factory.mktemp("checkpoints")
    few = {"max_steps": 4, "learning_rate": 1e-2}
    runs = {
        "policy": make_run(folder / "policy", base, method="preference", optimiser=few),
        "policy of ties": make_run(
            folder / "ties",
            base,
            method="preference",
            optimiser=few,
            settings={"loss": "plackett_luce", "ties": "davidson"},
        ),
        "reward": make_run(folder / "reward", base, optimiser=few),
        "ensemble": make_run(
            folder / "ensemble",
            base,
            optimiser=few,
            settings={"loss": "plackett_luce", "ties": "davidson", "ensemble": 3},
        ),
    }
    runs["reward of all weights"] = make_run(
        folder / "whole", base, optimiser={**few, "learning_rate": 1e-3}, settings={"adapter": "none"}
    )
    assert [train(run) for run in runs.values()] == [EXIT_FINISHED] * 5
    for name in ("policy of ties", "ensemble"):
        learned = load_file(runs[name] / "checkpoint" / "heads.safetensors")
        assert any("." in key for key in learned), "nothing is learned beside the head"
    return {name: run / "checkpoint" for name, run in runs.items()}


def value_in_rondo(base: Path, checkpoint: Path, answer: str = ANSWER) -> float:
    """Return a reward model's score, or a policy's log-probability of the answer, from a fresh backbone."""
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", checkpoint)
    row = Encoder(backbone.tokenizer).encode([Message(role="user", content=QUESTION)], answer)
    ids = torch.tensor([row.ids])
    with torch.no_grad(), backbone.using("it"):
        states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
    if backbone.heads("it"):
        return float(backbone.score("it", states[-1:]))
    log_probabilities = backbone.logits(states[:-1]).log_softmax(-1)
    log_probs = log_probabilities[torch.arange(len(row.ids) - 1), ids[0, 1:]]
    return float(log_probs[row.answer_start - 1 :].sum())


@pytest.mark.parametrize(
    "name",
    [
        "policy",
        "ensemble",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("policy of ties", "reward")),
    ],
)
def test_the_guides_snippet_computes_the_same_without_rondo(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path, name: str
) -> None:
    checkpoint = checkpoints[name]
    snippet = block("how-to/use-checkpoints-elsewhere.md", "import torch")
    script = tmp_path / "plain.py"
    script.write_text(
        "import importlib.util, pathlib\n"
        f"base, checkpoint = pathlib.Path({str(base)!r}), pathlib.Path({str(checkpoint)!r})\n"
        f"question, answer = {QUESTION!r}, {ANSWER!r}\n"
        "assert importlib.util.find_spec('training') is None, 'Rondo can be imported here'\n"
        f"{snippet}\nprint('value', float(value))\n"
    )
    # -I: neither the working directory nor PYTHONPATH is looked into.
    done = subprocess.run(
        [sys.executable, "-I", str(script)], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    printed = float(done.stdout.rpartition("value ")[2])
    assert printed == pytest.approx(value_in_rondo(base, checkpoint), abs=1e-5 * max(1.0, abs(printed)))


def prompt_ids(folder: Path) -> torch.Tensor:
    chat = [{"role": "user", "content": QUESTION}]
    text = AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, tokenize=False)
    return torch.tensor([AutoTokenizer.from_pretrained(folder)(text)["input_ids"]])


def adapted(base: Path, checkpoint: Path, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and the last state under the checkpoint's adapter, by the backbone."""
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", checkpoint)
    with torch.no_grad(), backbone.using("it"):
        states = backbone.hidden_states(ids, torch.ones_like(ids)).states
        return backbone.logits(states), states[0, -1]


def test_an_export_with_merged_weights_gives_the_logits_of_base_and_adapter(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "merged"
    command = [sys.executable, "-m", "training.rlhf.export", str(checkpoints["policy"])]
    done = subprocess.run(
        [*command, "--base", str(base), "--out", str(out), "--merged"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    model = AutoModelForCausalLM.from_pretrained(out)
    ids = prompt_ids(out)
    with torch.no_grad():
        merged_logits = model(ids).logits
        untrained = AutoModelForCausalLM.from_pretrained(base)(ids).logits
    expected, _ = adapted(base, checkpoints["policy"], ids)
    assert torch.allclose(merged_logits, expected, atol=1e-4)
    assert not torch.allclose(merged_logits, untrained, atol=1e-2), (
        "the adapter changes nothing: this says nothing"
    )
    assert model.dtype == torch.float32
    assert not (out / "adapter_config.json").exists()
    card = (out / "README.md").read_text()
    manifest = read_manifest(checkpoints["policy"])
    assert "language model with merged weights" in card
    assert f"snapshot {manifest.snapshot_digest}" in card
    assert f"| held_out_loss | {manifest.metrics['held_out_loss']:.4g} |" in card


def test_an_exported_reward_model_is_a_backbone_with_its_heads_beside_it(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "reward"
    export_checkpoint(checkpoints["ensemble"], base=base, out=out, merged=True)
    ids = prompt_ids(out)
    with torch.no_grad():
        state = AutoModelForCausalLM.from_pretrained(out).get_decoder()(ids).last_hidden_state[0, -1]
    _, expected = adapted(base, checkpoints["ensemble"], ids)
    heads, trained = (load_file(folder / "heads.safetensors") for folder in (out, checkpoints["ensemble"]))
    assert heads["score"].shape == (3, 48)
    assert torch.allclose(state @ heads["score"].T, expected @ trained["score"].T, atol=1e-4)
    card = (out / "README.md").read_text()
    assert "reward model with merged weights" in card
    assert "the heads `score`" in card


def padded(folder: Path, answers: list[str], side: str) -> Any:
    """Rows of the question and an answer each, as the card says, padded by the folder's own tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side=side)
    chats = [
        [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": answer}]
        for answer in answers
    ]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False).rstrip() for chat in chats]
    return tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")


@pytest.mark.parametrize("name", ["ensemble", "reward", "reward of all weights"])
def test_an_exported_reward_model_is_a_classifier_with_the_same_scores(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path, name: str
) -> None:
    checkpoint = checkpoints[name]
    out = tmp_path / "reward"
    export_checkpoint(checkpoint, base=base, out=out, merged=True)
    model, loaded = AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]
    expected = [value_in_rondo(base, checkpoint, answer) for answer in (ANSWER, "no")]
    for side in ("right", "left"):
        with torch.no_grad():
            logits = model.eval()(**padded(out, [ANSWER, "no"], side)).logits
        assert logits.shape == (2, 1)
        assert logits[:, 0].tolist() == pytest.approx(expected, abs=1e-4)
    assert abs(expected[0] - expected[1]) > 1e-2
    assert "AutoModelForSequenceClassification" in (out / "README.md").read_text()


def test_a_reward_model_that_reads_elsewhere_is_exported_with_its_heads_beside_it(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(checkpoints["reward"], tmp_path / "elsewhere")
    heads = load_file(checkpoint / "heads.safetensors")
    save_file({**heads, "score.offset": torch.ones(1)}, checkpoint / "heads.safetensors")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"]["heads.safetensors"] = sha256_of_file(checkpoint / "heads.safetensors")
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    export_checkpoint(checkpoint, base=base, out=tmp_path / "out", merged=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert "would load with a random head" in (tmp_path / "out" / "README.md").read_text()


def test_an_export_keeps_the_precision_of_the_base_or_takes_the_one_asked_for(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "small"
    export_checkpoint(checkpoints["policy"], base=base, out=out, merged=True, dtype="bfloat16")
    assert {str(value.dtype) for value in load_file(out / "model.safetensors").values()} == {"torch.bfloat16"}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_export_without_merging_is_the_adapter_with_tokenizer_and_card(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "adapter"
    export_checkpoint(checkpoints["policy"], base=base, out=out, merged=False)
    name = "adapter_model.safetensors"
    assert (out / name).read_bytes() == (checkpoints["policy"] / name).read_bytes()
    assert prompt_ids(out).tolist() == prompt_ids(base).tolist()
    assert "LoRA adapter that makes a language model" in (out / "README.md").read_text()


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    base: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    damaged = shutil.copytree(checkpoints["policy"], tmp_path / "damaged")
    with (damaged / "adapter_model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    with pytest.raises(ContractError, match=r"adapter_model.safetensors: digest \w+ is not the manifest's"):
        export_checkpoint(damaged, base=base, out=out, merged=True)
    other = tiny_model_folder(tmp_path / "other", seed=1)
    with pytest.raises(ContractError, match=r"was trained on tiny .* name that base"):
        export_checkpoint(checkpoints["policy"], base=other, out=out, merged=True)
    with pytest.raises(ContractError, match="no model is here"):
        export_checkpoint(checkpoints["policy"], base=tmp_path / "nowhere", out=out, merged=True)
    (tmp_path / "taken").mkdir()
    with pytest.raises(ContractError, match="something is here already"):
        export_checkpoint(checkpoints["policy"], base=base, out=tmp_path / "taken", merged=True)
    assert not out.exists()
    assert not list(tmp_path.glob(".*.partial"))
