"""Training on a reviewer's decision, on corrected answers, and on judgments that weigh less."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.rlhf.runs import make_run, row, train
from tests.tiny import tiny_tokenizer
from training.contract import ContractError, read_metrics
from training.contract.methods import Method, settings_from_json
from training.contract.methods.reward import RewardSettings
from training.contract.run import CHECKPOINT_FOLDER, read_spec
from training.contract.snapshot import SnapshotRow
from training.rlhf.data import Examples, build_examples
from training.rlhf.losses import bradley_terry, dpo
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import UsedLabels
from training.rlhf.tokens.packing import pack

USABLE = row("usable", ["yes", "no"], [1, 2])


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def built(tokenizer, *rows: SnapshotRow, use_corrections: bool = False) -> Examples:
    requirements = UsedLabels(corrections=use_corrections)
    return build_examples([USABLE, *rows], tokenizer, max_tokens=256, context=False, labels=requirements)


def vote(number: int, ranks: list[int], *, review: Mapping[str, object] | None, **more) -> SnapshotRow:
    """One of several votes on the comparison "disputed", with what a reviewer decided about it."""
    values = {
        "judgment": f"vote-{number}",
        "comparison": "disputed",
        "annotator": f"annotator-{number}",
        "round": 1,
        "prompt": "p",
        "split": "train",
        "messages": [{"role": "user", "content": "Why?"}],
        "completions": [{"id": name, "text": f"answer {name}", "source": "s"} for name in "ab"],
        "verdict": "ranked",
        "ranks": dict(zip("ab", ranks, strict=True)),
        "review": review,
    }
    return SnapshotRow.from_json({**values, **more})


# ── A reviewer's decision ─────────────────────────────────────────────────────────────


def test_a_decision_stands_once_in_place_of_all_votes(tokenizer) -> None:
    decision = {"verdict": "ranked", "ranks": {"a": 2, "b": 1}}
    votes = [
        vote(number, ranks, review=decision, strength=4, weight=0.5)
        for number, ranks in enumerate(([1, 2], [2, 1], [1, 2]))
    ]
    examples = built(tokenizer, *votes)
    (_, example) = examples.train
    # b over a, though two of three votes say the reverse; no annotator's strength and weight belong to it.
    assert example.pairs == ((1, 0),)
    assert (example.strength, example.weight) == (0, 1.0)
    assert examples.dropped == [
        {
            "judgment": f"vote-{number}",
            "completion": "",
            "reason": "a reviewer decided this comparison; the decision counts once",
        }
        for number in (1, 2)
    ]


def test_a_decision_without_a_winner_teaches_no_preference(tokenizer) -> None:
    decision = {"verdict": "cannot_judge", "ranks": {}}
    examples = built(tokenizer, vote(0, [1, 2], review=decision), vote(1, [1, 2], review=decision))
    assert [example.judgment for example in examples.train] == ["usable"]
    assert [entry["reason"] for entry in examples.dropped] == [
        "the annotator could not judge",
        "a reviewer decided this comparison; the decision counts once",
    ]


def test_a_decision_makes_a_preference_of_votes_that_tied(tokenizer) -> None:
    decision = {"verdict": "ranked", "ranks": {"a": 1, "b": 2}}
    examples = built(tokenizer, vote(0, [1, 1], review=decision, verdict="equal"))
    assert examples.train[1].pairs == ((0, 1),)


# ── Corrected answers ─────────────────────────────────────────────────────────────────


def corrected(name: str, text: str, **more) -> SnapshotRow:
    return row(
        name,
        ["the first answer", "the second answer"],
        [1, 2],
        corrections=[{"completion": f"{name}.1", "text": text}],
        **more,
    )


def test_a_corrected_answer_is_preferred_to_its_original_only_when_asked_for(tokenizer) -> None:
    judged = corrected("j", "the second answer, mended", weight=0.5)
    assert [example.judgment for example in built(tokenizer, judged).train] == ["usable", "j"]
    examples = built(tokenizer, judged, use_corrections=True)
    assert [example.judgment for example in examples.train] == ["usable", "j", "j"]
    example = examples.train[2]
    texts = [tokenizer.decode(answer.ids[answer.answer_start : -1]) for answer in example.answers]
    assert texts == ["the second answer, mended", "the second answer"]
    assert example.pairs == ((0, 1),)
    assert (example.strength, example.weight) == (0, 0.5)


def test_a_correction_teaches_even_where_no_answer_won(tokenizer) -> None:
    judged = row(
        "j",
        ["one", "two"],
        [1, 1],
        verdict="both_bad",
        corrections=[{"completion": f"j.{place}", "text": f"better {place}"} for place in (0, 1)],
    )
    examples = built(tokenizer, judged, use_corrections=True)
    assert [example.pairs for example in examples.train[1:]] == [((0, 1),), ((0, 1),)]


def test_held_out_figures_stay_those_of_what_people_chose(tokenizer) -> None:
    judged = corrected("j", "mended", split="held-out")
    examples = built(tokenizer, judged, use_corrections=True)
    assert len(examples.held_out) == 1
    assert len(examples.held_out[0].answers) == 2
    assert [example.judgment for example in examples.train] == ["usable"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the correction leaves nothing of the answer"),
        ("the second answer ", "the correction changes nothing"),
    ],
)
def test_a_correction_that_teaches_nothing_is_listed(tokenizer, text: str, reason: str) -> None:
    examples = built(tokenizer, corrected("j", text), use_corrections=True)
    assert {"judgment": "j", "completion": "j.1", "reason": reason} in examples.dropped
    assert len(examples.train) == 2


def test_corrections_alone_are_enough_to_learn_from(tokenizer) -> None:
    judged = row(
        "j", ["one"], [0], verdict="not_asked", corrections=[{"completion": "j.0", "text": "better"}]
    )
    with pytest.raises(ContractError, match="1 × no preference was asked for"):
        build_examples([judged], tokenizer, max_tokens=64, context=False)
    examples = build_examples(
        [judged], tokenizer, max_tokens=64, context=False, labels=UsedLabels(corrections=True)
    )
    assert examples.train[0].pairs == ((0, 1),)


def test_old_specs_mean_what_they_meant() -> None:
    for method in ("reward", "preference"):
        assert settings_from_json(method, {}).use_corrections is False


# ── Weights ───────────────────────────────────────────────────────────────────────────


def test_a_judgment_that_weighs_nothing_is_left_out_and_listed(tokenizer) -> None:
    examples = built(tokenizer, row("idle", ["a", "b"], [1, 2], weight=0.0))
    assert [example.judgment for example in examples.train] == ["usable"]
    assert examples.dropped == [
        {"judgment": "idle", "completion": "", "reason": "the annotator's judgments weigh nothing"}
    ]


def test_weights_stand_with_their_examples_in_a_batch(tokenizer) -> None:
    examples = built(tokenizer, row("less", ["a", "b", "c"], [1, 2, 3], weight=0.25)).train
    batch = pack(examples, device=torch.device("cpu"))
    assert batch.weight.tolist() == [1.0, 0.25]


@pytest.mark.parametrize("method", ["reward", "preference"])
def test_the_loss_of_a_step_is_the_weighted_mean(tmp_path: Path, base: Path, method: Method) -> None:
    # Two judgments of weight 1 and ¼ in one step: (l₁ + ¼ l₂) / 1¼.
    rows = [
        row("a", ["the sun rises", "no no no"], [1, 2]),
        row("b", ["why", "the east is red"], [1, 2], weight=0.25),
    ]
    optimiser = {"batch_size": 2, "max_steps": 2, "learning_rate": 0.01, "warmup_steps": 0}
    folder = make_run(tmp_path / "run", base, rows, method=method, optimiser=optimiser)
    assert train(folder) == 0
    first, second = read_metrics(folder)
    if method == "preference":
        # Policy and reference are one at first: every loss is ln 2, and so is any mean of them.
        assert first["loss"] == pytest.approx(0.6931472, abs=1e-5)
        assert second["loss"] < first["loss"]
        return
    losses = losses_before_training(folder, base, rows)
    assert first["loss"] == pytest.approx((losses[0] + 0.25 * losses[1]) / 1.25, abs=1e-5)


def losses_before_training(folder: Path, base: Path, rows: list[SnapshotRow]) -> list[float]:
    """−log σ(r⁺ − r⁻) + centring · (r⁺ + r⁻)² of each row, by the model that the run starts from."""
    spec = read_spec(folder)
    assert isinstance(spec.settings, RewardSettings)
    backbone = Backbone.load(base, device=torch.device("cpu"), dtype=torch.float32)
    start = RewardModelling(backbone, spec, spec.settings)
    examples = build_examples(rows, backbone.tokenizer, max_tokens=128, context=False).train
    losses = []
    for example in examples:
        batch = pack([example], device=torch.device("cpu"))
        losses.append(start.outcome(batch, [example], dropout=False).parts["score"].loss.item())
    assert losses[0] != pytest.approx(losses[1], abs=1e-3), "equal losses would hide a missing weight"
    return losses


@pytest.mark.parametrize("method", ["reward", "preference"])
def test_weight_2_is_the_judgment_twice(tmp_path: Path, base: Path, method: Method) -> None:
    texts, ranks = ["the sun rises in the east", "no no", "sets in the west"], [1, 2, 3]
    other = row("other", ["why why", "because"], [2, 1])
    optimiser = {"max_steps": 2, "learning_rate": 0.01, "warmup_steps": 0, "micro_batch_tokens": 16}

    def trained(name: str, rows: list[SnapshotRow]) -> dict[str, torch.Tensor]:
        folder = make_run(
            tmp_path / name,
            base,
            rows,
            method=method,
            optimiser={**optimiser, "batch_size": len(rows)},
        )
        assert train(folder) == 0
        tensors: dict[str, torch.Tensor] = {}
        for path in sorted((folder / CHECKPOINT_FOLDER).rglob("*.safetensors")):
            tensors |= {f"{path.name}/{key}": value for key, value in load_file(path).items()}
        return tensors

    weighted = trained("weighted", [row("one", texts, ranks, weight=2.0), other])
    twice = trained("twice", [row("one", texts, ranks), row("two", texts, ranks), other])
    plain = trained("plain", [row("one", texts, ranks), other])
    assert weighted.keys() == twice.keys()
    apart = max((weighted[key] - twice[key]).abs().max().item() for key in weighted)
    without = max((weighted[key] - plain[key]).abs().max().item() for key in weighted)
    assert apart < 1e-4
    assert without > 10 * apart


def test_the_weighted_means_of_the_losses_are_those_of_hand_calculation() -> None:
    # Bradley-Terry with leads log 3 and −log 3: −log ¾ = 0.2876821 and −log ¼ = 1.3862944.
    lead, weight = torch.tensor([1.0986123, -1.0986123]), torch.tensor([1.0, 0.25])
    loss = bradley_terry(lead, torch.zeros(2), weight=weight)
    assert loss.item() == pytest.approx((0.2876821 + 0.25 * 1.3862944) / 1.25, abs=1e-6)
    # The same leads as implicit rewards of DPO at β = 1 have the same losses.
    zeros = torch.zeros(2)
    values = dpo(lead, zeros, zeros, zeros, beta=1.0, reduction="none")
    assert ((weight * values).sum() / weight.sum()).item() == pytest.approx(loss.item(), abs=1e-6)
