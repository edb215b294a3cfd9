"""Heads on ratings: their losses, initial values and reported metrics."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from tests.rlhf.methods.reward_scene import step
from tests.rlhf.methods.test_methods import LORA, batch_of, spec_of
from tests.rlhf.model.test_backbone import disturb, save
from tests.rlhf.runs import row
from training.contract import ContractError
from training.contract.methods.reward import RatingHead, RewardSettings
from training.contract.snapshot import SnapshotRow
from training.rlhf.data import build_examples
from training.rlhf.measures.calibration import (
    figures_of_chances,
    figures_of_levels,
    roc_auc,
    spearman,
)
from training.rlhf.methods.objectives.ratings import cumulative_link
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example

HELPFUL, SAFE = "helpfulness", "safety"


def rated(
    name: str, *ratings: tuple[int, str, str, int], ranks: Sequence[int] = (1, 2, 3), **more: Any
) -> SnapshotRow:
    """A ranking of three answers with ratings: (answer, criterion, scale, value) each."""
    entries = [
        {"completion": f"{name}.{answer}", "criterion": criterion, "scale": scale, "value": value}
        for answer, criterion, scale, value in ratings
    ]
    texts = ["the sun rises", "no", "why should it"][: len(ranks)]
    return row(name, texts, ranks, prompt=f"question {name}", ratings=entries, **more)


def rows() -> list[SnapshotRow]:
    return [
        rated("a", (0, HELPFUL, "five", 5), (1, HELPFUL, "five", 2), (0, SAFE, "thumbs", 1)),
        rated("b", (0, HELPFUL, "five", 4), (2, HELPFUL, "five", 1), (1, SAFE, "thumbs", 0)),
        rated("c", (1, HELPFUL, "seven", 4), (2, SAFE, "five", 3), (0, SAFE, "five", 5), weight=0.5),
        rated("d", (2, HELPFUL, "five", 2)),
        rated("e"),
        rated("f", (0, SAFE, "thumbs", 1), (1, SAFE, "thumbs", 1), (2, SAFE, "thumbs", 0)),
    ]


def heads(loss: Literal["regression", "ordinal", "binary"]) -> tuple[RatingHead, ...]:
    return (
        RatingHead(name="helpful", criterion=HELPFUL, loss=loss),
        RatingHead(name="safe", criterion=SAFE, loss="binary", weight=2.0),
    )


def rating_method(backbone: Backbone, link: Any, *, parent: str | None = None, **more) -> RewardModelling:
    settings = RewardSettings(lora=LORA, ratings=heads(link), **more)
    return RewardModelling(backbone, spec_of(backbone, settings, parent=parent), settings)


def examples_of(backbone: Backbone, method: RewardModelling, of: list[SnapshotRow]) -> list[Example]:
    return build_examples(of, backbone.tokenizer, max_tokens=128, context=False, labels=method.wanted).train


def outputs_of(backbone: Backbone, example: Example, head: str) -> list[float]:
    batch = batch_of([example])
    with torch.no_grad(), backbone.using("reward"):
        states = backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)[batch.last]
    return (states @ backbone.head_state("reward")[head][0]).tolist()


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def test_ratings_are_fitted_by_squared_error_on_their_scale(backbone: Backbone) -> None:
    method = rating_method(backbone, "regression", loss="none")
    (example,) = examples_of(backbone, method, rows()[:1])
    method.begin([example])
    # 5 and 2 of five are 1 and 0.25 on 0..1; the head begins at 0 and the bias at their mean.
    assert backbone.extra("reward", "helpful.bias").item() == pytest.approx(0.625)
    disturb(backbone, "reward")
    outputs = outputs_of(backbone, example, "helpful")
    bias = backbone.extra("reward", "helpful.bias").item()
    parts = method.outcome(batch_of([example]), [example], dropout=False).parts
    expected = ((outputs[0] + bias - 1) ** 2 + (outputs[1] + bias - 0.25) ** 2) / 2
    assert parts["helpful"].loss.item() == pytest.approx(expected, abs=1e-4)


def test_a_binary_head_takes_the_upper_half_of_a_scale_for_a_thumb_up(backbone: Backbone) -> None:
    method = rating_method(backbone, "regression", loss="none")
    examples = examples_of(backbone, method, rows())
    method.begin(examples)
    # Of safety: 1 and 0; ½ and 1; 1, 1, 0. With half of either kind added: (4.5 + 0.5) / (7 + 1).
    assert backbone.extra("reward", "safe.bias").item() == pytest.approx(math.log(5 / 3), abs=1e-6)
    disturb(backbone, "reward")
    bias = backbone.extra("reward", "safe.bias").item()
    example = examples[2]
    outputs = outputs_of(backbone, example, "safe")
    middle, upper = sigmoid(outputs[2] + bias), sigmoid(outputs[0] + bias)
    expected = (-(math.log(middle) + math.log(1 - middle)) / 2 - math.log(upper)) / 2
    part = method.outcome(batch_of([example]), [example], dropout=False).parts["safe"]
    assert part.loss.item() == pytest.approx(expected, abs=1e-4)
    assert part.coefficient == 2.0


def test_a_rating_costs_its_probability_between_two_thresholds(backbone: Backbone) -> None:
    method = rating_method(backbone, "ordinal", loss="none")
    examples = examples_of(backbone, method, rows())
    method.begin(examples)
    # Until something is learned a level is as likely as it is frequent: of five 5, 2, 4, 1, 2, each level
    # with half a rating more, 7.5 in all.
    raw = backbone.extra("reward", "helpful.thresholds_five").detach()
    shares = cumulative_link(torch.zeros(1), torch.cat([raw[:1], raw[1:].exp()]).cumsum(0)).exp()[0]
    assert shares.tolist() == pytest.approx([1.5 / 7.5, 2.5 / 7.5, 0.5 / 7.5, 1.5 / 7.5, 1.5 / 7.5], abs=1e-5)
    assert backbone.extra("reward", "helpful.thresholds_seven").shape == (6,)

    disturb(backbone, "reward")
    first, *steps = backbone.extra("reward", "helpful.thresholds_five").tolist()
    thresholds = [first + sum(math.exp(step) for step in steps[:count]) for count in range(4)]
    assert thresholds == sorted(thresholds)
    outputs = outputs_of(backbone, examples[0], "helpful")
    best = 1 - sigmoid(thresholds[3] - outputs[0])
    second = sigmoid(thresholds[1] - outputs[1]) - sigmoid(thresholds[0] - outputs[1])
    part = method.outcome(batch_of(examples[:1]), examples[:1], dropout=False).parts["helpful"]
    assert part.loss.item() == pytest.approx(-(math.log(best) + math.log(second)) / 2, abs=1e-4)


@pytest.mark.parametrize("score", [-200.0, -3.0, 0.0, 2.5, 200.0])
def test_the_levels_of_a_scale_share_all_probability_however_far_the_score(score: float) -> None:
    thresholds = torch.tensor([-2.0, -0.5, 0.1, 4.0], dtype=torch.float64, requires_grad=True)
    log_probs = cumulative_link(torch.tensor([score], dtype=torch.float64), thresholds)[0]
    assert log_probs.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
    assert log_probs.isfinite().all()
    if abs(score) < 10:
        ends = [0.0, *(sigmoid(t - score) for t in thresholds.tolist()), 1.0]
        assert log_probs.exp().tolist() == pytest.approx(np.diff(ends).tolist(), abs=1e-12)
    log_probs.sum().backward()
    assert thresholds.grad is not None
    assert thresholds.grad.isfinite().all()


@pytest.mark.parametrize("loss", ["regression", "ordinal", "binary"])
def test_heads_beside_the_score_do_not_depend_on_how_a_step_is_cut(backbone: Backbone, loss: str) -> None:
    method = rating_method(backbone, loss)
    examples = examples_of(backbone, method, rows())
    method.begin(examples)
    disturb(backbone, "reward", scale=0.05)
    whole_loss, whole_figures, whole = step(backbone, method, examples, [examples])
    assert {"loss_score", "loss_helpful", "loss_safe", "accuracy", "safe_auc"} <= set(whole_figures)
    for groups in ([[example] for example in examples], [examples[::-1]], [examples[:2], examples[2:]]):
        found_loss, figures, gradient = step(backbone, method, examples, groups)
        assert found_loss == pytest.approx(whole_loss, abs=1e-5)
        assert figures == pytest.approx(whole_figures, abs=1e-4)
        assert ((gradient - whole).norm() / whole.norm()).item() < 1e-5


def test_an_answer_that_nobody_ranked_is_learned_from_its_rating(backbone: Backbone) -> None:
    method = rating_method(backbone, "ordinal")
    unranked = rated("u", (1, HELPFUL, "five", 5), ranks=(0, 0, 0), verdict="not_asked")
    (example,) = examples_of(backbone, method, [*rows(), unranked])[-1:]
    assert len(example.answers) == 1
    assert method.weights(example) == {"score": 0.0, "helpful": 1.0, "safe": 0.0}


@pytest.mark.parametrize(
    "model",
    [{"loss": "bradley_terry"}, {"loss": "davidson"}]
    + [{"loss": "plackett_luce", "ties": ties} for ties in ("exact", "efron", "breslow", "davidson")],
)
def test_a_pass_without_a_ranking_adds_nothing_to_the_score_and_spoils_no_gradient(
    backbone: Backbone, model: dict[str, Any]
) -> None:
    method = rating_method(backbone, "ordinal", **model)
    unranked = rated("u", (1, HELPFUL, "five", 5), ranks=(0, 0, 0), verdict="not_asked")
    examples = examples_of(backbone, method, [*rows(), unranked])
    method.begin(examples)
    disturb(backbone, "reward", scale=0.05)
    loss, _, gradient = step(backbone, method, examples, [examples])
    alone_loss, _, alone = step(backbone, method, examples, [examples[:-1], examples[-1:]])
    assert alone.isfinite().all()
    assert alone_loss == pytest.approx(loss, abs=1e-5)
    assert ((alone - gradient).norm() / gradient.norm()).item() < 1e-5


def test_a_criterion_that_nobody_rated_is_named(backbone: Backbone) -> None:
    method = rating_method(backbone, "ordinal")
    examples = examples_of(backbone, method, [rated("a", (0, HELPFUL, "five", 5))])
    with pytest.raises(ContractError, match=r"rates the criterion 'safety'.*head 'safe'"):
        method.begin(examples)


def test_a_scale_that_training_never_saw_is_named(backbone: Backbone) -> None:
    method = rating_method(backbone, "ordinal")
    examples = examples_of(backbone, method, rows())
    method.begin([example for example in examples if example.judgment != "c"])
    with pytest.raises(ContractError, match="rated on the scale 'seven'"):
        method.outcome(batch_of(examples), examples, dropout=False)


def test_thresholds_come_back_with_a_checkpoint_and_go_on(tmp_path: Path, base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    method = rating_method(backbone, "ordinal")
    examples = examples_of(backbone, method, rows())
    method.begin(examples)
    disturb(backbone, "reward")
    folder = save(backbone, "reward", tmp_path / "saved")
    again = Backbone.load(base, device="cpu", dtype=torch.float32)
    continued = rating_method(again, "ordinal", parent=str(folder))
    # Other judgments now: what was learned must not begin anew.
    continued.begin(examples[:2])
    parts = [
        objective.outcome(batch_of(examples), examples, dropout=False).parts
        for objective in (method, continued)
    ]
    for name in ("score", "helpful", "safe"):
        assert torch.allclose(parts[0][name].loss, parts[1][name].loss, atol=1e-6)


# ── Figures ───────────────────────────────────────────────────────────────────────────


def test_figures_of_levels_and_of_chances_by_hand() -> None:
    levels = figures_of_levels(
        torch.tensor([0.9, 0.4, 0.2]),
        torch.tensor([1.0, 0.5, 0.5]),
        torch.tensor([1.0, 0.0, 1.0]),
        torch.tensor([0.5, 0.25, 0.5]).log(),
    )
    assert levels["mean_absolute_error"] == pytest.approx((0.1 + 0.1 + 0.3) / 3)
    assert levels["accuracy"] == pytest.approx(2 / 3)
    assert levels["log_loss"] == pytest.approx((2 * math.log(2) + math.log(4)) / 3)
    chances = figures_of_chances(torch.tensor([2.0, 0.0, -1.0]), torch.tensor([1.0, 1.0, 0.0]))
    # One right, one undecided, one right; of the two pairs (1, 0) both are in order.
    assert chances["accuracy"] == pytest.approx(2.5 / 3)
    assert chances["auc"] == 1.0
    expected = (math.log1p(math.exp(-2)) + math.log(2) + math.log1p(math.exp(-1))) / 3
    assert chances["log_loss"] == pytest.approx(expected)


def test_figures_that_do_not_exist_are_left_out() -> None:
    assert spearman([1.0, 2.0], [3.0, 3.0]) is None
    assert figures_of_chances(torch.empty(0), torch.empty(0)) == {}
    assert set(figures_of_chances(torch.tensor([1.0]), torch.tensor([1.0]))) == {"accuracy", "log_loss"}


def test_correlation_and_area_agree_with_scipy_and_with_counting_pairs() -> None:
    random = np.random.default_rng(4)
    scores, ratings = random.integers(0, 9, 60).astype(float), random.integers(1, 6, 60).astype(float)
    assert spearman(scores, ratings) == pytest.approx(spearmanr(scores, ratings).statistic)
    labels = (ratings > 3).astype(float)
    ordered = [
        (positive > other) + 0.5 * (positive == other)
        for positive in scores[labels == 1]
        for other in scores[labels == 0]
    ]
    assert roc_auc(scores, labels) == pytest.approx(np.mean(ordered))
