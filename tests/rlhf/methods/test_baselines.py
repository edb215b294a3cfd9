"""Reward models whose head reads frozen features, and the baselines of every reward model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.rlhf.runs import StopAfter, files_of, judgments, make_run, row, train
from training.contract import ContractError, read_manifest, read_metrics
from training.contract.methods import settings_from_json
from training.contract.methods.reward import RewardSettings
from training.contract.run import EXIT_FINISHED, read_evaluation
from training.contract.snapshot import SnapshotRow, Split
from training.contract.validation import baselines_from_details
from training.rlhf.data import build_examples
from training.rlhf.losses import bradley_terry
from training.rlhf.measures.features import places_to_read
from training.rlhf.measures.linear_choice import choices_of
from training.rlhf.methods.baselines import fit_frozen_head
from training.rlhf.methods.reward import encode, read_rewards
from training.rlhf.model.backbone import Backbone, Place
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

FROZEN = {"adapter": "none", "features": "frozen"}


def lengths_decide(count: int = 60) -> list[SnapshotRow]:
    """Pairs whose longer completion always wins, half of them first; every third prompt is held out."""
    rows = []
    for index in range(count):
        long, short = "the sun rises in the east. " * (2 + index % 3), "the sun rises. "
        texts, ranks = ([long, short], [1, 2]) if index % 2 else ([short, long], [2, 1])
        split: Split = "held-out" if index % 3 == 0 else "train"
        rows.append(row(f"j{index}", texts, ranks, split=split, prompt=f"question {index}"))
    return rows


@pytest.fixture(scope="module")
def frozen(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a head on frozen features."""
    folder = make_run(tmp_path_factory.mktemp("frozen") / "run", base, lengths_decide(), settings=FROZEN)
    assert train(folder) == EXIT_FINISHED
    return folder


def test_a_head_on_frozen_features_learns_what_decides(frozen: Path) -> None:
    metrics = read_manifest(frozen / "checkpoint").metrics

    assert metrics["held_out_accuracy"] > 0.9
    assert metrics["held_out_log_loss"] < 0.5
    (line,) = read_metrics(frozen)
    assert line["step"] == 1
    assert line["held_out_accuracy"] == metrics["held_out_accuracy"]


def test_its_checkpoint_scores_in_a_fresh_process_as_its_head_does_by_hand(frozen: Path, base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", frozen / "checkpoint")
    examples = build_examples(lengths_decide(), backbone.tokenizer, max_tokens=128, context=False).held_out

    scores = read_rewards(backbone, "it", pack(examples, device=torch.device("cpu")))

    heads = load_file(frozen / "checkpoint" / "heads.safetensors")
    layer, mean = heads["score.reads"].tolist()
    answers = [answer for example in examples for answer in example.answers]
    for answer, score in zip(answers, scores.tolist(), strict=True):
        with torch.no_grad():
            output = backbone._model(torch.tensor([list(answer.ids)]), output_hidden_states=True)
        answer_states = output.hidden_states[int(layer)][0, answer.answer_start :]
        state = answer_states.mean(0) if mean else answer_states[-1]
        assert score == pytest.approx(float(heads["score"][0] @ state + heads["score.offset"]), abs=1e-4)


def test_its_held_out_figures_are_those_of_its_scores(frozen: Path, base: Path) -> None:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", frozen / "checkpoint")
    examples = build_examples(lengths_decide(), backbone.tokenizer, max_tokens=128, context=False).held_out
    batch = pack(examples, device=torch.device("cpu"))

    scores = read_rewards(backbone, "it", batch)

    loss = bradley_terry(scores[batch.winners], scores[batch.losers]).item()
    assert loss == pytest.approx(read_manifest(frozen / "checkpoint").metrics["held_out_log_loss"], abs=1e-4)


def test_a_stopped_run_ends_as_one_that_was_not(frozen: Path, base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, lengths_decide(), settings=FROZEN)
    train(folder, StopAfter(folder, 0))

    assert train(folder) == EXIT_FINISHED

    assert files_of(folder / "checkpoint") == files_of(frozen / "checkpoint")


def test_an_ensemble_has_as_many_members_that_differ(base: Path, tmp_path: Path) -> None:
    settings = FROZEN | {"ensemble": 3, "loss": "plackett_luce"}
    folder = make_run(tmp_path / "run", base, judgments(), settings=settings)

    assert train(folder) == EXIT_FINISHED

    heads = load_file(folder / "checkpoint" / "heads.safetensors")
    assert heads["score"].shape == (3, 48)
    assert len(np.unique(heads["score"].numpy(), axis=0)) == 3


def test_a_head_that_begins_on_frozen_features_reads_where_they_are(
    base: Path, frozen: Path, tmp_path: Path
) -> None:
    # At a learning rate of next to nothing the adapter-based model is the frozen head.
    folder = make_run(
        tmp_path / "run",
        base,
        lengths_decide(),
        settings={"head_from": "frozen"},
        optimiser={"learning_rate": 1e-12, "epochs": 1},
    )

    assert train(folder) == EXIT_FINISHED

    heads, begun = (load_file(run / "checkpoint" / "heads.safetensors") for run in (folder, frozen))
    assert torch.equal(heads["score.reads"], begun["score.reads"])
    assert torch.allclose(heads["score"], begun["score"], atol=1e-6)
    metrics = [read_manifest(run / "checkpoint").metrics["held_out_log_loss"] for run in (folder, frozen)]
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-4)


