"""KTO: what counts as good or bad, the point of reference, the balance of both kinds."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.rlhf.methods.policies import CPU, examples_of, figures, method_of, step
from tests.rlhf.methods.test_policies import log_probability
from tests.rlhf.runs import row
from training.contract import ContractError
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import KtoSettings
from training.contract.snapshot import SnapshotRow
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.methods.kto import said_good, weights_of_kinds
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example, Labels, RatingLabel
from training.rlhf.tokens.packing import pack

LORA = LoraSettings(rank=4)
ALL = frozenset({"thumbs", "ratings", "verdicts", "ranks"})
EVEN = KtoSettings(lora=LORA, weight_desirable=1.0, weight_undesirable=1.0)


def rated(
    name: str, texts: Sequence[str], values: Sequence[int | None], *, scale: str = "thumbs", **more: Any
) -> SnapshotRow:
    """Answers with a rating each, None for an answer without."""
    ratings = [
        {"completion": f"{name}.{place}", "criterion": "helpful", "scale": scale, "value": value}
        for place, value in enumerate(values)
        if value is not None
    ]
    ranks = [0] * len(texts)
    return row(name, texts, ranks, **{"verdict": "not_asked", "ratings": ratings, **more})


THUMBS = [
    rated("a", ["in the east", "no, never in the east", "why"], [1, 0, None], prompt="Where does it rise?"),
    rated("b", ["because"], [0], prompt="Why? " * 3),
    rated("c", ["the sun and the moon"], [1], prompt="Who is it?"),
]


# ── Good and bad ──────────────────────────────────────────────────────────────────────


def example(
    ratings: Sequence[tuple[int, Any, int]] = (), *, verdict: str = "", ranks: Any = (0, 0, 0)
) -> Example:
    answers = tuple(EncodedAnswer((1, number), 1) for number in range(2, 2 + len(ranks)))
    rating_labels = tuple(RatingLabel(place, "helpful", scale, value) for place, scale, value in ratings)
    return Example("j", answers, ranks, labels=Labels(ratings=rating_labels, verdict=verdict))


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (example([(0, "thumbs", 1), (2, "thumbs", 0)]), {0: True, 2: False}),
        (example([(0, "five", 4), (1, "five", 3), (2, "five", 1)]), {0: True, 2: False}),
        (example([(0, "seven", 5), (1, "seven", 4), (2, "seven", 3)]), {0: True, 2: False}),
        (example(verdict="both_good", ranks=(0, 0)), {0: True, 1: True}),
        (example(verdict="both_bad", ranks=(0, 0)), {0: False, 1: False}),
        (example(ranks=(2, 1, 3)), {1: True, 2: False}),
        (example(ranks=(1, 1, 0)), {}),
        # Of those that are not ordered none was called the worst.
        (example(ranks=(2, 1, -1, -1)), {1: True}),
        (example(ranks=(1, 1, -1, -1)), {0: True, 1: True}),
        # Two against one; one against one.
        (example([(0, "five", 5), (0, "five", 4), (0, "thumbs", 0)]), {0: True}),
        (example([(0, "five", 5), (0, "thumbs", 0)]), {}),
        (example([(1, "thumbs", 0)], ranks=(2, 1, 3)), {2: False}),
    ],
)
def test_the_majority_says_whether_an_answer_is_good(judged: Example, expected: dict[int, bool]) -> None:
    assert said_good(judged, ALL) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("thumbs", {0: True}),
        ("ratings", {1: False}),
        ("verdicts", {0: False, 1: False}),
        ("ranks", {0: False, 1: True}),
    ],
)
def test_only_what_is_named_as_a_source_counts(source: str, expected: dict[int, bool]) -> None:
    judged = example([(0, "thumbs", 1), (1, "five", 2)], verdict="both_bad", ranks=(2, 1))
    assert said_good(judged, frozenset({source})) == expected


def test_a_snapshot_gives_what_the_sources_name_and_the_rest_is_not_read(backbone: Backbone) -> None:
    rows = [
        rated("thumbs", ["up", "down"], [1, 0]),
        rated("stars", ["good", "middling"], [5, 3], scale="five"),
        row("verdict", ["one", "two"], [1, 1], verdict="both_good"),
        row("ranked", ["best", "between", "worst"], [1, 2, 3]),
    ]
    method = method_of(backbone, KtoSettings(lora=LORA, sources=("thumbs", "verdicts")), moved=0)
    weights = {
        judged.judgment: method.weights(judged)["kto"] for judged in examples_of(method, backbone, rows)
    }
    # The stars were read with the thumbs, for both are ratings, and say nothing here.
    assert weights == {"thumbs": 2, "stars": 0, "verdict": 2}


def test_other_criteria_are_left_out(backbone: Backbone) -> None:
    settings = KtoSettings(lora=LORA, sources=("thumbs",), criteria=("harmless",))
    method = method_of(backbone, settings, moved=0)
    with pytest.raises(ContractError, match="calls no answer good or bad"):
        examples_of(method, backbone, [rated("a", ["one"], [1])])


# ── The point of reference ────────────────────────────────────────────────────────────


def moved(backbone: Backbone, settings: KtoSettings = EVEN, *, sign: int = 1) -> TrainingMethod:
    """A policy a little away from its reference, in one direction or the opposite one: in one of them z is
    above 0, where it is not cut off."""
    method = method_of(backbone, settings, moved=0.01)
    with torch.no_grad():
        for name, parameter in backbone.parameters("policy").items():
            if "lora_B" in name:
                parameter.mul_(sign)
    return method


def reference_kl(method: TrainingMethod, examples: list[Example]) -> float:
    method.prepare(examples, Processes())
    with torch.no_grad():
        observed = method.outcome(pack(examples, device=CPU), examples, dropout=False).observed
    (value,) = set(observed["reference_kl"].tolist())
    return float(value)


def ratio(backbone: Backbone, answer: EncodedAnswer) -> float:
    return log_probability(backbone, "policy", answer) - log_probability(backbone, None, answer)


def mismatched(prompt: EncodedAnswer, answer: EncodedAnswer) -> EncodedAnswer:
    ids = prompt.ids[: prompt.answer_start] + answer.ids[answer.answer_start :]
    return EncodedAnswer(ids, prompt.answer_start)


def test_the_point_of_reference_comes_from_answers_under_the_next_prompt(backbone: Backbone) -> None:
    method = moved(backbone, sign=-1)
    examples = examples_of(method, backbone, THUMBS)
    a, b, c = (judged.answers for judged in examples)
    # a's two rated answers under b's prompt, b's under c's, c's under a's; a's third was not rated.
    pairs = [(b[0], a[0]), (b[0], a[1]), (c[0], b[0]), (a[0], c[0])]
    expected = sum(ratio(backbone, mismatched(*pair)) for pair in pairs) / 4
    assert expected > 0.01
    assert reference_kl(method, examples) == pytest.approx(expected, abs=1e-4)


def test_a_judgment_of_the_same_prompt_is_passed_over(backbone: Backbone) -> None:
    method = moved(backbone)
    rows = [
        rated("a", ["in the east"], [1], prompt="Where?"),
        rated("b", ["in the west, I think"], [0], prompt="Where?"),
        rated("c", ["because"], [1], prompt="Why?"),
    ]
    examples = examples_of(method, backbone, rows)
    a, b, c = (judged.answers[0] for judged in examples)
    pairs = [(c, a), (c, b), (a, c)]
    expected = sum(ratio(backbone, mismatched(*pair)) for pair in pairs) / 3
    assert expected > 0.01
    assert reference_kl(method, examples) == pytest.approx(expected, abs=1e-4)


def test_with_one_prompt_alone_the_point_of_reference_is_0(backbone: Backbone) -> None:
    method = moved(backbone, sign=-1)
    examples = examples_of(method, backbone, THUMBS)
    assert reference_kl(method, examples) > 0
    assert reference_kl(method, examples[:1]) == 0


def test_a_prompt_too_long_for_another_ones_answer_loses_its_beginning(backbone: Backbone) -> None:
    # Together they would have more than max_tokens; the answer stays whole.
    settings = KtoSettings(lora=LORA, max_tokens=128, weight_desirable=1.0, weight_undesirable=1.0)
    method = moved(backbone, settings)
    rows = [
        rated("a", ["in the east " * 6], [1], prompt="Where?"),
        rated("b", ["no"], [0], prompt="why " * 50),
    ]
    examples = examples_of(method, backbone, rows)
    (a,), (b,) = (judged.answers for judged in examples)
    joined = mismatched(b, a)
    cut = len(joined.ids) - 128
    assert cut > 0
    # The chat's first token stays, and what follows it is cut.
    shorter = EncodedAnswer(joined.ids[:1] + joined.ids[1 + cut :], joined.answer_start - cut)
    expected = (ratio(backbone, shorter) + ratio(backbone, mismatched(a, b))) / 2
    assert expected > 0.01
    assert reference_kl(method, examples) == pytest.approx(expected, abs=1e-4)


# ── What it costs ─────────────────────────────────────────────────────────────────────


def test_the_first_loss_is_one_half(backbone: Backbone) -> None:
    method = method_of(backbone, EVEN, moved=0)
    assert step(method, examples_of(method, backbone, THUMBS)) == pytest.approx(0.5, abs=1e-4)


def test_a_step_costs_the_mean_over_its_answers(backbone: Backbone) -> None:
    settings = KtoSettings(lora=LORA, beta=0.2, weight_desirable=1.5, weight_undesirable=0.5)
    method = moved(backbone, settings, sign=-1)
    examples = examples_of(method, backbone, THUMBS)
    z = reference_kl(method, examples)
    assert z > 0.01
    answers = [(examples[0].answers[0], True), (examples[0].answers[1], False)]
    answers += [(examples[1].answers[0], False), (examples[2].answers[0], True)]
    rewards = [(0.2 * (ratio(backbone, answer) - z), good) for answer, good in answers]
    sigmoid = torch.sigmoid(torch.tensor([reward if good else -reward for reward, good in rewards]))
    weights = torch.tensor([1.5, 0.5, 0.5, 1.5])
    assert step(method, examples) == pytest.approx((weights * (1 - sigmoid)).mean().item(), abs=1e-5)

    measured = figures(method, examples, held_out=True)
    assert measured["accuracy"] == pytest.approx((sigmoid > 0.5).double().mean().item())
    assert measured["log_loss"] == pytest.approx(-sigmoid.log().mean().item(), abs=1e-5)
    good = [reward for reward, is_good in rewards if is_good]
    bad = [reward for reward, is_good in rewards if not is_good]
    assert measured["reward_good"] == pytest.approx(sum(good) / 2, abs=1e-5)
    assert measured["reward_bad"] == pytest.approx(sum(bad) / 2, abs=1e-5)
    assert measured["margin"] == pytest.approx((sum(good) - sum(bad)) / 2, abs=1e-5)
    assert measured["share_good"] == 0.5
    assert measured["reference_kl"] == pytest.approx(z, abs=1e-6)
    assert 0 <= measured["accuracy_low"] < measured["accuracy"] < measured["accuracy_high"] <= 1


@pytest.mark.parametrize(
    ("desirable", "undesirable", "expected"),
    [
        # 6 good and 2 bad: λ_D · 6 = λ_U · 2, and (6 λ_D + 2 λ_U) / 8 = 1.
        (None, None, (2 / 3, 2.0)),
        (1.0, None, (1.0, 3.0)),
        (None, 1.5, (0.5, 1.5)),
        (1.0, 1.0, (1.0, 1.0)),
    ],
)
def test_null_weights_let_both_kinds_count_the_same(
    desirable: float | None, undesirable: float | None, expected: tuple[float, float]
) -> None:
    settings = KtoSettings(weight_desirable=desirable, weight_undesirable=undesirable)
    assert weights_of_kinds(settings, 6.0, 2.0) == pytest.approx(expected)
    assert weights_of_kinds(settings, 0.0, 2.0) == (desirable or 1.0, undesirable or 1.0)


def test_the_balance_is_that_of_the_training_split(backbone: Backbone) -> None:
    method = method_of(backbone, KtoSettings(lora=LORA), moved=0)
    rows = [*THUMBS, rated("d", ["yes", "maybe"], [1, 1], weight=2.0, prompt="Is it?")]
    examples = examples_of(method, backbone, rows)
    # Good: 1 + 1 + 2 · 2 = 6, bad 2: weights 2/3 and 2. A new policy's answers all cost half of theirs.
    method.begin(examples)
    assert step(method, examples) == pytest.approx((6 * 2 / 3 + 2 * 2) / 8 / 2, abs=1e-4)
    assert step(method, examples[1:2]) == pytest.approx(1.0, abs=1e-4)
