"""Frozen features against transformers' own hidden states, and their cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.rlhf.runs import judgments
from training.contract.methods.common import LoraSettings
from training.rlhf.data import build_examples
from training.rlhf.measures.features import FeatureCache, places_to_read, preferred_place
from training.rlhf.model.backbone import Backbone, Place
from training.rlhf.tokens.example import Example


@pytest.fixture
def examples(backbone: Backbone) -> list[Example]:
    return build_examples(judgments(), backbone.tokenizer, max_tokens=128, context=False).train[:3]


def test_four_depths_are_read_and_the_last_block_is_among_them() -> None:
    assert {place.layer for place in places_to_read(30)} == {12, 18, 24, 30}
    assert places_to_read(1) == (Place(1, True), Place(1, False))


def test_the_mean_at_three_fifths_of_the_depth_is_preferred() -> None:
    assert preferred_place(places_to_read(30)) == Place(18, True)
    assert preferred_place(places_to_read(2)) == Place(1, True)


def test_features_are_transformers_own_hidden_states(
    backbone: Backbone, examples: list[Example], tmp_path: Path
) -> None:
    cache = FeatureCache(tmp_path, backbone)

    all_features = cache.features(examples)

    answers = [answer for example in examples for answer in example.answers]
    assert all_features.shape == (len(answers), len(cache.places), backbone.hidden_size)
    for answer, features in zip(answers, all_features, strict=True):
        ids = torch.tensor([list(answer.ids)])
        with torch.no_grad():
            states = backbone._model(ids, output_hidden_states=True).hidden_states
        for place, read in zip(cache.places, features, strict=True):
            answer_states = states[place.layer][0, answer.answer_start :]
            expected = answer_states.mean(0) if place.mean else answer_states[-1]
            assert torch.tensor(read) == pytest.approx(expected, abs=1e-5)


def test_an_adapter_changes_no_feature(backbone: Backbone, examples: list[Example], tmp_path: Path) -> None:
    before = FeatureCache(tmp_path / "a", backbone).features(examples)
    backbone.add_adapter("other", LoraSettings(rank=2), seed=0)
    for name, parameter in backbone.parameters("other").items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)

    with backbone.using("other"):
        after = FeatureCache(tmp_path / "b", backbone).features(examples)

    assert np.array_equal(before, after)


def test_kept_features_are_not_computed_again(
    backbone: Backbone, examples: list[Example], tmp_path: Path
) -> None:
    first = FeatureCache(tmp_path, backbone)
    some = first.features(examples[:2])
    first.save()

    second = FeatureCache(tmp_path, backbone)
    every = second.features(examples)

    assert second.computed == 1
    # Bit for bit: a judgment's features do not depend on what stood beside it.
    assert np.array_equal(every[: len(some)], some)
    assert np.array_equal(every, FeatureCache(tmp_path / "none", backbone).features(examples))


def test_a_damaged_cache_is_computed_again(
    backbone: Backbone, examples: list[Example], tmp_path: Path
) -> None:
    first = FeatureCache(tmp_path, backbone)
    expected = first.features(examples)
    first.save()
    (folder,) = tmp_path.glob("features-*")
    (folder / "values.npy").write_bytes(b"nonsense")

    again = FeatureCache(tmp_path, backbone)

    assert np.array_equal(again.features(examples), expected)
    assert again.computed == len(examples)
