"""Segment heads: what a segment costs, and what the figures say."""

import math
from itertools import product

import pytest
import torch

from tests.rlhf.methods.segment_scene import (
    BAD,
    CPU,
    FAULTS,
    GOOD,
    ONLY_FAULTS,
    QUESTION,
    examples_of,
    marked,
    part_of,
    reward_by_hand,
    span,
)
from tests.rlhf.methods.test_methods import reward_method
from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.runs import row
from training.contract import ContractError
from training.contract.methods.reward import SegmentHead
from training.rlhf.methods.objectives.segments import SegmentObjective, likely_best_threshold
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.packing import pack

# ── Which answers were read ───────────────────────────────────────────────────────────


def test_an_answer_that_was_read_and_has_no_flag_is_an_example_of_a_faultless_one(backbone: Backbone) -> None:
    method = reward_method(backbone, **ONLY_FAULTS)
    rows = [marked("a", [GOOD, BAD.strip(), GOOD], read=(0, 1)), marked("b", [GOOD], read=(0,))]
    first, second = examples_of(backbone, method, *rows).train
    # The third answer of "a" was not read and is not there at all.
    assert [len(first.answers), len(second.answers)] == [2, 1]
    assert (first.labels.read_for_flags, second.labels.read_for_flags) == ((0, 1), (0,))
    assert [place for place, _ in first.labels.flags] == [1]


def test_older_rows_that_do_not_say_what_was_read_take_what_has_a_fault(backbone: Backbone) -> None:
    method = reward_method(backbone, **ONLY_FAULTS)
    texts = [GOOD, f"{GOOD}{BAD}"]
    old = row("old", texts, [0, 0], verdict="not_asked", spans=[span("old", texts[1], "policy", answer=1)])
    clean = row("clean", [GOOD, GOOD], [0, 0], verdict="not_asked")
    examples = examples_of(backbone, method, old, clean)
    (example,) = examples.train
    assert example.labels.texts == (texts[1],)
    assert example.labels.read_for_flags == (0,)
    assert [entry["judgment"] for entry in examples.dropped] == ["clean"]


# ── Segments ──────────────────────────────────────────────────────────────────────────


def test_a_segment_costs_its_log_loss_at_its_last_token_answers_and_segments_as_means(
    backbone: Backbone,
) -> None:
    method = reward_method(backbone, **ONLY_FAULTS)
    long = f"{GOOD}{BAD} {GOOD}"
    rows = [marked("long", [long, GOOD], read=(0, 1)), marked("short", [BAD.strip()])]
    examples = examples_of(backbone, method, *rows).train
    method.begin(examples)
    disturb(backbone, "reward")

    def cost(text: str, ends: list[tuple[str, bool]]) -> float:
        """Mean over the segments that end with these texts. The last token of a segment is the one before
        which the row decodes to less than the text up to there, and with which to at least that."""
        tokenizer = backbone.tokenizer
        chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": text}]
        rendered = tokenizer.apply_chat_template(chat, tokenize=False).rstrip("\n")
        ids = tuple(tokenizer(rendered, add_special_tokens=False)["input_ids"])
        costs = []
        for until, faulty in ends:
            length = rendered.index(text) + len(until)
            place = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[: n + 1])) >= length)
            reward = reward_by_hand(backbone, ids, place)
            costs.append(math.log1p(math.exp(reward if faulty else -reward)))
        return sum(costs) / len(costs)

    first = cost(long, [(GOOD, False), (GOOD + BAD, True), (long, False)])
    second = cost(GOOD, [(GOOD, False)])
    third = cost(BAD.strip(), [(BAD.strip(), True)])
    assert part_of(method, examples, "faults").tolist() == pytest.approx(
        [(first + second) / 2, third], abs=1e-5
    )


def test_the_whole_answer_is_read_at_its_end_token(backbone: Backbone) -> None:
    head = SegmentHead(name="faults", categories=("wrong",), granularity="whole")
    method = reward_method(backbone, loss="none", segments=(head,))
    rows = [marked("bad", [f"{GOOD}{BAD}"]), marked("good", [GOOD])]
    examples = examples_of(backbone, method, *rows).train
    method.begin(examples)
    disturb(backbone, "reward")
    expected = [
        math.log1p(math.exp(sign * reward_by_hand(backbone, example.answers[0].ids, -1)))
        for example, sign in zip(examples, (1, -1), strict=True)
    ]
    assert part_of(method, examples, "faults").tolist() == pytest.approx(expected, abs=1e-5)


