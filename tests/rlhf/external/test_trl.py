"""Runs that TRL trains: what it is handed, what is read back, and how it ends badly."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.rlhf.external.conftest import PACKAGES, make_environment
from tests.rlhf.policy_gradient.sampled_runs import prompts
from tests.rlhf.runs import judgments, make_run, row, status_of, train
from training.contract import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    ContractError,
    RunSpec,
    read_evaluation,
    read_manifest,
    read_metrics,
    read_spec,
    settings_from_json,
)
from training.contract.external import TrlSettings, trl_command, trl_refusals
from training.rlhf.external.configuration import Machine, configuration, to_yaml
from training.rlhf.external.rows import Rows, rows_of_judgments
from training.rlhf.model.backbone import Backbone

GRPO: dict[str, Any] = {
    "rewards": [{"name": "people", "kind": "model", "checkpoint": "../../checkpoints/tea-reward"}],
    "rollout": {"samples": 4, "max_tokens": 12, "unfinished": "score"},
}


def trl_run(folder: Path, base: Path, *, method: Any = "preference", **more: Any) -> Path:
    optimiser = {"max_steps": 4, "evaluate_every": 2, **more.pop("optimiser", {})}
    return make_run(folder, base, method=method, optimiser=optimiser, trl=TrlSettings(), **more)


def data_of(run: Path, name: str) -> list[dict[str, Any]]:
    lines = (run / "state/trl/data" / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


# ── From the snapshot to the checkpoint ───────────────────────────────────────────────


def test_a_run_that_trl_trains_ends_as_a_checkpoint_with_metrics_and_provenance(
    base: Path, tmp_path: Path, fake_trl: Path
):
    run = trl_run(tmp_path / "run", base)
    assert train(run) == EXIT_FINISHED, status_of(run)
    assert status_of(run).message.startswith("4 steps by TRL 1.16.0 on ")
    lines = read_metrics(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert lines[1] | {"loss": 0.5, "margin": 0.25, "held_out_loss": 1.0} == lines[1]
    assert lines[1]["gradient_norm"] == 0.5
    report = read_evaluation(run)
    assert report is not None
    assert (report.step, report.figures["held_out_accuracy"]) == (4, 0.75)
    folder = run / "checkpoint"
    manifest = read_manifest(folder, verify=True)
    assert (manifest.kind, manifest.name, manifest.steps) == ("policy", "tested", 4)
    assert manifest.versions == {"trl": "1.16.0", "transformers": "5.24.0"}
    assert manifest.metrics["held_out_loss"] == 0.5
    assert {"trl.yaml", "trl.json"} <= set(manifest.files)
    # Equal wherever it was trained: no path of this machine.
    assert yaml.safe_load((folder / "trl.yaml").read_text())["model_name_or_path"] == base.name
    provenance = json.loads((folder / "trl.json").read_text())
    frozen = "".join(sorted(f"{name}=={version}\n" for name, version in PACKAGES.items()))
    assert provenance["packages_digest"] == hashlib.sha256(frozen.encode()).hexdigest()
    assert provenance["command"] == ["trl", "dpo", "--config", "trl.yaml", "--num_processes", "1"]
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("policy", folder)
    assert all(bool((tensor == 4).all()) for tensor in backbone.adapter_state("policy").values())
    assert not (run / "state/trl").exists()


def test_the_configuration_follows_the_settings_and_the_recipe_may_add_to_it(base: Path, tmp_path: Path):
    run = make_run(
        tmp_path / "run",
        base,
        method="preference",
        settings={"beta": 0.3, "loss": "ipo", "lora": {"rank": 4, "alpha": 8.0, "layers": 1}},
        optimiser={"learning_rate": 1e-5, "batch_size": 4, "micro_batch_tokens": 256, "schedule": "linear"},
        trl=TrlSettings(options={"max_grad_norm": 0.25, "use_liger_kernel": False}),
        seed=7,
    )
    program = make_environment(tmp_path / "bin", PACKAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RONDO_TRL", str(program))
        assert train(run) == EXIT_FINISHED
    config = yaml.safe_load((run / "checkpoint/trl.yaml").read_text())
    expected = {
        "beta": 0.3,
        "loss_type": ["ipo"],
        "learning_rate": 1e-5,
        "lr_scheduler_type": "linear",
        "seed": 7,
        "lora_r": 4,
        "lora_alpha": 8,
        # A step has 4 rows: 256 tokens hold two of at most 128.
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.25,
        "use_liger_kernel": False,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
    }
    assert {name: config[name] for name in expected} == expected
    # Of the last block alone.
    blocks = {name.split(".")[2] for name in config["lora_target_modules"]}
    assert len(blocks) == 1
    assert len(config["lora_target_modules"]) == 7


@pytest.mark.parametrize(
    ("method", "batch", "expected"),
    [("preference", 4, (1, 4)), ("kto", 4, (2, 2)), ("kto", 5, (5, 1)), ("sft", 6, (1, 6))],
)
def test_a_step_is_cut_into_what_memory_holds_but_kto_sees_two_rows_at_least(
    base: Path, tmp_path: Path, method: Any, batch: int, expected: tuple[int, int]
):
    # Each row may be as long as all tokens of a pass.
    optimiser = {"batch_size": batch, "micro_batch_tokens": 128}
    run = make_run(tmp_path / "run", base, method=method, optimiser=optimiser, trl=TrlSettings())
    machine = Machine(dtype="float32", has_gpu=False)
    rows = Rows([{"label": True}, {"label": False}], [], [])
    config = configuration(read_spec(run), rows, modules=["q_proj"], machine=machine, resume=None)
    sizes = (config["per_device_train_batch_size"], config["gradient_accumulation_steps"])
    assert sizes == expected


def test_numbers_are_written_as_yaml_reads_them():
    values = {"a": 1e-05, "b": 2.5e-7, "c": 3, "d": [0.1, "x: y"], "e": None, "f": True, "g": "1e3"}
    assert yaml.safe_load(to_yaml(values)) == values


def test_a_ranking_is_handed_on_as_its_decided_pairs(base: Path, backbone: Backbone):
    rows = [
        row("j1", ["good", "bad", "worse"], [1, 2, 2]),
        row("j2", ["same", "same too"], [1, 1]),
        row("j3", ["kept", "out"], [1, 2], split="held-out"),
    ]
    converted = rows_of_judgments(rows, backbone.tokenizer, settings_from_json("preference", {}))
    pairs = [(record["chosen"][0]["content"], record["rejected"][0]["content"]) for record in converted.train]
    assert pairs == [("good", "bad"), ("good", "worse")]
    assert converted.train[0]["prompt"] == [{"role": "user", "content": "What is the colour of the sky?"}]
    assert [record["chosen"][0] for record in converted.held_out] == [
        {"role": "assistant", "content": "kept"}
    ]
    # The same reason as that of Rondo's own method.
    assert [entry["reason"] for entry in converted.dropped] == ["no two usable answers differ in rank"]


def test_thumbs_and_demonstrations_become_unpaired_rows_and_completions(backbone: Backbone):
    rating = {"criterion": "help", "scale": "thumbs"}
    ids = ("j1.0", "j1.1")
    ratings = [{**rating, "completion": id_, "value": value} for id_, value in zip(ids, (1, 0), strict=True)]
    rows = [row("j1", ["up", "down"], [1, 2], ratings=ratings, demonstration="written")]
    kto = rows_of_judgments(rows, backbone.tokenizer, settings_from_json("kto", {}))
    assert [(record["completion"][0]["content"], record["label"]) for record in kto.train] == [
        ("up", True),
        ("down", False),
    ]
    sft = rows_of_judgments(rows, backbone.tokenizer, settings_from_json("sft", {}))
    assert [record["completion"][0]["content"] for record in sft.train] == ["written"]


def test_grpo_is_handed_prompts_and_asks_the_served_reward_model(
    base: Path, tmp_path: Path, fake_trl: Path, monkeypatch: pytest.MonkeyPatch
):
    run = trl_run(tmp_path / "run", base, method="policy_gradient", rows=(), prompts=prompts(), settings=GRPO)
    assert train(run) == EXIT_FAILED
    assert "RONDO_REWARD_URL is not set" in status_of(run).message
    monkeypatch.setenv("RONDO_REWARD_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("RONDO_REWARD_KEY", "the-key-of-the-server")
    monkeypatch.setenv("FAKE_TRL", "nothing")
    assert train(run) == EXIT_FAILED
    work = run / "state/trl"
    assert "def trl_reward(" in (work / "rondo_reward.py").read_text()
    assert [record["prompt"][-1]["role"] for record in data_of(run, "train.jsonl")] == ["user"] * 5
    config = yaml.safe_load((work / "trl.yaml").read_text())
    assert config["reward_funcs"] == ["rondo_reward.trl_reward"]
    assert config["num_generations"] == 4
    assert config["per_device_train_batch_size"] * config["gradient_accumulation_steps"] == 4 * 4
    assert b"the-key-of-the-server" not in b"".join(
        path.read_bytes() for path in run.rglob("*") if path.is_file()
    )


# ── Bad ends ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("fail", "TRL ended with status 1. It said: ValueError: the learning rate is no number"),
        ("half", "TRL's adapter is not whole"),
        ("nothing", "TRL ended without an adapter"),
    ],
)
def test_a_trl_that_fails_or_leaves_half_an_adapter_leaves_no_checkpoint(
    base: Path, tmp_path: Path, fake_trl: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, message: str
):
    monkeypatch.setenv("FAKE_TRL", behaviour)
    run = trl_run(tmp_path / "run", base)
    assert train(run) == EXIT_FAILED
    assert message in status_of(run).message
    assert not (run / "checkpoint").exists()


def test_bad_yaml_of_a_recipe_ends_the_run_in_trls_own_words(base: Path, tmp_path: Path, fake_trl: Path):
    run = make_run(
        tmp_path / "run", base, method="preference", trl=TrlSettings(options={"learning_rate": "fast"})
    )
    assert train(run) == EXIT_FAILED
    assert "ValueError: the learning rate is no number" in status_of(run).message


def test_a_cancelled_run_ends_trl_and_goes_on_from_its_last_whole_save(
    base: Path, tmp_path: Path, fake_trl: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_TRL", "hang")
    run = trl_run(tmp_path / "run", base, optimiser={"keep_best": False, "save_every": 1})

    def cancel() -> None:
        while not (run / "state/trl/output/checkpoint-2").exists():
            time.sleep(0.02)
        (run / "cancel").touch()

    threading.Thread(target=cancel, daemon=True).start()
    assert train(run) == EXIT_STOPPED
    assert [line["step"] for line in read_metrics(run)] == [1]
    monkeypatch.delenv("FAKE_TRL")
    assert train(run) == EXIT_FINISHED
    text = (run / "log.txt").read_text()
    assert "Going on after step 1, from TRL's save" in text
    assert "resume_from_checkpoint='output/checkpoint-1'" in text
    assert [line["step"] for line in read_metrics(run)] == [1, 2, 3, 4]


def test_a_parents_adapter_is_what_trl_goes_on_from(base: Path, tmp_path: Path, fake_trl: Path):
    parent = trl_run(tmp_path / "parent", base)
    assert train(parent) == EXIT_FINISHED
    folder = parent / "checkpoint"
    run = trl_run(tmp_path / "run", base, settings={"reference": "base"}, parent=str(folder))
    assert train(run) == EXIT_FINISHED, status_of(run)
    assert "resume_from_checkpoint='start'" in (run / "log.txt").read_text()
    assert read_manifest(run / "checkpoint").parent_digest is not None


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        ({}, "has TRL (none)"),
        ({"trl": "0.29.0"}, "has TRL 0.29.0, and Rondo writes the configuration of TRL 1"),
    ],
)
def test_an_environment_without_a_fitting_trl_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], message: str
):
    monkeypatch.setenv("RONDO_TRL", str(make_environment(tmp_path / "bin", packages)))
    run = trl_run(tmp_path / "run", base)
    assert train(run) == EXIT_FAILED
    assert message in status_of(run).message


@pytest.mark.parametrize(
    ("named", "message"), [("", "RONDO_TRL is not set"), ("/nowhere/bin/trl", "is no program")]
)
def test_a_missing_trl_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, message: str
):
    monkeypatch.setenv("RONDO_TRL", named)
    run = trl_run(tmp_path / "run", base)
    assert train(run) == EXIT_FAILED
    assert message in status_of(run).message


def test_neither_keys_nor_their_names_reach_trl(
    base: Path, tmp_path: Path, fake_trl: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RONDO_JUDGE_KEY", "a-key-of-the-judge")
    run = trl_run(tmp_path / "run", base)
    assert train(run) == EXIT_FINISHED
    assert "its key is None" in (run / "log.txt").read_text()


# ── What is refused ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "values", "named"),
    [
        ("reward", {}, "method"),
        ("preference", {"adapter": "none"}, "adapter"),
        ("preference", {"loss": "plackett_luce"}, "loss"),
        ("preference", {"thinking": "mask"}, "thinking"),
        ("preference", {"length_normalised": True}, "length_normalised"),
        ("kto", {"reference": "another"}, "reference"),
        ("policy_gradient", {**GRPO, "advantage": {"kind": "gae"}}, "method"),
        ("policy_gradient", {**GRPO, "rewards": [{"name": "short", "kind": "length"}]}, "rewards"),
        ("policy_gradient", {**GRPO, "rollout": {"samples": 4}}, "rollout, unfinished"),
        ("policy_gradient", {**GRPO, "advantage": {"kind": "leave_one_out"}}, "kl, place"),
        ("policy_gradient", {**GRPO, "advantage": {"deviation_floor": 0.1}}, "advantage, deviation_floor"),
    ],
)
def test_what_trl_cannot_be_told_of_is_refused(method: str, values: dict[str, Any], named: str):
    refused = [name for name, _ in trl_refusals(settings_from_json(method, values))]
    assert refused == [named]


def test_each_method_has_its_command():
    commands = {
        method: trl_command(settings_from_json(method, {})) for method in ("preference", "sft", "kto")
    }
    assert commands == {"preference": "dpo", "sft": "sft", "kto": "kto"}
    rloo = {**GRPO, "advantage": {"kind": "leave_one_out"}, "kl": {"place": "reward", "kind": "k1"}}
    assert trl_command(settings_from_json("policy_gradient", GRPO)) == "grpo"
    assert trl_command(settings_from_json("policy_gradient", rloo)) == "rloo"
    assert not [*trl_refusals(settings_from_json("policy_gradient", rloo))]


def test_a_parent_with_the_reference_parent_is_refused_by_the_spec(base: Path, tmp_path: Path):
    run = trl_run(tmp_path / "run", base)
    values = {**read_spec(run).to_json(), "parent": "somewhere"}
    with pytest.raises(ContractError, match="settings, reference: TRL measures from the base"):
        RunSpec.from_json(values)


def test_options_that_rondo_needs_itself_are_refused():
    with pytest.raises(ContractError, match="output_dir, seed is not yours to set"):
        TrlSettings(options={"seed": 1, "output_dir": "/tmp/elsewhere", "beta": 0.2})


def test_a_run_of_rondos_own_trainer_says_nothing_of_trl(base: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", base, judgments())
    assert "trl" not in json.loads((run / "spec.json").read_text())
