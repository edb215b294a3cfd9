"""Judgments leave as JSON Lines: the current ones, whole, under pseudonyms."""

import json
import uuid
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from annotation.choices import Verdict
from annotation.exchange.records import records
from annotation.models import Criterion, Project, User
from annotation.record.judgment import (
    CorrectionPart,
    CritiquePart,
    EvidencePointer,
    MissingPart,
    RatingPart,
    SpanPart,
)
from annotation.selectors.access import judgments_current
from annotation.services.judgments.submission import (
    create_machine,
    judge_as_machine,
    lease_to_machine,
    submit_judgment,
)
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def export(*arguments: str) -> list[dict[str, Any]]:
    output = StringIO()
    call_command("export_judgments", "--format", "jsonl", *arguments, stdout=output, stderr=StringIO())
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_what_programs_judged_leaves_only_where_it_is_asked_for(project: Project, alice: User):
    machine = create_machine(name="Judge")
    comparison = factories.make_comparison(project, ["Yes.", "No."])
    by_alice = factories.make_judgment(comparison, alice, (1, 2))
    leased = lease_to_machine(project=project, machine=machine)
    ids = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    by_machine = judge_as_machine(
        assignment=leased,
        machine=machine,
        answer=judgment_record(verdict=Verdict.RANKED, ranks=dict(zip(ids, (2, 1), strict=True))),
        guideline=None,
    )
    error_output = StringIO()
    call_command(
        "export_judgments", "--format", "jsonl", "--with-machines", stdout=StringIO(), stderr=error_output
    )
    assert error_output.getvalue().strip() == "2 judgments written, 1 of them by programs."
    assert [line["judgment"] for line in export()] == [str(by_alice.pk)]
    assert {(line["judgment"], line["annotator"]) for line in export("--with-machines")} == {
        (str(by_alice.pk), str(alice.pseudonym)),
        (str(by_machine.pk), str(machine.pseudonym)),
    }


@pytest.mark.parametrize("format_name", ["jsonl", "dataset"])
def test_a_round_that_there_is_not_is_refused_with_those_that_there_are(
    project: Project, alice: User, tmp_path: Path, format_name: str
):
    path = tmp_path / "out"
    for number in (1, 3):
        comparison = factories.make_comparison(project, [f"Yes {number}.", "No."], round_number=number)
        factories.make_judgment(comparison, alice)
    arguments = ["export_judgments", "--format", format_name, "--output", str(path), "--round", "3"]
    with refused("unknown_rounds", CommandError, project="tea", missing="99", rounds="1, 3"):
        call_command(*arguments, "--round", "99", stderr=StringIO())
    assert list(tmp_path.iterdir()) == []
    call_command(*arguments, stderr=StringIO())
    assert path.exists()


def test_a_project_without_rounds_says_so(project: Project):
    with refused("unknown_rounds", CommandError, missing="1", rounds=""):
        export("--round", "1")


def test_a_line_says_everything_that_was_judged(project: Project, alice: User):
    prompt = factories.make_prompt(
        project, "Tea 🍵?", context=[("Tea", ["Hot."])], references=["Yes."], tags=["short"]
    )
    comparison = factories.make_comparison(project, ["Yes, tea.", "No."], prompt=prompt, round_number=3)
    project.ask_correction = project.ask_critique = project.ask_demonstration = True
    project.save()
    helpful = Criterion.objects.create(project=project, key="helpful", label="Helpful", scale="seven")
    severe = project.categories.get(key="untruthful")
    severe.severity_steps = 3
    severe.save()
    first, second = [c.completion for c in comparison.candidates.order_by("index")]
    judgment = factories.make_judgment(
        comparison,
        alice,
        (2, 1),
        strength=4,
        comment="Hm.",
        active_seconds=12,
        spans=(
            SpanPart(
                completion=str(first.pk),
                category="untruthful",
                start=5,
                end=8,
                quote="tea",
                text_hash=first.text_hash,
                severity=2,
                note="no",
            ),
        ),
        missing=(
            MissingPart(
                completion=str(second.pk),
                category="missing",
                text="How hot?",
                insert_at=2,
                evidence=(EvidencePointer(passage=0, sentence=0),),
            ),
        ),
        corrections=(CorrectionPart(completion=str(second.pk), text="No!"),),
        ratings=(
            RatingPart(completion=str(first.pk), criterion=helpful.key, scale=helpful.scale, value=7),
            RatingPart(completion=str(second.pk), criterion=helpful.key, scale=helpful.scale, value=1),
        ),
        critiques=(CritiquePart(completion=str(first.pk), text="Too short."),),
        demonstration="Yes: two minutes.",
    )
    a, b = str(first.pk), str(second.pk)
    made_at = judgment.created_at.isoformat()
    assert export("--project", "tea") == [
        {
            "judgment": str(judgment.pk),
            "comparison": str(comparison.pk),
            "annotator": str(alice.pseudonym),
            "machine": False,
            "round": 3,
            "prompt": str(prompt.pk),
            "split": prompt.split,
            "messages": [{"role": "user", "content": "Tea 🍵?"}],
            "context": [{"title": "Tea", "sentences": ["Hot."]}],
            "references": ["Yes."],
            "tags": ["short"],
            "completions": [
                {
                    "id": a,
                    "text": "Yes, tea.",
                    "source": "starter",
                    "sampling": {"temperature": 1.0},
                    "seed": 0,
                    "finish_reason": "stop",
                },
                {
                    "id": b,
                    "text": "No.",
                    "source": "starter",
                    "sampling": {"temperature": 1.0},
                    "seed": 1,
                    "finish_reason": "stop",
                },
            ],
            "display_order": [str(pk) for pk in judgment.assignment.display_order],
            "verdict": "ranked",
            "ranks": {a: 2, b: 1},
            "strength": 4,
            "spans": [
                {
                    "completion": a,
                    "category": "untruthful",
                    "start": 5,
                    "end": 8,
                    "quote": "tea",
                    "severity": 2,
                    "note": "no",
                }
            ],
            "missing": [
                {
                    "completion": b,
                    "category": "missing",
                    "text": "How hot?",
                    "insert_at": 2,
                    "evidence": [{"passage": 0, "sentence": 0, "quote": "Hot."}],
                }
            ],
            "corrections": [
                {
                    "completion": b,
                    "text": "No!",
                    "edits": [{"start": 2, "end": 3, "quote": ".", "replacement": "!"}],
                    "preference": {"chosen": "No!", "rejected": b},
                }
            ],
            "ratings": [
                {"completion": a, "criterion": "helpful", "scale": "seven", "value": 7},
                {"completion": b, "criterion": "helpful", "scale": "seven", "value": 1},
            ],
            "critiques": [{"completion": a, "text": "Too short."}],
            "demonstration": "Yes: two minutes.",
            "comment": "Hm.",
            "guideline_version": 1,
            "active_seconds": 12,
            "created_at": made_at,
            "blind": True,
            "imported_from": None,
        }
    ]


