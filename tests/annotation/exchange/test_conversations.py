"""Conversations in Rondo's own format: exported, imported into an empty project, equal."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from annotation.choices import Purpose, Split, Verdict
from annotation.errors import ImportErrors
from annotation.exchange.file_exports import Export
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.registry import WRITERS
from annotation.models import (
    Candidate,
    Comparison,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Judgment,
    Project,
    Prompt,
    User,
)
from annotation.selectors.conversations import ContinuedResponse
from annotation.services.conversations import add_turn, begin_conversation, end_conversation, put_to_judgment
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.records import judgment_record

pytestmark = pytest.mark.django_db

OWN = ("judgment", "comparison", "prompt", "imported_from", "round", "guideline_version")


def talk(project: Project, annotator: User, task: ConversationTask | None = None) -> Conversation:
    """Three turns: one judged and edited, one that nobody judged, and a message without responses."""
    conversation = begin_conversation(project=project, annotator=annotator, task=task)
    first = add_turn(conversation=conversation, text="How hot?", before=None, continuation=None)
    responses = factories.make_completions(first.prompt, ["Hot 🍵.", "Cold."])
    assignment = put_to_judgment(turn=first, completions=responses, round_number=1, purpose=Purpose.WORK)
    assert assignment is not None
    ranks = {responses[0].pk: 2, responses[1].pk: 1}
    submit_judgment(
        assignment=assignment,
        annotator=annotator,
        answer=judgment_record(verdict=Verdict.RANKED, ranks=ranks),
        idempotency_key=uuid.uuid4(),
    )
    edited = ContinuedResponse(completion=responses[1], edited="Cool.")
    second = add_turn(conversation=conversation, text="And green tea?", before=first, continuation=edited)
    more = factories.make_completions(second.prompt, ["80 °C", "100 °C"])
    put_to_judgment(turn=second, completions=more, round_number=1, purpose=Purpose.WORK)
    add_turn(
        conversation=conversation,
        text="Why?",
        before=second,
        continuation=ContinuedResponse(completion=more[0]),
    )
    end_conversation(conversation=conversation, actor=annotator, rating=4, attack_success=0, comment="Fine.")
    return Conversation.objects.get(pk=conversation.pk)


def exported(project: Project, path: Path) -> list[dict[str, Any]]:
    path.write_text("".join(Export(project=project, writer=WRITERS["jsonl"]).text_stream()), encoding="utf-8")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def described(project: Project) -> list[Any]:
    """The conversations of a project with all that they hold, but for ids and annotators."""
    return [
        (
            *(
                conversation.system,
                conversation.seed,
                conversation.rating,
                conversation.attack_success,
                conversation.comment,
            ),
            *(conversation.created_at, conversation.ended_at),
            [described_turn(turn) for turn in conversation.turns.order_by("index")],
        )
        for conversation in Conversation.objects.filter(project=project).order_by("created_at")
    ]


def described_turn(turn: ConversationTurn) -> Any:
    candidates = Candidate.objects.filter(comparison=turn.comparison_id).order_by("index")
    judgments = Judgment.objects.filter(comparison=turn.comparison_id).order_by("pk")
    return (
        *(turn.index, turn.prompt.messages, turn.prompt.tags, turn.prompt.split),
        [
            (
                candidate.completion.text,
                candidate.completion.source.name,
                candidate.completion.seed,
                candidate.completion.finish_reason,
            )
            for candidate in candidates
        ],
        [
            (judgment.verdict, [(place.completion.text, place.rank) for place in judgment.ranks.all()])
            for judgment in judgments
        ],
        turn.continued_with and turn.continued_with.text,
        turn.continued_text,
    )


def plain(rows: list[dict[str, Any]]) -> str:
    """Rows without what belongs to one database; a completion's id becomes its text, a pseudonym "ann"."""
    text = json.dumps([{k: v for k, v in row.items() if k not in OWN} for row in rows])
    unjudged = [
        turn for row in rows for conversation in row["conversations"] for turn in conversation["unjudged"]
    ]
    for sampled in (completion for row in (*rows, *unjudged) for completion in row["completions"]):
        text = text.replace(f'"{sampled["id"]}"', json.dumps(sampled["text"]))
    for pseudonym in {row["annotator"] for row in rows}:
        text = text.replace(pseudonym, "ann")
    return json.dumps(json.loads(text), sort_keys=True)


