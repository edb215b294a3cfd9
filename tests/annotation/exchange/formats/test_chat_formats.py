"""HH-RLHF, TRL, Chatbot Arena and OpenAI: conversations of several turns, out and in, and odd texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.choices import Verdict
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, checked
from annotation.exchange.formats.public_sets import transcript
from annotation.exchange.formats.registry import READERS
from annotation.exchange.formats.rows import read_rows
from annotation.models import Prompt
from tests.annotation.exchange.formats.reading import ranks_of, read_file
from tests.annotation.exchange.formats.test_round_trip import export_to, project_with
from tests.annotation.exchange.formats.test_writers import record, written
from tests.refusals import refused

TALK = [
    {"role": "user", "content": "What is tea?"},
    {"role": "assistant", "content": "A plant."},
    {"role": "user", "content": "And the drink?"},
]
SYSTEM = {"role": "system", "content": "Be brief."}


def read(row: dict[str, Any], format_name: str) -> ImportedItem:
    (item,) = read_file([row], format_name)
    return item


def assistant_turn(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_a_pair_at_the_end_of_a_talk_is_written_in_each_format():
    talk = record("Its leaves, brewed.", "No.", ranks=(1, 2), messages=TALK)
    before = "\n\nHuman: What is tea?\n\nAssistant: A plant.\n\nHuman: And the drink?\n\nAssistant: "
    assert written("hh-rlhf", talk) == (
        [{"chosen": f"{before}Its leaves, brewed.", "rejected": f"{before}No."}],
        [],
    )
    assert written("openai-preference", talk) == (
        [
            {
                "input": {"messages": TALK},
                "preferred_output": assistant_turn("Its leaves, brewed."),
                "non_preferred_output": assistant_turn("No."),
            }
        ],
        [],
    )
    # The answer of the first turn is context here, and has a row of its own: only the last one is trained on.
    earlier = {"role": "assistant", "content": "A plant.", "weight": 0}
    assert written("openai-messages", talk) == (
        [{"messages": [TALK[0], earlier, TALK[2], *assistant_turn("Its leaves, brewed.")]}],
        [],
    )


def test_an_arena_vote_has_the_left_response_as_a_and_its_time_in_seconds():
    shown = record("One.", "Two.", ranks=(1, 2), messages=TALK, display_order=["2", "1"])
    shown["completions"][1]["source"] = "n"
    assert written("chatbot-arena", shown) == (
        [
            {
                "question_id": "8",
                "model_a": "n",
                "model_b": "m",
                "winner": "model_b",
                "judge": "ann",
                "conversation_a": [*TALK, *assistant_turn("Two.")],
                "conversation_b": [*TALK, *assistant_turn("One.")],
                "turn": 2,
                # 2026-11-22T05:00:00Z: 20,779 days after 1970 began, and five hours.
                "tstamp": 20_779 * 86_400 + 5 * 3_600,
                "machine": False,
                "verdict": "ranked",
            }
        ],
        [],
    )


@pytest.mark.parametrize(
    ("verdict", "winner"),
    [("equal", "tie"), ("both_good", "tie"), ("both_bad", "tie (bothbad)")],
)
def test_each_verdict_without_a_winner_leaves_for_the_arena_and_comes_back(verdict: str, winner: str):
    (row,), dropped = written("chatbot-arena", record("a", "b", ranks=(1, 1), verdict=verdict))
    assert (row["winner"], dropped) == (winner, [])
    judgment = read(row, "chatbot-arena").judgments[0]
    assert (judgment.verdict, judgment.created_at) == (verdict, "2026-11-22T05:00:00+00:00")


def test_a_ranking_of_three_is_three_votes_and_its_tie_is_one_of_them():
    rows, dropped = written("chatbot-arena", record("a", "b", "c", ranks=(2, 1, 2)))
    assert [(row["winner"], row["verdict"]) for row in rows] == [
        ("model_b", "ranked"),
        ("tie", "equal"),
        ("model_a", "ranked"),
    ]
    assert dropped == []


@pytest.mark.parametrize(
    ("stamp", "value"),
    [("today", '"today"'), (1e300, "1e+300"), (True, "true")],
)
def test_an_arena_vote_at_no_time_is_refused(stamp: Any, value: str):
    (row,), _ = written("chatbot-arena", record("a", "b", ranks=(1, 2)))
    with refused("time_invalid", FieldError, field="tstamp", value=value):
        read({**row, "tstamp": stamp}, "chatbot-arena")


def test_earlier_turns_that_both_answers_repeat_belong_to_the_prompt():
    rest = [*TALK[1:], *assistant_turn("Its leaves.")], [*TALK[1:], *assistant_turn("No.")]
    whole = [TALK[0], *rest[0]], [TALK[0], *rest[1]]
    for prompt, (chosen, rejected) in ((TALK[:1], rest), ("What is tea?", whole), ([SYSTEM, TALK[0]], whole)):
        item = read({"prompt": prompt, "chosen": chosen, "rejected": rejected}, "trl-preference")
        assert [m for m in item.messages if m["role"] != "system"] == TALK
        assert [completion.text for completion in item.completions] == ["Its leaves.", "No."]
    assert item.messages[0] == SYSTEM
    with refused("questions_differ", FieldError, field="rejected"):
        read({"prompt": TALK[:1], "chosen": rest[0], "rejected": assistant_turn("No.")}, "trl-preference")


def test_a_prompt_that_names_one_turn_of_the_conversation_in_both_answers_is_not_doubled():
    """Capybara's `prompt` is the last turn of the user, others name the first; one of neither is refused."""
    chosen, rejected = ([*TALK, *assistant_turn(text)] for text in ("Its leaves.", "No."))
    for turn in (TALK[0], TALK[-1]):
        row = {"prompt": turn["content"], "chosen": chosen, "rejected": rejected}
        item = read(row, "trl-preference")
        assert item.messages == TALK
        assert [completion.text for completion in item.completions] == ["Its leaves.", "No."]
    with refused("questions_differ", FieldError, field="prompt"):
        read({**row, "prompt": "Something else?"}, "trl-preference")


