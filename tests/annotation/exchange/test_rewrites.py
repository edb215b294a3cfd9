"""Edits with their origin go out and come in again as they were."""

import json
import uuid
from pathlib import Path

import pytest

from annotation.choices import Verdict
from annotation.errors import ImportErrors
from annotation.exchange.file_imports import import_file
from annotation.exchange.records import as_line, records
from annotation.models import Continuation, CorrectionEdit, Project, User
from annotation.record.judgment import CorrectionPart, Edit, Origin, SpanPart
from annotation.selectors.access import judgments_current
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.records import judgment_record

pytestmark = pytest.mark.django_db

ORIGINAL = "Boil 👩\u200d🏫 it\r\nlong."
TEXT = "Boil 👩\u200d🏫 tea for e\u0301ver."


def rewritten(project: Project, alice: User) -> str:
    """A judgment with a rewrite, its span and the model's continuation, as an exported line."""
    project.ask_correction = True
    project.save()
    comparison = factories.make_comparison(project, [ORIGINAL, "No."])
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    first = comparison.completions.get(text=ORIGINAL)
    category = "untruthful"
    start = ORIGINAL.index("it")
    continued = Continuation.objects.create(
        assignment=assignment,
        completion=first,
        prefix=TEXT[: start + 3],
        text=" for e\u0301ver. Always.",
        seed=11,
        sampling={"temperature": 0.7},
    )
    edits = (
        Edit(
            start=start,
            end=start + 2,
            quote="it",
            replacement="tea",
            origin=Origin(span=(category, start, start + 2)),
        ),
        Edit(
            start=start + 2,
            end=len(ORIGINAL),
            quote="\r\nlong.",
            replacement=" for e\u0301ver.",
            origin=Origin(continuation=continued.pk),
        ),
    )
    span = SpanPart(
        completion=str(first.pk),
        category=category,
        start=start,
        end=start + 2,
        quote="it",
        text_hash=first.text_hash,
    )
    submit_judgment(
        assignment=assignment,
        annotator=alice,
        answer=judgment_record(
            verdict=Verdict.EQUAL,
            spans=(span,),
            corrections=(CorrectionPart(completion=str(first.pk), text=TEXT, edits=edits),),
        ),
        idempotency_key=uuid.uuid4(),
    )
    return as_line(next(iter(records(judgments_current(project)))))


def test_a_line_tells_who_wrote_which_stretch(project: Project, alice: User):
    [correction] = json.loads(rewritten(project, alice))["corrections"]
    start = ORIGINAL.index("it")
    assert correction["edits"] == [
        {
            "start": start,
            "end": start + 2,
            "quote": "it",
            "replacement": "tea",
            "span": {"category": "untruthful", "start": start, "end": start + 2},
        },
        {
            "start": start + 2,
            "end": len(ORIGINAL),
            "quote": "\r\nlong.",
            "replacement": " for e\u0301ver.",
            "model": {"seed": 11, "sampling": {"temperature": 0.7}},
        },
    ]


def test_what_comes_in_again_goes_out_the_same(project: Project, alice: User, tmp_path: Path):
    line = rewritten(project, alice)
    path = tmp_path / "out.jsonl"
    path.write_text(line, encoding="utf-8")
    fresh = factories.make_project(slug="fresh")
    import_file(project=fresh, path=path)
    [again] = records(judgments_current(fresh))
    before = json.loads(line)
    assert [c["edits"] for c in again["corrections"]] == [c["edits"] for c in before["corrections"]]
    by_hand, by_model = CorrectionEdit.objects.filter(
        correction__judgment__comparison__project=fresh
    ).select_related("continuation", "span_flag")
    assert by_hand.span_flag is not None
    assert by_hand.span_flag.judgment.comparison.project == fresh
    assert by_model.continuation is not None
    assert by_model.continuation.prefix == TEXT[: ORIGINAL.index("it") + 3]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"replacement": "other"}, "corrections.edits"),
        ({"start": 0}, "corrections.edits"),
        ({"span": {"category": "untruthful", "start": 0, "end": 1}}, "corrections.edits.span"),
    ],
)
def test_edits_that_contradict_their_line_are_refused(
    project: Project, alice: User, tmp_path: Path, change: dict[str, object], field: str
):
    row = json.loads(rewritten(project, alice))
    row["corrections"][0]["edits"][0].update(change)
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(ImportErrors) as refused:
        import_file(project=factories.make_project(slug="fresh"), path=path)
    [line] = refused.value.errors
    assert line.startswith(f"row 1, field {field}:")
