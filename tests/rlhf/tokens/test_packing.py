"""Packed rows: a prompt once with all its answers, and nothing that separate rows would not give."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rlhf.model.test_backbone import disturb
from tests.rlhf.runs import judgments, row
from training.contract.methods.common import LoraSettings
from training.rlhf.data import build_examples
from training.rlhf.loop.log_probabilities import answer_log_probabilities
from training.rlhf.methods.reward import read_rewards
from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, pack_predictions, packed_tokens, passes

CPU = torch.device("cpu")


def answered(*rows: tuple[list[int], int]) -> tuple[EncodedAnswer, ...]:
    return tuple(EncodedAnswer(tuple(ids), start) for ids, start in rows)


def test_a_prompt_stands_once_and_every_answer_counts_on_from_its_end() -> None:
    example = Example("j", answered(([1, 2, 3, 7, 9], 3), ([1, 2, 3, 8, 5, 9], 3)), (2, 1), strength=3)
    batch = pack([example], device=CPU)
    assert batch.input_ids.tolist() == [[1, 2, 3, 7, 9, 8, 5, 9]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5]]
    assert batch.last.tolist() == [4, 7]
    # 7, 9 and 8, 5, 9 are predicted; the first of each from the prompt's last token, place 2.
    assert batch.targets.tolist() == [3, 4, 5, 6, 7]
    assert batch.predictors.tolist() == [2, 3, 2, 5, 6]
    assert batch.target_answer.tolist() == [0, 0, 1, 1, 1]
    assert (batch.winners.tolist(), batch.losers.tolist()) == ([1], [0])
    assert batch.strength.tolist() == [3.0]
    assert batch.tokens == 8


def test_a_token_that_the_tokeniser_merged_with_the_answer_is_not_shared() -> None:
    # The second row's token 4 reaches from the prompt into its answer: the rows part one token earlier.
    answers = answered(([1, 2, 3, 7, 9], 3), ([1, 2, 4, 9], 2))
    batch = pack([Example("j", answers, (1, 2))], device=CPU)
    assert batch.input_ids.tolist() == [[1, 2, 3, 7, 9, 4, 9]]
    assert batch.targets.tolist() == [3, 4, 5, 6]
    assert batch.predictors.tolist() == [2, 3, 1, 5]


def test_a_last_token_is_predicted_and_not_run_where_nothing_reads_it() -> None:
    answers = answered(([1, 2, 3, 7, 9], 3), ([1, 2, 3, 8, 5, 9], 3), ([1, 2, 3, 4], 3), ([1, 2, 3, 7, 6], 3))
    row = pack_predictions([answers, answered(([1, 5], 1))], device=CPU)
    # The first and the last answer are one now but for their ends; the third is a single token.
    assert row.input_ids.tolist() == [[1, 2, 3, 7, 8, 5, 1]]
    assert row.position_ids.tolist() == [[0, 1, 2, 3, 3, 4, 0]]
    assert row.target_ids.tolist() == [7, 9, 8, 5, 9, 4, 7, 6, 5]
    assert row.predictors.tolist() == [2, 3, 2, 4, 5, 2, 2, 3, 6]
    assert row.target_answer.tolist() == [0, 0, 1, 1, 1, 2, 3, 3, 4]
    assert (row.answers, row.tokens, row.answer_tokens.tolist()) == (5, 7, [2, 3, 1, 2, 1])
    # 7 after place 2 is asked for twice, and predicted once.
    ids, places, where = row.predicted()
    assert sorted(zip(places.tolist(), ids.tolist(), strict=True)) == [
        *((2, 4), (2, 7), (2, 8), (3, 6), (3, 9), (4, 5), (5, 9), (6, 5)),
    ]
    assert ids[where].tolist() == row.target_ids.tolist()
    assert places[where].tolist() == row.predictors.tolist()


def test_answers_that_begin_alike_share_their_beginning() -> None:
    rows = (
        ([1, 2, 11, 12, 13, 14, 15, 9], 2),
        ([1, 2, 21, 9], 2),
        ([1, 2, 11, 12, 13, 14, 16, 17, 9], 2),
        ([1, 2, 21, 22, 9], 2),  # one token like the second's: not worth a segment
        ([1, 2, 21, 9], 2),  # the second again: both are one
    )
    batch = pack([Example("j", answered(*rows), (1, 2, 3, 4, 5))], device=CPU)
    assert batch.input_ids.tolist() == [[1, 2, 11, 12, 13, 14, 15, 9, 16, 17, 9, 21, 9, 21, 22, 9]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 6, 7, 8, 2, 3, 2, 3, 4]]
    assert [tuple(segment) for segment in batch.layout.segments] == [
        (0, 2, None),
        (2, 4, 0),
        (6, 2, 1),
        (8, 3, 1),
        (11, 2, 0),
        (13, 3, 0),
    ]
    assert batch.last.tolist() == [7, 12, 10, 15, 12]
    assert batch.target_answer.tolist() == [0] * 6 + [1] * 2 + [2] * 7 + [3] * 3 + [4] * 2
    assert batch.targets.tolist() == [
        *(2, 3, 4, 5, 6, 7),
        *(11, 12),
        *(2, 3, 4, 5, 8, 9, 10),
        *(13, 14, 15),
        *(11, 12),
    ]
    assert batch.predictors.tolist() == [
        *(1, 2, 3, 4, 5, 6),
        *(1, 11),
        *(1, 2, 3, 4, 5, 8, 9),
        *(1, 13, 14),
        *(1, 11),
    ]
    assert batch.answer_tokens.tolist() == [6, 2, 7, 3, 2]


def test_a_segment_sees_what_it_continues_and_nothing_else() -> None:
    layout = Layout([Segment(0, 2), Segment(2, 3, 0), Segment(5, 1, 1), Segment(6, 2, 0)], CPU)
    assert layout.lineage(2) == [0, 1, 2]
    assert layout.seen == [
        [slice(0, 2)],
        [slice(0, 5)],
        [slice(0, 6)],
        [slice(0, 2), slice(6, 8)],
    ]


def test_the_whole_rows_mask_for_a_gpu_says_what_the_segments_say() -> None:
    segments = [
        Segment(0, 2),
        Segment(2, 3, 0),
        Segment(5, 1, 1),
        Segment(6, 2, 0),
        Segment(8, 2),
        Segment(10, 1, 4),
    ]
    layout = Layout(segments, CPU)
    places = torch.arange(layout.tokens)
    seen = layout.visibility()(places, places, places[:, None], places[None, :])
    by_hand = torch.zeros(layout.tokens, layout.tokens, dtype=torch.bool)
    for segment, stretches in zip(segments, layout.seen, strict=True):
        for query in range(segment.start, segment.end):
            for stretch in stretches:
                by_hand[query, stretch.start : min(stretch.stop, query + 1)] = True
    assert torch.equal(seen, by_hand)


def test_passes_fill_the_budget_keep_the_order_and_leave_nothing_out() -> None:
    def example(length: int) -> Example:
        return Example(str(length), answered(([1] * length, 1)), (0,))

    sizes = [30, 12, 12, 7, 3, 3]
    groups = list(passes([example(size) for size in sizes], tokens=25))
    assert [[packed_tokens(member) for member in group] for group in groups] == [[30], [12, 12], [7, 3, 3]]
    shares = [list(passes([example(size) for size in sizes], tokens=25, rank=r, world=2)) for r in (0, 1)]
    assert [[member.tokens for group in share for member in group] for share in shares] == [
        [30, 12, 3],
        [12, 7, 3],
    ]


def test_a_ranking_counts_as_one_judgment_however_many_pairs_it_has() -> None:
    three = Example("three", answered(*(([1, n], 1) for n in (2, 3, 4))), (1, 2, 3))
    two = Example("two", answered(([1, 2], 1), ([1, 3], 1)), (2, 1))
    none = Example("none", answered(([1, 2], 1), ([1, 3], 1)), (1, 1))
    batch = pack([three, two, none], device=CPU)
    assert batch.mean_over_pairs(torch.tensor([1.0, 2.0, 6.0, 5.0])).tolist() == [3.0, 5.0, 0.0]
    assert batch.table.tolist() == [[0, 1, 2], [3, 4, 0], [5, 6, 0]]
    assert batch.ranks.tolist() == [[1, 2, 3], [2, 1, 0], [1, 1, 0]]


def separate(
    backbone: Backbone, adapter: str, example: Example
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Scores and log-probabilities of each answer by itself, through transformers' own attention."""
    scores, sums = [], []
    for answer in example.answers:
        ids = torch.tensor([answer.ids])
        with backbone.using(adapter):
            states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
        scores.append(backbone.score(adapter, states[-1:])[0])
        tokens = backbone.logits(states).float().log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        sums.append(tokens[answer.answer_start - 1 :].sum())
    return scores, sums