def test_openais_newer_name_of_the_system_message_is_read():
    item = read(
        {"messages": [{**SYSTEM, "role": "developer"}, *TALK, *assistant_turn("Leaves.")]}, "openai-messages"
    )
    assert (item.messages, item.references) == ([SYSTEM, *TALK], ["Leaves."])


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        ({"messages": assistant_turn("Leaves.")}, "prompt_missing", "messages"),
        ({"messages": []}, "chat_empty", "messages"),
        (
            {"messages": [*TALK, *assistant_turn("One."), *assistant_turn("Two.")]},
            "chat_not_users",
            "messages[3].role",
        ),
    ],
)
def test_a_chat_that_no_prompt_comes_of_is_refused_with_its_field(row: dict[str, Any], code: str, field: str):
    with refused(code, FieldError, field=field):
        read(row, "openai-messages")


@pytest.mark.parametrize(
    ("name", "value", "code", "field"),
    [
        ("input", "What is tea?", "object_expected", "input"),
        (
            "input",
            {"messages": [*TALK, *assistant_turn("A.")]},
            "chat_not_users",
            "input.messages[3].role",
        ),
        ("preferred_output", TALK, "one_answer_expected", "preferred_output"),
        ("non_preferred_output", TALK[:1], "role_not_assistant", "non_preferred_output[0].role"),
        ("non_preferred_output", None, "field_missing", "non_preferred_output"),
    ],
)
def test_a_bad_preference_of_openais_is_refused_with_its_field(name: str, value: Any, code: str, field: str):
    (row,), _ = written("openai-preference", record("a", "b", ranks=(1, 2)))
    with refused(code, FieldError, field=field):
        read({**row, name: value}, "openai-preference")


