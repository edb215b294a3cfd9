"""Whatever a file holds, it gives a preview and items or a refusal in words, never another exception."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from annotation.errors import Refusal
from annotation.exchange.file_imports import items_of, plan_of
from annotation.exchange.formats import columns, registry
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.plans import Plan
from annotation.exchange.formats.registry import READERS
from annotation.exchange.formats.rows import read_rows
from annotation.exchange.uploads import preview_values

NAMES = sorted(
    {
        *columns.TARGETS,
        *(
            "question",
            "data",
            "annotations",
            "fields",
            "responses",
            "result",
            "value",
            "type",
            "conversation_a",
        ),
        *(
            "conversation_b",
            "winner_tie",
            "response_a",
            "response_b",
            "instruction",
            "message_tree_id",
            "role",
        ),
        *("replies", "rank", "labels", "from_name", "to_name", "preference.responses", "completed_by"),
        *("preference.responses.users", "judgment", "position", "text", "ranks", "verdict", "content"),
        *("label_annotations", "span_annotations", "displayed_text", "selection", "scale_value", "best"),
        *("snapshot", "meta", "rating", "history", "scores", "name", "runs", "feedback", "inputs", "outputs"),
        *("results", "response", "gradingResult", "componentResults", "testIdx", "promptIdx", "provider"),
        *("info", "summaries", "summary", "axes", "choice", "trace", "input", "output", "expectedOutput"),
        *("attributes", "attributes.input.value", "attributes.output.value", "answers", "choices"),
        *("spans", "start", "end", "category", "ratings", "seed", "id", "missing", "evidence", "message_id"),
    }
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["model_a", "tie", "assistant", "user", "prompter", "pairwise", "labels", "[1]", "1e400"]
    ),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)
ROW = st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=6)
FAST = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
SHAPES: dict[str, dict[str, Callable[[Any], Any]]] = {
    "label-studio": {"data": lambda v: {"prompt": "Tea?", "answer_1": "A", "answer_2": "B"}},
    "argilla": {"fields": lambda v: {"prompt": "Tea?", "answer_1": "A", "answer_2": "B"}},
    "potato": {
        "prompt": lambda v: "Tea?",
        "responses": lambda v: ["A", "B"],
        "label_annotations": lambda v: {"better": v},
    },
    "open-webui": {
        "data": lambda v: {"rating": 1, "sibling_model_ids": v},
        "meta": lambda v: {"message_id": "a"},
        "snapshot": lambda v: {"chat": {"history": {"messages": {"a": {"role": "assistant"}, "b": v}}}},
    },
    "langfuse": {
        "input": lambda v: v,
        "output": lambda v: "A",
        "scores": lambda v: [{"name": "ok", "value": v}],
    },
    "langsmith": {"inputs": lambda v: {"question": "Tea?"}, "runs": lambda v: [{"id": "1", "outputs": v}]},
    "phoenix": {
        "attributes": lambda v: {"input": {"value": "Tea?"}, "output": v},
        "annotations": lambda v: [{"name": "ok", "result": v}],
    },
    "promptfoo": {"results": lambda v: {"results": [{"prompt": {"raw": "Tea?"}, "response": v}]}},
    "summarize-from-feedback": {"info": lambda v: {"post": "Tea"}, "summaries": lambda v: [v, v]},
    "ultrafeedback": {"instruction": lambda v: "Tea?", "completions": lambda v: [v]},
}


def go_through(path: Path, name: str) -> None:
    """Preview and plan a file and read all its items, as an upload and its import do."""
    try:
        plan = plan_of(path, name=name, unpack=False)
        shown = preview_values(path, plan)
    except Refusal as refused:
        refusal = refused.message
    else:
        refusal = ""
    assert path.name not in refusal
    refusal.encode()
    if refusal:
        return
    json.dumps(shown, allow_nan=False, ensure_ascii=False).encode()
    assert "\\u0000" not in json.dumps(shown)
    errors: list[FieldError] = []
    list(items_of(read_rows(path, unpack=False), plan, lambda number, error: errors.append(error)))
    for error in errors:
        str(error).encode()


@FAST
@given(content=st.binary(max_size=400), kind=st.sampled_from([".csv", ".json", ".jsonl", ".tsv", ""]))
@example(content=b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", kind="")
@example(content=b'{"a": "\\ud800"}', kind=".jsonl")
@example(content=b'{"\\ud800": 1, "\\ud800": 1}', kind=".jsonl")
@example(content=b'{"a": 1e999}', kind=".json")
@example(content=b'[{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}]", kind=".json")
@example(content=b'{"prompt": "[' + b"1" * 6000 + b']", "answer_1": "a", "answer_2": "b"}', kind=".jsonl")
def test_any_bytes_give_a_preview_or_a_refusal(tmp_path: Path, content: bytes, kind: str):
    path = tmp_path / f"0f3a9d-stored{kind}"
    path.write_bytes(content)
    go_through(path, "votes")


@FAST
@given(row=ROW, pretty=st.booleans())
def test_any_json_with_names_that_formats_know_gives_items_or_errors(tmp_path: Path, row: Any, pretty: bool):
    path = tmp_path / "0f3a9d-stored.json"
    path.write_text(f"[{json.dumps(row)}]" if pretty else json.dumps(row))
    go_through(path, "votes")


@FAST
@given(row=ROW, text=st.text(max_size=20), name=st.sampled_from(sorted(READERS)))
def test_every_reader_takes_or_refuses_any_row(row: Any, text: str, name: str):
    row = {**row, **{key: shape(row.get(key, text)) for key, shape in SHAPES.get(name, {}).items()}}
    plan = Plan(reader=registry.READERS[name])
    errors: list[FieldError] = []
    read_items = items_of(iter([(1, row)]), plan, lambda number, error: errors.append(error))
    for _number, item in read_items:
        assert item.messages
    assert all(str(error).encode() for error in errors)


@FAST
@given(
    lines=st.lists(st.lists(st.text(max_size=8), min_size=1, max_size=4), min_size=1, max_size=4),
    separator=st.sampled_from([",", ";", "\t"]),
)
def test_any_table_gives_a_preview_or_a_refusal(tmp_path: Path, lines: list[list[str]], separator: str):
    path = tmp_path / "0f3a9d-stored.csv"
    path.write_bytes("\n".join(separator.join(cells) for cells in lines).encode("utf-8", "surrogatepass"))
    go_through(path, "votes")


@pytest.mark.parametrize(
    "content", [b"PAR1", b"ARROW1\x00\x00", b"\xff\xff\xff\xff\x10", b"\x1f\x8b\x08\x00more"]
)
def test_a_cut_file_of_a_known_container_is_refused_in_words(tmp_path: Path, content: bytes):
    path = tmp_path / "votes"
    path.write_bytes(content)
    with pytest.raises(Refusal):
        list(read_rows(path))