def test_a_flag_that_ends_in_white_space_does_not_mark_the_next_segment(backbone: Backbone) -> None:
    method = reward_method(backbone, **ONLY_FAULTS)
    text = f"{BAD.strip()} {GOOD}"
    sloppy = row(
        "sloppy",
        [text],
        [0],
        verdict="not_asked",
        spans=[span("sloppy", text, f"{BAD.strip()} ")],
        read_for_spans=["sloppy.0"],
    )
    examples = examples_of(backbone, method, sloppy).train
    method.begin(examples)
    observed = method.outcome(pack(examples, device=CPU), examples, dropout=False).observed
    assert observed["faults.faulty"].tolist() == [1.0, 0.0]


def test_a_new_head_begins_at_the_training_share_of_faultless_segments(backbone: Backbone) -> None:
    method = reward_method(backbone, **ONLY_FAULTS)
    # Shares of faulty segments: 1/2, 0, and (1 + 0)/2 of two answers. Their mean is 1/3, the log-odds of
    # its opposite log(2/3 / 1/3) = log 2.
    rows = [
        marked("a", [f"{GOOD}{BAD}"]),
        marked("b", [GOOD]),
        marked("c", [BAD.strip(), GOOD], read=(0, 1)),
    ]
    examples = examples_of(backbone, method, *rows).train
    method.begin(examples)
    observed = method.outcome(pack(examples, device=CPU), examples, dropout=False).observed
    assert observed["faults.reward"].tolist() == pytest.approx([math.log(2)] * 5)
    figures = method.figures(observed, held_out=True)
    entropy = -(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3)
    assert figures["faults_log_loss"] == pytest.approx(entropy, abs=1e-6)
    assert figures["faults_prior_log_loss"] == pytest.approx(entropy, abs=1e-6)
    assert (figures["faults_segments"], figures["faults_faulty"]) == (5, 2)


def test_several_heads_share_a_pass_and_each_scores_its_own_categories(backbone: Backbone) -> None:
    text = f"{GOOD}{BAD}"
    judged = row(
        "two",
        [text],
        [0],
        verdict="not_asked",
        spans=[span("two", text, "policy"), span("two", text, "sun", "odd")],
        read_for_spans=["two.0"],
    )
    heads = (FAULTS, SegmentHead(name="oddities", categories=("odd",), weight=0.25))
    method = reward_method(backbone, loss="none", segments=heads)
    examples = examples_of(backbone, method, judged).train
    method.begin(examples)
    outcome = method.outcome(pack(examples, device=CPU), examples, dropout=False)
    assert outcome.observed["faults.faulty"].tolist() == [0.0, 1.0]
    assert outcome.observed["oddities.faulty"].tolist() == [1.0, 0.0]
    assert (outcome.parts["faults"].coefficient, outcome.parts["oddities"].coefficient) == (1.0, 0.25)


# ── Figures ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_is_the_one_of_highest_expected_f1(seed: int) -> None:
    chances = torch.rand(7, generator=torch.Generator().manual_seed(seed)) ** 2

    def expected_f1(threshold: float) -> float:
        """By the formula of the ratio of expectations, from all 2^7 outcomes."""
        hits = positives = 0.0
        for outcome in product((0, 1), repeat=7):
            chance = math.prod(float(p) if y else 1 - float(p) for p, y in zip(chances, outcome, strict=True))
            marks = [float(p) >= threshold for p in chances]
            hits += chance * sum(y for y, mark in zip(outcome, marks, strict=True) if mark)
            positives += chance * sum(outcome)
        return 2 * hits / (positives + sum(float(p) >= threshold for p in chances))

    best = max((float(p) for p in chances), key=expected_f1)
    assert likely_best_threshold(chances) == pytest.approx(best)


