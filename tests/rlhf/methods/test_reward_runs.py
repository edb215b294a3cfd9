"""Runs of reward models with many heads: resumed, evaluated, continued."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.rlhf.loop.trainers import finish_two
from tests.rlhf.runs import (
    StopAfter,
    contradicted,
    files_of,
    judgments,
    make_run,
    row,
    status_of,
    train,
)
from training.contract import read_manifest, read_metrics
from training.contract.methods.common import OptimiserSettings
from training.contract.run import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    EvaluationReport,
    read_evaluation,
    write_evaluation,
)
from training.contract.snapshot import SnapshotRow
from training.rlhf.loop.training_loop import parameter_groups
from training.rlhf.measures.pairs import pair_details, pair_figures

EVERYTHING = {
    "loss": "plackett_luce",
    "ties": "davidson",
    "ensemble": 2,
    "annotator_heads": True,
    "ratings": [
        {"name": "helpful", "criterion": "helpfulness"},
        {"name": "safe", "criterion": "safety", "loss": "binary"},
    ],
}


def rated_judgments() -> list[SnapshotRow]:
    """The usual judgments by three annotators, each first answer rated, and some all tied."""
    rows = []
    for index, judged in enumerate(judgments()):
        texts = [completion.text for completion in judged.completions]
        first = judged.completions[0].id
        ranks = [judged.ranks[completion.id] for completion in judged.completions]
        rows.append(
            row(
                judged.judgment,
                texts,
                [1] * len(texts) if index % 5 == 2 else ranks,
                split=judged.split,
                prompt=judged.messages[0].content,
                annotator=f"annotator-{index % 3}",
                ratings=[
                    {
                        "completion": first,
                        "criterion": "helpfulness",
                        "scale": "five",
                        "value": 1 + index % 5,
                    },
                    {"completion": first, "criterion": "safety", "scale": "thumbs", "value": index % 2},
                ],
            )
        )
    return rows


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all kinds of heads, never interrupted; the last state is kept."""
    folder = make_run(
        tmp_path_factory.mktemp("whole") / "run",
        base,
        rated_judgments(),
        settings=EVERYTHING,
        lora={"dropout": 0.1},
        optimiser={"keep_best": False},
    )
    assert train(folder) == EXIT_FINISHED
    return folder


@pytest.mark.parametrize("steps", [3, 7])
def test_a_resumed_run_ends_byte_for_byte_the_same_with_all_kinds_of_heads(
    whole: Path, base: Path, tmp_path: Path, steps: int
) -> None:
    folder = make_run(
        tmp_path / "run",
        base,
        rated_judgments(),
        settings=EVERYTHING,
        lora={"dropout": 0.1},
        optimiser={"keep_best": False},
    )
    assert train(folder, StopAfter(folder, steps)) == EXIT_STOPPED
    assert train(folder) == EXIT_FINISHED
    assert files_of(folder / "checkpoint") == files_of(whole / "checkpoint")
    assert (folder / "evaluation.json").read_bytes() == (whole / "evaluation.json").read_bytes()


@pytest.mark.long
def test_two_processes_draw_the_curve_of_one_also_where_a_head_is_rarely_spoken_of(
    base: Path, tmp_path: Path
) -> None:
    # In most steps nothing is by this annotator: their offset must rest then, in two processes as in one.
    rare = row("rare", ["good answer", "bad"], [1, 2], annotator="seldom-here")
    single, two = (
        make_run(tmp_path / name, base, [*rated_judgments(), rare], settings=EVERYTHING)
        for name in ("one", "two")
    )
    assert train(single) == EXIT_FINISHED
    finish_two(two)
    curves = [[line["loss"] for line in read_metrics(run)] for run in (single, two)]
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    heads = [load_file(run / "checkpoint" / "heads.safetensors") for run in (single, two)]
    offsets = [weights["score.annotator.seldom-here"] for weights in heads]
    assert offsets[0].abs().max() > 0
    assert torch.allclose(offsets[0], offsets[1], atol=1e-4)


def test_what_is_learned_beside_the_heads_moves_and_is_saved(whole: Path) -> None:
    heads = load_file(whole / "checkpoint" / "heads.safetensors")
    assert heads["score"].shape == (2, 48)
    assert heads["score.log_tie"].shape == (11,)
    assert heads["helpful.thresholds_five"].shape == (4,)
    for annotator in range(3):
        assert heads[f"score.annotator.annotator-{annotator}"].abs().max() > 0
    assert read_manifest(whole / "checkpoint").heads == ["helpful", "safe", "score"]
    curve = [line["log_tie_2"] for line in read_metrics(whole)]
    # Twelve steps of 0.001 at a hundred times the pace: further than the weights' pace could go.
    assert abs(curve[-1] - curve[0]) > 0.05


def test_an_evaluation_is_told_with_its_diagrams(whole: Path) -> None:
    report = read_evaluation(whole)
    assert report is not None
    last = read_metrics(whole)[-1]
    assert report.step == last["step"] == 12
    figures = {key: value for key, value in last.items() if key.startswith("held_out_")}
    # After the last step baselines join them.
    assert report.figures.items() > figures.items()
    assert {"held_out_loss_score", "held_out_loss_helpful", "held_out_safe_log_loss"} <= set(report.figures)
    bins = report.details["score"]["reliability"]
    # Both held-out judgments are rankings or pairs; what is in the bins is every decided pair of them.
    pairs = sum(len(list(judged.pairs())) for judged in rated_judgments() if judged.split == "held-out")
    assert sum(bucket["count"] for bucket in bins) == pairs
    assert (
        report.details["score"]["length"]["pairs"] + report.details["score"]["length"]["equal_length"]
        == pairs
    )


