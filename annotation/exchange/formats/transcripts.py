"""HH-RLHF transcripts (Bai et al. 2022; https://github.com/anthropics/hh-rlhf): in and out.

`chosen` and `rejected` are texts `\\n\\nHuman: … \\n\\nAssistant: …` that share all but the last turn. A
handful of the published ones begin to differ earlier; those are refused, for no prompt is answered by both.

A transcript has no system turn and cannot escape a turn's mark inside a message. A pair with either is
dropped, with its reason. White space around a message belongs to the marks: it is neither written nor read.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import chats, fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, Reader, Row
from annotation.exchange.formats.tables import JUDGMENT_READS
from annotation.exchange.formats.trl import preference
from annotation.exchange.formats.writers import (
    Dropped,
    Record,
    Scene,
    Writer,
    Written,
    answer_messages,
    pairs,
)

_TURN = re.compile(r"\n\n(Human|Assistant): ?")
_ROLE = {"Human": "user", "Assistant": "assistant"}
_SPEAKER = {role: speaker for speaker, role in _ROLE.items()}


def transcript(value: Any, where: str) -> list[dict[str, str]]:
    """The turns of a transcript `\\n\\nHuman: … \\n\\nAssistant: …`; each text without its outer space."""
    parts = _TURN.split(fields.text(value, where))
    if parts[0].strip() or len(parts) < 3:
        raise FieldError(
            "transcript_invalid", _("The text does not begin with a turn '\\n\\nHuman: …'."), field=where
        )
    return [
        {"role": _ROLE[speaker], "content": text.strip()}
        for speaker, text in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _hh_rlhf(row: Row) -> Iterator[ImportedItem]:
    chosen = transcript(fields.required(row, "chosen"), "chosen")
    rejected = transcript(fields.required(row, "rejected"), "rejected")
    if chosen[:-1] != rejected[:-1]:
        raise FieldError(
            "questions_differ",
            _(
                "The text differs from chosen before the last turn, so the two do not answer the same "
                "question."
            ),
            field="rejected",
        )
    texts = []
    for where, turns in (("chosen", chosen), ("rejected", rejected)):
        if turns[-1]["role"] != "assistant":
            raise FieldError(
                "answer_missing", _("The text does not end with a turn of the assistant."), field=where
            )
        texts.append(fields.text(turns[-1]["content"], where))
    messages = [message for message in chosen[:-1] if message["content"]]
    prompt = chats.with_system(row.get("system"), fields.prompt(messages, "chosen"))
    yield preference(row, prompt, texts[0], texts[1])


def _spelled(chat: Sequence[dict[str, str]]) -> str | None:
    """The chat as a transcript; None where it would not be read as the same chat."""
    turns = [{**message, "content": message["content"].strip()} for message in chat]
    if not all(turn["content"] for turn in turns):
        return None
    text = "".join(f"\n\n{_SPEAKER[turn['role']]}: {turn['content']}" for turn in turns)
    return text if transcript(text, "messages") == turns else None


def _rows(record: Record, scene: Scene) -> Written:
    messages = record["messages"]
    if any(message["role"] not in _SPEAKER for message in messages):
        yield Dropped("a transcript has turns of Human and Assistant alone, no system message")
        return
    for pair in pairs(record):
        if isinstance(pair, Dropped):
            yield pair
            continue
        chosen, rejected = (
            _spelled([*messages, *answer_messages(completion["text"])]) for completion in pair
        )
        if chosen is None or rejected is None:
            yield Dropped("a message holds the mark of a turn, “Human:” or “Assistant:” after an empty line")
        elif chosen == rejected:
            yield Dropped("the two differ in the white space around them alone")
        else:
            yield {"chosen": chosen, "rejected": rejected}


READERS = (
    Reader(
        name="hh-rlhf",
        sentence="HH-RLHF transcripts: chosen and rejected as “Human: … Assistant: …”.",
        read=_hh_rlhf,
        matches=lambda row: (
            "prompt" not in row and isinstance(row.get("chosen"), str) and "\n\nHuman:" in row["chosen"]
        ),
        is_tabular=True,
        reads={
            **JUDGMENT_READS,
            "system": "the system message",
            "context": "a context passage",
            "reference": "a reference answer",
            "tag": "a tag of the prompt",
            "chosen": "the prompt and the better response",
            "rejected": "the prompt and the other response",
            "source_chosen": "the source of the better response",
            "source_rejected": "the source of the other response",
        },
        loses="white space around messages",
    ),
)
WRITERS = (
    Writer(
        name="hh-rlhf",
        sentence="HH-RLHF transcripts of decided pairs: chosen and rejected as “Human: … Assistant: …”.",
        container="jsonl",
        rows=_rows,
        carries="decided pairs",
        loses="system messages, messages that hold a turn's marker, white space around messages",
    ),
)