def test_a_project_exported_and_imported_into_an_empty_one_has_equal_conversations(
    project: Project, alice: User, bob: User, tmp_path: Path
):
    task = ConversationTask.objects.create(project=project, name="Refund", system="Be kind.")
    talk(project, alice, task)
    Prompt.objects.filter(project=project).update(split=Split.HELD_OUT)
    talk(project, bob)
    rows = exported(project, tmp_path / "a.jsonl")
    assert [len(row["conversations"]) for row in rows] == [1, 1]
    assert [turn["turn"] for turn in rows[0]["conversations"][0]["unjudged"]] == [2, 3]

    second = factories.make_project(slug="second")
    ConversationTask.objects.create(project=second, name="Refund")
    record = import_file(project=second, path=tmp_path / "a.jsonl")
    assert (record.format, record.errors, record.counts["judgments"]) == ("jsonl", [], 2)
    assert described(second) == described(project)
    named = Conversation.objects.filter(project=second).order_by("created_at")
    assert [conversation.task and conversation.task.name for conversation in named] == ["Refund", None]
    again = exported(second, tmp_path / "b.jsonl")
    third = factories.make_project(slug="third")
    import_file(project=third, path=tmp_path / "b.jsonl")
    assert plain(exported(third, tmp_path / "c.jsonl")) == plain(again)
    assert [row["conversations"][0]["id"] for row in again] == [row["conversations"][0]["id"] for row in rows]


def test_a_conversation_comes_in_once_and_its_own_project_needs_no_copy(
    project: Project, alice: User, tmp_path: Path
):
    talk(project, alice)
    exported(project, tmp_path / "a.jsonl")
    before = described(project)
    import_file(project=project, path=tmp_path / "a.jsonl")
    assert described(project) == before
    second = factories.make_project(slug="second")
    for _ in range(2):
        import_file(project=second, path=tmp_path / "a.jsonl")
    assert (Conversation.objects.filter(project=second).count(), described(second)) == (1, before)
    assert Comparison.objects.filter(project=second).count() == 2


def test_a_line_of_no_conversation_has_no_field_for_one(project: Project, alice: User, tmp_path: Path):
    factories.make_judgment(factories.make_comparison(project), alice)
    talk(project, alice)
    assert ["conversations" in row for row in exported(project, tmp_path / "a.jsonl")] == [False, True]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("id", "one", r"conversations\[0\].id: \"one\" is no UUID"),
        ("turn", 0, r"conversations\[0\].turn: 0 is not from 1 to 40"),
        ("rating", 6, r"conversations\[0\].rating: 6 is not from 1 to 5"),
        ("attack_success", -1, r"conversations\[0\].attack_success: -1 is not from 0 to 4"),
        ("seed", None, r"conversations\[0\].seed: A whole number is expected, not null"),
        ("continued_with", "0", r"conversations\[0\].continued_with: The turn has no completion \"0\""),
        ("continued_with", None, r"conversations\[0\].continued_text: The text is an edited response"),
        ("created_at", "2026-11-25T02:00:00", r"conversations\[0\].created_at: .* no time with a time zone"),
        ("unjudged", [{"turn": 2, "messages": []}], r"unjudged\[0\].messages: The list of messages is empty"),
    ],
)
def test_a_bad_conversation_is_refused_with_row_field_and_remedy(
    project: Project, alice: User, tmp_path: Path, name: str, value: Any, message: str
):
    talk(project, alice)
    (row,) = exported(project, tmp_path / "a.jsonl")
    row["conversations"][0][name] = value
    (tmp_path / "b.jsonl").write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(ImportErrors, match=f"row 1, field .*{message}"):
        import_file(project=factories.make_project(slug="second"), path=tmp_path / "b.jsonl")
    assert not Conversation.objects.filter(project__slug="second").exists()


def test_all_turns_of_a_conversation_are_on_one_side_whichever_file_they_come_in(
    project: Project, tmp_path: Path
):
    def transcripts(number: int, turns: range) -> list[str]:
        chat = [f"\n\nHuman: What is tea {number}?"]
        for turn in range(max(turns)):
            chat.append(f"\n\nAssistant: {turn}\n\nHuman: Go on {number} {turn}")
        return [
            json.dumps({side: "".join(chat[: turn + 1]) + f"\n\nAssistant: {side}" for side in SIDES})
            for turn in turns
        ]

    for name, turns in (("a", range(1, 3)), ("b", range(0, 2)), ("c", range(3, 5))):
        lines = [line for number in range(20) for line in transcripts(number, turns)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        assert import_file(project=project, path=tmp_path / f"{name}.jsonl").errors == []
    sides: dict[str, set[str]] = {}
    for messages, side in Prompt.objects.filter(project=project).values_list("messages", "split"):
        sides.setdefault(messages[0]["content"], set()).add(side)
    assert Prompt.objects.filter(project=project).count() == 100
    assert [len(splits) for splits in sides.values()] == [1] * 20
    # 20 openings in the first batch, of two prompts each: 30 % of what a project of 20 has.
    assert sum(splits == {Split.HELD_OUT} for splits in sides.values()) == 6


SIDES = ("chosen", "rejected")
