"""Steps of generated text: by the headings of a trace, else by paragraphs, else by sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.choices import TraceStepKind
from annotation.text.traces import UnwrittenStep, written
from training.contract import ContractError
from training.contract.methods.reward import SegmentHead
from training.contract.segmentation import steps


def quotes(text: str) -> list[str]:
    return [text[start:end] for start, end in steps(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\n ", []),
        ("One. Two!", ["One.", "Two!"]),
        ("1 + 1 = 2\n2 + 1 = 3\n", ["1 + 1 = 2", "2 + 1 = 3"]),
        ("First. It is so.\n\n  Then: two.\n \nLast 🍵.", ["First. It is so.", "Then: two.", "Last 🍵."]),
        # An empty line in a block of code ends nothing.
        ("Run:\n```\na\n\nb\n```\n\nDone.", ["Run:\n```\na\n\nb\n```", "Done."]),
        ("See [tool call x] here.", ["See [tool call x] here."]),
        ("Go on.\n\n[tool call x]\n{}", ["Go on.", "[tool call x]\n{}"]),
        ("[user]\nHi\n\n[assistant]", ["[assistant]"]),
    ],
)
def test_a_text_is_cut_as_a_person_would_read_it(text: str, expected: list[str]):
    assert quotes(text) == expected


KINDS = st.sampled_from(
    [
        *(
            (TraceStepKind.MESSAGE, "assistant"),
            (TraceStepKind.MESSAGE, "user"),
            (TraceStepKind.REASONING, "assistant"),
        ),
        *((TraceStepKind.TOOL_CALL, "assistant"), (TraceStepKind.TOOL_RESULT, "tool")),
    ]
)
CONTENT = st.lists(st.sampled_from(["tea", " ", "\n", "\n\n", "é", "🍵", "{", "[x]"]), max_size=6).map(
    lambda parts: "".join(parts).strip()
)


@given(st.lists(st.tuples(KINDS, CONTENT, st.booleans()), min_size=1, max_size=6))
def test_the_steps_of_an_imported_trace_are_those_that_its_text_is_cut_into(
    drawn: list[tuple[tuple[TraceStepKind, str], str, bool]],
):
    text, placed = written(
        UnwrittenStep(
            kind=kind, role=role, content=content, tool="search" if "tool" in kind else "", is_error=failed
        )
        for (kind, role), content, failed in drawn
    )
    agents = [
        (step.start, step.end)
        for step in placed
        if step.kind != TraceStepKind.TOOL_RESULT and step.role == "assistant"
    ]
    assert steps(text) == agents


def test_a_head_on_steps_learns_their_labels_alone():
    SegmentHead(name="process", categories=("unnecessary", "wrong"), granularity="steps")
    with pytest.raises(ContractError, match="categories: steps are labelled wrong or unnecessary, not vague"):
        SegmentHead(name="process", categories=("wrong", "vague"), granularity="steps")
