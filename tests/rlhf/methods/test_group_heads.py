"""Reward models of groups of opposite taste: fitted to frozen features, saved, reported and served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.rlhf.runs import make_run, row, train
from training.contract import ContractError
from training.contract.methods import settings_from_json
from training.contract.methods.reward import RewardSettings
from training.contract.run import EXIT_FINISHED, read_evaluation
from training.contract.snapshot import SnapshotRow, Split
from training.contract.validation import PeopleReport, Population, people_from_details
from training.rlhf.data import build_examples
from training.rlhf.methods.people import group_names, group_scores, population_scores
from training.rlhf.methods.reward import encode
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.reward_model import LearnedReward
from training.rlhf.tokens.packing import pack

LONG, SHORT = "the sun rises in the east. ", "the sun rises. "


def opposed(count: int = 120) -> list[SnapshotRow]:
    """Pairs of which group A always wants the longer text and group B the shorter; every third held out."""
    rows = []
    for index in range(count):
        group = "AB"[index % 2]
        texts = [LONG * (2 + index % 3), SHORT]
        split: Split = "held-out" if index % 3 == 0 else "train"
        rows.append(
            row(
                f"j{index}",
                texts,
                [1, 2] if group == "A" else [2, 1],
                split=split,
                prompt=f"question {index}",
                group=group,
                annotator=f"{group}{index % 6}",
                shown=[f"j{index}.{place}" for place in ((0, 1) if index % 4 < 2 else (1, 0))],
                weight=0.5 if index % 5 == 0 else 1.0,
            )
        )
    return rows


@pytest.fixture(scope="module")
def checkpoint(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"adapter": "none", "features": "frozen", "group_heads": True, "annotator_heads": True}
    folder = make_run(tmp_path_factory.mktemp("groups") / "run", base, opposed(), settings=settings)
    assert train(folder) == EXIT_FINISHED
    return folder / "checkpoint"


@pytest.fixture(scope="module")
def loaded(base: Path, checkpoint: Path) -> Backbone:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", checkpoint)
    return backbone


@pytest.fixture(scope="module")
def report(checkpoint: Path) -> PeopleReport:
    evaluation = read_evaluation(checkpoint.parent)
    assert evaluation is not None
    people = people_from_details(evaluation.details)
    assert people is not None
    return people


def states_of(backbone: Backbone) -> torch.Tensor:
    """Return the states that the heads read of a long and a short completion."""
    (example,) = build_examples(opposed(2)[1:], backbone.tokenizer, max_tokens=128, context=False).train
    batch = pack([example], device=torch.device("cpu"))
    with torch.no_grad():
        return encode(backbone, "it", batch)[batch.last]


def test_each_groups_head_is_saved_and_prefers_what_the_group_does(loaded: Backbone) -> None:
    assert group_names(loaded, "it") == ("A", "B")
    with torch.no_grad():
        by_group = group_scores(loaded, "it", states_of(loaded))
    assert by_group["A"][0] > by_group["A"][1]
    assert by_group["B"][0] < by_group["B"][1]


def test_the_report_tells_that_the_groups_disagree_and_on_what(report: PeopleReport) -> None:
    assert [group.name for group in report.groups] == ["A", "B"]
    for group in report.groups:
        assert group.own_accuracy is not None
        assert group.own_accuracy.value > 0.9
        assert group.gain is not None
        assert group.gain.low is not None
        assert group.gain.low > 0
        assert group.judgments == 20
        assert group.annotators == 2
        assert group.disagreement == "disagrees"
    of_a = {difference.feature: difference.difference for difference in report.groups[0].differences}
    assert of_a["log_words"] > 0
    assert report.group_strength is not None


def test_the_effect_of_reliability_weights_is_reported(report: PeopleReport) -> None:
    effect = report.reliability_weights
    assert effect is not None
    assert effect.judgments == 40
    assert effect.gain.value == pytest.approx(effect.unweighted_log_loss.value - effect.log_loss.value)


def test_a_population_is_a_weighted_mean_or_the_smallest_of_the_groups_rewards(loaded: Backbone) -> None:
    states = states_of(loaded)
    with torch.no_grad():
        a, b = (group_scores(loaded, "it", states)[name] for name in "AB")

        def rewards(reward: str, **groups: float) -> list[float]:
            population = Population(reward=reward, groups=groups)  # type: ignore[arg-type]
            return population_scores(loaded, "it", states, population).tolist()

        assert rewards("groups") == pytest.approx(((a + b) / 2).tolist(), abs=1e-5)
        assert rewards("groups", A=3.0, B=1.0) == pytest.approx(((3 * a + b) / 4).tolist(), abs=1e-5)
        assert rewards("groups", A=2.0) == pytest.approx(a.tolist(), abs=1e-5)
        assert rewards("worst_group") == pytest.approx(torch.minimum(a, b).tolist(), abs=1e-5)
        assert rewards("common") == loaded.score("it", states).tolist()


def test_a_policy_can_be_rewarded_by_one_group_and_not_by_an_unknown_one(loaded: Backbone) -> None:
    settings = settings_from_json(
        "reward", {"adapter": "none", "features": "frozen", "group_heads": True, "max_tokens": 128}
    )
    assert isinstance(settings, RewardSettings)
    prompts, texts = [opposed(2)[1].messages] * 2, [LONG * 3, SHORT]

    def rewards(group: str) -> list[float]:
        population = Population(reward="groups", groups={group: 1.0})
        reward = LearnedReward(loaded, "it", settings, population=population)
        return [score.value for score in reward(prompts, texts, [None] * 2)]

    long, short = rewards("A")
    assert long > short
    long, short = rewards("B")
    assert long < short
    with pytest.raises(ContractError, match="has no group C; it has A, B"):
        rewards("C")