def test_a_head_that_begins_on_frozen_features_is_trained_further(base: Path, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", base, lengths_decide(), settings={"head_from": "frozen"})

    assert train(folder) == EXIT_FINISHED

    curve = [line["loss"] for line in read_metrics(folder)]
    assert curve[-1] < curve[0]
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("it", folder / "checkpoint")
    assert backbone.reads("it").layer > 0


def test_a_reward_model_that_reads_the_last_token_is_encoded_as_before(backbone: Backbone) -> None:
    examples = build_examples(judgments(), backbone.tokenizer, max_tokens=128, context=False).train
    batch = pack(examples[:2], device=torch.device("cpu"))
    backbone.add_adapter("plain", RewardSettings().lora, seed=0)

    with torch.no_grad():
        states = encode(backbone, "plain", batch)
        plain = backbone.packed_states(batch.input_ids, batch.position_ids, batch.layout)

    assert torch.equal(states, plain)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"features": "frozen"}, "adapter: features 'frozen' train no adapter; set it to 'none'"),
        ({"adapter": "none", "head_from": "frozen"}, "head_from: 'frozen' needs an adapter"),
        (FROZEN | {"loss": "davidson"}, "loss: features 'frozen' are fitted by"),
        (FROZEN | {"loss": "none"}, "loss: features 'frozen' are fitted by"),
        (FROZEN | {"annotator_heads": True, "ensemble": 3}, "ensemble: features 'frozen' fit heads of"),
        ({"head_from": "frozen", "group_heads": True}, "group_heads: head_from 'frozen' serves the score"),
        ({"loss": "none", "completeness": {}, "group_heads": True}, "group_heads: belong to the head"),
        (FROZEN | {"completeness": {}}, "completeness: features 'frozen' serves the score alone"),
        (FROZEN | {"label_smoothing": 0.1}, "label_smoothing: serves features 'adapted' alone"),
        (FROZEN | {"head_from": "frozen"}, "head_from: serves features 'adapted' alone"),
        ({"head_from": "frozen", "completeness": {}}, "completeness: head_from 'frozen' serves the score"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ContractError, match=problem.replace("(", r"\(")):
        settings_from_json("reward", values)


def test_a_run_is_compared_with_its_baselines_on_its_own_held_out_judgments(
    base: Path, tmp_path: Path
) -> None:
    folder = make_run(
        tmp_path / "run", base, lengths_decide(), optimiser={"max_steps": 2, "learning_rate": 1e-9}
    )

    assert train(folder) == EXIT_FINISHED

    evaluation = read_evaluation(folder)
    assert evaluation is not None
    report = baselines_from_details(evaluation.details)
    assert report is not None
    by_name = {baseline.name: baseline for baseline in report.baselines}
    assert (report.judgments, report.prompts, report.trained) == (20, 20, 40)
    assert report.trained_on_features == 40
    assert list(by_name) == ["position", "length", "surface", "frozen"]
    # The longer completion always wins, and its place is balanced.
    assert by_name["length"].accuracy.value == by_name["surface"].accuracy.value == 1.0
    assert by_name["position"].accuracy.value == 0.5
    assert by_name["frozen"].accuracy.value > 0.9
    assert by_name["frozen"].layer > 0
    # The model is as good as untrained: it loses against what decides.
    assert report.compared_with(by_name["surface"]) == "worse"
    gain = by_name["surface"].log_loss_gain.value
    assert gain == pytest.approx(by_name["surface"].log_loss.value - report.log_loss.value, abs=1e-9)
    assert report.log_loss.value == pytest.approx(evaluation.figures["held_out_log_loss"], abs=1e-5)
    length = evaluation.figures["held_out_length_log_loss"]
    assert by_name["length"].log_loss.value == pytest.approx(length, abs=1e-6)


