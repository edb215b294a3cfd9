"""Answers that a snapshot records as read for faults, so that those without a flag count as faultless."""

import json
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db.models import QuerySet

from annotation.models import Category, Comparison, Correction, Judgment, MissingInfo, Project, SpanFlag, User
from tests import factories
from tests.training.snapshots.test_contract import row
from training.contract import ContractError
from training.contract.snapshot import SnapshotRow, read_snapshot
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


def compared(project: Project, text: str) -> Comparison:
    prompt = factories.make_prompt(project, text, split="train")
    return factories.make_comparison(project, ["Ten hours.", "Two minutes."], prompt=prompt)


def flag(judgment: Judgment) -> None:
    """A span on the first answer."""
    SpanFlag.objects.create(
        judgment=judgment,
        completion=judgment.comparison.candidates.get(index=0).completion,
        category=Category.objects.get(project=judgment.comparison.project, key="untruthful"),
        start=0,
        end=3,
        quote="Ten",
    )


def frozen(project: Project) -> dict[str, SnapshotRow]:
    return {
        snapshot_row.comparison: snapshot_row
        for snapshot_row in read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    }


def test_all_answers_of_who_marks_anything_were_read_and_of_who_never_marks_none(
    project: Project, alice: User, bob: User
):
    project.overlap = 2
    project.save()
    first, second, unsure = (compared(project, text) for text in ("first", "second", "unsure"))
    flag(factories.make_judgment(first, alice))
    factories.make_judgment(second, alice)
    factories.make_judgment(unsure, alice, (), verdict="cannot_judge")
    by_alice = frozen(project)
    ids = [completion.id for completion in by_alice[str(second.pk)].completions]
    assert by_alice[str(second.pk)].read_for_spans == tuple(ids)
    assert set(by_alice[str(first.pk)].read_for_spans or ()) > {by_alice[str(first.pk)].spans[0].completion}
    assert by_alice[str(unsure.pk)].read_for_spans == ()
    # Nobody ever said that something is missing.
    assert {snapshot_row.read_for_missing for snapshot_row in by_alice.values()} == {()}

    factories.make_judgment(second, bob)
    rows = read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    by_bob = [snapshot_row for snapshot_row in rows if snapshot_row.annotator == str(bob.pseudonym)]
    assert [snapshot_row.read_for_spans for snapshot_row in by_bob] == [()]


def test_what_is_missing_is_read_for_apart_from_marks(project: Project, alice: User):
    first, second = compared(project, "first"), compared(project, "second")
    judgment = factories.make_judgment(first, alice)
    factories.make_judgment(second, alice)
    MissingInfo.objects.create(
        judgment=judgment,
        completion=first.candidates.get(index=1).completion,
        category=Category.objects.get(project=project, key="missing"),
        text="heat",
    )
    rows = frozen(project)
    assert [len(rows[str(comparison.pk)].read_for_missing or ()) for comparison in (first, second)] == [2, 2]
    assert [rows[str(comparison.pk)].read_for_spans for comparison in (first, second)] == [(), ()]


def test_a_project_that_asks_for_marks_no_longer_keeps_those_it_has(project: Project, alice: User):
    first, second = compared(project, "first"), compared(project, "second")
    flag(factories.make_judgment(first, alice))
    factories.make_judgment(second, alice)
    project.ask_span_flags = False
    project.save()
    rows = frozen(project)
    assert rows[str(first.pk)].read_for_spans == (rows[str(first.pk)].spans[0].completion,)
    assert rows[str(second.pk)].read_for_spans == ()


def test_of_an_imported_judgment_what_it_speaks_of_was_read(project: Project, alice: User):
    comparison = compared(project, "imported")
    flag(factories.make_judgment(compared(project, "by hand"), alice))
    judgment = factories.make_judgment(comparison, alice)
    # Past the manager, which never changes a judgment: this one is made to come from elsewhere.
    QuerySet(Judgment).filter(pk=judgment.pk).update(imported_from={"format": "some set"})
    corrected = comparison.candidates.get(index=1).completion
    Correction.objects.create(judgment=judgment, completion=corrected, text="Three minutes.")
    snapshot_row = frozen(project)[str(comparison.pk)]
    assert snapshot_row.read_for_spans == snapshot_row.read_for_missing == (str(corrected.pk),)


def test_of_qa_feedback_every_first_answer_was_read_and_no_other(data: Path, rondo_home: Path):
    file = data / "qa_feedback" / "feedback.json"
    call_command("import_judgments", str(file), "--format", "qa-feedback", verbosity=0)
    project = Project.objects.get(slug="qa-feedback")
    questions = json.loads(file.read_text())
    texts = {item["prediction 1"] for item in questions}
    rows = list(read_snapshot(freeze_snapshot(project=project, rounds=[1]).path))
    assert len(rows) == len(questions)
    for snapshot_row in rows:
        [read] = snapshot_row.read_for_spans or ()
        assert snapshot_row.read_for_missing == (read,)
        assert (
            next(completion.text for completion in snapshot_row.completions if completion.id == read) in texts
        )
    # Counted in the file: of the released one, four first answers have no fault of either kind.
    faultless = [
        item for item in questions if not item["feedback"]["errors"] and not item["feedback"]["missing-info"]
    ]
    assert len(faultless) == 4 or len(questions) < 350
    assert sum(not judged_row.spans and not judged_row.missing for judged_row in rows) == len(faultless) > 0


def test_an_older_row_keeps_its_spelling_and_says_that_it_does_not_know():
    old = row()
    assert (old.read_for_spans, old.read_for_missing) == (None, None)
    assert "read_for" not in old.to_json()
    assert SnapshotRow.from_json(json.loads(old.to_json())).to_json() == old.to_json()
    parsed = SnapshotRow.from_json(
        {**json.loads(old.to_json()), "read_for_spans": ["2"], "read_for_missing": []}
    )
    assert (parsed.read_for_spans, parsed.read_for_missing) == (("2",), ())
    assert SnapshotRow.from_json(json.loads(parsed.to_json())) == parsed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read_for_spans": ["9"]}, "'read_for_spans' has a completion that is not in the row"),
        (
            {"read_for_missing": ["2"], "missing": [{"completion": "1", "category": "c"}]},
            "'read_for_missing' lacks a completion that has a flag",
        ),
        ({"read_for_spans": "1"}, "read_for_spans: must be a list or null"),
    ],
)
def test_what_was_read_must_agree_with_the_row(change, message):
    with pytest.raises(ContractError, match=message):
        SnapshotRow.from_json({**json.loads(row().to_json()), **change})