@pytest.fixture
def adapted(backbone: Backbone) -> Backbone:
    """The tiny base with an adapter and a score head, as far from their beginning as training takes them."""
    backbone.add_adapter("a", LoraSettings(rank=4), seed=1)
    backbone.add_head("a", SCORE, seed=2)
    disturb(backbone, "a", scale=0.05)
    return backbone


def gradient(backbone: Backbone) -> torch.Tensor:
    parameters = backbone.parameters("a").values()
    flat = torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])
    for parameter in parameters:
        parameter.grad = None
    return flat


def test_scores_log_probabilities_and_gradients_are_those_of_separate_rows(adapted: Backbone) -> None:
    examples = build_examples(judgments(), adapted.tokenizer, max_tokens=128, context=False).train
    batch = pack(examples, device=CPU)
    rewards, sums = read_rewards(adapted, "a", batch), answer_log_probabilities(adapted, "a", batch)
    weight = torch.randn(batch.answers, generator=torch.Generator().manual_seed(3))
    ((rewards + 0.1 * sums) * weight).sum().backward()
    packed = gradient(adapted)

    alone = [separate(adapted, "a", example) for example in examples]
    scores = torch.stack([score for item in alone for score in item[0]])
    texts = torch.stack([value for item in alone for value in item[1]])
    ((scores + 0.1 * texts) * weight).sum().backward()
    assert torch.allclose(rewards, scores, atol=1e-5)
    assert torch.allclose(sums, texts, rtol=1e-5, atol=1e-4)
    assert ((gradient(adapted) - packed).norm() / packed.norm()).item() < 1e-5