def test_its_checkpoint_and_its_log_name_the_baselines_that_it_does_not_beat(
    base: Path, tmp_path: Path
) -> None:
    folder = make_run(
        tmp_path / "run", base, lengths_decide(), optimiser={"max_steps": 2, "learning_rate": 1e-9}
    )

    assert train(folder) == EXIT_FINISHED

    manifest = read_manifest(folder / "checkpoint")
    assert manifest.metrics["held_out_surface_accuracy"] == 1.0
    warned = " ".join(manifest.warnings)
    assert "Worse than surface features: held-out log-loss" in warned
    assert "Worse than a head on frozen features: held-out log-loss" in warned


def test_a_head_on_frozen_features_is_not_compared_with_itself(frozen: Path) -> None:
    evaluation = read_evaluation(frozen)
    assert evaluation is not None
    report = baselines_from_details(evaluation.details)
    assert report is not None
    assert [baseline.name for baseline in report.baselines] == ["position", "length", "surface"]
    assert report.correlations["log_words"] > 0.5


def test_a_run_without_held_out_judgments_has_no_baselines(base: Path, tmp_path: Path) -> None:
    rows = [judged for judged in lengths_decide(12) if judged.split == "train"]
    folder = make_run(tmp_path / "run", base, rows, optimiser={"max_steps": 1})

    assert train(folder) == EXIT_FINISHED

    assert read_evaluation(folder) is None


def test_another_place_is_read_only_where_it_is_clearly_better() -> None:
    generator = np.random.default_rng(2)
    places = places_to_read(10)
    examples = [
        Example(f"j{index}", (EncodedAnswer((1, 2), 1),) * 2, (1, 2), prompt=f"p{index}")
        for index in range(80)
    ]
    choices = choices_of(examples, whole=False)
    features = generator.normal(size=(160, len(places), 3)).astype(np.float32)

    # Nothing decides anywhere: the preferred place, though another has the lowest cost by chance.
    assert fit_frozen_head(features, choices, places).place == Place(6, True)
    # At the last token of the last block the winner is seen.
    features[::2, -1, 0] += 4
    assert fit_frozen_head(features, choices, places).place == Place(10, False)


def test_the_standard_error_is_that_of_prompts() -> None:
    examples = [
        Example(f"j{index}", (EncodedAnswer((1, 2), 1),) * 2, (1, 2), prompt=f"p{index // 2}")
        for index in range(4)
    ]

    # Two prompts with means 1 and 3: deviations of −2 and 2 in sum, over a total weight of 4.
    error = choices_of(examples, whole=False).standard_error(np.array([0.0, 2.0, 3.0, 3.0]))

    assert error == pytest.approx(8**0.5 / 4)


# ── An adapter that begins on frozen features ─────────────────────────────────────────


def test_the_adapter_lies_on_the_blocks_that_the_score_reads_and_the_head_stays(
    base: Path, frozen: Path, tmp_path: Path
) -> None:
    folder = make_run(
        tmp_path / "run",
        base,
        lengths_decide(),
        settings={"head_from": "frozen"},
        lora={"layers": 1},
        optimiser={"keep_best": False},
    )

    assert train(folder) == EXIT_FINISHED

    heads, begun = (load_file(run / "checkpoint" / "heads.safetensors") for run in (folder, frozen))
    assert torch.equal(heads["score"], begun["score"])
    layer = int(begun["score.reads"][0])
    adapter = load_file(folder / "checkpoint" / "adapter_model.safetensors")
    assert {name.split("layers.")[1].split(".")[0] for name in adapter} == {str(layer - 1)}
    assert any(value.abs().max() > 0 for name, value in adapter.items() if "lora_B" in name)


