"""Snapshot rows to token ids: what is learned from, what is left out and why."""

from pathlib import Path

import pytest
from tokenizers import normalizers

from tests.rlhf.runs import row
from tests.tiny import BOS, END, tiny_tokenizer
from training.contract import ContractError
from training.contract.snapshot import Message
from training.rlhf.data import build_examples
from training.rlhf.tokens.encoding import Encoder
from training.rlhf.tokens.example import UsedLabels

ASK = [Message(role="user", content="Why?")]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def examples_of(tokenizer, *rows, max_tokens: int = 256, context: bool = False):
    usable = row("usable", ["yes", "no"], [1, 2])
    return build_examples([usable, *rows], tokenizer, max_tokens=max_tokens, context=context)


@pytest.mark.parametrize(
    "answer",
    ["a plain answer", "  leading and trailing  ", "\n\nlines\n", "héé 👍🏽 مرحبا", "one  two\r\nthree"],
)
def test_the_answers_tokens_decode_to_the_answer_and_its_end_token(tokenizer, answer: str) -> None:
    ids, start, *_ = Encoder(tokenizer).encode(ASK, answer)
    assert tokenizer.decode(ids[start:], clean_up_tokenization_spaces=False) == answer + END


def test_there_is_one_beginning_of_text_and_the_row_ends_with_the_end_token(tokenizer) -> None:
    ids, *_ = Encoder(tokenizer).encode(ASK, "because")
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert ids[-1] == tokenizer.eos_token_id


def test_prompt_and_answer_are_the_one_text_that_the_template_renders(tokenizer) -> None:
    ids, start, *_ = Encoder(tokenizer).encode(ASK, "because")
    chat = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "because"}]
    # The template writes a line end after the last turn; a sampler stops before it.
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(chat, tokenize=False).rstrip("\n")
    prompt = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids[:start]) == prompt


def test_a_template_that_ends_no_turn_gets_the_end_token(tokenizer) -> None:
    plain = tiny_tokenizer()
    plain.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    ids, start, *_ = Encoder(plain).encode(ASK, "because")
    assert plain.decode(ids) == "user: Why?\nassistant: because" + END
    assert plain.decode(ids[start:]) == "because" + END


def test_a_template_that_strips_messages_still_marks_the_whole_answer() -> None:
    stripping = tiny_tokenizer()
    stripping.chat_template = stripping.chat_template.replace(
        "message['content']", "message['content'] | trim"
    )
    ids, start, *_ = Encoder(stripping).encode(ASK, "  because  ")
    assert stripping.decode(ids[start:]) == "because" + END


def test_text_that_holds_a_control_token_is_left_out_and_named(tokenizer) -> None:
    examples = examples_of(tokenizer, row("odd", ["fine", f"ends{END} early"], [1, 2]))
    assert {
        "judgment": "odd",
        "completion": "odd.1",
        "reason": f"the text holds the control token '{END}'",
    } in examples.dropped
    assert [example.judgment for example in examples.train] == ["usable"]


def test_every_decided_pair_of_a_ranking_is_formed_and_ties_give_none(tokenizer) -> None:
    (example,) = build_examples(
        [row("four", ["a", "b", "c", "d"], [2, 1, 2, 3])], tokenizer, max_tokens=256, context=False
    ).train
    assert len(example.answers) == 4
    assert set(example.pairs) == {(1, 0), (1, 2), (1, 3), (0, 3), (2, 3)}


def test_what_a_partial_ranking_leaves_out_is_below_and_pairs_with_nothing_of_its_own(tokenizer) -> None:
    (example,) = build_examples(
        [row("four", ["a", "b", "c", "d"], [0, 1, 0, 2])], tokenizer, max_tokens=256, context=False
    ).train
    assert example.ranks == (-1, 1, -1, 2)
    assert set(example.pairs) == {(1, 0), (1, 2), (1, 3), (3, 0), (3, 2)}
    assert (example.compared, example.ties) == (4, False)
    assert example.completions == ("four.0", "four.1", "four.2", "four.3")


