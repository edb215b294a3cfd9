"""Chatbot Arena votes (Zheng et al. 2023): in and out.

- `chatbot-arena`: the fields of lmsys/chatbot_arena_conversations and of
  lmarena-ai/arena-human-preference-140k: `model_a`, `model_b`, `winner` (`model_a`, `model_b`, `tie`,
  `tie (bothbad)`, and `both_bad` in the newer sets), `conversation_a`, `conversation_b`, `judge`,
  `tstamp` (seconds since 1970). A was on the left. Both conversations are answered to the same questions; the
  whole of what each model said is compared, the last turn as the answer and the earlier ones, where the two
  differ, in the answer's text.
- MT-Bench's human judgments have the same fields, no time, and a `turn`: the turn that was judged. Turn 1
  compares the first answers; turn 2 the second ones, with the earlier ones as metadata.
- `chatbot-arena-55k`, lmarena-ai/arena-human-preference-55k: `prompt`, `response_a`, `response_b` (lists in
  JSON), `winner_model_a`, `winner_model_b`, `winner_tie`. In alone.

Out, a ranking of more than two is one vote for each pair, ties included. The arena knows no "both good": it
goes out as a `tie` with the `verdict` `both_good`, and `machine` marks the votes of a program. These two
columns are Rondo's: they are read back, and other readers pass over them.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import combinations
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError, unknown_value
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    ranks_by_place,
)
from annotation.exchange.formats.verdicts import no_winner
from annotation.exchange.formats.writers import (
    NO_ORDER,
    UNORDERED_PAIR,
    Dropped,
    Record,
    Scene,
    Writer,
    Written,
    answer_messages,
    rank_in,
)

_WINNERS = {
    "model_a": ((1, 2), Verdict.RANKED),
    "model_b": ((2, 1), Verdict.RANKED),
    "tie": ((1, 1), Verdict.EQUAL),
    "tie (bothbad)": ((1, 1), Verdict.BOTH_BAD),
    "both_bad": ((1, 1), Verdict.BOTH_BAD),
    "both_good": ((1, 1), Verdict.BOTH_GOOD),
}
_BY_VERDICT = {
    Verdict.EQUAL: "tie",
    Verdict.BOTH_BAD: "both_bad",
    Verdict.BOTH_GOOD: "both_good",
}
_TIMES = ("tstamp", "timestamp", "created_at")
_JUDGES = ("judge", "judge_hash", "evaluation_session_id")
_PROGRAM = re.compile(r"gpt-?\d|claude|gemini", re.IGNORECASE)
"""Names of judges that are programs: MT-Bench has `gpt4_pair`."""
_TIES = {Verdict.EQUAL: "tie", Verdict.BOTH_GOOD: "tie", Verdict.BOTH_BAD: "tie (bothbad)"}


def _arena(row: Row) -> Iterator[ImportedItem]:
    word = str(fields.required(row, "winner")).strip()
    winner = word.lower()
    if winner not in _WINNERS and (without := no_winner(word)) is not None:
        winner = _BY_VERDICT.get(without, winner)
    if winner not in _WINNERS:
        raise unknown_value(winner, _WINNERS, "winner")
    if winner == "tie" and row.get("verdict") == Verdict.BOTH_GOOD:
        winner = "both_good"
    left = fields.messages(fields.required(row, "conversation_a"), "conversation_a")
    right = fields.messages(fields.required(row, "conversation_b"), "conversation_b")
    turns = sum(message["role"] == "user" for message in left)
    turn = row.get("turn")
    if type(turn) is int and 1 <= turn <= turns > 1 and not any(row.get(name) for name in _TIMES):
        yield _judged_turn(row, left, right, winner, turn)
    else:
        yield _battle(row, left, right, winner)


def _judged_turn(
    row: Row, left: list[dict[str, str]], right: list[dict[str, str]], winner: str, turn: int
) -> ImportedItem:
    """A vote of MT-Bench: on the answers of one turn, whose earlier answers differ."""
    left, right = _until(left, turn), _until(right, turn)
    if left[:-1] == right[:-1]:
        return _battle(row, left, right, winner)
    earlier = [[m["content"] for m in chat[:-1] if m["role"] == "assistant"] for chat in (left, right)]
    questions = [[m for m in chat if m["role"] != "assistant"] for chat in (left, right)]
    item = _battle(row, [*questions[0], left[-1]], [*questions[1], right[-1]], winner)
    return replace(item, metadata={"judged_turn": turn, "earlier_answers": earlier})


def _until(chat: list[dict[str, str]], turn: int) -> list[dict[str, str]]:
    """A conversation up to the answer of one turn."""
    users = [place for place, message in enumerate(chat) if message["role"] == "user"]
    return chat if turn == len(users) else chat[: users[turn]]


def _arena_55k(row: Row) -> Iterator[ImportedItem]:
    questions = _list_in_json(row, "prompt")
    sides = []
    for name in ("response_a", "response_b"):
        answers = _list_in_json(row, name)
        if len(answers) != len(questions):
            raise FieldError(
                "turns_differ",
                _(
                    "The number of answers, %(answers)s, differs from the number of questions, "
                    "%(questions)s. Write one answer to each question."
                ),
                field=name,
                answers=len(answers),
                questions=len(questions),
            )
        chat = []
        for question, answer in zip(questions, answers, strict=True):
            chat += [
                {"role": "user", "content": fields.text(question, "prompt")},
                {"role": "assistant", "content": fields.text(answer, name)},
            ]
        sides.append(chat)
    chosen = [
        name for name in ("model_a", "model_b", "tie") if row.get(f"winner_{name}") in (1, True, "1", "1.0")
    ]
    if len(chosen) != 1:
        raise FieldError(
            "winner_unclear",
            _("Exactly one of winner_model_a, winner_model_b and winner_tie must be 1."),
            field="winner_model_a",
        )
    yield _battle(row, sides[0], sides[1], chosen[0])


def _list_in_json(row: Row, name: str) -> list[Any]:
    value = fields.required(row, name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise FieldError("list_expected", _("This is no list in JSON."), field=name) from None
    return fields.items_of(value, name)


def _battle(row: Row, left: list[dict[str, str]], right: list[dict[str, str]], winner: str) -> ImportedItem:
    for where, chat in (("conversation_a", left), ("conversation_b", right)):
        if chat[-1]["role"] != "assistant":
            raise FieldError(
                "answer_missing", _("The chat does not end with an answer of the model."), field=where
            )
    questions = [message for message in left if message["role"] != "assistant"]
    if questions != [message for message in right if message["role"] != "assistant"]:
        raise FieldError(
            "questions_differ", _("The questions are not those of conversation_a."), field="conversation_b"
        )
    if left[:-1] == right[:-1]:
        prompt, texts = left[:-1], [left[-1]["content"], right[-1]["content"]]
    else:
        # The conversations differ before their last turn, so the whole of each is compared.
        prompt, texts = questions, [_answers(left), _answers(right)]
    ranks, verdict = _WINNERS[winner]
    models = [fields.optional_text(row.get(name), name) for name in ("model_a", "model_b")]
    judge = next((row[name] for name in _JUDGES if row.get(name) not in (None, "", [])), None)
    judge = "/".join(map(str, judge)) if isinstance(judge, list) else judge
    annotator = fields.person(judge, "judge")
    time = next((name for name in _TIMES if row.get(name) not in (None, "")), "tstamp")
    return ImportedItem(
        messages=fields.prompt(prompt, "conversation_a"),
        completions=tuple(
            ImportedCompletion(text=text, source=model) for text, model in zip(texts, models, strict=True)
        ),
        judgments=(
            ImportedJudgment(
                verdict=verdict,
                ranks=ranks_by_place(ranks),
                annotator=annotator,
                is_machine=str(row.get("machine")).lower() == "true" or bool(_PROGRAM.match(annotator)),
                created_at=fields.moment(row.get(time), time),
                display_order=(0, 1),
            ),
        ),
    )


def _answers(chat: list[dict[str, str]]) -> str:
    return "\n\n".join(message["content"] for message in chat if message["role"] == "assistant")


def _votes(record: Record, scene: Scene) -> Written:
    verdict = Verdict(record["verdict"])
    if verdict in (Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED):
        yield Dropped(NO_ORDER[verdict])
        return
    if len(record["completions"]) < 2:
        yield Dropped("one completion alone, so no pair")
        return
    place = {pk: number for number, pk in enumerate(record["display_order"])}
    ordered = sorted(record["completions"], key=lambda completion: place[completion["id"]])
    for left, right in combinations(ordered, 2):
        if left["id"] not in record["ranks"] and right["id"] not in record["ranks"]:
            yield Dropped(f"{UNORDERED_PAIR} {right['id']}", left["id"])
            continue
        difference = rank_in(record, left) - rank_in(record, right)
        # Two that share a rank of a ranking are equal; the verdict on all was another.
        of_pair = Verdict.EQUAL if verdict == Verdict.RANKED and not difference else verdict
        yield {
            "question_id": record["comparison"],
            "model_a": left["source"],
            "model_b": right["source"],
            "winner": _winner(of_pair, difference),
            "judge": record["annotator"],
            "conversation_a": [*record["messages"], *answer_messages(left["text"])],
            "conversation_b": [*record["messages"], *answer_messages(right["text"])],
            "turn": sum(message["role"] == "user" for message in record["messages"]),
            "tstamp": datetime.fromisoformat(record["created_at"]).timestamp(),
            "machine": record["machine"],
            "verdict": of_pair,
        }


def _winner(verdict: Verdict, difference: int) -> str:
    """The winner of a pair whose left rank is higher than the right one by `difference`."""
    if difference:
        return "model_a" if difference < 0 else "model_b"
    return _TIES[verdict]


READERS = (
    Reader(
        name="chatbot-arena",
        sentence="Chatbot Arena votes: two conversations and a winner, a tie, or both bad.",
        read=_arena,
        matches=lambda row: {"conversation_a", "conversation_b", "winner"} <= row.keys(),
        reads={
            "winner": "the preference",
            "conversation_a": "the prompt and the response on the left",
            "conversation_b": "the prompt and the response on the right",
            "model_a": "the source of the response on the left",
            "model_b": "the source of the response on the right",
            "turn": "the turn that was judged, or the number of turns",
            **dict.fromkeys(_JUDGES, "the annotator"),
            **dict.fromkeys(_TIMES, "the time of the annotation"),
            "machine": "whether the annotator is a program",
            "verdict": "the preference, where it is both good",
        },
        ignores={"full_conversation": "the two conversations say it"},
        completion_fields=("conversation_a", "conversation_b"),
        loses="images",
    ),
    Reader(
        name="chatbot-arena-55k",
        sentence="The 55k votes of the Chatbot Arena: response_a, response_b, winner_model_a, ….",
        read=_arena_55k,
        matches=lambda row: {"response_a", "response_b", "winner_tie"} <= row.keys(),
        reads={
            "prompt": "the user's turns",
            "response_a": "the responses on the left",
            "response_b": "the responses on the right",
            "model_a": "the source of the response on the left",
            "model_b": "the source of the response on the right",
            "winner_model_a": "the preference",
            "winner_model_b": "the preference",
            "winner_tie": "the preference",
            **dict.fromkeys(_JUDGES, "the annotator"),
            **dict.fromkeys(_TIMES, "the time of the annotation"),
            "machine": "whether the annotator is a program",
        },
        completion_fields=("response_a", "response_b"),
        loses="earlier answers where both chats differ are part of each response",
    ),
)
WRITERS = (
    Writer(
        name="chatbot-arena",
        sentence="Chatbot Arena votes: one for each pair, with model names, ties and both bad.",
        container="jsonl",
        rows=_votes,
        carries="pairs with all preferences but “cannot judge”, model names, positions, times",
        loses="rankings as a whole, strength, spans, ratings, comments",
    ),
)
