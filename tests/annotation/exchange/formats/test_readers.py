"""Each format that comes in, on a row or two as its makers document it."""

from typing import Any

import pytest

from annotation.choices import Verdict
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem
from annotation.exchange.formats.registry import READERS
from annotation.record.judgment import CritiquePart
from tests.annotation.exchange.formats.reading import plan_rows, ranks_of, read_by, read_file
from tests.refusals import refused

ASKED = [{"role": "user", "content": "What is tea?"}]


def read(row: dict[str, Any], format_name: str) -> list[ImportedItem]:
    """The items of a row, which must be taken for that format unasked."""
    return read_file([row], format_name)


def assistant_turn(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "What is tea?", "chosen": "A drink.", "rejected": "A stone."},
        {"prompt": ASKED, "chosen": assistant_turn("A drink."), "rejected": assistant_turn("A stone.")},
        {"chosen": [*ASKED, *assistant_turn("A drink.")], "rejected": [*ASKED, *assistant_turn("A stone.")]},
        # Many sets on the hub have the prompt as a text and repeat it in the conversations.
        {
            "prompt": "What is tea?",
            "chosen": [*ASKED, *assistant_turn("A drink.")],
            "rejected": [*ASKED, *assistant_turn("A stone.")],
        },
    ],
    ids=["standard", "conversational", "implicit prompt", "prompt repeated"],
)
def test_a_trl_pair_is_a_ranking_of_two(row: dict[str, Any]):
    (item,) = read(row, "trl-preference")
    assert item.messages == ASKED
    assert [completion.text for completion in item.completions] == ["A drink.", "A stone."]
    (judgment,) = item.judgments
    assert (judgment.verdict, ranks_of(judgment)) == (Verdict.RANKED, (1, 2))
    # Nobody knows which was shown first: it must not count as a preference for the left.
    assert judgment.display_order == ()


def test_a_text_pair_without_a_prompt_is_refused_because_nobody_can_tell_where_the_answer_begins():
    with refused("field_missing", FieldError, field="prompt"):
        read({"chosen": "What is tea? A drink.", "rejected": "What is tea? A stone."}, "trl-preference")


def test_an_unpaired_label_is_a_thumb_and_no_verdict():
    (item,) = read({"prompt": "What is tea?", "completion": "A drink.", "label": False}, "trl-unpaired")
    (judgment,) = item.judgments
    assert judgment.verdict == Verdict.NOT_ASKED
    assert [(r.criterion, r.scale, r.value) for r in judgment.ratings] == [("desirable", "thumbs", 0)]


def test_steps_are_marked_where_they_stand_in_the_joined_answer():
    row = {"prompt": "1 + 1 + 1?", "completions": ["1 + 1 = 2", "2 + 1 = 4 🍵"], "labels": [True, False]}
    (item,) = read(row, "trl-stepwise")
    text = item.completions[0].text
    assert text == "1 + 1 = 2\n2 + 1 = 4 🍵"
    spans = item.judgments[0].spans
    assert [(text[s.start : s.end], s.category) for s in spans] == [
        ("1 + 1 = 2", "correct-step"),
        ("2 + 1 = 4 🍵", "wrong-step"),
    ]


def test_a_transcript_gives_its_turns_and_the_pair_at_its_end():
    before = "\n\nHuman: What is tea?\n\nAssistant: A plant.\n\nHuman: And the drink?"
    row = {"chosen": f"{before}\n\nAssistant: Its leaves, brewed.", "rejected": f"{before}\n\nAssistant: No."}
    (item,) = read(row, "hh-rlhf")
    assert item.messages == [
        *ASKED,
        *assistant_turn("A plant."),
        {"role": "user", "content": "And the drink?"},
    ]
    assert [completion.text for completion in item.completions] == ["Its leaves, brewed.", "No."]


def test_transcripts_that_part_before_the_last_turn_are_refused():
    row = {
        "chosen": "\n\nHuman: Tea?\n\nAssistant: Yes.\n\nHuman: More?\n\nAssistant: No.",
        "rejected": "\n\nHuman: Tea?\n\nAssistant: No.\n\nHuman: More?\n\nAssistant: No.",
    }
    with refused("questions_differ", FieldError, field="rejected"):
        read(row, "hh-rlhf")


def ultra(*ratings: str) -> dict[str, Any]:
    aspects = ("helpfulness", "honesty", "instruction_following", "truthfulness")
    return {
        "source": "sharegpt",
        "instruction": "What is tea?",
        "correct_answers": ["None"],
        "completions": [
            {
                "model": f"model-{number}",
                "response": f"Answer {number}.",
                "critique": "Fine.",
                "overall_score": 10.0 - number,
                "annotations": {
                    aspect: {"Rating": rating, "Rationale": "…"}
                    for aspect, rating in zip(aspects, aspect_ratings, strict=True)
                },
            }
            for number, aspect_ratings in enumerate(ratings)
        ],
    }