def test_a_partial_ranking_whose_ranked_answers_are_unusable_teaches_nothing(tokenizer) -> None:
    examples = examples_of(tokenizer, row("lost", [" ", "b", "c"], [1, 0, 0]))
    assert [example.judgment for example in examples.train] == ["usable"]
    assert examples.dropped[-1]["reason"] == "no two usable answers differ in rank"
    # One rank alone decides pairs: it is no ranking in which all are tied.
    examples = examples_of(tokenizer, row("best", ["a", "b", "c"], [1, 0, 0]))
    assert examples.train[1].pairs == ((0, 1), (0, 2))


def test_an_empty_answer_is_left_out_and_the_others_stay(tokenizer) -> None:
    examples = examples_of(tokenizer, row("three", ["good", " \n", "bad"], [1, 2, 3]))
    assert examples.dropped == [
        {"judgment": "three", "completion": "three.1", "reason": "the answer is empty"}
    ]
    assert examples.train[1].pairs == ((0, 1),)
    assert len(examples.train[1].answers) == 2


@pytest.mark.parametrize(
    ("verdict", "ranks", "reason"),
    [
        ("equal", [1, 1], "all completions were judged equal"),
        ("both_good", [1, 1], "all completions were judged good, none better"),
        ("both_bad", [1, 1], "all completions were judged bad, none better"),
        ("cannot_judge", [0, 0], "the annotator could not judge"),
        ("ranked", [1, 1], "no two usable answers differ in rank"),
    ],
)
def test_a_judgment_without_a_preference_is_listed_with_its_reason(tokenizer, verdict, ranks, reason) -> None:
    examples = examples_of(tokenizer, row("none", ["a", "b"], ranks, verdict=verdict))
    assert examples.dropped == [{"judgment": "none", "completion": "", "reason": reason}]
    assert [example.judgment for example in examples.train] == ["usable"]


def test_held_out_judgments_never_train(tokenizer) -> None:
    examples = examples_of(tokenizer, row("held", ["a", "b"], [1, 2], split="held-out"))
    assert [example.judgment for example in examples.train] == ["usable"]
    assert [example.judgment for example in examples.held_out] == ["held"]


def test_a_snapshot_without_a_training_pair_says_so_and_why(tokenizer) -> None:
    rows = [
        row("equal", ["a", "b"], [1, 1], verdict="equal"),
        row("held", ["a", "b"], [1, 2], split="held-out"),
    ]
    with pytest.raises(ContractError) as refused:
        build_examples(rows, tokenizer, max_tokens=256, context=False)
    message = str(refused.value)
    assert "no training pair" in message
    assert "of 2 judgments 1 usable ones are held out" in message
    assert "1 × all completions were judged equal" in message


def test_a_long_prompt_loses_its_front_and_all_its_answers_lose_the_same(tokenizer) -> None:
    prompt = " ".join(f"word{number}" for number in range(60))
    answers = ["short", "a much longer answer than that one"]
    whole = build_examples(
        [row("long", answers, [1, 2], prompt=prompt)], tokenizer, max_tokens=2000, context=False
    ).train[0]
    cut = build_examples(
        [row("long", answers, [1, 2], prompt=prompt)], tokenizer, max_tokens=64, context=False
    )
    shortened = cut.train[0]
    assert cut.shortened == 1
    assert shortened.tokens == 64
    lost = whole.tokens - 64
    for before, after in zip(whole.answers, shortened.answers, strict=True):
        assert before.ids[before.answer_start :] == after.ids[after.answer_start :]
        # The beginning-of-text token stays; the tokens after it go.
        assert after.ids == before.ids[:1] + before.ids[1 + lost :]
        assert after.answer_start == before.answer_start - lost


def test_an_answer_longer_than_max_tokens_is_left_out_and_named(tokenizer) -> None:
    examples = examples_of(tokenizer, row("long", ["word " * 200, "b"], [1, 2]), max_tokens=32)
    assert {
        "judgment": "long",
        "completion": "long.0",
        "reason": "the answer is longer than max_tokens (32)",
    } in examples.dropped


def test_the_longest_answer_that_fits_keeps_one_prompt_token_before_it(tokenizer) -> None:
    answer = "x" * 40
    length = len(tokenizer(answer, add_special_tokens=False)["input_ids"]) + 1
    examples = build_examples(
        [row("tight", [answer, "b"], [1, 2])], tokenizer, max_tokens=length + 1, context=False
    )
    assert examples.train[0].answers[0].answer_start == 1
    assert len(examples.train[0].answers[0].ids) == length + 1


