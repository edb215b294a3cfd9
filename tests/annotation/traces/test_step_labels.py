"""Labels of the steps of a trace: stored with the judgment, refused by name, frozen into snapshots."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from django.conf import settings
from django.db import IntegrityError, transaction

from annotation.choices import TraceStepKind, Verdict
from annotation.errors import InvalidAnswer
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    Judgment,
    LabelledStep,
    Project,
    TraceStep,
    User,
)
from annotation.record.judgment import JudgmentRecord, StepLabelPart
from annotation.services.assignments.next import assign_next
from annotation.services.texts import create_comparison
from annotation.text.traces import UnwrittenStep, written
from tests import factories
from tests.annotation.judgments.answers import submit
from tests.records import judgment_record
from training.contract.snapshot import read_snapshot
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def traces(project: Project) -> list[Completion]:
    project.ask_step_labels = True
    project.save()
    prompt = factories.make_prompt(project, split="train")
    return [
        factories.make_trace(prompt, factories.search_steps()),
        factories.make_trace(prompt, factories.search_steps("Ten hours.", tool="guess")),
    ]


@pytest.fixture
def pair(traces: list[Completion]) -> Comparison:
    return create_comparison(prompt=traces[0].prompt, completions=traces, round_number=1)


@pytest.fixture
def assignment(pair: Comparison, project: Project, alice: User) -> Assignment:
    leased = assign_next(project=project, annotator=alice)
    assert leased is not None
    return leased


def prefer(traces: Sequence[Completion], *labels: tuple[Completion, int, str]) -> JudgmentRecord:
    return judgment_record(
        verdict=Verdict.RANKED,
        ranks={trace.pk: rank for rank, trace in enumerate(traces, start=1)},
        step_labels=tuple(
            StepLabelPart(completion=str(c.pk), step=step, label=label) for c, step, label in labels
        ),
    )


def label_steps(project: Project, annotator: User) -> Judgment:
    """A judgment of two traces that calls a step of the first correct, one of the second wrong."""
    project.ask_step_labels = True
    project.save()
    prompt = factories.make_prompt(project, split="train")
    traces = [
        factories.make_trace(prompt, factories.search_steps()),
        factories.make_trace(prompt, factories.search_steps("Ten hours.", tool="guess")),
    ]
    create_comparison(prompt=prompt, completions=traces, round_number=1)
    leased = assign_next(project=project, annotator=annotator)
    assert leased is not None
    return submit(leased, prefer(traces, (traces[0], 0, "correct"), (traces[1], 1, "wrong")))


def test_a_trace_is_one_text_in_which_every_step_has_its_place():
    text, placed = written(factories.search_steps())
    # By hand: headings in brackets, content below, a blank line between.
    assert text == (
        '[assistant]\nI look it up.\n\n[tool call search]\n{\n  "query": "tea"\n}\n\n'
        "[tool result search]\n80 °C 🍵\n\n[assistant]\nTwo minutes."
    )
    assert [text[step.body : step.end] for step in placed] == [
        "I look it up.",
        '{\n  "query": "tea"\n}',
        "80 °C 🍵",
        "Two minutes.",
    ]
    assert [text[step.start : step.body] for step in placed][1:3] == [
        "[tool call search]\n",
        "[tool result search]\n",
    ]
    assert text[placed[1].end : placed[2].start] == "\n\n"


def test_a_step_without_content_is_its_heading_alone():
    text, (step,) = written(
        [UnwrittenStep(kind=TraceStepKind.TOOL_RESULT, role="tool", tool="rm", is_error=True)]
    )
    assert (text, step.start, step.body, step.end) == ("[tool error rm]", 0, 15, 15)


def test_labels_are_stored_with_the_judgment_and_a_revision_has_its_own(
    assignment: Assignment, traces: list[Completion]
):
    first, second = traces
    judgment = submit(assignment, prefer(traces, (first, 0, "unnecessary"), (second, 1, "wrong")))
    of = "judgment", "step__completion", "step__index", "label"
    assert list(judgment.labelled_steps.values_list(*of)) == [
        (judgment.pk, first.pk, 0, "unnecessary"),
        (judgment.pk, second.pk, 1, "wrong"),
    ]
    revised = submit(assignment, prefer(traces, (second, 1, "correct")))
    assert [labelled.label for labelled in revised.labelled_steps.all()] == ["correct"]
    assert judgment.labelled_steps.count() == 2


@pytest.mark.parametrize(
    ("step", "label", "words"),
    [
        (2, "wrong", "Step 2 is not the agent's"),
        (4, "wrong", "of step 4; its response has 4, counted from 0"),
        (-1, "wrong", "of step -1"),
    ],
)
def test_a_label_that_cannot_stand_is_refused_and_nothing_is_written(
    step: int, label: str, words: str, assignment: Assignment, traces: list[Completion]
):
    with pytest.raises(InvalidAnswer, match=words) as refusal:
        submit(assignment, prefer(traces, (traces[0], step, label)))
    assert refusal.value.field == "step_labels"
    assert not Judgment.objects.exists()


def test_two_labels_of_one_step_and_labels_that_are_not_asked_are_refused(
    project: Project, assignment: Assignment, traces: list[Completion]
):
    twice = prefer(traces, (traces[0], 0, "wrong"), (traces[0], 0, "correct"))
    with pytest.raises(InvalidAnswer, match="there twice"):
        submit(assignment, twice)
    project.ask_step_labels = False
    project.save()
    assignment.comparison.project.refresh_from_db()
    with pytest.raises(InvalidAnswer, match="does not ask for labels of steps"):
        submit(assignment, prefer(traces, (traces[0], 0, "wrong")))


def test_the_database_holds_one_label_a_step_and_steps_in_order(
    assignment: Assignment, traces: list[Completion]
):
    judgment = submit(assignment, prefer(traces, (traces[0], 0, "wrong")))
    step = traces[0].steps.get(index=0)
    for row in (
        LabelledStep(judgment=judgment, step=step, label="correct"),
        LabelledStep(judgment=judgment, step=traces[0].steps.get(index=1), label="fine"),
        TraceStep(completion=traces[0], index=0, kind="message", role="user", start=0, body=0, end=1),
        TraceStep(completion=traces[0], index=9, kind="message", role="user", start=4, body=3, end=9),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            row.save(force_insert=True)


def test_a_snapshot_has_the_steps_and_a_label_for_each(
    project: Project, assignment: Assignment, traces: list[Completion]
):
    first, second = traces
    submit(assignment, prefer(traces, (second, 3, "wrong"), (second, 0, "correct")))
    snapshot = freeze_snapshot(project=project, rounds=[1])
    (row,) = read_snapshot(Path(settings.RONDO_HOME) / snapshot.folder)
    frozen = {completion.id: completion for completion in row.completions}
    assert frozen[str(first.pk)].steps == tuple(first.steps.values_list("start", "end"))
    assert [(entry.completion, entry.labels) for entry in row.step_labels] == [
        (str(second.pk), ("correct", None, None, "wrong"))
    ]


def test_the_rows_of_a_project_without_traces_know_nothing_of_steps(project: Project, alice: User):
    prompt = factories.make_prompt(project, split="train")
    factories.make_judgment(factories.make_comparison(project, ["a", "b"], prompt=prompt), alice, (1, 2))
    snapshot = freeze_snapshot(project=project, rounds=[1])
    line = (Path(settings.RONDO_HOME) / snapshot.folder / "judgments.jsonl").read_text()
    assert "step" not in line
    assert json.loads(line)["completions"][0].keys() == {"id", "text", "source"}
