"""Any table of prompts and answers: in, by the names of its columns.

| column                         | means                                                          |
|--------------------------------|----------------------------------------------------------------|
| `prompt`, or `messages`        | what is asked: a text, or a chat                               |
| `system`                       | optional: the system message before a prompt that is a text    |
| `context`, `reference`         | optional: a passage; a reference answer                        |
| `answer_1`, `answer_2`, …      | the answers                                                    |
| `source_1`, `source_2`, …      | optional: who wrote each                                       |
| `winner`                       | the name or number of the best; tie, both good or bad, cannot judge |
| `rank_1`, `rank_2`, …          | in place of a winner: the rank of each answer, 1 best          |
| `strength`, `annotator`, `comment` | optional                                                   |

Other names are guessed (`question`, `instruction`; `response_a`, `model_b_output`; `preference`, …), the
guess is shown, and `--map prompt=question` corrects it. A row without winner and ranks is work that waits.
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
    Reader,
    Row,
    dense,
    verdict_of,
)

MOST_ANSWERS = 26
TARGETS = (
    *("prompt", "messages", "system", "context", "reference", "answer_1", "answer_2", "answer_3", "answer_4"),
    *("source_1", "source_2", "source_3", "source_4", "winner", "rank_1", "rank_2", "rank_3", "rank_4"),
    *("strength", "annotator", "comment", "chosen", "rejected", "completion", "label"),
)
"""Columns of ours that a person may map on a page."""
_SYNONYMS = {
    "prompt": ("question", "instruction", "query", "input", "user_prompt", "task", "problem"),
    "messages": ("conversation", "chat", "dialogue", "dialog", "conversations"),
    "system": ("system_prompt", "system_message"),
    "context": ("passage", "document", "background"),
    "reference": ("gold", "gold_answer", "reference_answer", "ground_truth", "target"),
    "winner": ("preference", "preferred", "choice", "better", "label", "selected", "overall_preference"),
    "annotator": ("annotator_id", "worker", "worker_id", "judge", "rater", "user_id", "labeler"),
    "comment": ("explanation", "justification", "reason", "rationale", "notes"),
    "strength": ("preference_strength",),
    "completion": ("response", "answer", "output"),
    "chosen": ("preferred_response", "accepted", "winning_response", "better_response"),
    "rejected": ("dispreferred_response", "losing_response", "worse_response"),
}
_ANSWER = re.compile(
    r"(?:model[_ -]?)?(?:answer|response|output|completion|generation|candidate|prediction|text|reply)s?"
    r"[_ -]?([a-z]|\d{1,2})"
    r"|(?:model|system|option)[_ -]?([a-z]|\d{1,2})[_ -]?(?:answer|response|output|completion|text)",
    re.IGNORECASE,
)
_SOURCE = re.compile(
    r"(?:source|model|system)(?:[_ -]?name)?[_ -]?([a-z]|\d{1,2})(?:[_ -]?name)?", re.IGNORECASE
)
_RANK = re.compile(r"(?:answer|response|output)?[_ -]?rank(?:ing)?[_ -]?([a-z]|\d{1,2})", re.IGNORECASE)
_NUMBERED = {"answer": _ANSWER, "source": _SOURCE, "rank": _RANK}
_NO_WINNER = {
    **dict.fromkeys(
        ("tie", "tied", "equal", "same", "draw", "none", "neither", "no preference"), Verdict.EQUAL
    ),
    **dict.fromkeys(("both good", "bothgood", "tie bothgood", "all good"), Verdict.BOTH_GOOD),
    **dict.fromkeys(("both bad", "bothbad", "tie bothbad", "all bad", "neither good"), Verdict.BOTH_BAD),
    **dict.fromkeys(("cannot judge", "can t judge", "can not judge", "unsure", "skip"), Verdict.CANNOT_JUDGE),
}


def no_winner(word: Any) -> Verdict | None:
    """The verdict without a winner that a word of some format stands for; None where it is none."""
    return _NO_WINNER.get(re.sub(r"[^a-z]+", " ", str(word).lower()).strip())


def guess(names: list[str]) -> dict[str, str]:
    """Column of ours → column of the file, guessed from the names; a name that is ours already stays."""
    mapping = {name: name for name in names if name in _SYNONYMS}
    for ours, others in _SYNONYMS.items():
        for other in others:
            meant = next((name for name in names if re.sub("[ -]", "_", name.lower()) == other), None)
            if ours not in mapping and meant is not None and meant not in mapping.values():
                mapping[ours] = meant
    if "messages" in mapping and "prompt" in mapping:
        del mapping["messages"]
    for ours, pattern in _NUMBERED.items():
        matches = [(match, name) for name in names if (match := pattern.fullmatch(name))]
        marks = sorted({_mark(match) for match, _ in matches}, key=_by_number)
        for match, name in matches:
            mapping[f"{ours}_{marks.index(_mark(match)) + 1}"] = name
    return {ours: name for ours, name in mapping.items() if ours != name}


def _mark(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).lower()


def _by_number(mark: str) -> tuple[int, str]:
    return (int(mark), "") if mark.isdigit() else (0, mark)


def renamed(row: Row, mapping: Mapping[str, str]) -> Row:
    """The row with its columns under our names; in nested formats those of `data` and `fields` too."""
    if not mapping:
        return row
    values = _with_names(row, mapping)
    for inner in ("data", "fields"):
        if isinstance(values.get(inner), dict):
            values[inner] = _with_names(values[inner], mapping)
    return values


def _with_names(row: Row, mapping: Mapping[str, str]) -> dict[str, Any]:
    columns = {name for name in mapping.values() if name in row}
    rest = {name: value for name, value in row.items() if name not in columns}
    return {**rest, **{ours: row[name] for ours, name in mapping.items() if name in row}}


def messages_of(row: Row) -> list[dict[str, str]]:
    """Return the messages of `prompt` or `messages`, after `system` where there is one."""
    for name in ("prompt", *_SYNONYMS["prompt"], "messages", *_SYNONYMS["messages"]):
        if row.get(name) is not None:
            break
    else:
        raise FieldError("prompt", f"is missing; map one of {', '.join(sorted(row))} to it")
    value = row[name]
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = _chat_in_json(value)
    chat = fields.prompt(value, name)
    system = fields.optional_text(row.get("system"), "system").strip()
    if system and chat[0]["role"] != "system":
        chat = [{"role": "system", "content": system}, *chat]
    return chat


def _chat_in_json(value: str) -> Any:
    """A chat that a table holds as JSON; any other text stays as it is."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        # No JSON, or a number of more digits than Python reads.
        return value
    is_chat = (
        isinstance(document, list) and document and all(isinstance(m, dict) and "role" in m for m in document)
    )
    return document if is_chat else value


