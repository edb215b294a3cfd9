"""Every reader says what each column that it reads is read as: nothing is read or dropped in secret."""

from typing import Any

import pytest

from annotation.exchange.formats.registry import READERS, WRITERS
from tests.annotation.exchange.formats import test_exports_of_tools as tools
from tests.annotation.exchange.formats.reading import plan_rows, read_by
from tests.annotation.exchange.formats.test_trace_readers import ANSWER, ANTHROPIC, OPENAI, SENT, span

CHAT = [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes."}]
OTHER = [CHAT[0], {"role": "assistant", "content": "No."}]
ARENA = {
    "question_id": "q",
    "model_a": "alpha",
    "model_b": "beta",
    "winner": "model_a",
    "judge": "arena_user_1",
    "conversation_a": CHAT,
    "conversation_b": OTHER,
    "turn": 1,
    "anony": True,
    "language": "English",
    "tstamp": 1682351591.1,
    "openai_moderation": {"flagged": False},
    "toxic_chat_tag": {"roberta-large": {"flagged": False}},
}
MESSAGE = {
    "message_id": "1",
    "parent_id": None,
    "user_id": "u",
    "created_date": "2023-02-05T14:23:50Z",
    "text": "Tea?",
    "role": "prompter",
    "lang": "en",
    "review_count": 3,
    "review_result": True,
    "deleted": False,
    "synthetic": False,
    "model_name": None,
    "detoxify": {"toxicity": 0.1},
    "message_tree_id": "1",
    "tree_state": "ready_for_export",
    "emojis": {"name": ["+1"], "count": [1]},
    "labels": {"name": ["spam"], "value": [0.0], "count": [3]},
}
RONDO_CSV = {
    "judgment": "1",
    "answers": "1",
    "comparison": "2",
    "round": "1",
    "annotator": "ann",
    "machine": "False",
    "split": "train",
    "prompt": "3",
    "verdict": "cannot_judge",
    "strength": "",
    "seconds": "4",
    "created_at": "2024-03-01T09:00:00+00:00",
    "completion": "5",
    "source": "alpha",
    "position": "1",
    "letter": "A",
    "rank": "",
    "rating_clear_five": "4",
    "question": "Tea?",
    "text": "Yes.",
    "comment": "",
    "metadata": '{"domain": "drinks"}',
}
TEXT = {"start": 0, "end": 3, "text": "Yes", "labels": ["vague"]}
SAMPLES: dict[str, dict[str, Any]] = {
    "csv": RONDO_CSV,
    "jsonl": {
        "judgment": "1",
        "messages": CHAT[:1],
        "completions": [{"id": "1", "text": "Yes."}],
        "verdict": "not_asked",
        "display_order": ["1"],
        "metadata": {"domain": "drinks"},
        "imported_from": None,
        "prompt": "4",
    },
    "ultrafeedback": {
        "source": "evol",
        "instruction": "Tea?",
        "models": ["alpha"],
        "completions": [{"model": "alpha", "response": "Yes.", "critique": "Fine.", "overall_score": 7}],
        "correct_answers": ["None"],
        "incorrect_answers": ["None"],
    },
    "chatbot-arena": ARENA,
    "chatbot-arena-55k": {
        "id": 1,
        "model_a": "alpha",
        "model_b": "beta",
        "prompt": '["Tea?"]',
        "response_a": '["Yes."]',
        "response_b": '["No."]',
        "winner_model_a": 1,
        "winner_model_b": 0,
        "winner_tie": 0,
    },
    "openassistant": MESSAGE,
    "open-webui": tools.feedback(1),
    "promptfoo": tools.result("alpha", "4", human=True, comment="Fine."),
    "summarize-from-feedback": tools.summaries(1),
    "potato": tools.potato({"preference": {"selection": "A"}}),
    "langfuse": tools.trace(1, tools.score("quality", 4)),
    "langsmith": {"inputs": {"question": "Tea?"}, "outputs": {"answer": "Yes."}, "metadata": {"split": "a"}},
    "phoenix": {
        "context.span_id": "s",
        "attributes.input.value": "Tea?",
        "attributes.input.mime_type": "text/plain",
        "attributes.output.value": "Yes.",
        "annotations": [{"name": "good", "result": {"label": "good"}}],
    },
    "label-studio": {
        "id": 1,
        "data": {"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No.", "model_a": "alpha"},
        "meta": {"batch": 2},
        "annotations": [
            {
                "id": 4,
                "completed_by": {"id": 3, "email": "kim@example.org"},
                "was_cancelled": False,
                "ground_truth": True,
                "created_at": "2024-03-01T09:00:00Z",
                "updated_at": "2024-03-02T09:00:00Z",
                "lead_time": 3.2,
                "result": [{"type": "labels", "from_name": "m", "to_name": "answer_1", "value": TEXT}],
            }
        ],
        "predictions": [{"result": [], "score": 0.9}],
        "drafts": [],
        "inner_id": 1,
        "total_annotations": 1,
        "created_at": "2024-03-01T08:00:00Z",
        "file_upload": "x.json",
    },
    "argilla": {
        "id": "r",
        "_server_id": "s",
        "status": "completed",
        "fields": {"prompt": "Tea?", "answer_1": "Yes.", "answer_2": "No."},
        "metadata": {"domain": "drinks"},
        "suggestions": {"better": {"value": "answer_1", "score": 0.9, "agent": "m"}},
        "responses": {"better": [{"value": "answer_2", "user_id": "u", "status": "submitted"}]},
        "vectors": {"v": [0.1]},
    },
    "openai-preference": {
        "input": {"messages": CHAT[:1], "tools": [], "parallel_tool_calls": True},
        "preferred_output": CHAT[1:],
        "non_preferred_output": OTHER[1:],
    },
    "openai-messages": {"messages": CHAT},
    "openai_traces": OPENAI,
    "anthropic_traces": ANTHROPIC,
    "otel_traces": {
        **span(1, input__messages=SENT, output__messages=[ANSWER], request__model="alpha"),
        "name": "chat alpha",
        "kind": 3,
        "endTimeUnixNano": "2",
        "status": {},
    },
    "prompts": {"prompt": "Tea?", "tags": ["x"], "reference": "A drink."},
    "table": {"question": "Tea?", "response_a": "Yes.", "response_b": "No.", "winner": "a", "domain": "x"},
    "trl-preference": {"prompt": "Tea?", "chosen": "Yes.", "rejected": "No.", "score_chosen": 0.4},
    "trl-unpaired": {"prompt": "Tea?", "completion": "Yes.", "label": True},
    "trl-prompt-completion": {"prompt": "Tea?", "completion": "Yes."},
    "trl-prompt": {"prompt": "Tea?"},
    "trl-stepwise": {"prompt": "Tea?", "completions": ["Yes.", "So."], "labels": [True, False]},
    "hh-rlhf": {
        "chosen": "\n\nHuman: Tea?\n\nAssistant: Yes.",
        "rejected": "\n\nHuman: Tea?\n\nAssistant: No.",
    },
    "qa-feedback": {
        "question": "Tea?",
        "passages": [["Tea", "A drink."]],
        "gold": "",
        **{f"prediction {number}": f"Text {number}." for number in (1, 2, 3, 4)},
        "feedback": {"errors": [], "missing-info": [], "corrected-prediction": "Text 1."},
        "preference": [0, 0, 0, 0, 0, 0],
    },
}


class Recorder(dict[str, Any]):
    """A row that remembers which of its columns are asked for."""

    def __init__(self, values: dict[str, Any], asked: set[str]) -> None:
        super().__init__(values)
        self.asked = asked

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def test_there_is_a_sample_of_every_reader():
    assert SAMPLES.keys() == READERS.keys()


def test_every_format_says_what_it_carries_and_every_export_of_a_tool_what_is_lost():
    assert [name for name, writer in WRITERS.items() if not writer.carries or not writer.loses] == []
    tools_of_others = {"label-studio", "argilla", "potato", "open-webui", "langfuse", "langsmith", "phoenix"}
    assert [name for name in sorted(tools_of_others | {"promptfoo"}) if not READERS[name].loses] == []


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_reader_reads_no_column_that_it_does_not_declare(name: str):
    reader = READERS[name]
    plan = plan_rows([SAMPLES[name]])
    assert plan.reader.name == name
    values, _metadata = plan.prepare(SAMPLES[name])
    asked: set[str] = set()
    rows = iter([(1, Recorder(dict(values), asked))])
    for _, row in reader.group(rows) if reader.group else rows:
        list(reader.read(row))
    hidden = {column for column in asked if column.startswith("\x00")}
    unsaid = {
        column
        for column in asked - hidden
        if not reader.reading_of(column) and not reader.ignoring(column) and column != reader.inner
    }
    # `rows` and `spans` are put together from several rows of a file.
    assert unsaid - {"rows", "spans", "apart"} == set()


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_nothing_of_a_file_as_its_tool_writes_it_must_be_asked_about(name: str):
    plan = plan_rows([SAMPLES[name]])
    assert [column.line for column in plan.questions] == []
    names = {column.name for column in plan.account}
    assert {column for column in SAMPLES[name] if column != plan.reader.inner} <= names


def test_what_is_kept_as_metadata_is_kept_also_where_rows_are_read_together():
    for name, column in (("openassistant", "tree_state"), ("csv", "owner"), ("otel_traces", "owner")):
        row = {**SAMPLES[name], column: "kim"}
        plan = plan_rows([row])
        assert column in plan.metadata
        (item,) = read_by([row], plan)
        assert item.metadata[column] == "kim", name
