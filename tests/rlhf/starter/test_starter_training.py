"""The real starter model learns from real judgments, and a fresh process scores as the trainer did."""

import os
from pathlib import Path

import pytest
import torch

from tests.rlhf.runs import finish, make_run, qa_feedback_rows
from training.contract import read_metrics
from training.contract.run import EXIT_FINISHED, read_spec
from training.contract.snapshot import read_snapshot
from training.rlhf.data import build_examples
from training.rlhf.methods.reward import read_rewards
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.packing import pack

pytestmark = [
    pytest.mark.starter,
    pytest.mark.slow,
    pytest.mark.skipif("RONDO_SKIP_STARTER" in os.environ, reason="RONDO_SKIP_STARTER is set"),
]


def test_a_reward_model_of_qa_feedback_scores_the_same_in_a_fresh_process(
    starter: Path, small_data: Path, tmp_path: Path
) -> None:
    run = make_run(
        tmp_path / "run",
        starter,
        qa_feedback_rows(small_data, 10),
        lora={"layers": 4},
        settings={"max_tokens": 256},
        optimiser={"batch_size": 2, "max_steps": 3, "evaluate_every": 0},
    )
    code, output = finish(run)
    assert code == EXIT_FINISHED, output
    # The trainer's own figures on the held-out split, taken before it wrote the checkpoint and ended.
    figures = read_metrics(run)[-1]
    backbone = Backbone.load(starter, device="cpu", dtype=torch.float32)
    backbone.load_adapter("loaded", run / "checkpoint")
    rows = read_snapshot(run / read_spec(run).snapshot)
    examples = build_examples(rows, backbone.tokenizer, max_tokens=256, context=False).held_out
    assert len(examples) == figures["held_out_judgments"] == 1
    batch = pack(examples, device=torch.device("cpu"))
    with torch.no_grad():
        rewards = read_rewards(backbone, "loaded", batch)
    chosen, rejected = rewards[batch.winners], rewards[batch.losers]
    margin = batch.mean_over_pairs(chosen - rejected).mean().item()
    origin = batch.mean_over_pairs((chosen + rejected) / 2).mean().item()
    assert margin == pytest.approx(figures["held_out_margin"], abs=1e-5)
    assert origin == pytest.approx(figures["held_out_reward_mean"], abs=1e-5)
    # The head has been trained, or equal scores would say nothing of it.
    assert abs(margin) > 1e-3