def test_the_evaluation_told_is_that_of_the_state_that_became_the_checkpoint(
    base: Path, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run", base, contradicted(), optimiser={"evaluate_every": 1})
    assert train(folder) == EXIT_FINISHED
    losses = {line["step"]: line["held_out_loss"] for line in read_metrics(folder)}
    best = min(losses, key=lambda step: (losses[step], step))
    assert best != 12, "the test needs a run that does not end at its best"
    report = read_evaluation(folder)
    assert report is not None
    assert report.step == best == read_manifest(folder / "checkpoint").steps
    assert report.figures["held_out_loss"] == losses[best]


def test_a_run_without_ratings_of_its_criterion_fails_by_name(base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, settings={"ratings": [{"name": "h", "criterion": "humour"}]})
    assert train(folder) == EXIT_FAILED
    assert "no training judgment rates the criterion 'humour'" in status_of(folder).message


def test_numbers_by_themselves_go_at_their_own_pace_and_do_not_decay() -> None:
    weights, scalars = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))
    settings = OptimiserSettings(weight_decay=0.1)
    first, second = parameter_groups({"lora_A": weights, "heads.score.bias": scalars}, settings)
    assert (first["params"], first["pace"], first["weight_decay"]) == ([weights], 1.0, 0.1)
    assert (second["params"], second["pace"], second["weight_decay"]) == ([scalars], 100.0, 0.0)
    assert len(parameter_groups({"lora_A": weights}, settings)) == 1


def test_gains_of_a_norm_go_at_the_pace_of_weights_and_do_not_decay() -> None:
    weights, gains = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))
    first, second = parameter_groups({"q_proj": weights, "norm": gains}, OptimiserSettings(weight_decay=0.1))
    assert (first["params"], first["pace"], first["weight_decay"]) == ([weights], 1.0, 0.1)
    assert (second["params"], second["pace"], second["weight_decay"]) == ([gains], 1.0, 0.0)


def test_what_is_not_finite_is_told_as_unknown(tmp_path: Path) -> None:
    # Margins that say the opposite of what people chose have the temperature infinity.
    details = {"score": {"temperature": math.inf, "reliability": [{"observed": math.nan}]}}
    write_evaluation(tmp_path, EvaluationReport(step=3, figures={"held_out_loss": math.nan}, details=details))
    report = read_evaluation(tmp_path)
    assert report is not None
    assert report.figures == {"held_out_loss": None}
    assert report.details == {"score": {"temperature": None, "reliability": [{"observed": None}]}}
    assert read_evaluation(tmp_path / "not-started") is None


def test_held_out_figures_of_pairs_by_hand() -> None:
    # One ranking of three answers, its three pairs a third each, and two judgments of a pair.
    margins = [2.0, -1.0, 1.0, 0.5, -0.5]
    shares = [1 / 3, 1 / 3, 1 / 3, 1.0, 1.0]
    observed = {
        "chosen": torch.tensor(margins),
        "rejected": torch.zeros(5),
        "share": torch.tensor(shares),
        "longer": torch.tensor([3.0, 2.0, -1.0, 0.0, -4.0]),
        "prompt": torch.tensor([1, 1, 1, 2, 3]),
    }
    figures = pair_figures(observed, held_out=True)
    surprise = [math.log1p(math.exp(-margin)) for margin in margins]
    assert figures["accuracy"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert figures["log_loss"] == pytest.approx(
        sum(share * cost for share, cost in zip(shares, surprise, strict=True)) / 3
    )
    # Of resamples of three prompts with accuracies 2/3, 1 and 0 more than one in forty draws the last alone.
    assert (figures["accuracy_low"], figures["accuracy_high"]) == pytest.approx((0.0, 1.0))
    assert figures["log_loss_low"] < figures["log_loss"] < figures["log_loss_high"]
    # Of the four pairs of unequal length the longer scores higher in the first and the last, and is chosen
    # in the first two.
    assert (figures["longer_scored_higher"], figures["longer_chosen"]) == (0.5, 0.5)
    tau = figures["temperature"]
    # At the best temperature the slope over 1/τ is 0: Σ share · margin · σ(−margin / τ).
    slope = sum(s * m / (1 + math.exp(m / tau)) for s, m in zip(shares, margins, strict=True))
    assert slope == pytest.approx(0.0, abs=1e-7)
    assert "accuracy_low" not in pair_figures(observed, held_out=False)
    details = pair_details(observed)
    assert sum(bucket["count"] for bucket in details["reliability"]) == 5
    assert details["temperature"] == tau


def test_margins_that_are_not_finite_cost_the_figures_and_not_the_run() -> None:
    observed = {
        "chosen": torch.tensor([math.nan, 1.0]),
        "rejected": torch.zeros(2),
        "share": torch.ones(2),
        "longer": torch.ones(2),
        "prompt": torch.tensor([1, 2]),
    }
    assert "temperature" not in pair_figures(observed, held_out=True)
    assert pair_details(observed) == {}
