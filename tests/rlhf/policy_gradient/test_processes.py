"""The policy gradient in two processes ends where it ends in one; killed and resumed, too."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.loop.trainers import finish, finish_two, start_two
from tests.rlhf.policy_gradient.sampled_runs import GRPO, PPO, REINFORCE, make_sampled_run
from tests.rlhf.runs import files_of, status_of, train
from training.contract import read_manifest, read_metrics
from training.contract.run import EXIT_FINISHED, EXIT_STOPPED
from training.rlhf.policy_gradient.update import Tally, join_tallies
from training.rlhf.runtime.processes import Processes, Share

pytestmark = pytest.mark.slow

NORMALISED: dict[str, Any] = {
    # Running statistics of the reward, and answers that are held against those of other prompts.
    "rewards": [
        {"name": "short", "kind": "length", "options": {"most": 2, "slack": 30, "unit": "characters"},
         "normalise": True},
    ],
    "advantage": {"kind": "running_mean", "whiten": True},
    "kl": {"place": "reward", "kind": "k1", "beta": 0.05, "target": 1.0, "horizon": 50.0},
    "update": {"inner_epochs": 2, "stop_at_kl": 0.5},
}  # fmt: skip


def figures_of(folder: Path) -> list[dict[str, float]]:
    """Return the figures of a run's steps, their times aside."""
    return [
        {name: value for name, value in line.items() if not name.startswith("seconds")}
        for line in read_metrics(folder)
    ]


def assert_same_run(
    ours: Path, theirs: Path, *, within: float = 1e-5, file: str = "adapter_model.safetensors"
) -> None:
    actual, expected = figures_of(ours), figures_of(theirs)
    assert len(actual) == len(expected)
    for line, other in zip(actual, expected, strict=True):
        assert line == pytest.approx(other, rel=1e-4, abs=within, nan_ok=True)
    weights, others = (load_file(folder / "checkpoint" / file) for folder in (ours, theirs))
    assert set(weights) == set(others)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], rtol=0, atol=within)
    assert read_manifest(ours / "checkpoint").metrics == pytest.approx(
        read_manifest(theirs / "checkpoint").metrics, rel=1e-4, abs=within
    )


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(GRPO, id="grpo"),
        pytest.param(PPO, id="ppo", marks=pytest.mark.long),
        pytest.param(NORMALISED, id="normalised", marks=pytest.mark.long),
    ],
)
def test_two_processes_end_where_one_does(base: Path, tmp_path: Path, method: dict[str, Any]):
    # Batches of 3 of 5 prompts: the processes have 2 and 1, and at the end of an epoch 1 and 1.
    single = make_sampled_run(
        tmp_path / "one", base, method, optimiser={"batch_size": 3, "learning_rate": 1e-3}
    )
    two = same_run(single, tmp_path / "two")
    assert train(single) == EXIT_FINISHED
    finish_two(two)
    assert_same_run(two, single)
    samples = [(folder / "samples.jsonl").read_text().splitlines() for folder in (single, two)]
    assert len(samples[0]) == len(samples[1]) > 0


@pytest.mark.long
def test_a_process_without_a_prompt_of_a_step_takes_part(base: Path, tmp_path: Path):
    single = make_sampled_run(tmp_path / "one", base, REINFORCE, optimiser={"batch_size": 1, "epochs": 1})
    two = same_run(single, tmp_path / "two")
    assert train(single) == EXIT_FINISHED
    finish_two(two)
    assert_same_run(two, single)


@pytest.mark.long
@pytest.mark.parametrize(("sharding", "processes"), [("full", 2), ("node", 4)])
def test_a_base_cut_over_processes_ends_where_a_whole_one_does(
    base: Path, tmp_path: Path, sharding: str, processes: int
):
    settings = {"optimiser": {"batch_size": 3, "epochs": 2, "learning_rate": 1e-3}}
    whole = make_sampled_run(tmp_path / "one", base, GRPO, **settings)
    cut = make_sampled_run(tmp_path / "cut", base, GRPO, **settings, sharding=sharding)
    assert train(whole) == EXIT_FINISHED
    finish(cut, processes, per_node=2)
    assert_same_run(cut, whole)