@pytest.mark.parametrize(
    ("messages", "answers", "reason"),
    [
        ([SYSTEM, *TALK], ("a", "b"), "no system message"),
        (TALK, ("Yes.\n\nHuman: And you?", "b"), "holds the mark of a turn"),
        ([{"role": "user", "content": "Go on:\n\nAssistant: hm"}], ("a", "b"), "holds the mark of a turn"),
        (TALK, ("a", "a\n"), "white space"),
    ],
)
def test_what_a_transcript_would_split_otherwise_is_left_out_and_told(
    messages: list[dict[str, str]], answers: tuple[str, str], reason: str
):
    rows, (dropped,) = written("hh-rlhf", record(*answers, ranks=(1, 2), messages=messages))
    assert (rows, reason in dropped.reason) == ([], True)


ODD = st.lists(
    st.sampled_from(
        [
            *(
                "\n\nHuman:",
                "\n\nAssistant: ",
                "Human: ",
                "assistant",
                "\n",
                "\r\n",
                " ",
                "tea",
                "🍵",
                "<|im_start|>",
            )
        ]
    ),
    min_size=1,
    max_size=5,
).map("".join)
ODD_TEXTS = ODD.filter(lambda text: bool(text.strip()))


@given(chat=st.lists(ODD_TEXTS, min_size=1, max_size=3), answers=st.lists(ODD_TEXTS, min_size=2, max_size=2))
def test_no_text_is_ever_split_otherwise_than_it_was_written(chat: list[str], answers: list[str]):
    messages = [
        {"role": "assistant" if place % 2 else "user", "content": text}
        for place, text in enumerate(chat if len(chat) % 2 else chat[:-1])
    ]
    for name in ("hh-rlhf", "trl-preference", "chatbot-arena", "openai-preference"):
        rows, dropped = written(name, record(*answers, ranks=(2, 1), messages=messages))
        assert bool(rows) != bool(dropped)
        if not rows or answers[0] == answers[1]:
            continue
        (item,) = READERS[name].read(json.loads(json.dumps(rows[0])))
        (judgment,) = item.judgments
        best = item.completions[ranks_of(judgment).index(1)].text
        worst = item.completions[ranks_of(judgment).index(2)].text
        read_texts = [*(m["content"] for m in item.messages), best, worst]
        written_texts = [*(m["content"] for m in messages), answers[1], answers[0]]
        # White space around a turn is its mark's.
        assert read_texts == (
            [text.strip() for text in written_texts] if name == "hh-rlhf" else written_texts
        )
        assert [m["role"] for m in item.messages] == [m["role"] for m in messages]


@pytest.mark.django_db
def test_chosen_responses_come_back_as_the_references_of_their_prompts(tmp_path: Path):
    (row,), _ = written("openai-preference", record("a", "b", ranks=(1, 2), messages=TALK))
    talk = read(row, "openai-preference")
    rows = export_to(project_with([talk]), "openai-messages", tmp_path / "chats.jsonl")
    assert len(rows) == 1
    second = project_with([])
    assert import_file(project=second, path=tmp_path / "chats.jsonl").format == "openai-messages"
    prompt = Prompt.objects.get(project=second)
    assert (prompt.messages, prompt.references) == (TALK, ["a"])


def test_transcripts_are_written_as_they_were_but_for_space_around_turns(data: Path):
    def plain(row: Any) -> list[list[dict[str, str]]]:
        return [
            [turn for turn in transcript(row[side], side) if turn["content"]]
            for side in ("chosen", "rejected")
        ]

    left_out = 0
    for number, (_, row) in enumerate(read_rows(data / "hh_rlhf" / "harmless.jsonl.gz")):
        assert not isinstance(row, FieldError)
        try:
            (item,) = READERS["hh-rlhf"].read(row)
            checked(item)
        except FieldError:
            left_out += 1
            continue
        texts = [completion.text for completion in item.completions]
        (again,), _ = written("hh-rlhf", record(*texts, ranks=(1, 2), messages=item.messages))
        assert plain(again) == plain(row), number
    # Of the released file five, of ours two.
    assert left_out == (5 if number == 1499 else 2)


def test_a_verdict_that_gives_no_order_is_told_by_each_format():
    for name in ("hh-rlhf", "chatbot-arena", "openai-preference", "openai-messages"):
        rows, dropped = written(name, record("a", "b", verdict=Verdict.CANNOT_JUDGE))
        assert (rows, [dropped_row.reason for dropped_row in dropped]) == ([], ["cannot judge"])
