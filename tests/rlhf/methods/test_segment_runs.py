"""Runs of segment and completeness heads: learned, resumed, split into micro-batches, loaded again."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.rlhf.loop.trainers import finish_two
from tests.rlhf.methods.segment_scene import (
    BAD,
    CPU,
    GOOD,
    ONLY_FAULTS,
    examples_of,
    lacking,
    marked,
    reward_by_hand,
)
from tests.rlhf.methods.test_methods import reward_method
from tests.rlhf.runs import StopAfter, files_of, make_run, status_of, train
from training.contract import ContractError, read_metrics
from training.contract.methods import settings_from_json
from training.contract.methods.reward import CompletenessHead, RewardSettings, SegmentHead
from training.contract.run import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, read_evaluation
from training.rlhf.methods.objectives.segments import segment_rewards
from training.rlhf.methods.reward import encode
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.packing import pack


def some_marked() -> list[Any]:
    """Sixteen judgments, four held out: answers of one to three sentences, bad ones among them."""
    rows = []
    for index, sentences in enumerate(product((GOOD, BAD), repeat=2)):
        for number in range(4):
            text = "".join((*sentences, GOOD)[: 1 + number % 3] if number else sentences).strip()
            split = "held-out" if number == 3 else "train"
            prompt = f"question {index}{number}?"
            rows.append(marked(f"m{index}{number}", [text], split=split, prompt=prompt))
    return rows


# ── Runs ──────────────────────────────────────────────────────────────────────────────


SETTINGS = {
    "loss": "none",
    "segments": [
        {"name": "faults", "categories": ["wrong"]},
        {"name": "parts", "categories": ["wrong"], "granularity": "sub-sentence", "weight": 0.5},
    ],
}


OPTIMISER = {"epochs": 8, "learning_rate": 5e-3, "evaluate_every": 8}


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two heads."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    run = make_run(folder, base, some_marked(), settings=SETTINGS, optimiser=OPTIMISER)
    assert train(run) == EXIT_FINISHED
    return run


def test_heads_learn_what_is_marked(learned: Path) -> None:
    last = read_metrics(learned)[-1]
    for head in ("faults", "parts"):
        assert last[f"held_out_{head}_log_loss"] < 0.5 * last[f"held_out_{head}_prior_log_loss"]
        assert last[f"held_out_{head}_average_precision"] > 0.95
        assert last[f"held_out_{head}_kappa"] > 0.8
    report = read_evaluation(learned)
    assert report is not None
    assert report.details["faults"]["precision_recall"][0]["recall"] == 1


def test_a_run_cut_short_and_resumed_ends_with_the_same_bytes(
    learned: Path, base: Path, tmp_path: Path
) -> None:
    cut = make_run(tmp_path / "run", base, some_marked(), settings=SETTINGS, optimiser=OPTIMISER)
    assert train(cut, StopAfter(cut, 7)) == EXIT_STOPPED
    assert train(cut) == EXIT_FINISHED
    assert files_of(cut / "checkpoint") == files_of(learned / "checkpoint")


def test_micro_batches_change_nothing_but_speed(base: Path, tmp_path: Path) -> None:
    curves = []
    for tokens in (64, 512):
        folder = make_run(
            tmp_path / str(tokens),
            base,
            some_marked(),
            settings=SETTINGS,
            optimiser={"micro_batch_tokens": tokens, "max_steps": 3},
        )
        assert train(folder) == EXIT_FINISHED
        curves.append([line["loss"] for line in read_metrics(folder)])
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_two_processes_draw_the_curves_of_one(base: Path, tmp_path: Path) -> None:
    # Five judgments of flags and two of completeness in batches of 4: in the second batch a process has one.
    rows = some_marked()[:6] + [lacking(f"l{n}", [GOOD, f"{GOOD}{BAD}"], [n, 1 - n]) for n in (0, 1)]
    settings = {**SETTINGS, "completeness": {"name": "completeness"}}
    folders = [
        make_run(tmp_path / name, base, rows, settings=settings, optimiser={"max_steps": 3})
        for name in ("one", "two")
    ]
    assert train(folders[0]) == EXIT_FINISHED
    finish_two(folders[1])
    ours, theirs = (read_metrics(folder) for folder in folders)
    for left, right in zip(ours, theirs, strict=True):
        figures = set(left) - {"seconds"}
        assert figures == set(right) - {"seconds"}
        assert {name: left[name] for name in figures} == pytest.approx(
            {name: right[name] for name in figures}, abs=5e-5
        )


def test_a_checkpoint_gives_every_segment_the_same_reward_when_it_is_loaded(
    learned: Path, backbone: Backbone
) -> None:
    manifest = backbone.load_adapter("trained", learned / "checkpoint")
    assert manifest.heads == ["faults", "parts"]
    settings = settings_from_json("reward", manifest.spec["settings"])
    assert isinstance(settings, RewardSettings)
    texts = [f"{GOOD}{BAD}", GOOD]
    method = reward_method(backbone, **ONLY_FAULTS)
    judged = marked("a", texts, read=(0, 1), prompt="question 42?")
    (example,) = examples_of(backbone, method, judged).train
    batch = pack([example], device=CPU)
    states = encode(backbone, "trained", batch)
    rewards = segment_rewards(
        backbone, "trained", settings.segments, states, batch, answers=example.answers, texts=texts
    )
    sentences = rewards[0]["faults"]
    assert [(segment.start, segment.end) for segment in sentences] == [
        (0, len(GOOD)),
        (len(GOOD), len(texts[0])),
    ]
    assert sentences[0].reward > 0 > sentences[1].reward, "high is faultless"
    backbone.drop_adapter("reward")
    backbone.load_adapter("reward", learned / "checkpoint")
    by_hand = reward_by_hand(backbone, example.answers[1].ids, -2)
    [only] = rewards[1]["faults"]
    assert (only.start, only.end) == (0, len(GOOD))
    assert only.reward == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize(
    ("head", "pattern"),
    [
        ({"categories": ["wrnog"]}, r"no training judgment has a span flag of 'wrnog'; .* 'wrong' \(12\)"),
        ({"categories": ["wrong"], "granularity": "whole"}, "every segment of the training answers"),
    ],
)
def test_a_head_without_anything_to_tell_apart_fails_the_run_by_name(
    base: Path, tmp_path: Path, head: dict[str, Any], pattern: str
) -> None:
    rows = [marked(f"m{index}", [f"{GOOD}{BAD}"]) for index in range(12)]
    folder = make_run(
        tmp_path / "run", base, rows, settings={"loss": "none", "segments": [{"name": "faults", **head}]}
    )
    assert train(folder) == EXIT_FAILED
    message = status_of(folder).message
    assert message.startswith("segment head 'faults'")
    assert re.search(pattern, message), message


def test_a_category_without_examples_beside_one_that_has_some_is_a_warning(
    backbone: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    head = SegmentHead(name="faults", categories=("wrong", "rare"))
    method = reward_method(backbone, loss="none", segments=(head,))
    with caplog.at_level("WARNING", logger="rondo.trainer"):
        method.begin(examples_of(backbone, method, marked("a", [f"{GOOD}{BAD}"])).train)
    assert "no training judgment has a span flag of 'rare'" in caplog.text


def test_a_name_is_given_to_one_head_alone() -> None:
    head = SegmentHead(name="completeness", categories=("wrong",))
    with pytest.raises(ContractError, match="the name completeness is taken"):
        RewardSettings(segments=(head,), completeness=CompletenessHead())
