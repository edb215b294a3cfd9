"""Samples written in passes of fixed shapes: those of the other way, in few shapes, from the same memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.rlhf.policy_gradient.sampled_runs import GRPO, make_sampled_run
from tests.rlhf.rollout.test_batching import assert_same
from tests.rlhf.rollout.test_engine import disturb
from tests.rlhf.runs import train
from tests.tiny import tiny_model_folder
from training.contract.methods.common import LoraSettings
from training.contract.run import EXIT_FINISHED, read_samples
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient import loop
from training.rlhf.rollout.engine import RolloutEngine
from training.rlhf.rollout.generate import Compute, StaticLane, StaticShapes, bucket, rollout, shapes_for
from training.rlhf.rollout.samples import SampleRequest, end_tokens
from training.rlhf.sampling import SamplingParameters

PROMPTS = [[0] + [65 + (number * 7 + place) % 40 for place in range(3 + 11 * number)] for number in range(5)]
SEEDS = [10, 20, 30, 40, 50]
PARAMETERS = SamplingParameters(max_tokens=40)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder = tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")
    # Some tokens more end a sample, so that some end before the last one may.
    configuration = json.loads((folder / "generation_config.json").read_text())
    configuration["eos_token_id"] = [configuration["eos_token_id"], *range(20, 30)]
    (folder / "generation_config.json").write_text(json.dumps(configuration))
    loaded = Backbone.load(folder, device="cpu", dtype=torch.float32)
    loaded.add_adapter("policy", LoraSettings(rank=4), seed=0)
    disturb(loaded, "policy", 1)
    loaded.add_adapter("whole", None, seed=0)
    disturb(loaded, "whole", 9, scale=0.05)
    return loaded


class Recorder:
    """Plays what was recorded as a graph does: from and into the same memory, whatever was asked since."""

    def __init__(self) -> None:
        self.recorded = 0
        self.played = 0

    def __call__(self, compute: Compute) -> Compute:
        self.recorded += 1
        output = compute().clone()

        def play() -> Tensor:
            self.played += 1
            output.copy_(compute())
            return output

        return play


@pytest.mark.parametrize("adapter", [None, "policy", "whole"])
@pytest.mark.parametrize("rows", [10, 4, 1])
def test_samples_are_token_for_token_those_of_passes_of_any_shape(
    backbone: Backbone, adapter: str | None, rows: int
):
    expected = rollout(backbone, PROMPTS, PARAMETERS, n=2, seeds=SEEDS, adapter=adapter)
    # Some end early, and make place for those that wait.
    assert len({len(sample.tokens) for group in expected for sample in group}) > 1
    shapes = StaticShapes(backbone, rows=rows, width=100)
    samples = rollout(backbone, PROMPTS, PARAMETERS, n=2, seeds=SEEDS, adapter=adapter, shapes=shapes)
    assert_same(samples, expected)


def test_passes_have_few_shapes_and_each_is_recorded_once(backbone: Backbone):
    recorder = Recorder()
    shapes = StaticShapes(backbone, rows=12, width=300, record=recorder)
    parameters = SamplingParameters(max_tokens=90)
    expected = rollout(backbone, PROMPTS, parameters, n=4, seeds=SEEDS, adapter="policy")
    for _ in range(2):
        samples = rollout(backbone, PROMPTS, parameters, n=4, seeds=SEEDS, adapter="policy", shapes=shapes)
        assert_same(samples, expected)
    assert shapes.shapes <= {(rows, width) for rows in (1, 2, 4, 8, 12) for width in (128, 256)}
    assert recorder.recorded == len(shapes.shapes)
    # The longest sample alone is a pass for each token but its first.
    longest = max(len(sample.tokens) for group in expected for sample in group)
    assert recorder.played >= 2 * (longest - 1) > 5 * recorder.recorded


def test_weights_that_changed_where_they_lie_are_found_there(backbone: Backbone):
    shapes = StaticShapes(backbone, rows=20, width=100, record=Recorder())

    def both() -> list[list[list[int]]]:
        ways: list[Callable[[], list[list[Any]]]] = [
            lambda: rollout(backbone, PROMPTS, PARAMETERS, n=2, seeds=SEEDS, adapter="policy"),
            lambda: rollout(backbone, PROMPTS, PARAMETERS, n=2, seeds=SEEDS, adapter="policy", shapes=shapes),
        ]
        return [[sample.token_ids for group in way() for sample in group] for way in ways]

    before = both()
    assert before[0] == before[1]
    with torch.no_grad():
        for parameter in backbone.parameters("policy").values():
            parameter.mul_(1.7)
    after = both()
    assert after[0] == after[1] != before[0]


def test_what_was_no_number_leaves_no_trace_for_who_takes_its_place(backbone: Backbone):
    shapes = StaticShapes(backbone, rows=2, width=100)
    expected = rollout(backbone, PROMPTS, PARAMETERS, seeds=SEEDS, adapter="policy")
    state = {name: value.clone() for name, value in backbone.adapter_state("policy").items()}
    backbone.restore("policy", {name: torch.full_like(value, torch.nan) for name, value in state.items()}, {})
    with pytest.raises(FloatingPointError):
        rollout(backbone, PROMPTS, PARAMETERS, seeds=SEEDS, adapter="policy", shapes=shapes)
    backbone.restore("policy", state, {})
    samples = rollout(backbone, PROMPTS, PARAMETERS, seeds=SEEDS, adapter="policy", shapes=shapes)
    assert_same(samples, expected)


def test_a_sample_that_would_not_fit_is_refused_before_it_begins(backbone: Backbone):
    shapes = StaticShapes(backbone, rows=2, width=50)
    with pytest.raises(ValueError, match="48 tokens and an answer of 40 do not fit into fixed shapes of 50"):
        rollout(backbone, PROMPTS, PARAMETERS, shapes=shapes)


def test_rows_of_two_adapters_are_refused(backbone: Backbone):
    shapes = StaticShapes(backbone, rows=2, width=50)
    engine = RolloutEngine(
        backbone, ends=end_tokens(backbone), max_rows=2, make_lane=lambda: StaticLane(shapes)
    )
    requests = [
        SampleRequest(prompt=(0, 70), parameters=PARAMETERS, seed=1, adapter=adapter)
        for adapter in (None, "policy")
    ]
    handle = engine.submit(requests)
    while engine.busy:
        engine.step()
    with pytest.raises(ValueError, match="one adapter"):
        _ = handle.samples


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (9, 12), (12, 12)])
def test_a_bucket_is_the_smallest_that_holds(count: int, size: int):
    assert bucket(count, least=1, most=12) == size
    with pytest.raises(ValueError, match="13 do not fit into 12"):
        bucket(13, least=1, most=12)


def texts_of(run: Path) -> list[str]:
    return [sample.text for step in range(1, 7) for sample in read_samples(run, step)]


def test_a_run_off_a_gpu_may_ask_for_graphs_and_gets_none(backbone: Backbone, tmp_path: Path):
    run = make_sampled_run(
        tmp_path / "run",
        backbone.folder,
        GRPO,
        settings={"rollout": {"samples": 4, "max_tokens": 12, "cuda_graphs": "auto"}},
        optimiser={"max_steps": 1},
    )
    assert shapes_for(backbone, rows=4, width=64) is None
    assert train(run) == EXIT_FINISHED


def test_a_run_that_writes_in_fixed_shapes_learns_the_same(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[StaticShapes] = []

    def here(backbone: Backbone, *, rows: int, width: int) -> StaticShapes:
        made.append(StaticShapes(backbone, rows=rows, width=width))
        return made[-1]

    def run_of(name: str, cuda_graphs: str) -> Path:
        rollout = {"samples": 4, "max_tokens": 12, "cuda_graphs": cuda_graphs}
        return make_sampled_run(tmp_path / name, backbone.folder, GRPO, settings={"rollout": rollout})

    monkeypatch.setattr(loop, "shapes_for", here)
    dynamic, fixed = run_of("dynamic", "off"), run_of("fixed", "auto")
    assert train(dynamic) == EXIT_FINISHED
    assert made == []
    assert train(fixed) == EXIT_FINISHED
    # 16 answers a step for six steps, then one of each held-out prompt: the same memory throughout.
    [shapes] = made
    assert (shapes.rows, shapes.width) == (16, 128)
    assert texts_of(fixed) == texts_of(dynamic)


def test_without_memory_for_fixed_shapes_the_run_goes_on_without(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Full(StaticShapes):
        def kept(self, layer: int, key: Tensor, value: Tensor) -> list[Tensor]:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(loop, "shapes_for", Full)
    run = make_sampled_run(
        tmp_path / "run",
        backbone.folder,
        GRPO,
        settings={"rollout": {"samples": 4, "max_tokens": 12, "cuda_graphs": "auto"}},
        optimiser={"max_steps": 1},
    )
    assert train(run) == EXIT_FINISHED
    assert "answers are written without CUDA graphs from here on" in (run / "log.txt").read_text()