def test_context_passages_come_before_the_last_question_only_when_asked_for(tokenizer) -> None:
    passages = [{"title": "Sky", "sentences": ["It is blue.", "It is high."]}]
    judged = row("context", ["a", "b"], [1, 2], prompt="Why?", context=passages)

    def text(context: bool) -> str:
        examples = build_examples([judged], tokenizer, max_tokens=500, context=context)
        return str(tokenizer.decode(examples.train[0].answers[0].ids))

    assert "Sky\nIt is blue. It is high.\n\nWhy?" in text(True)
    assert "Sky" not in text(False)


def test_the_tiny_tokenizer_is_the_trap_it_says_it_is(base: Path, backbone) -> None:
    assert backbone.tokenizer.pad_token_id == backbone.tokenizer.eos_token_id
    assert backbone.tokenizer.bos_token == BOS


@pytest.fixture
def stripping():
    """A tokenizer whose template strips messages: texts that differ in white space at their ends are one."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "message['content']", "message['content'] | trim"
    )
    return tokenizer


SAME_PAIR = "no two of its answers differ in rank and in the model's tokens"
SAME_ANSWER = "the model reads the same tokens as in another answer of the judgment"


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_pair_of_the_same_tokens_neither_trains_nor_counts_as_evidence(stripping, split) -> None:
    examples = examples_of(stripping, row("same", ["because", "because\n"], [1, 2], split=split))
    assert examples.dropped == [{"judgment": "same", "completion": "", "reason": SAME_PAIR}]
    assert [example.judgment for example in (*examples.train, *examples.held_out)] == ["usable"]


def test_a_tie_of_the_same_tokens_is_no_evidence_of_ties(stripping) -> None:
    same = row("same", ["because", " because"], [1, 1], verdict="equal")
    labels = UsedLabels(ranks="tied")
    usable = row("usable", ["yes", "no"], [1, 2])
    examples = build_examples([usable, same], stripping, max_tokens=256, context=False, labels=labels)
    assert [example.judgment for example in examples.train] == ["usable"]
    assert [entry["judgment"] for entry in examples.dropped] == ["same"]


@pytest.mark.parametrize(
    ("ranks", "dropped", "left"),
    [
        # Both above the others: one of them stays.
        ([1, 2, 3], ["three.1"], [1, 3]),
        ([1, 1, 2], ["three.1"], [1, 2]),
        # The one above, the other below the third: what stays is one answer, which is no ranking.
        ([1, 3, 2], None, None),
        # Above it, and equal to it.
        ([1, 2, 2], None, None),
    ],
)
def test_of_answers_with_the_same_tokens_in_a_ranking_one_stays_where_they_agree(
    stripping, ranks, dropped, left
) -> None:
    examples = examples_of(stripping, row("three", ["because", "because ", "no"], ranks))
    if left is None:
        assert examples.dropped == [{"judgment": "three", "completion": "", "reason": SAME_PAIR}]
        return
    assert [(entry["completion"], entry["reason"]) for entry in examples.dropped] == [
        (name, SAME_ANSWER) for name in dropped
    ]
    assert list(examples.train[1].ranks) == left
    assert examples.train[1].completions == ("three.0", "three.2")


def test_a_correction_that_changes_no_token_is_left_out(stripping) -> None:
    corrected = row(
        "corrected",
        ["because", "no"],
        [1, 2],
        corrections=[
            {"completion": "corrected.1", "text": "no, ever"},
            {"completion": "corrected.0", "text": "be\u200bcause"},
        ],
    )
    labels = UsedLabels(corrections=True)
    # A tokenizer that drops a character of no width reads the first correction as the original.
    blind = tiny_tokenizer()
    blind.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    examples = build_examples([corrected], blind, max_tokens=256, context=False, labels=labels)
    assert examples.dropped == [
        {"judgment": "corrected", "completion": "corrected.0", "reason": "the correction changes no token"}
    ]
    assert len(examples.train) == 2
