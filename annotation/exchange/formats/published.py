"""Published sets of preferences: in.

- HH-RLHF (Bai et al. 2022; https://github.com/anthropics/hh-rlhf): `chosen` and `rejected` are
  transcripts, `\\n\\nHuman: … \\n\\nAssistant: …`, that share all but the last turn. A handful begin to
  differ earlier; those are refused, for no prompt is answered by both.
- UltraFeedback (Cui et al. 2023; https://github.com/OpenBMB/UltraFeedback): `instruction`,
  `completions` with `response`, `model`, `annotations` (a `Rating` from 1 to 5 or "N/A" on each of four
  aspects) and `critique`. GPT-4 judged, so the judgment is a program's. The ranking is by the mean of
  the four ratings: `overall_score` was wrong in the first release (issue 8 there).
- Chatbot Arena (Zheng et al. 2023; the fields of lmsys/chatbot_arena_conversations and of
  lmarena-ai/arena-human-preference-140k): `model_a`, `model_b`, `winner` (`model_a`, `model_b`, `tie`,
  `tie (bothbad)`, and `both_bad` in the newer sets), `conversation_a`, `conversation_b`, `judge`. A was
  on the left. Both conversations are answered to the same questions; the whole of what each model said is
  compared, the last turn as the answer and the earlier ones, where the two differ, in the answer's text.
- arena-human-preference-55k: `prompt`, `response_a`, `response_b` (lists in JSON),
  `winner_model_a`, `winner_model_b`, `winner_tie`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from annotation.choices import Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    ImportedRating,
    Reader,
    Row,
    dense,
    key_of,
    verdict_of,
)
from annotation.exchange.formats.trl import preference

_TURN = re.compile(r"\n\n(Human|Assistant): ?")
_ROLE = {"Human": "user", "Assistant": "assistant"}
_ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")
_WINNERS = {
    "model_a": ((1, 2), Verdict.RANKED),
    "model_b": ((2, 1), Verdict.RANKED),
    "tie": ((1, 1), Verdict.EQUAL),
    "tie (bothbad)": ((1, 1), Verdict.BOTH_BAD),
    "both_bad": ((1, 1), Verdict.BOTH_BAD),
    "both_good": ((1, 1), Verdict.BOTH_GOOD),
}


# ── HH-RLHF ───────────────────────────────────────────────────────────────────────────


def transcript(value: Any, where: str) -> list[dict[str, str]]:
    """The turns of a transcript `\\n\\nHuman: … \\n\\nAssistant: …`; each text without its outer space."""
    parts = _TURN.split(fields.text(value, where))
    if parts[0].strip() or len(parts) < 3:
        raise FieldError(where, "does not begin with a turn '\\n\\nHuman: …'")
    return [
        {"role": _ROLE[speaker], "content": said.strip()}
        for speaker, said in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _hh_rlhf(row: Row) -> Iterator[ImportedItem]:
    chosen = transcript(fields.required(row, "chosen"), "chosen")
    rejected = transcript(fields.required(row, "rejected"), "rejected")
    if chosen[:-1] != rejected[:-1]:
        raise FieldError(
            "rejected", "differs from 'chosen' before the last turn, so the two answer no one question"
        )
    texts = []
    for where, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1]["role"] != "assistant":
            raise FieldError(where, "does not end with a turn of the assistant")
        texts.append(fields.text(turns[-1]["content"], where))
    messages = [message for message in chosen[:-1] if message["content"]]
    yield preference(fields.prompt(messages, "chosen"), texts[0], texts[1], row)


# ── UltraFeedback ─────────────────────────────────────────────────────────────────────


def _ultrafeedback(row: Row) -> Iterator[ImportedItem]:
    listed = fields.items_of(fields.required(row, "completions"), "completions")
    completions, ratings, critiques, means = [], [], [], []
    for number, value in enumerate(listed):
        where = f"completions[{number}]"
        one = fields.object_of(value, where)
        completions.append(
            ImportedCompletion(
                text=fields.text(one.get("response"), f"{where}.response"),
                source=fields.optional_text(one.get("model"), f"{where}.model"),
            )
        )
        own = _aspects(number, one, where)
        ratings += own
        means.append(sum(rating.value for rating in own) / len(own) if own else None)
        if critique := fields.optional_text(one.get("critique"), f"{where}.critique").strip():
            critiques.append((number, critique))
    rated = all(mean is not None for mean in means) and len(completions) > 1
    ranks = dense([-float(mean or 0) for mean in means]) if rated else ()
    judgment = ImportedJudgment(
        verdict=verdict_of(ranks) if rated else Verdict.NOT_ASKED,
        ranks=ranks,
        annotator="gpt-4",
        is_machine=True,
        ratings=tuple(ratings),
        critiques=tuple(critiques),
    )
    tags = [row["source"]] if isinstance(row.get("source"), str) and row["source"] else []
    yield ImportedItem(
        messages=fields.prompt(fields.required(row, "instruction"), "instruction"),
        references=[answer for answer in row.get("correct_answers") or [] if _is_answer(answer)],
        tags=tags,
        completions=tuple(completions),
        judgments=(judgment,) if completions else (),
    )


def _is_answer(value: Any) -> bool:
    return isinstance(value, str) and value.strip() not in ("", "None")


def _aspects(number: int, completion: Mapping[str, Any], where: str) -> list[ImportedRating]:
    annotations = completion.get("annotations") or {}
    found = []
    for aspect in _ASPECTS:
        said = annotations.get(aspect)
        value = said.get("Rating") if isinstance(said, dict) else None
        if value is None or str(value).strip().upper() == "N/A":
            continue
        if str(value).strip() not in ("1", "2", "3", "4", "5"):
            raise FieldError(f"{where}.annotations.{aspect}.Rating", f"{value!r} is not from 1 to 5")
        found.append(ImportedRating(completion=number, criterion=key_of(aspect), value=int(value)))
    return found


# ── Chatbot Arena ─────────────────────────────────────────────────────────────────────


def _arena(row: Row) -> Iterator[ImportedItem]:
    winner = str(fields.required(row, "winner")).strip().lower()
    if winner not in _WINNERS:
        raise FieldError("winner", f"{winner!r} is not known; known are {', '.join(_WINNERS)}")
    left = fields.messages(fields.required(row, "conversation_a"), "conversation_a")
    right = fields.messages(fields.required(row, "conversation_b"), "conversation_b")
    yield _battle(row, left, right, winner)


def _arena_55k(row: Row) -> Iterator[ImportedItem]:
    asked = _list_in_json(row, "prompt")
    sides = []
    for name in ("response_a", "response_b"):
        answers = _list_in_json(row, name)
        if len(answers) != len(asked):
            raise FieldError(name, f"has {len(answers)} answers to {len(asked)} questions")
        chat = []
        for question, said in zip(asked, answers, strict=True):
            chat += [
                {"role": "user", "content": fields.text(question, "prompt")},
                {"role": "assistant", "content": fields.text(said, name)},
            ]
        sides.append(chat)
    chosen = [name for name in ("model_a", "model_b", "tie") if row.get(f"winner_{name}") in (1, True, "1")]
    if len(chosen) != 1:
        raise FieldError("winner_model_a", "exactly one of winner_model_a, winner_model_b, winner_tie is 1")
    yield _battle(row, sides[0], sides[1], chosen[0])


def _list_in_json(row: Row, name: str) -> list[Any]:
    value = fields.required(row, name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise FieldError(name, "is not a list in JSON") from None
    return fields.items_of(value, name)


def _battle(row: Row, left: list[dict[str, str]], right: list[dict[str, str]], winner: str) -> ImportedItem:
    for where, chat in (("conversation_a", left), ("conversation_b", right)):
        if chat[-1]["role"] != "assistant":
            raise FieldError(where, "does not end with an answer of the model")
    asked = [message for message in left if message["role"] != "assistant"]
    if asked != [message for message in right if message["role"] != "assistant"]:
        raise FieldError("conversation_b", "holds other questions than 'conversation_a'")
    if left[:-1] == right[:-1]:
        prompt, texts = left[:-1], [left[-1]["content"], right[-1]["content"]]
    else:
        # Each model heard its own earlier answers: what was compared is all that each said.
        prompt, texts = asked, [_said(left), _said(right)]
    ranks, verdict = _WINNERS[winner]
    models = [fields.optional_text(row.get(name), name) for name in ("model_a", "model_b")]
    more = {
        name: row[name]
        for name in ("question_id", "id", "turn", "language", "evaluation_order")
        if isinstance(row.get(name), (str, int))
    }
    return ImportedItem(
        messages=fields.prompt(prompt, "conversation_a"),
        completions=tuple(
            ImportedCompletion(text=said, source=model) for said, model in zip(texts, models, strict=True)
        ),
        judgments=(
            ImportedJudgment(
                verdict=verdict,
                ranks=ranks,
                annotator=fields.optional_text(row.get("judge", row.get("evaluation_session_id")), "judge"),
                display_order=(0, 1),
                more=more,
            ),
        ),
    )


def _said(chat: list[dict[str, str]]) -> str:
    return "\n\n".join(message["content"] for message in chat if message["role"] == "assistant")


READERS = (
    Reader(
        name="hh-rlhf",
        sentence="HH-RLHF transcripts: chosen and rejected as “Human: … Assistant: …”.",
        read=_hh_rlhf,
        matches=lambda row: (
            "prompt" not in row and isinstance(row.get("chosen"), str) and "\n\nHuman:" in row["chosen"]
        ),
    ),
    Reader(
        name="ultrafeedback",
        sentence="UltraFeedback: four completions with ratings and critiques by GPT-4.",
        read=_ultrafeedback,
        matches=lambda row: "instruction" in row and isinstance(row.get("completions"), list),
    ),
    Reader(
        name="chatbot-arena",
        sentence="Chatbot Arena votes: two conversations and a winner, a tie, or both bad.",
        read=_arena,
        matches=lambda row: {"conversation_a", "conversation_b", "winner"} <= row.keys(),
    ),
    Reader(
        name="chatbot-arena-55k",
        sentence="The 55k votes of the Chatbot Arena: response_a, response_b, winner_model_a, ….",
        read=_arena_55k,
        matches=lambda row: {"response_a", "response_b", "winner_tie"} <= row.keys(),
    ),
)
