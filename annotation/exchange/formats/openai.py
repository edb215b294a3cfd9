"""OpenAI's rows for fine-tuning: in and out.

From https://platform.openai.com/docs/guides/supervised-fine-tuning and …/direct-preference-optimization:

- `openai-messages`, `{"messages": […]}` that end with the assistant's answer to imitate. Out, earlier
  answers have `weight` 0: each of them has a row of its own, so the last turn alone is trained on. In, the
  last answer is the reference of the prompt before it, because nobody compared it with another. A row that
  ends with the user's message is a prompt alone.
- `openai-preference`: `input.messages` with `preferred_output` and `non_preferred_output`, one assistant
  message each.

`developer`, the newer name of the system message, is read as `system`. A row with tool calls is refused:
`openai_traces` reads those.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import chats, fields
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedItem, Part, Reader, Row
from annotation.exchange.formats.trl import preference, preference_rows, sft_rows
from annotation.exchange.formats.writers import Dropped, Record, Scene, Writer, Written

_BESIDE_MESSAGES = {"messages", "tools", "functions", "parallel_tool_calls", "metadata"}
_PAIR = ("preferred_output", "non_preferred_output")


def _messages(row: Row) -> Iterator[ImportedItem]:
    chat = _chat(fields.required(row, "messages"), "messages")
    if chat[-1]["role"] != "assistant":
        yield ImportedItem(messages=fields.prompt(chat, "messages"))
    elif len(chat) == 1:
        raise FieldError(
            "prompt_missing",
            _("There is only an answer. Write the message that it answers before it."),
            field="messages",
        )
    elif _is_not_to_learn(row):
        yield ImportedItem(messages=fields.prompt(chat[:-1], "messages"))
    else:
        yield ImportedItem(messages=fields.prompt(chat[:-1], "messages"), references=[chat[-1]["content"]])


def _is_not_to_learn(row: Row) -> bool:
    """True where the last answer has the weight 0: it is not to be imitated."""
    listed = row.get("messages")
    last = listed[-1] if isinstance(listed, list) and listed else None
    return isinstance(last, Mapping) and last.get("weight") in (0, "0")


def _survey(row: Row) -> Iterator[Part]:
    if _is_not_to_learn(row):
        yield Part("messages[].weight", 0, "not_read", "an answer with the weight 0 is no reference")


def _preference(row: Row) -> Iterator[ImportedItem]:
    request = fields.object_of(fields.required(row, "input"), "input")
    messages = fields.prompt(_chat(request.get("messages"), "input.messages"), "input.messages")
    chosen, rejected = (fields.answer(_chat(fields.required(row, name), name), name) for name in _PAIR)
    item = preference(
        {"annotator": row.get("annotator"), "created_at": row.get("created_at")}, messages, chosen, rejected
    )
    yield replace(item, metadata={name: value for name, value in request.items() if name != "messages"})


def _chat(value: Any, where: str) -> list[dict[str, str]]:
    listed = fields.items_of(value, where)
    for number, message in enumerate(listed):
        if isinstance(message, Mapping) and (
            message.get("tool_calls") or message.get("role") in ("tool", "function")
        ):
            raise FieldError(
                "tool_called",
                _("The message calls a tool. Choose the format openai_traces."),
                field=f"{where}[{number}]",
            )
    renamed = [
        {**turn, "role": "system"} if isinstance(turn, dict) and turn.get("role") == "developer" else turn
        for turn in listed
    ]
    return fields.messages(renamed, where)


def _message_rows(record: Record, scene: Scene) -> Written:
    for row in sft_rows(record, scene):
        if isinstance(row, Dropped):
            yield row
        else:
            yield {"messages": [*(_unweighted(message) for message in row["prompt"]), *row["completion"]]}


def _unweighted(message: Mapping[str, str]) -> dict[str, Any]:
    return {**message, "weight": 0} if message["role"] == "assistant" else dict(message)


def _preference_rows(record: Record, scene: Scene) -> Written:
    for row in preference_rows(record, scene):
        if isinstance(row, Dropped):
            yield row
        else:
            yield {
                "input": {"messages": row["prompt"]},
                "preferred_output": row["chosen"],
                "non_preferred_output": row["rejected"],
            }


READERS = (
    Reader(
        name="openai-preference",
        sentence="OpenAI's preference fine-tuning: input, preferred_output, non_preferred_output.",
        read=_preference,
        matches=lambda row: {"input", *_PAIR} <= row.keys(),
        reads={
            "input": "the prompt",
            "preferred_output": "the better response",
            "non_preferred_output": "the other response",
            "annotator": "the annotator",
            "created_at": "the time of the annotation",
        },
        completion_fields=_PAIR,
    ),
    Reader(
        name="openai-messages",
        sentence="OpenAI's chats: messages whose last answer becomes the prompt's reference.",
        read=_messages,
        matches=lambda row: row.keys() <= _BESIDE_MESSAGES and chats.is_plain(row.get("messages")),
        reads={"messages": "the prompt, and its last answer as a reference"},
        survey=_survey,
    ),
)
WRITERS = (
    Writer(
        name="openai-messages",
        sentence="OpenAI's chats: demonstrations and corrections, else the preferred answers.",
        container="jsonl",
        rows=_message_rows,
        carries="demonstrations, corrections, preferred responses; read back, a response is a reference",
        loses="everything else",
    ),
    Writer(
        name="openai-preference",
        sentence="OpenAI's preference fine-tuning: input, preferred_output, non_preferred_output.",
        container="jsonl",
        rows=_preference_rows,
        carries="decided pairs",
        loses="ties, preferences without a winner, strength",
    ),
)
