"""One run in two processes: by torchrun or accelerate, its base whole or cut, killed and resumed."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.loop.trainers import finish as finish_all
from tests.rlhf.loop.trainers import finish_two, start, start_two
from tests.rlhf.runs import ENVIRONMENT, ROOT, files_of, judgments, make_run, row, status_of, train
from training.contract import read_manifest, read_metrics
from training.contract.methods import Method
from training.contract.run import EXIT_FAILED, EXIT_FINISHED
from training.contract.snapshot import SnapshotRow
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.encoding import Encoder

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
)

pytestmark = pytest.mark.slow


def finish(folder: Path, launcher: tuple[str, ...] = TORCHRUN) -> None:
    """Run to the end in two processes of a launcher, which talk to each other over gloo."""
    done = subprocess.run(
        [*launcher, "-m", "training.rlhf", str(folder)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def losses_of(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder)]


def odd_judgments() -> list[SnapshotRow]:
    """13 to train on: in batches of 4 the last of an epoch is one judgment, and a process has none."""
    return [*judgments(), row("odd", ["good answer", "bad"], [1, 2])]


@pytest.fixture(scope="module", params=["reward", pytest.param("preference", marks=pytest.mark.long)])
def cut(request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose base was cut over two processes, with few tokens a pass, so that one has more of them."""
    folder = make_run(
        tmp_path_factory.mktemp("cut") / "run",
        base,
        odd_judgments(),
        method=request.param,
        settings={"centring": 0.0} if request.param == "reward" else None,
        optimiser={"micro_batch_tokens": 128, "epochs": 3, "keep_best": False},
        lora={"layers": 2},
        sharding="full",
    )
    if request.param == "reward":
        finish(folder)
    else:
        finish_two(folder)
    return folder


