"""Completeness heads: which of two completions lacks fewer things."""

import math
from typing import Any

import pytest

from tests.rlhf.methods.segment_scene import BAD, CPU, GOOD, examples_of, lacking, part_of, teaching
from tests.rlhf.methods.test_methods import reward_method
from tests.rlhf.model.test_backbone import disturb
from training.contract import ContractError
from training.contract.methods.reward import CompletenessHead
from training.rlhf.methods.reward import RewardModelling, encode
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.packing import pack

# ── Completeness ──────────────────────────────────────────────────────────────────────


def completeness_method(backbone: Backbone, *categories: str, **more: Any) -> RewardModelling:
    head = CompletenessHead(categories=categories)
    return reward_method(backbone, loss="none", completeness=head, **more)


def test_of_two_answers_the_one_that_lacks_fewer_things_is_more_complete(backbone: Backbone) -> None:
    method = completeness_method(backbone, centring=0.0)
    examples = examples_of(backbone, method, lacking("a", [GOOD, BAD, "both", "no"], [2, 0, 1, 0])).train
    method.begin(examples)
    disturb(backbone, "reward")
    batch = pack(examples, device=CPU)
    rewards = backbone.score("reward", encode(backbone, "reward", batch)[batch.last], head="completeness")
    r = rewards.tolist()
    # 1 and 3 over 0 and over 2, 2 over 0; 1 and 3 lack the same.
    pairs = [(1, 0), (3, 0), (1, 2), (3, 2), (2, 0)]
    expected = sum(math.log1p(math.exp(r[less] - r[more])) for more, less in pairs) / 5
    assert part_of(method, examples, "completeness").item() == pytest.approx(expected, abs=1e-5)
    observed = method.outcome(batch, examples, dropout=False).observed
    figures = method.figures(observed, held_out=True)
    assert figures["completeness_pairs"] == 5
    assert figures["completeness_log_loss"] == pytest.approx(expected, abs=1e-5)
    right = sum(r[more] > r[less] for more, less in pairs) / 5
    assert figures["completeness_accuracy"] == pytest.approx(right)
    assert figures["completeness_accuracy_low"] < right < figures["completeness_accuracy_high"]


def test_a_corrected_answer_is_more_complete_than_an_original_that_lacked_something(
    backbone: Backbone,
) -> None:
    method = completeness_method(backbone)
    corrections = [{"completion": "a.0", "text": "all of it"}, {"completion": "a.1", "text": "shorter"}]
    judged = lacking("a", [GOOD, BAD], [1, 0], corrections=corrections, read_for_missing=["a.0"])
    held_out = lacking("b", [GOOD], [1], corrections=[{"completion": "b.0", "text": "x"}], split="held-out")
    examples = teaching(method, examples_of(backbone, method, judged, held_out))
    # The second answer lacked nothing that anybody knows of: its correction says nothing here.
    (example,) = examples.train
    ends = [backbone.tokenizer.decode(answer.ids[answer.answer_start : -1]) for answer in example.answers]
    assert ends == ["all of it", GOOD]
    assert example.pairs == (), "completeness is no preference"
    assert method.weights(example) == {"completeness": 1.0}
    assert [len(entry.answers) for entry in examples.held_out] == [2]
    assert examples.dropped == []
    # Only one of the two was read: without the correction there is no pair.
    bare = examples_of(backbone, method, lacking("a", [GOOD, BAD], [1, 0], read_for_missing=["a.0"]))
    with pytest.raises(ContractError, match="nothing that the heads could learn"):
        teaching(method, bare)


def test_completeness_counts_the_categories_that_are_named(backbone: Backbone) -> None:
    method = completeness_method(backbone, "minor")
    missing = [{"completion": "a.0", "category": name} for name in ("major", "major", "minor")]
    missing += [{"completion": "a.1", "category": "minor"}] * 2
    judged = lacking("a", [GOOD, BAD], [0, 0], missing=missing)
    (example,) = examples_of(backbone, method, judged).train
    disturb(backbone, "reward")
    batch = pack([example], device=CPU)
    observed = method.outcome(batch, [example], dropout=False).observed
    states = encode(backbone, "reward", batch)[batch.last]
    first, second = backbone.score("reward", states, head="completeness").tolist()
    # The first lacks one of what counts, the second two.
    assert observed["completeness.margin"].tolist() == pytest.approx([first - second], abs=1e-5)


def test_a_completeness_head_without_a_pair_is_refused_by_name(backbone: Backbone) -> None:
    method = completeness_method(backbone)
    with pytest.raises(ContractError, match=r"completeness head 'completeness': no two training answers"):
        method.begin(examples_of(backbone, method, lacking("a", [GOOD, BAD], [1, 1])).train)