def test_a_head_may_learn_with_the_adapter(base: Path, frozen: Path, tmp_path: Path) -> None:
    settings = {"head_from": "frozen", "head_learns": True}
    folder = make_run(
        tmp_path / "run", base, lengths_decide(), settings=settings, optimiser={"keep_best": False}
    )

    assert train(folder) == EXIT_FINISHED

    heads, begun = (load_file(run / "checkpoint" / "heads.safetensors") for run in (folder, frozen))
    assert not torch.equal(heads["score"], begun["score"])


def test_training_that_makes_it_worse_ends_as_the_head_that_it_began_as(
    base: Path, frozen: Path, tmp_path: Path
) -> None:
    # Held-out annotators prefer the shorter one: the surer the model of the others, the worse it is there.
    rows = [
        replace(judgment, ranks={name: 3 - rank for name, rank in judgment.ranks.items()})
        if judgment.split == "held-out"
        else judgment
        for judgment in lengths_decide()
    ]
    settings = {"head_from": "frozen", "centring": 0.0}
    folder = make_run(tmp_path / "run", base, rows, settings=settings, optimiser={"epochs": 1})

    assert train(folder) == EXIT_FINISHED

    assert read_manifest(folder / "checkpoint").steps == 0
    heads, begun = (load_file(run / "checkpoint" / "heads.safetensors") for run in (folder, frozen))
    assert torch.equal(heads["score"], begun["score"])
    adapter = load_file(folder / "checkpoint" / "adapter_model.safetensors")
    assert all(value.abs().max() == 0 for name, value in adapter.items() if "lora_B" in name)
    evaluation = read_evaluation(folder)
    assert evaluation is not None
    assert evaluation.step == 0


def test_a_stopped_run_from_frozen_features_ends_as_one_that_was_not(base: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"settings": {"head_from": "frozen"}, "lora": {"layers": 1}}
    whole, halves = (
        make_run(tmp_path / name / "run", base, lengths_decide(), optimiser={"epochs": 1}, **more)
        for name in ("whole", "halves")
    )
    assert train(whole) == EXIT_FINISHED
    train(halves, StopAfter(halves, 2))

    assert train(halves) == EXIT_FINISHED

    assert files_of(halves / "checkpoint") == files_of(whole / "checkpoint")


def test_a_run_that_continues_one_from_frozen_features_keeps_its_blocks(base: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {"settings": {"head_from": "frozen"}, "lora": {"layers": 1}}
    optimiser = {"epochs": 1, "keep_best": False}
    first = make_run(tmp_path / "first", base, lengths_decide(), optimiser=optimiser, **more)
    assert train(first) == EXIT_FINISHED
    parent = str(first / "checkpoint")
    second = make_run(tmp_path / "second", base, lengths_decide(), optimiser=optimiser, parent=parent, **more)

    assert train(second) == EXIT_FINISHED

    names = [set(load_file(run / "checkpoint" / "adapter_model.safetensors")) for run in (first, second)]
    assert names[0] == names[1]


def test_blocks_above_the_place_that_is_read_are_not_run(backbone: Backbone) -> None:
    examples = build_examples(judgments(), backbone.tokenizer, max_tokens=128, context=False).train
    alone, packed = (pack(some, device=torch.device("cpu")) for some in (examples[:1], examples[:3]))
    ran: list[int] = []
    blocks = backbone._model.get_decoder().layers
    handles = [
        block.register_forward_hook(lambda *_, number=number: ran.append(number))
        for number, block in enumerate(blocks, start=1)
    ]
    backbone.add_adapter("it", RewardSettings().lora, seed=0)
    backbone.add_head("it", "score", seed=0)
    backbone.set_reads("it", Place(1, mean=True))
    try:
        with torch.no_grad():
            single, three = (read_rewards(backbone, "it", batch) for batch in (alone, packed))
    finally:
        for handle in handles:
            handle.remove()
        backbone.drop_adapter("it")

    assert set(ran) == {1}
    assert len(blocks) > 1
    # What lies beside a judgment in the packed row does not change its scores.
    assert torch.allclose(single, three[: len(single)], atol=1e-5)