def test_ultrafeedback_is_ranked_by_the_mean_of_the_four_ratings_and_is_a_programs_judgment():
    # Means: (5+5+4+4)/4 = 4.5, (1+2+3+2)/4 = 2, (5+4+5+4)/4 = 4.5; overall_score would say 1, 2, 3.
    (item,) = read(ultra("5544", "1232", "5454"), "ultrafeedback")
    (judgment,) = item.judgments
    assert judgment.is_machine
    assert (judgment.verdict, ranks_of(judgment)) == (Verdict.RANKED, (1, 2, 1))
    assert len(judgment.ratings) == 12
    assert judgment.critiques[0] == CritiquePart(completion="0", text="Fine.")
    assert item.references == []
    assert item.completions[1].source == "model-1"


def test_an_answer_without_ratings_leaves_ultrafeedback_without_a_ranking():
    row = ultra("5544", "1232")
    row["completions"][1]["annotations"] = {"honesty": {"Rating": "N/A"}}
    (item,) = read(row, "ultrafeedback")
    assert (item.judgments[0].verdict, ranks_of(item.judgments[0])) == (Verdict.NOT_ASKED, ())
    assert len(item.judgments[0].ratings) == 4


def vote(winner: str, **more: Any) -> dict[str, Any]:
    return {
        "question_id": "q1",
        "model_a": "alpaca",
        "model_b": "koala",
        "winner": winner,
        "judge": "arena_user_7",
        "conversation_a": [*ASKED, *assistant_turn("A drink.")],
        "conversation_b": [*ASKED, *assistant_turn("A stone.")],
        "turn": 1,
        **more,
    }


@pytest.mark.parametrize(
    ("winner", "verdict", "ranks"),
    [
        ("model_a", Verdict.RANKED, (1, 2)),
        ("model_b", Verdict.RANKED, (2, 1)),
        ("tie", Verdict.EQUAL, (1, 1)),
        ("tie (bothbad)", Verdict.BOTH_BAD, (1, 1)),
        ("both_bad", Verdict.BOTH_BAD, (1, 1)),
    ],
)
def test_an_arena_vote_keeps_a_tie_apart_from_both_bad(winner: str, verdict: Verdict, ranks: tuple[int, ...]):
    (item,) = read(vote(winner), "chatbot-arena")
    (judgment,) = item.judgments
    assert (judgment.verdict, ranks_of(judgment), judgment.annotator) == (verdict, ranks, "arena_user_7")
    # Here it is known: A stood on the left.
    assert judgment.display_order == (0, 1)
    assert [completion.source for completion in item.completions] == ["alpaca", "koala"]


def test_the_newer_arena_sets_have_messages_in_parts():
    parts = [{"type": "text", "text": "What is tea?", "image": None}]
    chat = [{"role": "user", "content": parts}, *assistant_turn("A drink.")]
    other = [{"role": "user", "content": parts}, *assistant_turn("A stone.")]
    (item,) = read(vote("model_a", conversation_a=chat, conversation_b=other), "chatbot-arena")
    assert item.messages == ASKED
    chat[0] = {"role": "user", "content": [{"type": "image", "image": "…"}]}
    with refused("text_only", FieldError, kind='"image"'):
        read(vote("model_a", conversation_a=chat, conversation_b=other), "chatbot-arena")


def test_the_55k_votes_hold_lists_in_json():
    row = {
        "prompt": '["What is tea?", "And coffee?"]',
        "response_a": '["A drink.", "Another."]',
        "response_b": '["A stone.", "Sand."]',
        "model_a": "a",
        "model_b": "b",
        "winner_model_a": 0,
        "winner_model_b": 0,
        "winner_tie": 1,
    }
    (item,) = read(row, "chatbot-arena-55k")
    # Each model heard its own first answer, so all that each said is compared.
    assert [completion.text for completion in item.completions] == [
        "A drink.\n\nAnother.",
        "A stone.\n\nSand.",
    ]
    assert item.judgments[0].verdict == Verdict.EQUAL


def reply(text: str, role: str = "assistant", rank: int | None = None, **more: Any) -> dict[str, Any]:
    return {"message_id": text, "text": text, "role": role, "rank": rank, "replies": [], **more}


