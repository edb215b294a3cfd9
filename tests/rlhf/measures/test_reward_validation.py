"""A reward model's held-out figures beside those of a constant and of length alone, and its temperature."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from tests.rlhf.runs import contradicted, make_run, status_of, train
from training.contract import read_manifest
from training.contract.run import EXIT_FINISHED
from training.contract.validation import validation_from_figures
from training.rlhf.measures.pairs import length_log_loss, length_slope, pair_figures, scaled_log_loss
from training.rlhf.methods.reward import log_validation
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example


def example(lengths: list[int], ranks: list[int], *, weight: float = 1.0) -> Example:
    """A judgment of answers with so many tokens after a prompt of three."""
    answers = tuple(EncodedAnswer(tuple(range(3 + length)), 3) for length in lengths)
    return Example(judgment="j", answers=answers, ranks=tuple(ranks), weight=weight)


def test_the_length_predictor_is_fitted_as_by_an_independent_minimiser() -> None:
    examples = [
        example([10, 40], [2, 1]),
        example([30, 20], [2, 1], weight=2.0),
        example([8, 16, 64], [3, 2, 1]),
        example([50, 25], [1, 2], weight=0.5),
    ]
    # Winner over loser; the ranking of three has three pairs, a third each.
    ratios = np.log([4, 2 / 3, 4, 8, 2, 2])
    weights = np.array([1, 2, 1 / 3, 1 / 3, 1 / 3, 0.5])

    def cost(b: float) -> float:
        return float((weights * np.log1p(np.exp(-b * ratios))).sum() + b * b / 2 * (ratios**2).mean())

    assert length_slope(examples) == pytest.approx(minimize_scalar(cost, tol=1e-12).x, abs=1e-6)


def test_length_that_always_wins_has_a_finite_slope() -> None:
    assert 0 < length_slope([example([5, 10], [2, 1])] * 4) < 20


@pytest.mark.parametrize("examples", [[], [example([7, 7], [1, 2])]])
def test_without_lengths_that_differ_length_says_nothing(examples: list[Example]) -> None:
    slope = length_slope(examples)

    assert slope == 0.0
    loss = length_log_loss(torch.tensor([0.0, 1.3]), torch.ones(2), slope=slope)
    assert loss == pytest.approx(math.log(2))


def test_the_length_predictors_log_loss_by_hand() -> None:
    # −log σ(0.5 · log 4) = −log(2 / 3), as e^(log 4 / 2) = 2; −log σ(−0.5 · log 4) = −log(1 / 3).
    ratios, share = torch.tensor([math.log(4), -math.log(4)]), torch.tensor([1.0, 0.5])

    loss = length_log_loss(ratios, share, slope=0.5)

    assert loss == pytest.approx((math.log(3 / 2) + 0.5 * math.log(3)) / 1.5, abs=1e-6)


def test_a_model_that_is_too_sure_has_a_lower_log_loss_at_its_temperature() -> None:
    generator = np.random.default_rng(7)
    true = generator.normal(0, 1.5, 400)
    chosen = np.where(generator.random(400) < 1 / (1 + np.exp(-true)), true, -true)
    margin = torch.tensor(4 * chosen)

    scaled = scaled_log_loss(margin, torch.ones(400), list(range(400)))

    raw = float(torch.nn.functional.softplus(-margin).mean())
    at_truth = float(torch.nn.functional.softplus(-margin / 4).mean())
    assert scaled is not None
    assert scaled < raw - 0.2
    assert scaled == pytest.approx(at_truth, abs=0.01)


def test_margins_without_meaning_are_no_better_at_any_temperature() -> None:
    # Fitted to the very pairs the temperature would bring it below log 2.
    margin = torch.tensor(np.random.default_rng(3).normal(0, 3, 60))

    scaled = scaled_log_loss(margin, torch.ones(60), list(range(60)))

    assert scaled is not None
    assert scaled > math.log(2) - 0.01


def test_pairs_that_are_all_right_but_one_cost_no_infinity() -> None:
    margin = torch.tensor([1.0] * 29 + [-1.0])

    scaled = scaled_log_loss(margin, torch.ones(30), list(range(30)))

    assert scaled is not None
    assert math.isfinite(scaled)


def test_under_twenty_prompts_no_temperature_is_validated() -> None:
    assert scaled_log_loss(torch.ones(57), torch.ones(57), [*range(19)] * 3) is None


def observed(margins: list[float], prompts: list[int]) -> dict[str, torch.Tensor]:
    """Pairs of one judgment each."""
    count = len(margins)
    return {
        "chosen": torch.tensor(margins),
        "rejected": torch.zeros(count),
        "share": torch.ones(count),
        "longer": torch.zeros(count),
        "prompt": torch.tensor(prompts),
    }


def test_a_model_that_is_right_on_a_few_prompts_is_not_certain_to_be() -> None:
    figures = pair_figures(observed([1.0] * 10, [*range(5)] * 2), held_out=True)

    # Wilson's lower end of 5 in 5: 5 / (5 + 1.96²).
    assert figures["accuracy_low"] == pytest.approx(5 / (5 + 1.959964**2), abs=1e-6)
    assert (figures["decided"], figures["accuracy_high"]) == (10.0, 1.0)
    assert figures["constant_log_loss"] == pytest.approx(0.693147, abs=1e-6)


def test_one_held_out_prompt_leaves_the_accuracy_open() -> None:
    figures = pair_figures(observed([1.0, 1.0], [4, 4]), held_out=True)

    assert figures["accuracy_low"] < 0.5


def test_a_run_worse_than_a_constant_logs_it_and_its_checkpoint_keeps_it(base: Path, tmp_path: Path) -> None:
    # What is learned is wrong on every held-out judgment.
    folder = make_run(tmp_path / "run", base, contradicted(), optimiser={"keep_best": False})

    assert train(folder) == EXIT_FINISHED

    manifest = read_manifest(folder / "checkpoint")
    validation = validation_from_figures(manifest.metrics)
    assert validation is not None
    assert validation.decided == 2
    warning = f"Worse than a constant: held-out log-loss {validation.log_loss:.3f} against 0.693"
    assert warning in manifest.warnings
    assert warning in (folder / "log.txt").read_text()
    assert warning in status_of(folder).message
    assert "too few held-out prompts for a temperature" in (folder / "log.txt").read_text()


def test_a_run_better_than_both_warns_of_nothing() -> None:
    figures = {
        "held_out_accuracy": 0.7,
        "held_out_log_loss": 0.6,
        "held_out_constant_log_loss": math.log(2),
        "held_out_length_log_loss": 0.65,
    }

    assert log_validation(figures) == []