def test_only_what_still_stands_leaves_and_no_name_does(project: Project, alice: User, bob: User):
    first = factories.make_judgment(factories.make_comparison(project), alice)
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=judgment_record(verdict=Verdict.CANNOT_JUDGE, comment="changed my mind"),
        idempotency_key=uuid.uuid4(),
    )
    factories.make_judgment(factories.make_comparison(project, round_number=2), bob)
    rows = export()
    assert [row["comment"] for row in rows] == ["changed my mind", ""]
    assert "alice" not in json.dumps(rows)
    assert [row["round"] for row in export("--round", "2")] == [2]


def test_judgments_of_another_project_stay(project: Project, alice: User):
    other = factories.make_project(slug="coffee", annotators=[alice])
    factories.make_judgment(factories.make_comparison(other), alice)
    assert export("--project", "tea") == []
    assert len(export("--project", "coffee")) == 1


def test_a_file_appears_whole_and_only_then(project: Project, alice: User, tmp_path: Path, monkeypatch):
    factories.make_judgment(factories.make_comparison(project), alice)
    path = tmp_path / "out.jsonl"
    call_command("export_judgments", "--format", "jsonl", "--output", str(path), stderr=StringIO())
    before = path.read_bytes()
    assert before.endswith(b"}\n")

    files_before = sorted(tmp_path.iterdir())

    def breaks(record: object) -> str:
        raise OSError(28, "No space left on device")

    factories.make_judgment(factories.make_comparison(project), alice)
    monkeypatch.setattr("annotation.exchange.file_exports.as_line", breaks)
    with pytest.raises(CommandError, match="No space left on device"):
        call_command("export_judgments", "--format", "jsonl", "--output", str(path))
    assert path.read_bytes() == before
    assert (
        sorted(tmp_path.iterdir())
        == files_before
        == [
            path,
            tmp_path / "out.jsonl.dropped.jsonl",
            tmp_path / "out.jsonl.manifest.json",
        ]
    )


def test_a_folder_that_is_not_there_is_told(project: Project, tmp_path: Path):
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("export_judgments", "--format", "jsonl", "--output", str(tmp_path / "no" / "x.jsonl"))


def test_the_number_of_queries_does_not_grow_with_the_number_of_judgments(
    project: Project, alice: User, django_assert_max_num_queries
):
    for _ in range(6):
        factories.make_judgment(factories.make_comparison(project), alice)
    # Their ids, the judgments, and one each for candidates, ranks, spans, missing info, corrections,
    # ratings, critiques and answers (edits too, where there are any).
    with django_assert_max_num_queries(17):
        assert len(list(records(judgments_current(project)))) == 6


def test_the_lines_are_the_same_however_many_are_read_at_once(project: Project, alice: User, bob: User):
    for ranks in ((1, 2), (2, 1), (1, 2)):
        factories.make_judgment(factories.make_comparison(project), alice, ranks)
        factories.make_judgment(factories.make_comparison(project), bob, ranks, comment="Hm")
    at_once = list(records(judgments_current(project)))
    assert list(records(judgments_current(project), rows_at_once=2)) == at_once
    assert len(at_once) == 6
    numbers = [int(record["judgment"]) for record in at_once]
    assert numbers == sorted(numbers)