def test_a_tree_gives_a_ranking_for_each_question_with_ranked_replies():
    further = reply(
        "How hot?", "prompter", replies=[reply("70 °C.", rank=1), reply("80 °C.", rank=0), reply("Hm.")]
    )
    root = reply(
        "Tea?",
        "prompter",
        replies=[
            reply("Yes.", rank=0, replies=[further]),
            reply("No.", rank=1),
            reply("BUY!", rank=2, deleted=True),
        ],
    )
    first, second = read({"message_tree_id": "t1", "tree_state": "ready", "prompt": root}, "openassistant")
    assert [completion.text for completion in first.completions] == ["Yes.", "No."]
    assert ranks_of(first.judgments[0]) == (1, 2)
    assert [message["content"] for message in second.messages] == ["Tea?", "Yes.", "How hot?"]
    assert [completion.text for completion in second.completions] == ["70 °C.", "80 °C."]
    assert ranks_of(second.judgments[0]) == (2, 1)
    assert second.judgments[0].more["unranked_replies"] == 1


def test_flat_messages_become_the_trees_that_they_came_from():
    rows: list[dict[str, Any]] = [
        {"message_id": "1", "parent_id": None, "text": "Tea?", "role": "prompter", "message_tree_id": "1"},
        {"message_id": "2", "parent_id": "1", "text": "Yes.", "role": "assistant", "rank": 0.0},
        {"message_id": "3", "parent_id": "1", "text": "No.", "role": "assistant", "rank": 1.0},
        {"message_id": "4", "parent_id": None, "text": "Coffee?", "role": "prompter", "message_tree_id": "4"},
    ]
    for row in rows[1:3]:
        row["message_tree_id"] = "1"
    reader = READERS["openassistant"]
    assert plan_rows(rows).reader is reader
    trees = list(reader.group(iter(enumerate(rows, start=1))))
    assert [number for number, _ in trees] == [1, 4]
    items = [item for _, tree in trees for item in reader.read(tree)]
    assert ranks_of(items[0].judgments[0]) == (1, 2)
    assert (items[1].messages[0]["content"], items[1].judgments) == ("Coffee?", ())


def task(*results: dict[str, Any], **data: Any) -> dict[str, Any]:
    return {
        "id": 1,
        "data": {"prompt": "What is tea?", "answer_1": "A drink 🍵 hot.", "answer_2": "A stone.", **data},
        "annotations": [{"id": 1, "completed_by": 7, "lead_time": 4.6, "result": list(results)}],
    }


def test_label_studios_pair_marks_and_comment_come_in_together():
    pair = {
        "type": "pairwise",
        "from_name": "pw",
        "to_name": "answer_1,answer_2",
        "value": {"selected": "right"},
    }
    # A browser counts the cup as two: "hot" stands at 11 there, and at 10 here.
    mark = {
        "type": "labels",
        "from_name": "label",
        "to_name": "answer_1",
        "value": {"start": 11, "end": 14, "text": "hot", "labels": ["Wrong fact!"]},
    }
    note = {"type": "textarea", "from_name": "why", "to_name": "prompt", "value": {"text": ["Because."]}}
    (item,) = read(task(pair, mark, note), "label-studio")
    (judgment,) = item.judgments
    assert (judgment.verdict, ranks_of(judgment)) == (Verdict.RANKED, (2, 1))
    assert [(s.start, s.end, s.category) for s in judgment.spans] == [(10, 13, "wrong-fact")]
    assert (judgment.comment, judgment.active_seconds, judgment.annotator) == ("Because.", 4, "7")


def test_a_mark_that_does_not_stand_on_its_text_is_refused():
    mark = {
        "type": "labels",
        "to_name": "answer_1",
        "value": {"start": 0, "end": 3, "text": "hot", "labels": ["wrong"]},
    }
    with refused("quote_differs", FieldError, quote="hot", start=0, end=3):
        read(task(mark), "label-studio")


def test_label_studios_ranker_and_choices():
    items = [{"id": "x", "body": "A drink."}, {"id": "y", "body": "A stone."}, {"id": "z", "body": "Hm."}]
    ranked = {"type": "ranker", "from_name": "r", "to_name": "r", "value": {"ranker": {"_": ["z", "x", "y"]}}}
    row = task(ranked)
    row["data"] = {"prompt": "What is tea?", "items": items}
    (item,) = read(row, "label-studio")
    assert ranks_of(item.judgments[0]) == (2, 3, 1)
    ranked["meta"] = {"ranks": [1, 1, 1]}
    (item,) = read(row, "label-studio")
    # Three that somebody tied are a ranking with one rank, as Rondo stores it.
    assert (item.judgments[0].verdict, ranks_of(item.judgments[0])) == (Verdict.RANKED, (1, 1, 1))
    both = {"type": "choices", "from_name": "v", "to_name": "prompt", "value": {"choices": ["Both bad"]}}
    (item,) = read(task(both), "label-studio")
    assert (item.judgments[0].verdict, ranks_of(item.judgments[0])) == (Verdict.BOTH_BAD, (1, 1))


