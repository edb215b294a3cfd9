"""Agent traces come in: OpenAI messages, Anthropic messages, OpenTelemetry spans."""

import json
from pathlib import Path
from typing import Any

import pytest

from annotation.errors import ImportErrors
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import ImportedCompletion, ImportedItem
from annotation.exchange.formats.registry import READERS
from annotation.exchange.records import records
from annotation.models import Comparison, Completion, Project, TraceStep, User
from annotation.selectors.access import judgments_current
from tests import factories
from tests.annotation.exchange.formats.reading import read_file
from tests.annotation.traces.test_step_labels import label_steps
from tests.refusals import refused

ASKED = {"role": "user", "content": "What is tea?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "tea"}'}}
OPENAI: dict[str, Any] = {
    "model": "agent-7",
    "tools": [
        {"type": "function", "function": {"name": "search", "description": "Search.", "parameters": {}}}
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "A drink."},
        {"role": "assistant", "content": "A drink."},
    ],
}
ANTHROPIC: dict[str, Any] = {
    "source": "agent-7",
    "system": [{"type": "text", "text": "Be brief."}],
    "tools": [{"name": "search", "description": "Search.", "input_schema": {}}],
    "messages": [
        ASKED,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "tea"}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "A drink."}],
                }
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "A drink."}]},
    ],
}
PROMPT = [{"role": "system", "content": "Be brief.\n\nTools:\n- search: Search."}, ASKED]
TEXT = '[tool call search]\n{\n  "q": "tea"\n}\n\n[tool result search]\nA drink.\n\n[assistant]\nA drink.'


def part(kind: str, **values: Any) -> dict[str, Any]:
    return {"type": kind, **values}


SENT = [{"role": "user", "parts": [part("text", content="What is tea?")]}]
ACTED = {"role": "assistant", "parts": [part("tool_call", id="c1", name="search", arguments={"q": "tea"})]}
RESULT = {"role": "tool", "parts": [part("tool_call_response", id="c1", response="A drink.")]}
ANSWER = {"role": "assistant", "parts": [part("text", content="A drink.")], "finish_reason": "stop"}


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def span(start: int, *, trace: str = "t1", **values: Any) -> dict[str, Any]:
    """A span in OTLP; the names of its attributes are written with __ for a dot, and without gen_ai."""
    named = {f"gen_ai.{name.replace('__', '.')}": value for name, value in values.items()}
    listed = [attribute(name, value) for name, value in named.items()]
    return {"traceId": trace, "spanId": str(start), "startTimeUnixNano": str(start), "attributes": listed}


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}]}


def request(start: int, sent: list[Any], received: list[Any], **more: Any) -> dict[str, Any]:
    return span(
        start,
        operation__name="chat",
        request__model="agent-7",
        input__messages=sent,
        output__messages=received,
        **more,
    )


def read(*rows: dict[str, Any], format_name: str) -> list[ImportedItem]:
    """The items of rows, which must be taken for that format unasked."""
    return read_file(list(rows), format_name)


def shape(completion: ImportedCompletion) -> list[tuple[str, str, str]]:
    return [(str(s.kind), s.role, completion.text[s.body : s.end]) for s in completion.steps]


@pytest.mark.parametrize(
    ("row", "format_name"),
    [(OPENAI, "openai_traces"), (ANTHROPIC, "anthropic_traces")],
    ids=["openai", "anthropic"],
)
def test_a_trace_of_either_vendor_is_the_same_prompt_and_the_same_text(row: dict[str, Any], format_name: str):
    (item,) = read(row, format_name=format_name)
    assert item.messages == PROMPT
    (completion,) = item.completions
    assert (completion.text, completion.source) == (TEXT, "agent-7")
    assert [(s.kind, s.tool, s.call, s.arguments) for s in completion.steps] == [
        ("tool_call", "search", "c1", {"q": "tea"}),
        ("tool_result", "search", "c1", None),
        ("message", "", "", None),
    ]
    assert item.judgments == ()


def test_thinking_is_reasoning_and_a_failed_tool_and_an_image_are_told():
    messages = [
        ASKED,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I look.", "signature": "x"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "is_error": True, "content": "No."},
                {"type": "image", "source": {"data": "…"}},
            ],
        },
    ]
    (item,) = read({"messages": messages}, format_name="anthropic_traces")
    (completion,) = item.completions
    assert shape(completion) == [
        ("reasoning", "assistant", "I look."),
        ("tool_call", "assistant", "{}"),
        ("tool_result", "tool", "No."),
        ("message", "user", "(image, not imported)"),
    ]
    assert completion.steps[2].is_error
    assert "[tool error look]" in completion.text


