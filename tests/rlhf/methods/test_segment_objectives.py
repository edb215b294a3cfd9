"""Fine-grained heads: what a segment and a pair of answers cost, what the figures say, what comes back."""

import math
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rlhf.loop.trainers import finish_two
from tests.rlhf.methods.test_methods import reward_method
from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.runs import StopAfter, files_of, make_run, row, status_of, train
from training.contract import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    CompletenessHead,
    ContractError,
    RewardSettings,
    SegmentHead,
    read_evaluation,
    read_metrics,
    settings_from_json,
)
from training.rlhf.data import Examples, build_examples, only_teaching
from training.rlhf.methods.objectives.segment_scores import segment_rewards
from training.rlhf.methods.objectives.segments import likely_best_threshold
from training.rlhf.methods.reward import RewardModelling, encode
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

QUESTION = "What is the colour of the sky?"
"""What `row` asks by default."""
CPU = torch.device("cpu")
GOOD = "The sun rises in the east."
BAD = " A policy gives no answer ever."
FAULTS = SegmentHead(name="faults", categories=("wrong",))
ONLY_FAULTS: dict[str, Any] = {"loss": "none", "segments": (FAULTS,)}


def span(name: str, text: str, quote: str, category: str = "wrong", answer: int = 0) -> dict[str, Any]:
    """A flag on the first place where `quote` stands in answer `answer` of judgment `name`."""
    start = text.index(quote)
    return {
        "completion": f"{name}.{answer}",
        "category": category,
        "start": start,
        "end": start + len(quote),
        "quote": quote,
    }


def marked(name: str, texts: list[str], *, read: tuple[int, ...] = (0,), **more: Any):
    """One judgment without a ranking whose answers `read` were read; every BAD sentence has a flag."""
    spans = [
        span(name, text, BAD.strip(), answer=place)
        for place, text in enumerate(texts)
        if BAD.strip() in text and place in read
    ]
    return row(
        name,
        texts,
        [0] * len(texts),
        verdict="not_asked",
        spans=spans,
        read_for_spans=[f"{name}.{place}" for place in read],
        **more,
    )


def some_marked() -> list[Any]:
    """Sixteen judgments, four held out: answers of one to three sentences, bad ones among them."""
    rows = []
    for index, sentences in enumerate(product((GOOD, BAD), repeat=2)):
        for number in range(4):
            text = "".join((*sentences, GOOD)[: 1 + number % 3] if number else sentences).strip()
            split = "held-out" if number == 3 else "train"
            prompt = f"question {index}{number}?"
            rows.append(marked(f"m{index}{number}", [text], split=split, prompt=prompt))
    return rows


def examples_of(backbone: Backbone, method: RewardModelling, *rows: Any) -> Examples:
    return build_examples(rows, backbone.tokenizer, max_tokens=256, context=False, labels=method.wanted)


def teaching(method: RewardModelling, examples: Examples) -> Examples:
    """As a run does it."""
    return only_teaching(examples, lambda example: any(method.weights(example).values()), method.wanted)


def part_of(method: RewardModelling, examples: list[Example], name: str) -> torch.Tensor:
    return method.outcome(pack(examples, device=CPU), examples, dropout=False).parts[name].loss


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


def reward_by_hand(backbone: Backbone, ids: Sequence[int], place: int, head: str = "faults") -> float:
    """w · h + b at one token of one row that is not packed."""
    alone = torch.tensor([tuple(ids)])
    with torch.no_grad(), backbone.using("reward"):
        state = backbone.hidden_states(alone, torch.ones_like(alone)).states[0, place]
    state_of = backbone.head_state("reward")
    return float(state_of[head][0] @ state.float() + state_of[f"{head}.bias"][0])


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


# ── Completeness ──────────────────────────────────────────────────────────────────────


def lacking(name: str, texts: list[str], lacks: list[int], **more: Any):
    """A judgment all of whose answers were read for what is missing; answer i lacks `lacks[i]` things."""
    missing = [
        {"completion": f"{name}.{place}", "category": category}
        for place, count in enumerate(lacks)
        for category in (["major"] * count)
    ]
    read = [f"{name}.{place}" for place in range(len(texts))]
    return row(
        name,
        texts,
        [0] * len(texts),
        verdict="not_asked",
        **{"missing": missing, "read_for_missing": read, **more},
    )


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


# ── Runs ──────────────────────────────────────────────────────────────────────────────

SETTINGS = {
    "loss": "none",
    "segments": [
        {"name": "faults", "categories": ["wrong"]},
        {"name": "parts", "categories": ["wrong"], "granularity": "sub-sentence", "weight": 0.5},
    ],
}


OPTIMISER = {"epochs": 8, "learning_rate": 5e-3, "evaluate_every": 8}


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two heads."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    run = make_run(folder, base, some_marked(), settings=SETTINGS, optimiser=OPTIMISER)
    assert train(run) == EXIT_FINISHED
    return run


def test_heads_learn_what_is_marked(learned: Path) -> None:
    last = read_metrics(learned)[-1]
    for head in ("faults", "parts"):
        assert last[f"held_out_{head}_log_loss"] < 0.5 * last[f"held_out_{head}_prior_log_loss"]
        assert last[f"held_out_{head}_average_precision"] > 0.95
        assert last[f"held_out_{head}_kappa"] > 0.8
    report = read_evaluation(learned)
    assert report is not None
    assert report.details["faults"]["precision_recall"][0]["recall"] == 1