def test_argilla_nested_gives_one_judgment_for_each_person():
    row = {
        "id": "r1",
        "fields": {"prompt": "What is tea?", "response_1": "A drink.", "response_2": "A stone."},
        "metadata": {},
        "suggestions": {},
        "responses": {
            "preference": [
                {"value": "response_2", "user_id": "ann"},
                {"value": ["response_1", "response_2"], "user_id": "bob"},
            ],
            "response_1_marks": [{"value": [{"start": 2, "end": 7, "label": "vague"}], "user_id": "ann"}],
            "response_1_quality": [{"value": 4, "user_id": "bob"}],
            "why": [{"value": "It is.", "user_id": "bob"}],
        },
        "status": "completed",
    }
    (item,) = read(row, "argilla")
    ann, bob = item.judgments
    assert (ann.annotator, ranks_of(ann), [s.category for s in ann.spans]) == ("ann", (2, 1), ["vague"])
    assert (bob.annotator, ranks_of(bob), bob.comment) == ("bob", (1, 2), "It is.")
    assert [(r.criterion, r.value) for r in bob.ratings] == [("quality", 4)]


def test_argilla_flat_keeps_unnamed_people_apart():
    row = {
        "prompt": "What is tea?",
        "response_1": "A drink.",
        "response_2": "A stone.",
        "preference.responses": ["response_1", "tie", "response_2"],
        "preference.responses.users": [None, None, "cleo"],
        "preference.responses.status": ["submitted", "submitted", "discarded"],
    }
    (item,) = read(row, "argilla")
    assert [(j.annotator, j.verdict) for j in item.judgments] == [("", Verdict.RANKED), ("", Verdict.EQUAL)]


@pytest.mark.parametrize(
    ("label", "verdict", "ranks"),
    [
        ("A", Verdict.RANKED, (1, 2)),
        ("response_b", Verdict.RANKED, (2, 1)),
        ("2", Verdict.RANKED, (2, 1)),
        ("left", Verdict.RANKED, (1, 2)),
        ("Tie", Verdict.EQUAL, (1, 1)),
        ("both good", Verdict.BOTH_GOOD, (1, 1)),
        ("both_bad", Verdict.BOTH_BAD, (1, 1)),
        ("cannot judge", Verdict.CANNOT_JUDGE, ()),
    ],
)
def test_a_table_is_read_by_its_columns_names(label: str, verdict: Verdict, ranks: tuple[int, ...]):
    row = {
        "question": "What is tea?",
        "response_a": "A drink.",
        "response_b": "A stone.",
        "preference": label,
    }
    plan = plan_rows([row])
    assert plan.reader.name == "table"
    assert plan.mapping == {
        "prompt": "question",
        "winner": "preference",
        "answer_1": "response_a",
        "answer_2": "response_b",
    }
    (item,) = read_by([row], plan)
    assert (item.judgments[0].verdict, ranks_of(item.judgments[0])) == (verdict, ranks)


def test_a_guess_that_completes_another_format_is_read_as_that():
    plan = plan_rows([{"query": "Tea?", "preferred_response": "Yes.", "dispreferred_response": "No."}])
    assert plan.reader.name == "trl-preference"
    assert plan.mapping["chosen"] == "preferred_response"


def test_what_a_person_says_of_a_column_goes_before_the_guess():
    rows = [{"question": "odd", "asked": "Tea?", "answer_1": "Yes.", "answer_2": "No.", "winner": "1"}]
    assert plan_rows(rows, mapping={"prompt": "asked"}).mapping == {"prompt": "asked"}


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        ({"prompt": "Tea?", "chosen": "", "rejected": "No."}, "text_empty", "chosen"),
        ({"prompt": "Tea?", "chosen": "Yes\x00", "rejected": "No."}, "text_has_nul", "chosen"),
        ({"prompt": "Tea?", "chosen": "\ud83c", "rejected": "No."}, "text_has_surrogate", "chosen"),
        ({"prompt": "Tea?", "chosen": "No.", "rejected": "No."}, "same_twice", "rejected"),
        (
            {"prompt": assistant_turn("Hm."), "chosen": "Yes.", "rejected": "No."},
            "chat_not_users",
            "prompt[0].role",
        ),
    ],
)
def test_a_bad_pair_is_refused_with_its_field(row: dict[str, Any], code: str, field: str):
    with refused(code, FieldError, field=field):
        read(row, "trl-preference")