@pytest.mark.parametrize(
    ("sharding", "processes"), [("full", 2), pytest.param("node", 4, marks=pytest.mark.long)]
)
def test_all_weights_cut_over_processes_end_where_whole_ones_do(
    base: Path, tmp_path: Path, sharding: str, processes: int
):
    # The reference is a second transformer, the frozen base, which is cut too; the value head is whole.
    settings = {"optimiser": {"batch_size": 3, "epochs": 1, "learning_rate": 3e-4}}
    method = {**PPO, "adapter": "none"}
    whole = make_sampled_run(tmp_path / "one", base, method, **settings)
    cut = make_sampled_run(tmp_path / "cut", base, method, **settings, sharding=sharding)
    assert train(whole) == EXIT_FINISHED
    finish(cut, processes, per_node=2)
    assert_same_run(cut, whole, file="model.safetensors")


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_weights_cut_over_processes_killed_and_resumed_end_byte_for_byte(
    base: Path, tmp_path: Path, dtype: str
):
    optimiser = {"batch_size": 3, "epochs": 4, "learning_rate": 3e-4, "save_every": 2}
    method = {**PPO, "adapter": "none"}
    whole = make_sampled_run(
        tmp_path / "whole", base, method, optimiser=optimiser, sharding="full", dtype=dtype
    )
    killed = same_run(whole, tmp_path / "killed")
    finish_two(whole)
    trainers = start_two(killed)
    while len(read_metrics(killed)) < 3:
        assert [trainer.poll() for trainer in trainers] == [None, None], trainers[0].output
        time.sleep(0.01)
    for trainer in trainers:
        trainer.kill()
    finish_two(killed)
    assert "Going on after step" in (killed / "log.txt").read_text()
    assert figures_of(killed) == figures_of(whole)
    assert files_of(killed / "checkpoint") == files_of(whole / "checkpoint")


@pytest.mark.long
def test_the_survivor_of_two_processes_ends_as_one_that_can_go_on(base: Path, tmp_path: Path):
    whole = make_sampled_run(
        tmp_path / "whole", base, GRPO, optimiser={"batch_size": 3, "epochs": 8, "save_every": 2}
    )
    killed = same_run(whole, tmp_path / "killed")
    finish_two(whole)
    trainers = start_two(killed)
    while len(read_metrics(killed)) < 4:
        assert [trainer.poll() for trainer in trainers] == [None, None], trainers[0].output
        time.sleep(0.01)
    trainers[1].kill()
    assert trainers[0].wait(60) == EXIT_STOPPED
    status = status_of(killed)
    assert status.state == "stopped"
    assert "another process of the run has ended" in status.message
    assert "Traceback" not in (killed / "log.txt").read_text()
    finish_two(killed)
    assert "Going on after step" in (killed / "log.txt").read_text()
    assert figures_of(killed) == figures_of(whole)
    assert files_of(killed / "checkpoint") == files_of(whole / "checkpoint")


def test_prompts_and_rows_are_divided_without_splitting_a_group():
    shares = [Share(Processes(rank, 3)) for rank in range(3)]
    assert [share.rows(range(5)) for share in shares] == [[0, 3], [1, 4], [2]]
    group = [0, 0, 1, 1, 2, 2, 3, 3]
    assert [share.rows(group) for share in shares] == [[0, 1, 6, 7], [2, 3], [4, 5]]
    assert shares[0].rows(group, [7, 2, 0]) == [7, 0]


def test_a_share_of_one_process_is_everything():
    share = Share()
    tally = Tally()
    tally.add("loss", 2.0, 3.0)
    assert share.merged([0, 1, 2], [1, 2, 3]) == [1, 2, 3]
    assert share.merged([], []) == []
    assert share.merged([0, 1, 2], "abc") == ["a", "b", "c"]
    joined, sums = join_tallies(share.processes, tally, {"policy_loss": 1.5})
    assert joined.figures() == {"loss": 2.0}
    assert sums == {"policy_loss": 1.5}