def test_a_run_cut_short_and_resumed_ends_with_the_same_bytes(
    learned: Path, base: Path, tmp_path: Path
) -> None:
    cut = make_run(tmp_path / "run", base, some_marked(), settings=SETTINGS, optimiser=OPTIMISER)
    assert train(cut, StopAfter(cut, 7)) == EXIT_STOPPED
    assert train(cut) == EXIT_FINISHED
    assert files_of(cut / "checkpoint") == files_of(learned / "checkpoint")


def test_micro_batches_change_nothing_but_speed(base: Path, tmp_path: Path) -> None:
    curves = []
    for tokens in (64, 512):
        folder = make_run(
            tmp_path / str(tokens),
            base,
            some_marked(),
            settings=SETTINGS,
            optimiser={"micro_batch_tokens": tokens, "max_steps": 3},
        )
        assert train(folder) == EXIT_FINISHED
        curves.append([line["loss"] for line in read_metrics(folder)])
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_two_processes_draw_the_curves_of_one(base: Path, tmp_path: Path) -> None:
    # Five judgments of flags and two of completeness in batches of 4: in the second batch a process has one.
    rows = some_marked()[:6] + [lacking(f"l{n}", [GOOD, f"{GOOD}{BAD}"], [n, 1 - n]) for n in (0, 1)]
    settings = {**SETTINGS, "completeness": {"name": "completeness"}}
    folders = [
        make_run(tmp_path / name, base, rows, settings=settings, optimiser={"max_steps": 3})
        for name in ("one", "two")
    ]
    assert train(folders[0]) == EXIT_FINISHED
    finish_two(folders[1])
    ours, theirs = (read_metrics(folder) for folder in folders)
    for left, right in zip(ours, theirs, strict=True):
        figures = set(left) - {"seconds"}
        assert figures == set(right) - {"seconds"}
        assert {name: left[name] for name in figures} == pytest.approx(
            {name: right[name] for name in figures}, abs=5e-5
        )


def test_a_checkpoint_gives_every_segment_the_same_reward_when_it_is_loaded(
    learned: Path, backbone: Backbone
) -> None:
    manifest = backbone.load_adapter("trained", learned / "checkpoint")
    assert manifest.heads == ["faults", "parts"]
    settings = settings_from_json("reward", manifest.spec["settings"])
    assert isinstance(settings, RewardSettings)
    texts = [f"{GOOD}{BAD}", GOOD]
    method = reward_method(backbone, **ONLY_FAULTS)
    judged = marked("a", texts, read=(0, 1), prompt="question 42?")
    (example,) = examples_of(backbone, method, judged).train
    batch = pack([example], device=CPU)
    states = encode(backbone, "trained", batch)
    rewards = segment_rewards(
        backbone, "trained", settings.segments, states, batch, answers=example.answers, texts=texts
    )
    sentences = rewards[0]["faults"]
    assert [(segment.start, segment.end) for segment in sentences] == [
        (0, len(GOOD)),
        (len(GOOD), len(texts[0])),
    ]
    assert sentences[0].reward > 0 > sentences[1].reward, "high is faultless"
    backbone.drop_adapter("reward")
    backbone.load_adapter("reward", learned / "checkpoint")
    by_hand = reward_by_hand(backbone, example.answers[1].ids, -2)
    [only] = rewards[1]["faults"]
    assert (only.start, only.end) == (0, len(GOOD))
    assert only.reward == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize(
    ("head", "pattern"),
    [
        ({"categories": ["wrnog"]}, r"no training judgment has a span flag of 'wrnog'; .* 'wrong' \(12\)"),
        ({"categories": ["wrong"], "granularity": "whole"}, "every segment of the training answers"),
    ],
)
def test_a_head_without_anything_to_tell_apart_fails_the_run_by_name(
    base: Path, tmp_path: Path, head: dict[str, Any], pattern: str
) -> None:
    rows = [marked(f"m{index}", [f"{GOOD}{BAD}"]) for index in range(12)]
    folder = make_run(
        tmp_path / "run", base, rows, settings={"loss": "none", "segments": [{"name": "faults", **head}]}
    )
    assert train(folder) == EXIT_FAILED
    message = status_of(folder).message
    assert message.startswith("segment head 'faults'")
    assert re.search(pattern, message), message


def test_a_category_without_examples_beside_one_that_has_some_is_a_warning(
    backbone: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    head = SegmentHead(name="faults", categories=("wrong", "rare"))
    method = reward_method(backbone, loss="none", segments=(head,))
    with caplog.at_level("WARNING", logger="rondo.trainer"):
        method.begin(examples_of(backbone, method, marked("a", [f"{GOOD}{BAD}"])).train)
    assert "no training judgment has a span flag of 'rare'" in caplog.text


def test_a_name_is_given_to_one_head_alone() -> None:
    head = SegmentHead(name="completeness", categories=("wrong",))
    with pytest.raises(ContractError, match="the name completeness is taken"):
        RewardSettings(segments=(head,), completeness=CompletenessHead())
