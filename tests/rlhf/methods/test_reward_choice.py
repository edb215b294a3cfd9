"""Reward models with features auto: the choice among length, surface features, frozen states, an adapter."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.rlhf.methods.test_baselines import lengths_decide
from tests.rlhf.runs import make_run, row, train
from training.contract import ContractError, read_manifest
from training.contract.methods import settings_from_json
from training.contract.methods.reward import RewardSettings
from training.contract.run import EXIT_FINISHED, read_evaluation, read_spec
from training.contract.snapshot import Message, SnapshotRow
from training.contract.validation import RewardChoice, choice_from_details
from training.rlhf.data import build_examples
from training.rlhf.measures.features import TEXT_FEATURES, text_features
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.methods import reward
from training.rlhf.methods.baselines import choose_head, fit_to_text
from training.rlhf.methods.reward import encode, text_states
from training.rlhf.model.backbone import BOUNDS, TEXT, Backbone, Place
from training.rlhf.rewards.reward_model import LearnedReward
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

AUTO = {"features": "auto"}


def choice_of(folder: Path) -> RewardChoice:
    report = read_evaluation(folder)
    assert report is not None
    choice = choice_from_details(report.details)
    assert choice is not None
    return choice


def repetition_decides(count: int = 60) -> list[SnapshotRow]:
    """Pairs of equal length, of which the one that repeats itself always loses."""
    words = [
        "river",
        "stone",
        "cloud",
        "apple",
        "tiger",
        "music",
        "paper",
        "light",
        "green",
        "house",
        "window",
        "garden",
    ]
    rows = []
    for index in range(count):
        random = np.random.default_rng(index)
        varied = " ".join(random.permutation(words)) + "."
        few = list(random.permutation(words)[:3])
        texts, ranks = [varied, " ".join(few * 4) + "."], [1, 2]
        if index % 2:
            texts, ranks = texts[::-1], ranks[::-1]
        split: Any = "held-out" if index % 3 == 0 else "train"
        rows.append(row(f"j{index}", texts, ranks, split=split, prompt=f"question {index}"))
    return rows


def example(number: int, *, first: bool = True) -> Example:
    return Example(
        f"j{number}",
        (EncodedAnswer((1, 2), 1), EncodedAnswer((1, 3), 1)),
        (1, 2) if first else (2, 1),
        prompt=f"p{number}",
        completions=("a", "b"),
    )


# ── The choice itself ──


def test_of_heads_the_one_with_the_lowest_cross_validated_log_loss_is_chosen() -> None:
    """The frozen state at layer 1 says what won, the text says nothing."""
    examples = [example(number, first=number % 2 == 0) for number in range(40)]
    features = np.zeros((80, 3, 16), dtype=np.float32)
    for number in range(40):
        won = 0 if number % 2 == 0 else 1
        features[2 * number + won, :2, 0] = 1.0
    places = (Place(1, True), Place(1, False), TEXT)

    head, choice = choose_head(features, examples, places, whole=False)

    assert choice.chosen == "frozen"
    assert head.place == Place(1, True)
    assert choice.candidates[0].name == "frozen"
    assert choice.winner.accuracy.value == 1.0
    # A candidate that says nothing has the log-loss of a coin.
    assert choice.runner_up is not None
    assert choice.runner_up.log_loss.value == pytest.approx(math.log(2), abs=1e-6)
    assert (choice.judgments, choice.prompts) == (40, 40)


def test_length_alone_is_fitted_to_its_column_alone() -> None:
    examples = [example(number) for number in range(20)]
    table = np.random.default_rng(0).normal(size=(40, 1, 12)).astype(np.float32)
    head = fit_to_text(table, choices_of(examples, whole=False), (TEXT,), length=True)

    assert np.flatnonzero(head.score.weight).tolist() == [TEXT_FEATURES.index("log_words")]


def test_without_two_prompts_nothing_is_cross_validated_and_a_coin_is_told() -> None:
    examples = [example(0), example(0)]
    features = np.ones((4, 3, 16), dtype=np.float32)

    _, choice = choose_head(features, examples, (Place(1, True), Place(1, False), TEXT), whole=False)

    assert choice.chosen == "length"
    assert {entry.log_loss.value for entry in choice.candidates} == {math.log(2)}


# ── Surface features as a reward model reads them ──


def test_what_repeats_itself_is_counted() -> None:
    # Six words have four runs of three; the last two of "a b a b a b" were there before.
    named = dict(zip(TEXT_FEATURES, text_features("tell of a", "a b a b a b"), strict=True))

    assert named["repeated"] == pytest.approx(0.5)
    assert named["words"] == 6
    assert named["overlap_prompt"] == pytest.approx(0.5)


def test_the_features_of_packed_completions_are_those_of_their_texts(base: Path) -> None:
    """Completions of one judgment share the prompt's tokens, and their own first ones."""
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    texts = ["- the sun\n- the moon", "- the sun sets", "the sea"]
    rows = [row("j0", texts, [1, 2, 3], split="train", prompt="the sun")]
    examples = build_examples(rows, backbone.tokenizer, max_tokens=128, context=False).train
    batch = pack([examples[0], examples[0]], device=torch.device("cpu"))

    states = text_states(backbone, batch)

    assert states.shape == (6, backbone.hidden_size)
    for place, text in enumerate([*texts, *texts]):
        values = dict(zip(TEXT_FEATURES, states[place].tolist(), strict=False))
        expected = dict(zip(TEXT_FEATURES, text_features("", text), strict=True))
        for name in ("words", "list_items", "truncated", "repeated"):
            assert values[name] == pytest.approx(expected[name]), (text, name)
    assert not states[:, len(TEXT_FEATURES) :].any()