def answers_of(row: Row) -> list[tuple[str, Any]]:
    """The answers with the names of their columns: `answer_1`, …, or what looks like them.

    A table may have columns for more answers than a row has. One that is empty before the last, or that
    leaves a pair with one answer, stays, and is told: the numbers after it must not move.
    """
    mapping = guess(list(row))
    answers = []
    for number in range(1, MOST_ANSWERS + 1):
        ours = f"answer_{number}"
        name = ours if ours in row else mapping.get(ours)
        if name is None:
            break
        answers.append((name, row.get(name)))
    while len(answers) > 2 and answers[-1][1] in (None, ""):
        answers.pop()
    return answers


def _table(row: Row) -> Iterator[ImportedItem]:
    answers = answers_of(row)
    completions = tuple(
        ImportedCompletion(
            text=fields.answer(value, name),
            source=fields.optional_text(row.get(f"source_{number}"), f"source_{number}"),
        )
        for number, (name, value) in enumerate(answers, start=1)
    )
    names = [name for name, _ in answers]
    yield ImportedItem(
        messages=messages_of(row),
        context=_context(row),
        references=[reference]
        if (reference := fields.optional_text(row.get("reference"), "reference").strip())
        else [],
        completions=completions,
        judgments=tuple(_judgments(row, names)),
    )


def _context(row: Row) -> list[dict[str, Any]]:
    value = row.get("context")
    texts = value if isinstance(value, list) else [value]
    return [
        {"title": "", "sentences": [fields.text(text, "context")]} for text in texts if text not in (None, "")
    ]


def _judgments(row: Row, names: list[str]) -> Iterator[ImportedJudgment]:
    ranked = [row.get(f"rank_{number}") for number in range(1, len(names) + 1)]
    strength = row.get("strength")
    winner = row.get("winner")
    if any(rank not in (None, "") for rank in ranked):
        ranks = dense([fields.whole_number(_number(rank), "rank") for rank in ranked])
        verdict = verdict_of(ranks)
    elif winner in (None, "") or not names:
        return
    else:
        verdict, ranks = _winner(winner, names)
    yield ImportedJudgment(
        verdict=verdict,
        ranks=ranks,
        annotator=str(row.get("annotator") or ""),
        strength=None if strength in (None, "") else fields.whole_number(_number(strength), "strength"),
        comment=fields.optional_text(row.get("comment"), "comment"),
    )


def _number(value: Any) -> Any:
    """A number that a CSV holds as a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _winner(winner: Any, names: list[str]) -> tuple[Verdict, tuple[int, ...]]:
    without = no_winner(winner)
    if without == Verdict.CANNOT_JUDGE:
        return without, ()
    if without is not None:
        return without, (1,) * len(names)
    place = _place(winner, names)
    if place is None:
        raise FieldError(
            "winner",
            f"{str(winner)[:40]!r} is none of the answers {', '.join(names)}, no number up to {len(names)}",
        )
    return Verdict.RANKED, tuple(1 if number == place else 2 for number in range(len(names)))


def _place(winner: Any, names: list[str]) -> int | None:
    word = str(winner).strip().lower()
    for number, name in enumerate(names):
        mark = re.split(r"[_ -]", name)[-1].lower()
        letter = "abcdefghijklmnopqrstuvwxyz"[number]
        known = {
            *(name.lower(), mark, str(number + 1), letter, f"answer_{number + 1}", f"answer_{letter}"),
            *(f"response_{letter}", f"response_{number + 1}", f"model_{letter}", f"{number + 1}.0"),
        }
        if word in known or (len(names) == 2 and word == ("left", "right")[number]):
            return number
    return None


READERS = (
    Reader(
        name="table",
        sentence="Any table with a prompt and answers; its columns are guessed and can be corrected.",
        read=_table,
        matches=lambda row: True,
    ),
)
