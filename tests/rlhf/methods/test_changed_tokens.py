"""A correction that teaches by the tokens alone that it wrote or removed."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rlhf.methods.policies import CPU, examples_of, figures, method_of, step
from tests.rlhf.runs import row
from training.contract import ContractError
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import PreferenceSettings
from training.rlhf.data import SHORTEST_KEPT, Places, differing
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.encoding import EncodedAnswer, Encoder, shorten
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

LORA = LoraSettings(rank=4)
ORIGINAL = "the sun rises in the west, as it does on every single morning of the year"
CORRECTED = "the sun rises in the east, as it does on every single morning of the year"


def changed(**more: Any) -> PreferenceSettings:
    return PreferenceSettings(lora=LORA, use_corrections=True, correction_tokens="changed", **more)


def the_correction(method: TrainingMethod, backbone: Backbone, before: str, after: str) -> Example:
    judged = row("j", [before, "no"], [1, 2], corrections=[{"completion": "j.0", "text": after}])
    return examples_of(method, backbone, [judged])[1]


def token_log_probabilities(backbone: Backbone, adapter: str | None, answer: EncodedAnswer) -> list[float]:
    """Of each token of an answer, by place; an answer alone in a row through transformers' attention."""
    ids = torch.tensor([answer.ids[:]])
    with torch.no_grad(), backbone.using(adapter):
        logits = backbone.logits(backbone.hidden_states(ids, torch.ones_like(ids)).states)[0]
    log_probs = logits.double().log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return [0.0, *log_probs.tolist()]


def test_equal_sequences_differ_nowhere() -> None:
    assert differing([1, 2, 3], [1, 2, 3]) == ((), ())


def test_what_was_replaced_removed_and_written_is_found_by_hand() -> None:
    unchanged = [10, 11, 12, 13]
    before = [1, 2, *unchanged, 3, *unchanged, 4]
    after = [1, 5, 6, *unchanged, *unchanged, 7, 4]
    assert differing(before, after) == (((1, 2), (6, 7)), ((1, 3), (11, 12)))
    # Fewer equal tokens between two changes are chance: one change.
    assert differing([1, 8, 2, 9], [3, 8, 4, 9]) == (((0, 3),), ((0, 3),))
    assert differing([1, 2], [1, 2, 3]) == ((), ((2, 3),))


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), max_size=40),
)
def test_without_the_places_both_are_equal_and_no_change_is_at_a_common_end(
    before: list[int], after: list[int]
) -> None:
    def rest(ids: list[int], places: Places) -> list[int]:
        gone = {place for low, high in places for place in range(low, high)}
        return [token for place, token in enumerate(ids) if place not in gone]

    removed, written = differing(before, after)
    assert rest(before, removed) == rest(after, written)
    assert (removed, written) == ((), ()) or before != after
    for ids, places in ((before, removed), (after, written)):
        assert all(0 <= low < high <= len(ids) for low, high in places)
        # Parts that belong to different changes are apart, unless the other side alone has tokens there.
        assert all(first[1] + SHORTEST_KEPT <= second[0] for first, second in pairwise(places))
    start = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None)
    if start is not None:
        assert min(low for low, _ in (*removed, *written)) >= start


def test_a_pair_costs_its_dpo_loss_over_the_changed_tokens_alone(backbone: Backbone) -> None:
    method = method_of(backbone, changed(beta=0.7))
    example = the_correction(method, backbone, ORIGINAL, CORRECTED)
    texts = [
        [backbone.tokenizer.decode(answer.ids[low:high]) for low, high in answer.learned_runs]
        for answer in example.answers
    ]
    assert [len(runs) for runs in texts] == [1, 1]
    # A token may hold more letters than were changed, and never a word further on.
    assert "morning" not in texts[0][0] + texts[1][0]
    rewards = []
    for answer in example.answers:
        ((low, high),) = answer.learned_runs
        policy = token_log_probabilities(backbone, "policy", answer)
        base = token_log_probabilities(backbone, None, answer)
        rewards.append(0.7 * sum(policy[place] - base[place] for place in range(low, high)))
    margin = rewards[0] - rewards[1]
    assert step(method, [example]) == pytest.approx(math.log1p(math.exp(-margin)), abs=1e-5)
    assert figures(method, [example])["margin"] == pytest.approx(margin, abs=1e-5)


def test_tokens_that_stayed_get_no_gradient(backbone: Backbone) -> None:
    method = method_of(backbone, changed())
    example = the_correction(method, backbone, ORIGINAL, CORRECTED)
    batch = pack([example], device=CPU)
    learned = [sum(high - low for low, high in answer.learned_runs) for answer in example.answers]
    assert batch.answer_tokens.tolist() == learned
    expected = [
        answer.ids[place]
        for answer in example.answers
        for low, high in answer.learned_runs
        for place in range(low, high)
    ]
    assert batch.target_ids.tolist() == expected


def test_a_prompt_that_loses_its_front_changes_nothing_about_it(backbone: Backbone) -> None:
    method = method_of(backbone, changed())
    example = the_correction(method, backbone, ORIGINAL, CORRECTED)
    longest = max(len(answer.ids) for answer in example.answers)
    short = shorten(list(example.answers), longest - 2, Encoder(backbone.tokenizer))
    assert [len(answer.ids) for answer in short] == [len(answer.ids) - 2 for answer in example.answers]
    for whole, cut in zip(example.answers, short, strict=True):
        assert [whole.ids[low:high] for low, high in whole.learned_runs] == [
            cut.ids[low:high] for low, high in cut.learned_runs
        ]


def test_what_stands_before_the_first_change_cancels(backbone: Backbone) -> None:
    method = method_of(backbone, changed(beta=0.7))
    example = the_correction(method, backbone, ORIGINAL, CORRECTED)
    # Both answers end with their change here: the whole answers then differ by it and by nothing else.
    ended = [answer._replace(ids=answer.ids[: answer.learned_runs[-1][1]]) for answer in example.answers]
    losses = [
        step(method, [Example("j", answers, (1, 2))])
        for answers in (tuple(ended), tuple(answer._replace(learned=None) for answer in ended))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_correction_that_only_removes_teaches_by_what_it_removed(backbone: Backbone) -> None:
    method = method_of(backbone, changed(length_normalised=True, beta=2.0, sft_weight=0.5))
    example = the_correction(method, backbone, "the sun, as they say, rises", "the sun rises")
    assert example.answers[0].learned_runs == () or example.answers[1].learned_runs
    assert math.isfinite(step(method, [example]))


def test_changed_tokens_without_corrections_are_refused() -> None:
    with pytest.raises(ContractError, match="set use_corrections to true"):
        PreferenceSettings(correction_tokens="changed")
