"""Reward models of several heads: ensembles, and a head for each annotator."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rlhf.methods.reward_scene import examples_of, mixed, ranking, reward_method
from tests.rlhf.methods.test_methods import batch_of, loss_of
from tests.rlhf.model.test_backbone import disturb, save
from tests.rlhf.runs import row
from training.contract import ContractError
from training.rlhf.measures.pairs import resample
from training.rlhf.methods.objectives.rankings import LOG_TIE
from training.rlhf.methods.reward import read_rewards
from training.rlhf.model.backbone import Backbone

# ── Ensembles ─────────────────────────────────────────────────────────────────────────


def test_resamples_differ_by_head_and_seed_and_are_drawn_again_the_same() -> None:
    judgments = [f"j{index}" for index in range(4000)]
    drawn = resample(judgments, heads=3, seed=7)
    assert torch.equal(drawn, resample(judgments, heads=3, seed=7))
    # A judgment's draw does not hang on the others.
    assert torch.equal(drawn[:, 100:101], resample(judgments[100:101], heads=3, seed=7))
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], resample(judgments, heads=1, seed=8)[0])
    # Poisson with mean 1: variance 1, and a share of 1/e is left out; four standard errors of 4000 draws.
    assert drawn.mean(1).tolist() == pytest.approx([1.0] * 3, abs=0.064)
    assert drawn.var(1).tolist() == pytest.approx([1.0] * 3, abs=0.11)
    assert (drawn == 0).float().mean(1).tolist() == pytest.approx([math.exp(-1)] * 3, abs=0.031)


def test_every_head_of_an_ensemble_learns_from_its_own_resample(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="plackett_luce", ensemble=4)
    disturb(backbone, "reward", scale=0.05)
    examples = examples_of(backbone, mixed(), ties=False)
    method.begin(examples)
    drawn = resample([example.judgment for example in examples], heads=4, seed=0)
    assert (drawn == 0).any()
    weight = backbone.parameters("reward")["heads.score"]
    for index, example in enumerate(examples):
        weight.grad = None
        loss_of(method, [example]).sum().backward()
        assert weight.grad is not None
        learned = weight.grad.norm(dim=1) > 0
        assert learned.tolist() == (drawn[:, index] > 0).tolist()


def test_an_ensembles_score_is_the_mean_of_its_heads_and_their_spread_is_told(backbone: Backbone) -> None:
    method = reward_method(backbone, ensemble=3)
    disturb(backbone, "reward")
    examples = examples_of(backbone, [ranking("a", [1, 2])])
    batch = batch_of(examples)
    with torch.no_grad(), backbone.using("reward"):
        states = backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)[batch.last]
    outputs = states @ backbone.head_state("reward")["score"].T
    assert outputs.shape == (2, 3)
    rewards = read_rewards(backbone, "reward", batch)
    assert rewards.tolist() == pytest.approx(outputs.mean(1).tolist(), abs=1e-5)
    observed = method.outcome(batch, examples, dropout=False).observed
    margins = (outputs[0] - outputs[1]).tolist()
    mean = sum(margins) / 3
    deviation = math.sqrt(sum((margin - mean) ** 2 for margin in margins) / 2)
    assert method.figures(observed, held_out=False)["spread"] == pytest.approx(deviation, abs=1e-4)


def test_a_held_out_judgment_counts_once_for_every_head(backbone: Backbone) -> None:
    method = reward_method(backbone, ensemble=4)
    examples = examples_of(backbone, mixed(), ties=False)
    method.begin(examples[:2])
    loss_of(method, examples[2:3]).sum().backward()
    weight = backbone.parameters("reward")["heads.score"]
    assert weight.grad is not None
    assert (weight.grad.norm(dim=1) > 0).all()


# ── Annotators ────────────────────────────────────────────────────────────────────────


def test_an_annotators_judgment_is_costed_at_their_own_score_and_their_distance(backbone: Backbone) -> None:
    method = reward_method(backbone, annotator_heads=True, annotator_penalty=0.5, centring=0.0)
    disturb(backbone, "reward")
    rows = [ranking("a", [1, 2], annotator="ann"), ranking("b", [1, 2], annotator="bob")]
    examples = examples_of(backbone, [*rows, ranking("c", [1, 2], annotator="stranger")])
    method.begin(examples[:2])
    offset = backbone.extra("reward", "score.annotator.ann")
    with torch.no_grad():
        offset.copy_(torch.randn(offset.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    batch = batch_of(examples)
    with torch.no_grad(), backbone.using("reward"):
        states = backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)[batch.last]
    shared, personal = (
        states @ head[0] for head in (backbone.head_state("reward")["score"], offset.detach())
    )

    def cost(margin: float) -> float:
        return math.log1p(math.exp(-margin))

    losses = loss_of(method, examples).tolist()
    distance = 0.5 * (offset**2).sum().item()
    margins = (shared[0::2] - shared[1::2]).tolist()
    assert losses[0] == pytest.approx(
        cost(margins[0] + (personal[0] - personal[1]).item()) + distance, abs=1e-4
    )
    # Bob's offset is still 0, and a stranger has the shared head.
    assert losses[1:] == pytest.approx([cost(margins[1]), cost(margins[2])], abs=1e-4)
    # The score itself is what annotators have in common.
    assert read_rewards(backbone, "reward", batch).tolist() == pytest.approx(shared.tolist(), abs=1e-4)


def test_annotators_who_want_opposite_things_are_told_apart(backbone: Backbone) -> None:
    method = reward_method(backbone, annotator_heads=True, annotator_penalty=0.0)
    rows = [
        row(f"{who}{index}", ["the sun rises", "no no no"], ranks, annotator=who, prompt=f"why {index}")
        for index in range(4)
        for who, ranks in (("ann", [1, 2]), ("bob", [2, 1]))
    ]
    examples = examples_of(backbone, rows)
    method.begin(examples)
    optimiser = torch.optim.AdamW(backbone.parameters("reward").values(), lr=0.01)
    for _ in range(30):
        optimiser.zero_grad()
        loss_of(method, examples).mean().backward()
        optimiser.step()
    observed = method.outcome(batch_of(examples), examples, dropout=False).observed
    figures = method.figures(observed, held_out=False)
    assert figures["accuracy"] == 0.5, "one score cannot please both"
    assert figures["own_accuracy"] == 1.0


def test_offsets_ensembles_and_odds_come_back_from_a_checkpoint(tmp_path: Path, base: Path) -> None:
    settings: dict[str, Any] = {"loss": "davidson", "ensemble": 2, "annotator_heads": True}
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    method = reward_method(backbone, **settings)
    examples = examples_of(backbone, mixed())
    method.begin(examples)
    disturb(backbone, "reward")
    folder = save(backbone, "reward", tmp_path / "saved")
    losses = loss_of(method, examples).tolist()

    again = Backbone.load(base, device="cpu", dtype=torch.float32)
    continued = reward_method(again, parent=str(folder), **settings)
    # Somebody new joins; those who were there and the odds of ties stay as they were.
    newcomer = examples_of(again, [ranking("n", [1, 2], annotator="newcomer")])
    continued.begin([*examples, *newcomer])
    assert loss_of(continued, examples).tolist() == pytest.approx(losses, abs=1e-6)
    assert torch.equal(again.extra("reward", LOG_TIE), backbone.extra("reward", LOG_TIE))
    assert not again.extra("reward", "score.annotator.newcomer").any()


def test_an_ensemble_is_not_continued_as_one_of_another_size(tmp_path: Path, base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    reward_method(backbone, ensemble=2)
    folder = save(backbone, "reward", tmp_path / "saved")
    again = Backbone.load(base, device="cpu", dtype=torch.float32)
    with pytest.raises(ContractError, match="the parent's score has 2 outputs, not 3"):
        reward_method(again, ensemble=3, parent=str(folder))


def test_a_single_annotators_head_is_warned_of(backbone: Backbone, caplog: pytest.LogCaptureFixture) -> None:
    method = reward_method(backbone, annotator_heads=True)
    with caplog.at_level("WARNING", logger="rondo.trainer"):
        method.begin(examples_of(backbone, [ranking("a", [1, 2], annotator="only-one")]))
    assert "all judgments that teach are by only-one" in caplog.text