def test_figures_by_hand(backbone: Backbone) -> None:
    method = reward_method(backbone, **ONLY_FAULTS)
    method.begin(examples_of(backbone, method, marked("a", [f"{GOOD}{BAD}"])).train)  # a prior of 1/2
    # Chances of a fault 0.9, 0.6, 0.4, 0.1. Marking 1, 2, 3, 4 is expected to give F1 of 1.8/3, 3/4, 3.8/5,
    # 4/6: three are marked. Of these two are faults: precision 2/3, recall 1, F1 4/5. From the top down:
    # precision 1 at recall 1/2, 2/3 at recall 1: average 1/2 + 1/2 · 2/3 = 5/6. Agreement 3/4; by chance
    # 3/4 · 1/2 + 1/4 · 1/2 = 1/2: kappa 1/2.
    chances = torch.tensor([0.9, 0.6, 0.4, 0.1], dtype=torch.float64)
    observed = {
        "faults.reward": torch.logit(1 - chances),
        "faults.faulty": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "faults.share": torch.full((4,), 0.5),
    }
    assert method.figures(observed, held_out=True) == pytest.approx(
        {
            "faults_log_loss": -sum(map(math.log, (0.9, 0.4, 0.4, 0.9))) / 4,
            "faults_prior_log_loss": math.log(2),
            "faults_segments": 4,
            "faults_faulty": 2,
            "faults_threshold": 0.4,
            "faults_f1": 4 / 5,
            "faults_precision": 2 / 3,
            "faults_recall": 1,
            "faults_average_precision": 5 / 6,
            "faults_kappa": 1 / 2,
        }
    )
    curve = method.details(observed)["faults"]["precision_recall"]
    assert [point["recall"] for point in curve] == [1, 1, 0.5, 0.5]
    assert [point["precision"] for point in curve] == pytest.approx([1 / 2, 2 / 3, 1 / 2, 1])


def test_held_out_answers_without_a_fault_have_no_f1_and_raise_nothing(backbone: Backbone) -> None:
    method = reward_method(backbone, **ONLY_FAULTS)
    held_out = marked("clean", [GOOD], split="held-out")
    examples = examples_of(backbone, method, marked("a", [f"{GOOD}{BAD}"]), held_out)
    method.begin(examples.train)
    observed = method.outcome(pack(examples.held_out, device=CPU), examples.held_out, dropout=False).observed
    figures = method.figures(observed, held_out=True)
    assert (figures["faults_segments"], figures["faults_faulty"]) == (1, 0)
    assert set(figures) == {f"faults_{name}" for name in ("log_loss", "prior_log_loss", "segments", "faulty")}
    assert method.details(observed) == {}
    assert method.figures({name: values[:0] for name, values in observed.items()}, held_out=True) == {}


# ── Sub-categories and merits ─────────────────────────────────────────────────────────


def with_spans(name: str, category: str, text: str, quotes: list[str], **more: object):
    spans = [{**span(name, text, quote, category), **more} for quote in quotes]
    return row(name, [text], [0], verdict="not_asked", spans=spans, read_for_spans=[f"{name}.0"])


def test_a_sub_category_counts_for_the_category_that_a_head_names(backbone: Backbone) -> None:
    text = f"{GOOD}{BAD}"
    method = reward_method(backbone, **ONLY_FAULTS)
    rows = [
        with_spans("part", "invented", text, [BAD.strip()], parent="wrong"),
        with_spans("other", "tone", text, [BAD.strip()], parent="manner"),
    ]
    examples = examples_of(backbone, method, *rows).train
    (objective,) = method._objectives
    assert isinstance(objective, SegmentObjective)
    objective.begin(examples)
    assert [answer.faulty.tolist() for example in examples for answer in objective.read(example)] == [
        [False, True],
        [False, False],
    ]


def test_a_head_on_a_merit_scores_low_what_is_not_marked(backbone: Backbone) -> None:
    text = f"{GOOD}{BAD}"
    method = reward_method(backbone, **ONLY_FAULTS)
    liked = with_spans("liked", "wrong", text, [GOOD], is_liked=True)
    plain = with_spans("plain", "wrong", text, [], is_liked=True)
    examples = examples_of(backbone, method, liked, plain).train
    (objective,) = method._objectives
    assert isinstance(objective, SegmentObjective)
    objective.begin(examples)
    assert [answer.faulty.tolist() for example in examples for answer in objective.read(example)] == [
        [False, True],
        [True, True],
    ]
    fault = with_spans("fault", "invented", text, [BAD.strip()], parent="wrong")
    with pytest.raises(ContractError, match="make two heads of them"):
        objective.begin(examples_of(backbone, method, liked, fault).train)
