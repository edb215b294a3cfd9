"""Process reward models: what a labelled step costs, what the figures say, and a small learned run."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rlhf.methods.segment_scene import examples_of, part_of, reward_by_hand, teaching
from tests.rlhf.methods.test_methods import reward_method
from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.runs import make_run, row, status_of, train
from training.contract import read_metrics
from training.contract.methods import settings_from_json
from training.contract.methods.reward import RewardSettings, SegmentHead
from training.contract.run import EXIT_FAILED, EXIT_FINISHED
from training.contract.segmentation import steps
from training.contract.snapshot import Message, SnapshotRow
from training.rlhf.measures.calibration import roc_auc
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.sampling import token_rewards
from training.rlhf.rewards.reward_model import LearnedReward
from training.rlhf.rollout.samples import Sample, TokenLogProb
from training.rlhf.tokens.packing import pack

CPU = torch.device("cpu")
CALL = '[tool call search]\n{\n  "query": "tea"\n}'
RESULT = "[tool result search]\nTea grows."
GOOD = "[assistant]\nTea is a drink."
BAD = "[assistant]\nNo no no."
IDLE = "[assistant]\nOnce more."
LABELS = {GOOD: "correct", CALL: "correct", BAD: "wrong", IDLE: "unnecessary", RESULT: None}


def head(*categories: str, name: str = "process") -> SegmentHead:
    return SegmentHead(name=name, categories=categories or ("wrong", "unnecessary"), granularity="steps")


def traced(name: str, *answers: list[str], **more: Any) -> SnapshotRow:
    """A judgment of traces, each step with the label that `LABELS` gives it."""
    texts = ["\n\n".join(parts) for parts in answers]
    bare = row(name, texts, [0] * len(texts), verdict="not_asked", **more)
    places, labels = [], []
    for parts, completion in zip(answers, bare.completions, strict=True):
        starts = [sum(len(part) + 2 for part in parts[:n]) for n in range(len(parts))]
        places.append([[start, start + len(part)] for start, part in zip(starts, parts, strict=True)])
        labels.append({"completion": completion.id, "labels": [LABELS[part] for part in parts]})
    completions = [
        {"id": part.id, "text": part.text, "source": part.source, "steps": of}
        for part, of in zip(bare.completions, places, strict=True)
    ]
    return SnapshotRow.from_json(
        {
            **{"judgment": name, "comparison": name, "annotator": "ann", "round": 1, "prompt": name},
            **{"split": "train", "verdict": "not_asked", "ranks": {}},
            "messages": [{"role": "user", "content": "What is tea?"}],
            "completions": completions,
            "step_labels": labels,
            **more,
        }
    )


def test_a_step_costs_its_log_loss_at_its_last_token_answers_and_steps_as_means(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="none", segments=(head(),))
    rows = [traced("a", [GOOD, CALL, RESULT, BAD], [IDLE]), traced("b", [GOOD])]
    examples = examples_of(backbone, method, *rows).train
    method.begin(examples)
    disturb(backbone, "reward")

    def cost(answer: Any, text: str, labelled_steps: list[tuple[str, bool]]) -> float:
        """Mean over the labelled steps, each read at the token with which the row decodes to its end."""
        ids, tokenizer = tuple(answer.ids), backbone.tokenizer
        begin = tokenizer.decode(ids).index(text)
        costs = []
        for step, faulty in labelled_steps:
            end = begin + text.index(step) + len(step)
            place = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[: n + 1])) >= end)
            reward = reward_by_hand(backbone, ids, place, "process")
            costs.append(math.log1p(math.exp(reward if faulty else -reward)))
        return sum(costs) / len(costs)

    long, idle = examples[0].answers
    text = "\n\n".join([GOOD, CALL, RESULT, BAD])
    first = cost(long, text, [(GOOD, False), (CALL, False), (BAD, True)])
    second = cost(idle, IDLE, [(IDLE, True)])
    third = cost(examples[1].answers[0], GOOD, [(GOOD, False)])
    assert part_of(method, examples, "process").tolist() == pytest.approx(
        [(first + second) / 2, third], abs=1e-5
    )


@pytest.mark.parametrize(
    ("categories", "faulty"),
    [(("wrong",), [0, 1, 0]), (("unnecessary",), [0, 0, 1]), (("wrong", "unnecessary"), [0, 1, 1])],
)
def test_wrong_and_unnecessary_are_one_fault_or_two(
    backbone: Backbone, categories: tuple[str, ...], faulty: list[int]
) -> None:
    method = reward_method(backbone, loss="none", segments=(head(*categories),))
    examples = examples_of(backbone, method, traced("a", [GOOD, BAD, RESULT, IDLE])).train
    method.begin(examples)
    observed = method.outcome(pack(examples, device=CPU), examples, dropout=False).observed
    assert observed["process.faulty"].tolist() == faulty


def test_a_judgment_without_a_labelled_step_teaches_nothing_and_is_told(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="none", segments=(head("wrong"),))
    rows = [traced("a", [GOOD, BAD]), traced("b", [RESULT]), row("c", ["Yes.", "No."], [1, 2])]
    examples = examples_of(backbone, method, *rows)
    assert [example.judgment for example in teaching(method, examples).train] == ["a"]
    assert [entry["judgment"] for entry in examples.dropped] == ["b", "c"]


def test_flags_and_steps_have_heads_of_one_model(backbone: Backbone) -> None:
    flags = SegmentHead(name="faults", categories=("vague",))
    method = reward_method(backbone, loss="none", segments=(head("wrong"), flags))
    quote = {"completion": "b.0", "category": "vague", "start": 0, "end": 3, "quote": "Yes"}
    flagged = row("b", ["Yes. No."], [0], verdict="not_asked", spans=[quote], read_for_spans=["b.0"])
    examples = examples_of(backbone, method, traced("a", [GOOD, BAD]), flagged).train
    method.begin(examples)
    assert [method.weights(example) for example in examples] == [
        {"process": 1.0, "faults": 0.0},
        {"process": 0.0, "faults": 1.0},
    ]
    observed = method.outcome(pack(examples, device=CPU), examples, dropout=False).observed
    assert (observed["process.faulty"].tolist(), observed["faults.faulty"].tolist()) == ([0, 1], [1, 0])


def test_figures_by_hand(backbone: Backbone) -> None:
    method = reward_method(backbone, loss="none", segments=(head("wrong"),))
    method.begin(examples_of(backbone, method, traced("a", [GOOD, GOOD, BAD])).train)
    # Chances of a fault .9 .6 .4 .1 of steps that are 1 0 1 0. The first and the last lie on the right side
    # of ½. Of the four pairs of a fault with another .9 is above both, .4 above .1 alone: 3/4. The training
    # steps are mostly right; of these calling all right is true of two.
    chances = torch.tensor([0.9, 0.6, 0.4, 0.1], dtype=torch.float64)
    observed = {
        "process.reward": torch.logit(1 - chances),
        "process.faulty": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "process.share": torch.full((4,), 0.5),
    }
    figures = method.figures(observed, held_out=True)
    names = ("accuracy", "baseline_accuracy", "auc", "segments", "faulty", "average_precision")
    assert [figures[f"process_{name}"] for name in names] == pytest.approx([0.5, 0.5, 0.75, 4, 2, 5 / 6])
    alike = {**observed, "process.faulty": torch.zeros(4)}
    assert "process_auc" not in method.figures(alike, held_out=True)
    assert method.figures(alike, held_out=True)["process_baseline_accuracy"] == 1


def test_the_area_under_the_roc_curve_counts_pairs() -> None:
    scores = torch.randint(0, 6, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    labels = torch.randint(0, 2, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    pairs = [
        (a > b) + (a == b) / 2
        for a, x in zip(scores, labels, strict=True)
        for b, y in zip(scores, labels, strict=True)
        if x and not y
    ]
    assert roc_auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))
    assert roc_auc([1, 2], [1, 1]) is None


def test_labels_that_nobody_gave_fail_the_run_by_name(base: Path, tmp_path: Path) -> None:
    segments = [{"name": "process", "categories": ["unnecessary"], "granularity": "steps"}]
    rows = [traced(f"t{number}", [GOOD, BAD]) for number in range(4)]
    folder = make_run(tmp_path / "run", base, rows, settings={"loss": "none", "segments": segments})
    assert train(folder) == EXIT_FAILED
    message = status_of(folder).message
    assert (
        "'process': no training step is labelled 'unnecessary'; there are: 'correct' (4), 'wrong' (4)"
        in message
    )


# ── A small run ───────────────────────────────────────────────────────────────────────


def some_traces() -> list[SnapshotRow]:
    orders = [
        [GOOD, CALL, RESULT, BAD],
        [BAD, GOOD],
        [CALL, BAD, GOOD],
        [GOOD, GOOD, BAD, CALL],
        [BAD],
        [GOOD],
    ]
    return [
        traced(f"t{number}", orders[number % 6], split="held-out" if number % 4 == 3 else "train")
        for number in range(24)
    ]


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    segments = [{"name": "process", "categories": ["wrong"], "granularity": "steps"}]
    run = make_run(
        tmp_path_factory.mktemp("steps") / "run",
        base,
        some_traces(),
        settings={"loss": "none", "segments": segments},
        optimiser={"epochs": 8, "learning_rate": 3e-3},
    )
    assert train(run) == EXIT_FINISHED
    return run


def test_held_out_steps_are_told_apart_better_than_by_the_commoner_label(learned: Path) -> None:
    last = read_metrics(learned)[-1]
    assert last["held_out_process_baseline_accuracy"] < 0.8
    assert last["held_out_process_accuracy"] > 0.95
    assert last["held_out_process_auc"] > 0.95
    assert last["held_out_process_log_loss"] < 0.5 * last["held_out_process_prior_log_loss"]


def test_a_process_reward_is_paid_on_the_last_token_of_each_generated_step(
    learned: Path, backbone: Backbone
) -> None:
    manifest = backbone.load_adapter("reward", learned / "checkpoint")
    settings = settings_from_json("reward", manifest.spec["settings"])
    assert isinstance(settings, RewardSettings)
    text = "\n\n".join([GOOD, RESULT, BAD])
    chat = [Message(role="user", content="What is tea?")]
    [score] = LearnedReward(backbone, "reward", settings)([chat], [text], [None])
    ends = [len(GOOD), len(text)]
    assert [end for _, end in steps(text)] == ends == [segment.end for segment in score.segments]
    assert score.value == 0
    good, bad = (segment.value for segment in score.segments)
    assert good > 0 > bad
    ids = backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
    drawn = [*ids, backbone.tokenizer.eos_token_id]
    sample = Sample(
        tokens=tuple(TokenLogProb(id=token, log_prob=0.0) for token in drawn),
        text=text,
        visible_tokens=len(ids),
        finish_reason="stop",
        seed=0,
    )
    rewards = token_rewards(sample, score, backbone.tokenizer)
    lengths = [len(backbone.tokenizer.decode(ids[: n + 1])) for n in range(len(ids))]
    first = next(n for n, length in enumerate(lengths) if length >= ends[0])
    expected = torch.zeros(len(drawn))
    expected[first], expected[len(ids) - 1] = good, bad
    assert rewards.tolist() == pytest.approx(expected.tolist())
    # A sum over tokens is the sum over steps, twice the weight is twice the reward.
    [twice] = LearnedReward(backbone, "reward", settings, weights={"process": 2.0})([chat], [text], [None])
    assert token_rewards(sample, twice, backbone.tokenizer).sum() == pytest.approx(2 * (good + bad), abs=1e-4)