def test_a_base_cut_over_two_processes_draws_the_loss_curve_of_a_whole_one(cut: Path, tmp_path: Path) -> None:
    whole = same_run(cut, tmp_path / "whole")
    assert train(whole) == EXIT_FINISHED
    assert losses_of(cut) == pytest.approx(losses_of(whole), abs=1e-5)
    ours, theirs = (read_manifest(run / "checkpoint").metrics for run in (cut, whole))
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    # A block has 2 · 48 · 48 + 2 · 24 · 48 (attention), 3 · 128 · 48 (MLP) and 2 · 48 (norms) = 25,440
    # parameters, there are three; 320 · 48 embeddings and a norm of 48 stay whole.
    match = re.search(r"keeps about (\d+) of its (\d+) parameters", (cut / "log.txt").read_text())
    assert [int(number) for number in match.groups()] == [3 * 25_440 // 2 + 15_408, 3 * 25_440 + 15_408]
    assert "parameters" not in (whole / "log.txt").read_text()


def test_a_checkpoint_of_a_cut_base_scores_the_same_in_one_process(cut: Path, base: Path) -> None:
    manifest = read_manifest(cut / "checkpoint", verify=True)
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", cut / "checkpoint")
    encoder = Encoder(backbone.tokenizer)
    costs = []
    for judgment in judgments():
        if judgment.split == "train":
            continue
        values = []
        for completion in judgment.completions:
            answer = encoder.encode(judgment.messages, completion.text)
            ids = torch.tensor([answer.ids])
            with torch.no_grad(), backbone.using("it"):
                states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
            with torch.no_grad(), backbone.using(None):
                without = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
            if manifest.kind == "reward":
                values.append(backbone.score("it", states[-1:])[0])
                continue
            log_probs = [
                backbone.logits(of[answer.answer_start - 1 : -1])
                .log_softmax(-1)
                .gather(1, ids[0, answer.answer_start :, None])
                .sum()
                for of in (states, without)
            ]
            # DPO's implicit reward with its default β of 0.1.
            values.append(0.1 * (log_probs[0] - log_probs[1]))
        ranks = [judgment.ranks[completion.id] for completion in judgment.completions]
        pairs = [(a, b) for a in range(len(ranks)) for b in range(len(ranks)) if ranks[a] < ranks[b]]
        costs.append(torch.stack([-F.logsigmoid(values[a] - values[b]) for a, b in pairs]).mean())
    assert len(costs) == 2
    assert float(torch.stack(costs).mean()) == pytest.approx(manifest.metrics["held_out_loss"], abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("cut", ["preference"], indirect=True)
def test_two_processes_killed_and_resumed_end_byte_for_byte_like_two_never_killed(
    cut: Path, tmp_path: Path
) -> None:
    folder = same_run(cut, tmp_path / "killed")
    trainers = start_two(folder)
    while len(read_metrics(folder)) < 3:
        assert [trainer.poll() for trainer in trainers] == [None, None], trainers[0].output
        time.sleep(0.01)
    for trainer in trainers:
        trainer.kill()
    assert not (folder / "checkpoint").exists()
    finish_two(folder)
    assert "Going on after step" in (folder / "log.txt").read_text()
    assert losses_of(folder) == losses_of(cut)
    assert files_of(folder / "checkpoint") == files_of(cut / "checkpoint")


@pytest.mark.long
def test_activations_computed_again_gather_weights_again(base: Path, tmp_path: Path) -> None:
    runs = [
        make_run(
            tmp_path / sharding,
            base,
            odd_judgments(),
            method="kto",
            settings={"sources": ["ranks"]},
            optimiser={"epochs": 1, "gradient_checkpointing": True, "micro_batch_tokens": 64},
            sharding=sharding,
        )
        for sharding in ("none", "full")
    ]
    assert train(runs[0]) == EXIT_FINISHED
    finish_two(runs[1])
    assert losses_of(runs[1]) == pytest.approx(losses_of(runs[0]), abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "adapter"), [("reward", "lora"), ("preference", "lora"), ("preference", "none")]
)
def test_a_base_cut_within_each_of_two_machines_draws_the_loss_curve_of_a_whole_one(
    method: Method, adapter: str, base: Path, tmp_path: Path
) -> None:
    single, four = (
        make_run(
            tmp_path / sharding,
            base,
            odd_judgments(),
            method=method,
            settings={"adapter": adapter},
            optimiser={"micro_batch_tokens": 128, "epochs": 2, "keep_best": False, "learning_rate": 1e-3},
            sharding=sharding,
        )
        for sharding in ("none", "node")
    )
    assert train(single) == EXIT_FINISHED
    finish_all(four, 4, per_node=2)
    assert "The base is cut over 2 processes" in (four / "log.txt").read_text()
    assert losses_of(four) == pytest.approx(losses_of(single), abs=1e-5)
    ours, theirs = (read_manifest(run / "checkpoint").metrics for run in (four, single))
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.mark.long
def test_machines_with_different_numbers_of_processes_share_no_base(base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, sharding="node")
    trainers = start(folder, 3, per_node=2)
    assert all(trainer.wait() == EXIT_FAILED for trainer in trainers)
    message = status_of(folder).message
    assert "3 processes are not divided by the 2 of this machine; start as many on each" in message


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "more"), [("sft", {"sources": ["preferred"]}), ("kto", {"sources": ["ranks"]})]
)
def test_two_processes_draw_the_loss_curve_of_one(
    base: Path, tmp_path: Path, method: Method, more: dict[str, object]
) -> None:
    single = make_run(
        tmp_path / "one",
        base,
        odd_judgments(),
        method=method,
        settings=more,
        optimiser={"epochs": 2, "micro_batch_tokens": 64},
    )
    two = same_run(single, tmp_path / "two")
    assert train(single) == EXIT_FINISHED
    finish_two(two)
    assert losses_of(two) == pytest.approx(losses_of(single), abs=1e-5)


@pytest.mark.long
def test_accelerate_starts_a_run_unchanged_and_fewer_judgments_than_processes_are_told(
    base: Path, tmp_path: Path
) -> None:
    rows = [row("only", ["the sun rises", "no"], [1, 2])]
    single = make_run(tmp_path / "one", base, rows)
    two = same_run(single, tmp_path / "two")
    assert train(single) == EXIT_FINISHED
    finish(two, ACCELERATE)
    assert losses_of(two) == pytest.approx(losses_of(single), abs=1e-6)
    warning = "2 processes share steps of 1 judgments: some have nothing to do; start fewer"
    assert warning in (two / "log.txt").read_text()
    assert warning in status_of(two).message
    assert warning in read_manifest(two / "checkpoint").warnings
    assert warning not in (single / "log.txt").read_text()


def test_what_is_wrong_is_said_by_the_first_process_alone(base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, settings={"max_tokens": 4096})
    trainers = start_two(folder)
    assert all(trainer.wait() != 0 for trainer in trainers)
    status = status_of(folder)
    assert status.state == "failed"
    assert "max_tokens: 4096 is more than tiny reads (2048" in status.message
    log = (folder / "log.txt").read_text()
    assert log.count("4096 is more than") == 1
    assert "Traceback" not in log