@settings(max_examples=15, deadline=None)
@given(
    data=st.data(),
    shapes=st.lists(
        st.tuples(st.integers(1, 20), st.lists(st.integers(1, 12), min_size=1, max_size=5)),
        min_size=1,
        max_size=4,
    ),
)
def test_any_shape_of_judgments_scores_as_its_separate_rows(
    session_backbone: Backbone, data: st.DataObject, shapes: list[tuple[int, list[int]]]
) -> None:
    token = st.integers(5, 200)
    examples = []
    for prompt, lengths in shapes:
        shared = data.draw(st.lists(token, min_size=prompt, max_size=prompt))
        # Of two tokens: many answers begin alike, some are the beginning of another.
        rows = [
            (shared + data.draw(st.lists(st.integers(5, 6), min_size=n, max_size=n)), prompt) for n in lengths
        ]
        examples.append(Example("j", answered(*rows), (0,) * len(rows)))
    batch = pack(examples, device=CPU)
    with torch.no_grad():
        rewards = read_rewards(session_backbone, "a", batch)
        sums = answer_log_probabilities(session_backbone, "a", batch)
        alone = [separate(session_backbone, "a", example) for example in examples]
    assert torch.allclose(rewards, torch.stack([score for scores, _ in alone for score in scores]), atol=1e-5)
    assert torch.allclose(sums, torch.stack([value for _, texts in alone for value in texts]), atol=1e-4)


@pytest.fixture(scope="module")
def session_backbone(base) -> Backbone:
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    backbone.add_adapter("a", LoraSettings(rank=4), seed=1)
    backbone.add_head("a", SCORE, seed=2)
    disturb(backbone, "a", scale=0.05)
    return backbone


def test_computing_activations_again_changes_no_gradient(adapted: Backbone) -> None:
    examples = build_examples(judgments(), adapted.tokenizer, max_tokens=128, context=False).train
    batch = pack(examples, device=CPU)
    read_rewards(adapted, "a", batch).sum().backward()
    expected = gradient(adapted)
    adapted.checkpoint_activations(True)
    read_rewards(adapted, "a", batch).sum().backward()
    assert torch.equal(gradient(adapted), expected)


def test_a_long_prompt_is_computed_once_for_all_its_answers(backbone: Backbone) -> None:
    judged = row("j", ["yes", "no", "maybe", "never"], [1, 2, 3, 4], prompt="why " * 40)
    (example,) = build_examples([judged], backbone.tokenizer, max_tokens=500, context=False).train
    separate_rows = sum(len(answer.ids) for answer in example.answers)
    prompt = min(answer.answer_start for answer in example.answers)
    assert pack([example], device=CPU).tokens == separate_rows - 3 * prompt