# ── Runs ──


@pytest.fixture(scope="module")
def chosen(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that chose surface features: repetition decides, which frozen states hardly show."""
    folder = make_run(tmp_path_factory.mktemp("auto") / "run", base, repetition_decides(), settings=AUTO)
    assert train(folder) == EXIT_FINISHED
    return folder


def test_a_run_writes_what_it_chose_and_the_runner_up(chosen: Path) -> None:
    choice = choice_of(chosen)

    assert choice.measured_on == "cross_validation"
    assert choice.chosen == "surface"
    assert {entry.name for entry in choice.candidates} == {"length", "surface", "frozen"}
    losses = [entry.log_loss.value for entry in choice.candidates]
    assert losses == sorted(losses)
    assert choice.runner_up is not None
    assert choice.runner_up.name != "surface"
    assert read_manifest(chosen / "checkpoint").metrics["held_out_accuracy"] == 1.0


def test_its_checkpoint_scores_texts_by_their_surface(chosen: Path, base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", chosen / "checkpoint")
    settings = settings_from_json("reward", read_manifest(chosen / "checkpoint").spec["settings"])
    assert isinstance(settings, RewardSettings)
    learned = LearnedReward(backbone, "it", settings)
    varied, repeated = "river stone cloud apple tiger music.", "river stone river stone river stone."

    first, second = learned(
        [[Message(role="user", content="question")]] * 2, [varied, repeated], [None, None]
    )

    assert backbone.reads("it") == TEXT
    assert first.value is not None
    assert second.value is not None
    assert first.value > second.value


def test_texts_beyond_those_that_were_judged_score_like_the_outermost_of_them(
    chosen: Path, base: Path
) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", chosen / "checkpoint")
    settings = settings_from_json("reward", read_manifest(chosen / "checkpoint").spec["settings"])
    assert isinstance(settings, RewardSettings)
    low, high = backbone.extra("it", BOUNDS).tolist()
    judged = [text for row in repetition_decides() if row.split == "train" for text in row.completions]
    counts = sorted(len(completion.text.split()) for completion in judged)
    assert counts[0] <= low[0] <= high[0] <= counts[-1]
    # Both repeat themselves more and are longer than any text that was judged.
    long = [" ".join(["river stone"] * times) + "." for times in (6, 9)]

    first, second = LearnedReward(backbone, "it", settings)(
        [[Message(role="user", content="question")]] * 2, long, [None, None]
    )

    assert math.isfinite(first.value)
    assert first.value == pytest.approx(second.value, abs=1e-5)


def test_states_at_the_text_hold_nothing_but_the_completions(chosen: Path, base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", chosen / "checkpoint")
    examples = build_examples(repetition_decides(), backbone.tokenizer, max_tokens=128, context=False).train
    batch = pack(examples[:2], device=torch.device("cpu"))

    states = encode(backbone, "it", batch)

    others = torch.ones(batch.tokens, dtype=torch.bool)
    others[batch.last] = False
    assert states.shape == (batch.tokens, backbone.hidden_size)
    assert not states[others].any()


def test_without_held_out_judgments_the_choice_is_told_all_the_same(base: Path, tmp_path: Path) -> None:
    rows = [judged for judged in lengths_decide(30) if judged.split == "train"]
    folder = make_run(tmp_path / "run", base, rows, settings=AUTO)

    assert train(folder) == EXIT_FINISHED

    assert choice_of(folder).judgments == len(rows)


@pytest.mark.parametrize("features", ["surface", "length"])
def test_each_can_be_set_by_hand(features: str, base: Path, tmp_path: Path) -> None:
    settings = {"features": features, "adapter": "none"}
    folder = make_run(tmp_path / "run", base, lengths_decide(), settings=settings)

    assert train(folder) == EXIT_FINISHED

    assert read_manifest(folder / "checkpoint").metrics["held_out_accuracy"] > 0.9
    report = read_evaluation(folder)
    assert report is not None
    assert choice_from_details(report.details) is None


def test_an_adapter_is_tried_once_there_are_enough_judgments(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward, "ADAPTER_FROM", 20)
    folder = make_run(tmp_path / "run", base, lengths_decide(), settings=AUTO)

    assert train(folder) == EXIT_FINISHED

    choice = choice_of(folder)
    assert choice.measured_on == "held_out"
    assert choice.chosen in ("adapter", "frozen")
    assert {"length", "surface"} < {entry.name for entry in choice.candidates}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"adapter": "none"}, "adapter"),
        ({"group_heads": True}, "group_heads"),
        ({"loss": "davidson"}, "loss"),
        ({"head_from": "frozen"}, "head_from"),
        ({"completeness": {}}, "completeness"),
    ],
)
def test_auto_refuses_what_only_some_of_the_candidates_can_do(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ContractError, match=field):
        settings_from_json("reward", AUTO | changes)


def test_what_is_fitted_at_once_may_stand_on_a_base_of_a_few_bits(base: Path, tmp_path: Path) -> None:
    """No weight of the base is trained, with whichever of the candidates."""
    folder = make_run(tmp_path / "run", base, lengths_decide(), settings=AUTO)
    spec = replace(read_spec(folder), quantization="int8")
    chosen = spec.settings.chosen(adapted=False)
    assert replace(spec, settings=chosen).quantization == "int8"
    whole = settings_from_json("reward", {"adapter": "none"})
    with pytest.raises(ContractError, match="quantization"):
        replace(spec, settings=whole)


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        ("Why is the sky blue?", "Light scatters.", 0.5),
        ("Answer in two sentences.", "One thing. And another.", 1.0),
        ("Answer in two sentences.", "One. Two. Three. Four.", 0.5),
        ("Name four things. Use a list.", "- a\n- b\n- c\n- d", 1.0),
        # Two items of four, and a list it is.
        ("Name four things. Use a list.", "- a\n- b", 0.75),
        # Nothing of a list: one of four, and none.
        ("Name four things. Use a list.", "a, b, c and d.", 0.125),
        ("Give 3 numbered steps.", "1. a\n2. b\n3. c", 1.0),
        ("Give 3 numbered steps.", "- a\n- b\n- c", 0.5),
        ("Summarise it in at most ten words.", "one two three four five", 1.0),
        ("Summarise it in ten words or fewer.", " ".join(["word"] * 20), 0.5),
        ("Compare them as a table.", "| a | b |\n|---|---|", 1.0),
    ],
)
def test_the_form_of_a_text_is_held_against_what_its_prompt_asks_for(prompt, completion, expected):
    named = dict(zip(TEXT_FEATURES, text_features(prompt, completion), strict=True))
    assert named["form"] == pytest.approx(expected)
