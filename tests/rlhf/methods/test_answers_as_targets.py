"""Answers to a project's additional questions, as targets of heads and as covariates of the score."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.rlhf.methods.reward_scene import reward_method, scores_of
from tests.rlhf.methods.test_methods import batch_of
from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.runs import make_run, row, train
from training.contract import ContractError
from training.contract.methods.reward import Covariate, RatingHead, RewardSettings
from training.contract.run import CHECKPOINT_FOLDER, EXIT_FINISHED
from training.contract.snapshot import SnapshotRow
from training.rlhf.data import build_examples
from training.rlhf.measures.linear_choice import choices_of, covariate_values, fit_at
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import COVARIATES, SCORE, Backbone
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import AnswerLabel, Example, Labels

TONE = Covariate(question="tone", answers=("rude", "plain", "kind"))


def answered(
    name: str, *answers: tuple[int | None, str, Any], ranks: tuple[int, ...] = (1, 2)
) -> SnapshotRow:
    """A ranking with answers to additional questions: (completion or None, question, value) each."""
    parts = [
        {"question": question, "value": value} | ({} if place is None else {"completion": f"{name}.{place}"})
        for place, question, value in answers
    ]
    texts = ["the sun rises", "no", "why should it"][: len(ranks)]
    return row(name, texts, ranks, prompt=f"question {name}", answers=parts)


def examples_of(backbone: Backbone, method: RewardModelling, rows: list[SnapshotRow]) -> list[Example]:
    labels = method.wanted
    return build_examples(rows, backbone.tokenizer, max_tokens=128, context=False, labels=labels).train


def test_a_head_learns_the_points_of_a_scale_in_their_order(backbone: Backbone) -> None:
    head = RatingHead(name="clear", criterion="clarity", answers=("1", "2", "3", "4", "5"), loss="regression")
    method = reward_method(backbone, ratings=(head,), loss="none")
    rows = [
        answered("a", (0, "clarity", 5), (1, "clarity", 2), (None, "clarity", 1), (0, "other", 1)),
        answered("b", (1, "clarity", 1)),
        answered("c", (0, "other", 3)),
    ]
    examples = examples_of(backbone, method, rows)
    method.begin(examples)
    # 5, 2 and 1 of five points are 1, ¼ and 0. An answer about the comparison is no completion's.
    assert backbone.extra("reward", "clear.bias").item() == pytest.approx(1.25 / 3)
    assert [method.weights(example)["clear"] for example in examples] == [1.0, 1.0]


def test_a_head_learns_a_choice_whose_order_the_recipe_names(backbone: Backbone) -> None:
    head = RatingHead(name="polite", criterion="tone", answers=("rude", "kind"), loss="binary")
    method = reward_method(backbone, ratings=(head,), loss="none")
    rows = [answered("a", (0, "tone", "kind"), (1, "tone", "rude")), answered("b", (0, "tone", "plain"))]
    (example,) = [item for item in examples_of(backbone, method, rows) if method.weights(item)["polite"]]
    method.begin([example])
    # One kind, one rude, half a one more of either: even odds. A plain tone is neither and teaches nothing.
    assert backbone.extra("reward", "polite.bias").item() == pytest.approx(0.0)
    disturb(backbone, "reward")
    bias = backbone.extra("reward", "polite.bias").item()
    batch = batch_of([example])
    with torch.no_grad(), backbone.using("reward"):
        states = backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)[batch.last]
    kind, rude = (states @ backbone.head_state("reward")["polite"][0]).tolist()
    expected = (math.log1p(math.exp(-kind - bias)) + math.log1p(math.exp(rude + bias))) / 2
    part = method.outcome(batch, [example], dropout=False).parts["polite"]
    assert part.loss.item() == pytest.approx(expected, abs=1e-5)


def test_an_answer_about_a_span_says_nothing_of_the_response(backbone: Backbone) -> None:
    head = RatingHead(name="clear", criterion="clarity", answers=("1", "2"))
    method = reward_method(backbone, ratings=(head,))
    span = {"completion": "a.0", "category": "vague", "start": 0, "end": 3, "quote": "the"}
    answer = {"question": "clarity", "value": 1, "completion": "a.0", "span": ["vague", 0, 3]}
    texts = ["the sun rises", "no"]
    rows = [row("a", texts, (1, 2), prompt="question a", spans=[span], answers=[answer])]
    (example,) = examples_of(backbone, method, rows)
    assert example.labels.questions == ()


def test_a_question_that_nobody_answered_is_no_target(backbone: Backbone) -> None:
    head = RatingHead(name="clear", criterion="clarity", answers=("1", "2"))
    method = reward_method(backbone, ratings=(head,))
    with pytest.raises(ContractError, match="clarity"):
        method.begin(examples_of(backbone, method, [answered("a", (0, "other", 1))]))


@pytest.mark.parametrize("answers", [("1",), ("1", "2", "1")])
def test_answers_that_are_no_order_are_refused(answers: tuple[str, ...]) -> None:
    with pytest.raises(ContractError, match="answers"):
        RatingHead(name="clear", criterion="clarity", answers=answers)
    with pytest.raises(ContractError, match="answers"):
        Covariate(question="clarity", answers=answers)


def test_a_covariate_needs_a_score_of_all_people() -> None:
    head = RatingHead(name="clear", criterion="clarity")
    with pytest.raises(ContractError, match="covariates"):
        RewardSettings(covariates=(TONE,), loss="none", ratings=(head,))
    with pytest.raises(ContractError, match="covariates"):
        RewardSettings(covariates=(TONE, TONE))
    with pytest.raises(ContractError, match="group_heads"):
        RewardSettings(covariates=(TONE,), group_heads=True)


def test_another_answer_or_none_counts_as_the_middle(backbone: Backbone) -> None:
    method = reward_method(backbone, covariates=(TONE,))
    rows = [
        answered("a", (0, "tone", "kind"), (2, "tone", "rude"), ranks=(1, 2, 3)),
        answered("b", (0, "tone", "odd")),
    ]
    values = covariate_values(examples_of(backbone, method, rows), (TONE,))
    assert values.ravel().tolist() == [0.5, 0.0, -0.5, 0.0, 0.0]


def test_a_covariate_alone_makes_no_example_of_a_response(backbone: Backbone) -> None:
    method = reward_method(backbone, covariates=(TONE,))
    unranked = row(
        "u",
        ["no", "why"],
        (0, 0),
        verdict="not_asked",
        answers=[{"question": "tone", "value": "kind", "completion": "u.0"}],
    )
    assert [item.judgment for item in examples_of(backbone, method, [answered("a"), unranked])] == ["a"]


def test_a_covariate_explains_its_part_of_a_preference(backbone: Backbone) -> None:
    method = reward_method(backbone, covariates=(TONE,), centring=0.0)
    rows = [answered("a", (0, "tone", "kind"), (1, "tone", "rude")), answered("b", (1, "tone", "kind"))]
    examples = examples_of(backbone, method, rows)
    method.begin(examples)
    disturb(backbone, "reward")
    with torch.no_grad():
        backbone.extra("reward", COVARIATES).copy_(torch.tensor([0.8]))
    margins = [first - second for first, second in (scores_of(backbone, example) for example in examples)]
    # Kind less rude is a whole step; the loser of the second is half a step kinder than the middle.
    expected = [math.log1p(math.exp(-margins[0] - 0.8)), math.log1p(math.exp(-margins[1] + 0.4))]
    for group in (examples, examples[::-1]):
        loss = method.outcome(batch_of(group), group, dropout=False).parts[SCORE].loss.tolist()
        assert loss == pytest.approx(expected if group is examples else expected[::-1], abs=1e-5)
    before = [scores_of(backbone, example) for example in examples]
    with torch.no_grad():
        backbone.extra("reward", COVARIATES).zero_()
    assert [scores_of(backbone, example) for example in examples] == before


def tones_decide(count: int = 60) -> tuple[list[Example], np.ndarray]:
    """Pairs whose kinder response wins; a feature that goes with the tone, and another that is chance."""
    generator = np.random.default_rng(4)
    examples, features = [], []
    for number in range(count):
        kind = int(generator.integers(2))
        labels = tuple(AnswerLabel(place, "tone", "kind" if place == kind else "rude") for place in range(2))
        answers = tuple(EncodedAnswer((1, 2, 3), 1) for _ in range(2))
        ranks = (1, 2) if (kind == 0) == (generator.random() < 0.9) else (2, 1)
        labelled = Labels(questions=labels)
        examples.append(Example(f"j{number}", answers, ranks, prompt=f"p{number}", labels=labelled))
        features += [
            [float(place == kind) + generator.normal(scale=0.3), generator.normal()] for place in range(2)
        ]
    return examples, np.array(features)


def test_a_score_that_is_fitted_at_once_leaves_to_a_covariate_what_it_explains() -> None:
    examples, features = tones_decide()
    plain = fit_at(features, choices_of(examples, whole=False), 0.01)
    beside = fit_at(features, choices_of(examples, whole=False, covariates=(TONE,)), 0.01)

    assert beside.weight.shape == plain.weight.shape
    assert beside.weight[0] < 0.5 * plain.weight[0]
    assert beside.coefficients[0] > 0
    # The minimum of mean −log σ(Δ) + ½ · 0.01 · ‖θ‖² over standardised columns has no slope.
    values = covariate_values(examples, (TONE,))
    whole = np.concatenate([features, values], axis=1)
    theta = np.concatenate([beside.weight, beside.coefficients]) * whole.std(0)
    table = (whole - whole.mean(0)) / whole.std(0)
    winners = np.array([2 * number + example.ranks.index(1) for number, example in enumerate(examples)])
    difference = table[winners] - table[winners ^ 1]
    slope = -(difference / (1 + np.exp(difference @ theta))[:, None]).mean(0) + 0.01 * theta
    assert np.abs(slope).max() < 1e-4
    assert float((features @ beside.weight + beside.offset).mean()) == pytest.approx(0.0, abs=1e-9)


def test_a_run_with_a_covariate_keeps_its_coefficient_as_a_record(tmp_path: Path, base: Path) -> None:
    """The trainer's own process: frozen features, then the checkpoint is read as a server reads it."""
    rows = []
    for number in range(24):
        texts = ["thank you, the sun rises", "go away, the sun rises"]
        kind, flip = number % 2, number % 6 == 5
        texts, ranks = (texts[::-1] if kind else texts), ((2, 1) if (kind == 1) != flip else (1, 2))
        labels = [
            {
                "question": "tone",
                "value": "kind" if place == kind else "rude",
                "completion": f"j{number}.{place}",
            }
            for place in range(2)
        ]
        rows.append(row(f"j{number}", texts, ranks, prompt=f"question {number}", answers=labels))
    covariates = [{"question": "tone", "answers": ["rude", "kind"]}]
    settings = {"features": "frozen", "adapter": "none", "covariates": covariates}
    run = make_run(tmp_path / "run", base, rows, settings=settings)
    assert train(run) == EXIT_FINISHED
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("reward", run / CHECKPOINT_FOLDER)
    (coefficient,) = backbone.extra("reward", COVARIATES).tolist()
    assert coefficient > 0
