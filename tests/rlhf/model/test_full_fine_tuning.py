"""Adapter none: all of the base's weights are trained under an adapter's name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.rlhf.loop.trainers import finish_two
from tests.rlhf.methods.policies import examples_of, method_of, step
from tests.rlhf.runs import StopAfter, files_of, judgments, make_run, status_of, train
from training.contract import ContractError, read_manifest, read_metrics
from training.contract.methods import Method
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import SftSettings
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED
from training.rlhf.export import export_checkpoint
from training.rlhf.loop.log_probabilities import token_log_probabilities
from training.rlhf.model.backbone import Backbone

IDS = torch.tensor([[0, 1, 40, 50, 60], [0, 1, 70, 80, 90]])
ONES = torch.ones_like(IDS)
IMITATION: dict[str, Any] = {"adapter": "none", "sources": ["preferred"]}


def logits(backbone: Backbone, name: str | None) -> torch.Tensor:
    with torch.no_grad(), backbone.using(name):
        return backbone.logits(backbone.hidden_states(IDS, ONES).states)


def pull(backbone: Backbone, name: str, by: float = 0.05) -> None:
    with torch.no_grad():
        for weight in backbone.parameters(name).values():
            weight.add_(by)


def sft_run(folder: Path, base: Path, **more: Any) -> Path:
    return make_run(folder, base, method="sft", settings=IMITATION, **more)


def test_before_training_it_is_the_base_and_after_it_the_base_is_still_there(backbone: Backbone) -> None:
    before = logits(backbone, None)
    backbone.add_adapter("policy", None, seed=0)
    assert torch.equal(logits(backbone, "policy"), before)
    pull(backbone, "policy")
    assert not torch.allclose(logits(backbone, "policy"), before, atol=1e-2)
    assert torch.equal(logits(backbone, None), before)


def test_every_weight_of_the_base_takes_a_gradient_and_is_named_once(base: Path, backbone: Backbone) -> None:
    method = method_of(backbone, SftSettings(adapter="none", sources=("preferred",)), moved=0)
    step(method, examples_of(method, backbone, judgments()))
    trained = backbone.parameters("policy")
    plain = AutoModelForCausalLM.from_pretrained(base)
    assert set(trained) == {name for name, _ in plain.named_parameters()}
    assert all(weight.grad is not None and weight.grad.any() for weight in trained.values())


def test_the_gradient_is_that_of_plain_autograd_over_separate_rows(base: Path, backbone: Backbone) -> None:
    method = method_of(backbone, SftSettings(adapter="none", sources=("preferred",)), moved=0)
    examples = examples_of(method, backbone, judgments())
    loss = step(method, examples)
    plain = AutoModelForCausalLM.from_pretrained(base)
    total, tokens = torch.zeros(()), 0
    for example in examples:
        (answer,) = example.answers
        ids = torch.tensor([answer.ids])
        log_probs = plain(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        total = total - log_probs[answer.answer_start - 1 :].sum()
        tokens += len(answer.ids) - answer.answer_start
    (total / tokens).backward()
    assert loss == pytest.approx((total / tokens).item(), abs=1e-5)
    trained = backbone.parameters("policy")
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(trained[name].grad, weight.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tokens", [2500, 1500], ids=["three chunks, one not full", "kept as a whole"])
def test_a_trained_heads_gradient_is_that_of_plain_log_probabilities(tokens: int) -> None:
    torch.manual_seed(0)
    states, targets, weights = torch.randn(tokens, 6), torch.randint(11, (tokens,)), torch.randn(tokens)
    head, plain = torch.nn.Linear(6, 11), torch.nn.Linear(6, 11)
    plain.load_state_dict(head.state_dict())
    rows, plain_rows = (states.clone().requires_grad_() for _ in range(2))
    log_probs = token_log_probabilities(rows, targets, head)
    (log_probs * weights).mean().backward()
    expected = plain(plain_rows).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    (expected * weights).mean().backward()
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=0)
    for ours, other in ((rows, plain_rows), (head.weight, plain.weight), (head.bias, plain.bias)):
        torch.testing.assert_close(ours.grad, other.grad, atol=1e-5, rtol=0)


def test_a_second_backward_pass_through_spent_logits_is_refused() -> None:
    head = torch.nn.Linear(6, 11)
    values = token_log_probabilities(torch.randn(5, 6), torch.randint(11, (5,)), head).sum()
    values.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.backward()


def test_adapters_beside_it_lie_on_the_base_and_not_on_what_is_trained(backbone: Backbone) -> None:
    backbone.add_adapter("policy", None, seed=0)
    backbone.add_adapter("reward", LoraSettings(rank=2), seed=1)
    before = logits(backbone, "reward")
    pull(backbone, "policy")
    assert torch.equal(logits(backbone, "reward"), before)
    assert not any(value.requires_grad for value in backbone.lm_head(None).parameters())
    backbone.drop_adapter("policy")
    assert backbone.adapters == ("reward",)
    assert torch.equal(logits(backbone, "reward"), before)


def test_a_base_that_others_lie_on_is_not_taken_from_them(backbone: Backbone) -> None:
    backbone.add_adapter("reward", LoraSettings(rank=2), seed=1)
    before = logits(backbone, None)
    backbone.add_adapter("policy", None, seed=0)
    pull(backbone, "policy")
    assert torch.equal(logits(backbone, None), before)
    assert torch.equal(logits(backbone, "reward"), before)


def test_weights_are_trained_in_float32_whatever_the_base_is_in(base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.bfloat16)
    backbone.add_adapter("policy", None, seed=0)
    assert {weight.dtype for weight in backbone.parameters("policy").values()} == {torch.float32}
    assert backbone.logits(torch.zeros(1, backbone.hidden_size, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_tensors_of_another_model_are_refused_by_name(backbone: Backbone) -> None:
    backbone.add_adapter("policy", None, seed=0)
    state = backbone.adapter_state("policy")
    with pytest.raises(ContractError, match=r"do not fit the base, beginning with model\.norm\.weight"):
        backbone.restore("policy", {**state, "model.norm.weight": torch.ones(7)}, {})


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = sft_run(tmp_path_factory.mktemp("full") / "run", base)
    assert train(folder) == EXIT_FINISHED
    return folder


def test_training_lowers_the_loss_and_says_how_far_it_went_from_the_base(trained: Path) -> None:
    rows = read_metrics(trained)
    assert rows[-1]["loss"] < rows[0]["loss"] - 1
    assert math.isfinite(rows[-1]["held_out_log_ratio"])


def test_the_checkpoint_is_a_folder_that_plain_transformers_loads(trained: Path, base: Path) -> None:
    checkpoint = trained / "checkpoint"
    manifest = read_manifest(checkpoint, verify=True)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(manifest.files)
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", checkpoint)
    plain = AutoModelForCausalLM.from_pretrained(checkpoint)
    with torch.no_grad():
        loaded_logits = plain(IDS).logits
    torch.testing.assert_close(loaded_logits, logits(backbone, "it"), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(loaded_logits, logits(backbone, None), atol=1e-2)
    assert AutoTokenizer.from_pretrained(checkpoint).chat_template


def test_the_checkpoint_is_a_base_and_a_parent_of_the_next_run(
    trained: Path, base: Path, tmp_path: Path
) -> None:
    checkpoint = trained / "checkpoint"
    few = {"max_steps": 2, "learning_rate": 1e-9, "warmup_steps": 0}
    runs = [
        sft_run(tmp_path / "on", checkpoint, optimiser=few),
        sft_run(tmp_path / "after", base, optimiser=few, parent=str(checkpoint)),
    ]
    first = []
    for run in runs:
        assert train(run) == EXIT_FINISHED
        first.append(read_metrics(run)[0]["loss"])
    fresh = sft_run(tmp_path / "fresh", base, optimiser=few)
    assert train(fresh) == EXIT_FINISHED
    assert first[0] == first[1] < read_metrics(fresh)[0]["loss"] - 1
    # A step of a billionth leaves the policy where its parent was, which is its reference.
    last = read_metrics(runs[1])[-1]
    assert last["held_out_log_ratio"] == pytest.approx(0, abs=1e-4)


def test_an_interrupted_run_ends_bit_for_bit_where_an_uninterrupted_one_does(
    trained: Path, base: Path, tmp_path: Path
) -> None:
    folder = sft_run(tmp_path / "run", base)
    assert train(folder, StopAfter(folder, 7)) == EXIT_STOPPED
    assert train(folder) == EXIT_FINISHED
    assert files_of(folder / "checkpoint") == files_of(trained / "checkpoint")


@pytest.mark.parametrize("method", ["preference", "kto"])
def test_preferences_are_learned_by_all_weights_too(method: Any, base: Path, tmp_path: Path) -> None:
    more = {"sources": ["ranks"]} if method == "kto" else {}
    run = make_run(
        tmp_path / "run",
        base,
        method=method,
        settings={"adapter": "none", **more},
        optimiser={"max_steps": 8, "learning_rate": 3e-4},
    )
    assert train(run) == EXIT_FINISHED
    rows = read_metrics(run)
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_an_export_of_a_whole_model_says_that_its_folder_is_one(
    trained: Path, base: Path, tmp_path: Path
) -> None:
    with pytest.raises(ContractError, match="all weights were trained: the folder is a model"):
        export_checkpoint(trained / "checkpoint", base=base, out=tmp_path / "out", merged=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["reward", *(pytest.param(name, marks=pytest.mark.long) for name in ("sft", "preference", "kto"))],
)
def test_weights_cut_over_two_processes_end_where_whole_ones_do(
    method: Method, base: Path, tmp_path: Path
) -> None:
    sources = {"sft": {"sources": ["preferred"]}, "kto": {"sources": ["ranks"]}}
    single, two = (
        make_run(
            tmp_path / sharding,
            base,
            method=method,
            settings={"adapter": "none", **sources.get(method, {})},
            optimiser={"max_steps": 5, "learning_rate": 3e-4, "evaluate_every": 2, "micro_batch_tokens": 128},
            sharding=sharding,
        )
        for sharding in ("none", "full")
    )
    assert train(single) == EXIT_FINISHED
    finish_two(two)
    losses = [[line["loss"] for line in read_metrics(run)] for run in (single, two)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    whole, cut = (load_file(run / "checkpoint" / "model.safetensors") for run in (single, two))
    assert set(whole) == set(cut)
    for name, value in whole.items():
        torch.testing.assert_close(cut[name], value, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_run_over_cut_weights_is_continued_by_another_number_of_processes(
    base: Path, tmp_path: Path
) -> None:
    few = {"max_steps": 6, "save_every": 2, "learning_rate": 3e-4}
    folder = sft_run(tmp_path / "run", base, optimiser=few, sharding="full")
    assert train(folder, StopAfter(folder, 3)) == EXIT_STOPPED
    finish_two(folder)
    assert "Going on after step" in (folder / "log.txt").read_text()
    whole = sft_run(tmp_path / "whole", base, optimiser=few)
    assert train(whole) == EXIT_FINISHED
    losses = [[line["loss"] for line in read_metrics(run)] for run in (whole, folder)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_in_bfloat16_weights_stay_float32_and_products_are_rounded(base: Path, tmp_path: Path) -> None:
    runs = [
        sft_run(tmp_path / dtype, base, optimiser={"max_steps": 6}, dtype=dtype)
        for dtype in ("float32", "bfloat16")
    ]
    losses = []
    for run in runs:
        assert train(run) == EXIT_FINISHED
        losses.append([line["loss"] for line in read_metrics(run)])
        assert {value.dtype for value in load_file(run / "checkpoint" / "model.safetensors").values()} == {
            torch.float32
        }
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_a_parent_of_the_other_kind_is_refused_with_the_way_out(
    trained: Path, base: Path, tmp_path: Path
) -> None:
    run = make_run(
        tmp_path / "run",
        base,
        method="sft",
        settings={**IMITATION, "adapter": "lora"},
        parent=str(trained / "checkpoint"),
    )
    assert train(run) == EXIT_FAILED
    assert "adapter: the parent is a whole model; set it to 'none'" in status_of(run).message