def test_arguments_that_are_no_json_stay_as_they_were_sent():
    broken = {"id": "c1", "function": {"name": "search", "arguments": '{"q": "te'}}
    half = {"id": "c2", "function": {"name": "search", "arguments": '{"q": "\\ud83c"}'}}
    row = {"messages": [ASKED, {"role": "assistant", "tool_calls": [broken, half]}]}
    (item,) = read(row, format_name="openai_traces")
    (completion,) = item.completions
    assert shape(completion) == [
        ("tool_call", "assistant", '{"q": "te'),
        ("tool_call", "assistant", '{"q": "\\ud83c"}'),
    ]
    assert [step.arguments for step in completion.steps] == [None, None]


def test_each_turn_of_a_session_without_tools_is_a_step_and_a_single_answer_is_a_plain_response():
    turns = [ASKED, *[{"role": role, "content": role} for role in ("assistant", "user", "assistant")]]
    # Of chats alone the last answer is a reference, unless the file is said to hold traces.
    reader = READERS["openai_traces"]
    rows: list[dict[str, Any]] = [{"messages": turns}, {"messages": turns[:2]}]
    session, single = [item for row in rows for item in reader.read(row)]
    assert session.messages == single.messages == [ASKED]
    assert [(s.kind, s.role) for s in session.completions[0].steps] == [
        ("message", "assistant"),
        ("message", "user"),
        ("message", "assistant"),
    ]
    assert single.completions == (ImportedCompletion(text="assistant"),)


def test_rows_with_the_same_comparison_are_compared_and_others_stand_alone():
    other = {**OPENAI, "messages": [*OPENAI["messages"][:2], {"role": "assistant", "content": "No idea."}]}
    rows: list[dict[str, Any]] = [
        {**OPENAI, "comparison": 1},
        {**other, "comparison": 1},
        OPENAI,
        {"traces": [other, OPENAI]},
    ]
    items = read(*rows, format_name="openai_traces")
    assert [len(item.completions) for item in items] == [2, 1, 2]
    assert [completion.text for completion in items[0].completions] == [TEXT, "No idea."]


@pytest.mark.parametrize(
    ("messages", "code", "field"),
    [
        ([{"role": "assistant", "content": "Hi"}], "user_missing", "messages"),
        (
            [ASKED, {"role": "robot", "content": "Hi"}],
            "value_unknown",
            "messages[1].role",
        ),
        ([ASKED, {"role": "tool", "content": "x"}], "step_missing", "messages"),
        (
            [ASKED, {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
            "field_missing",
            "messages[1].tool_calls[0].name",
        ),
        (
            [ASKED, {"role": "assistant", "content": [{"type": "hologram"}]}],
            "value_unknown",
            "messages[1].content[0].type",
        ),
        (
            [ASKED, {"role": "user", "tool_calls": [CALL]}, ASKED],
            "tool_called",
            "messages[1].tool_calls[0]",
        ),
    ],
)
def test_a_trace_that_cannot_stand_is_refused_with_its_field(messages: Any, code: str, field: str):
    with refused(code, FieldError, field=field):
        list(READERS["openai_traces"].read({"messages": messages}))


def test_a_trace_that_is_read_as_a_chat_is_refused_with_the_format_that_reads_it():
    with refused("tool_called", FieldError, field="messages[2]") as refusal:
        list(READERS["openai-messages"].read(OPENAI))
    assert "openai_traces" in refusal.value.message


def test_traces_of_two_prompts_are_not_compared():
    other = {**OPENAI, "messages": OPENAI["messages"][1:]}
    with refused("prompts_differ", FieldError, field="traces[1]"):
        read({"traces": [OPENAI, other]}, format_name="openai_traces")


REQUESTS = [request(1, SENT, [ACTED]), request(3, [*SENT, ACTED, RESULT], [ANSWER])]
TOOL = span(
    2, operation__name="execute_tool", tool__name="search", tool__call__id="c1", tool__call__result="A drink."
)
DELTA = [
    request(1, SENT, [ACTED], conversation__id="s"),
    request(3, [RESULT], [ANSWER], conversation__id="s"),
]
AGENT = [
    span(
        0,
        operation__name="invoke_agent",
        agent__name="agent-7",
        input__messages=SENT,
        output__messages=[ANSWER],
    ),
    span(
        2,
        operation__name="execute_tool",
        tool__name="search",
        tool__call__id="c1",
        tool__call__arguments={"q": "tea"},
        tool__call__result="A drink.",
    ),
]


def event(name: str, **values: Any) -> dict[str, Any]:
    return {"name": f"gen_ai.{name}", "attributes": [attribute(key, value) for key, value in values.items()]}


EVENTS = [
    {
        **span(1, operation__name="chat", request__model="agent-7"),
        "events": [
            event("user.message", content="What is tea?"),
            event("assistant.message", tool_calls=[CALL]),
            event("tool.message", id="c1", content="A drink."),
            event("choice", index="0", message={"role": "assistant", "content": "A drink."}),
        ],
    }
]


@pytest.mark.parametrize(
    "rows",
    [
        [export(*REQUESTS)],
        [export(REQUESTS[1]), export(REQUESTS[0])],
        REQUESTS,
        [export(*DELTA)],
        [export(REQUESTS[0], TOOL, request(3, [*SENT, ACTED], [ANSWER]))],
        [export(*AGENT)],
        [export(*EVENTS)],
    ],
    ids=[
        "export",
        "out of order",
        "spans",
        "deltas",
        "result of the tool's span",
        "agent",
        "events to v1.36",
    ],
)
def test_spans_of_one_trace_are_put_together(rows: list[dict[str, Any]]):
    (item,) = read(*rows, format_name="otel_traces")
    assert item.messages == [ASKED]
    (completion,) = item.completions
    assert (completion.text, completion.source) == (TEXT, "agent-7")


def test_a_sub_agent_is_a_trace_of_its_own_and_reasoning_stays_where_no_request_repeats_it():
    thought = {**ACTED, "parts": [part("reasoning", content="I look."), *ACTED["parts"]]}
    sub = [{"role": "user", "parts": [part("text", content="Look up tea.")]}]
    rows = [export(request(1, SENT, [thought]), request(2, sub, [ANSWER]), REQUESTS[1])]
    main, second = read(*rows, format_name="otel_traces")
    assert [kind for kind, _, _ in shape(main.completions[0])] == [
        "reasoning",
        "tool_call",
        "tool_result",
        "message",
    ]
    assert second.messages == [{"role": "user", "content": "Look up tea."}]
    assert second.completions[0].text == "A drink."


def test_traces_with_the_same_rondo_comparison_are_compared():
    other = span(
        5,
        trace="t2",
        input__messages=SENT,
        output__messages=[{**ANSWER, "parts": [part("text", content="No.")]}],
    )
    other["attributes"].append(attribute("rondo.comparison", "x"))
    first = {**REQUESTS[1], "attributes": [*REQUESTS[1]["attributes"], attribute("rondo.comparison", "x")]}
    (item,) = read(export(REQUESTS[0], first), export(other), format_name="otel_traces")
    assert [completion.text for completion in item.completions] == [TEXT, "No."]


FIRST_SPAN = "resourceSpans[0].scopeSpans[0].spans[0]"


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        (export(span(1, operation__name="chat")), "messages_missing", "attributes"),
        (export(span(1, input__messages='[{"role": "us')), "not_json", f"{FIRST_SPAN}.gen_ai.input.messages"),
        (export({"spanId": "1"}), "field_missing", f"{FIRST_SPAN}.traceId"),
    ],
)
def test_spans_that_say_nothing_are_refused_with_their_field(row: dict[str, Any], code: str, field: str):
    with refused(code, FieldError, field=field):
        read(row, format_name="otel_traces")


