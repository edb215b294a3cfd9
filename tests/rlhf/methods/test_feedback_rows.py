"""Rows of applications' feedback are learned from: thumbs by KTO, rewrites and alternatives as pairs."""

import pytest

from tests.rlhf.methods.policies import examples_of, method_of, step
from tests.rlhf.runs import row
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import KtoSettings
from training.rlhf.data import build_examples
from training.rlhf.methods.kto import said_good
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import UsedLabels

LORA = LoraSettings(rank=4)


def thumb(name: str, value: int, *, weight: float = 0.25):
    """A row as `services.feedback.rows` writes it for a thumb."""
    rating = {"completion": f"{name}.0", "criterion": "feedback", "scale": "thumbs", "value": value}
    return row(
        name,
        ["in the east"],
        [0],
        verdict="not_asked",
        ratings=[rating],
        weight=weight,
        prompt=f"Where does it rise, {name}?",
        feedback="thumb",
        read_for_spans=[],
        read_for_missing=[],
    )


def test_thumbs_are_good_and_bad_answers_for_kto_with_their_weight(backbone: Backbone):
    method = method_of(backbone, KtoSettings(lora=LORA))
    examples = examples_of(method, backbone, [thumb("a", 1), thumb("b", 0, weight=0.5)])
    assert [said_good(example, frozenset({"thumbs"})) for example in examples] == [{0: True}, {0: False}]
    assert [example.weight for example in examples] == [0.25, 0.5]
    method.begin(examples)
    assert step(method, examples) > 0


def test_a_rewrite_is_a_pair_for_a_reward_model_and_a_thumb_is_none(backbone: Backbone):
    rewrite = row("c", ["no, never", "in the east"], [2, 1], weight=0.25, feedback="rewrite")
    examples = build_examples(
        [rewrite, thumb("a", 1)], backbone.tokenizer, max_tokens=128, context=False, labels=UsedLabels()
    )
    [pair] = examples.train
    assert (pair.ranks, pair.weight) == ((2, 1), 0.25)
    assert [entry["judgment"] for entry in examples.dropped] == ["a"]


def test_an_unknown_kind_of_feedback_is_no_row():
    with pytest.raises(ValueError, match="feedback"):
        row("d", ["x"], [0], verdict="not_asked", feedback="applause")