def write_lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.django_db
def test_a_file_of_traces_comes_in_once_and_its_steps_are_stored(tmp_path: Path, project: Project):
    other = {**OPENAI, "messages": [*OPENAI["messages"][:-1], {"role": "assistant", "content": "Leaves."}]}
    file = write_lines(tmp_path / "traces.jsonl", OPENAI, {"traces": [OPENAI, other]})
    for _ in range(2):
        import_file(project=project, path=file)
    assert sorted(Comparison.objects.values_list("size", flat=True)) == [1, 2]
    assert Completion.objects.count() == 2
    trace = Completion.objects.get(text=TEXT)
    assert trace.step_count == trace.steps.count() == 3
    assert TraceStep.objects.filter(tool="search", arguments__q="tea").count() == 2


@pytest.mark.django_db
def test_a_bad_row_is_named_with_its_field(tmp_path: Path, project: Project):
    bad = {"messages": [ASKED, {"role": "assistant", "content": [{"type": "hologram"}]}]}
    file = write_lines(tmp_path / "traces.jsonl", OPENAI, bad)
    with pytest.raises(ImportErrors, match=r"row 2, field messages\[1\].content\[0\].type: \"hologram\""):
        import_file(project=project, path=file)
    assert not Completion.objects.exists()


@pytest.mark.django_db
def test_steps_and_labels_go_out_and_come_in_again(tmp_path: Path, project: Project, alice: User):
    label_steps(project, alice)
    (record,) = records(judgments_current(project, [1]))
    file = write_lines(tmp_path / "out.jsonl", record)
    other = factories.make_project(slug="other")
    import_file(project=other, path=file)
    (again,) = records(judgments_current(other, [1]))
    ids = {old["id"]: new["id"] for old, new in zip(record["completions"], again["completions"], strict=True)}
    assert [completion["steps"] for completion in again["completions"]] == [
        completion["steps"] for completion in record["completions"]
    ]
    moved = [{**label, "completion": ids[label["completion"]]} for label in record["step_labels"]]
    assert again["step_labels"] == moved
    assert [label["label"] for label in moved] == ["correct", "wrong"]
