"""Freezing: what is in a snapshot, that it never changes, and when there is nothing to freeze."""

import json
import uuid
from pathlib import Path

import pytest

from annotation.models import Category, Judgment, Project, User
from annotation.record.judgment import EvidencePointer, MissingPart, SpanPart
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused
from tests.training.conftest import judge, judge_all
from training.contract.snapshot import Message, Passage, read_prompts, read_snapshot
from training.models import Snapshot
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


def train_prompt(project: Project, text: str = "Why is tea green?"):
    return factories.make_prompt(project, text, split="train")


def test_a_snapshot_holds_all_that_was_said(project: Project, alice: User, carol: User):
    prompt = factories.make_prompt(
        project, "How long?", split="train", context=[("Tea", ["Two minutes.", "Not more."])]
    )
    comparison = factories.make_comparison(project, ["Ten 🙂 hours.", "Two minutes."], prompt=prompt)
    worse, better = comparison.completions.order_by("pk")
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    untruthful = Category.objects.get(project=project, key="untruthful")
    missing = Category.objects.get(project=project, key="missing")
    submit_judgment(
        assignment=assignment,
        annotator=alice,
        idempotency_key=uuid.uuid4(),
        answer=judgment_record(
            verdict="ranked",
            ranks={better.pk: 1, worse.pk: 2},
            strength=3,
            comment="Ten is wrong.",
            spans=(
                SpanPart(
                    completion=str(worse.pk),
                    category=untruthful.key,
                    start=4,
                    end=11,
                    quote="🙂 hours",
                    text_hash=worse.text_hash,
                ),
            ),
            missing=(
                MissingPart(
                    completion=str(worse.pk),
                    category=missing.key,
                    text="the time",
                    evidence=(EvidencePointer(passage=0, sentence=1), EvidencePointer(passage=0)),
                ),
            ),
        ),
    )

    snapshot = freeze_snapshot(project=project, rounds=[1], created_by=carol)

    [row] = read_snapshot(snapshot.path)
    assert row.annotator == str(alice.pseudonym)
    assert (row.verdict, row.strength, row.comment, row.round) == ("ranked", 3, "Ten is wrong.", 1)
    assert row.ranks == {str(better.pk): 1, str(worse.pk): 2}
    assert [(c.id, c.text, c.source) for c in row.completions] == [
        (str(worse.pk), "Ten 🙂 hours.", "starter"),
        (str(better.pk), "Two minutes.", "starter"),
    ]
    assert [(m.role, m.content) for m in row.messages] == [("user", "How long?")]
    assert [(p.title, p.sentences) for p in row.context] == [("Tea", ("Two minutes.", "Not more."))]
    [span] = row.spans
    assert (span.category, span.start, span.end, span.quote) == ("untruthful", 4, 11, "🙂 hours")
    [lack] = row.missing
    assert (lack.category, lack.text) == ("missing", "the time")
    assert [(place.passage, place.sentence) for place in lack.evidence] == [(0, 1), (0, None)]
    assert row.guideline_version == 1


def test_names_of_people_are_not_in_a_snapshot(project: Project, alice: User):
    factories.make_comparison(project, prompt=train_prompt(project))
    judge_all(project, alice)
    written = (freeze_snapshot(project=project, rounds=[1]).path / "judgments.jsonl").read_text()
    assert "alice" not in written
    assert str(alice.pseudonym) in written


def test_equal_judgments_are_one_snapshot(project: Project, alice: User, rondo_home: Path):
    factories.make_comparison(project, prompt=train_prompt(project))
    judge_all(project, alice)
    first = freeze_snapshot(project=project, rounds=[1])
    again = freeze_snapshot(project=project, rounds=[1])
    assert again == first
    assert Snapshot.objects.count() == 1
    assert [entry.name for entry in (rondo_home / "snapshots").iterdir()] == [first.digest]


def test_all_prompts_of_the_project_go_with_their_references_judged_or_not(project: Project, alice: User):
    judged = factories.make_prompt(
        project, "a", split="train", references=["3 minutes"], context=[("Tea", ["It steeps.", "Long."])]
    )
    factories.make_comparison(project, prompt=judged)
    held_out = factories.make_prompt(project, "b", split="held-out", references=["2", "two"])
    plain = factories.make_prompt(project, "c", split="train")
    factories.make_prompt(factories.make_project(slug="other"), "d", references=["secret"])
    judge_all(project, alice)

    snapshot = freeze_snapshot(project=project, rounds=[1])

    prompts = list(read_prompts(snapshot.path))
    assert [(prompt.id, prompt.split, prompt.reference) for prompt in prompts] == [
        (str(judged.pk), "train", "3 minutes"),
        (str(held_out.pk), "held-out", ["2", "two"]),
        (str(plain.pk), "train", None),
    ]
    assert prompts[0].context == (Passage(title="Tea", sentences=("It steeps.", "Long.")),)
    assert prompts[2].messages == (Message(role="user", content="c"),)
    held_out.references = ["3"]
    held_out.save()
    assert freeze_snapshot(project=project, rounds=[1]).digest != snapshot.digest


def test_counts_are_those_of_the_rows(project: Project, alice: User, bob: User):
    # Alice and Bob judge one pair (1 decided pair each) and Alice a ranking of four in which the
    # first wins and three tie (3 decided pairs): train 2 + 3; the held-out pair adds one there.
    factories.make_comparison(project, list("wxyz"), prompt=train_prompt(project, "b"))
    factories.make_comparison(project, prompt=factories.make_prompt(project, "c", split="held-out"))
    project.overlap = 2
    factories.make_comparison(project, prompt=train_prompt(project, "a"))
    judge_all(project, alice)
    judge_all(project, bob)

    snapshot = freeze_snapshot(project=project, rounds=[1])

    assert snapshot.counts["judgments"] == 4
    assert snapshot.counts["annotators"] == 2
    assert snapshot.counts["rankings"] == 1
    assert snapshot.counts["decided_pairs"] == {"train": 5, "held-out": 1}
    assert snapshot.judgments.count() == 4


def test_only_the_judgment_that_stands_is_frozen(project: Project, alice: User):
    comparison = factories.make_comparison(project, prompt=train_prompt(project))
    [first] = judge_all(project, alice)
    a, b = sorted(first.assignment.display_order)
    second = submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=judgment_record(verdict="ranked", ranks={a: 2, b: 1}),
        idempotency_key=uuid.uuid4(),
    )
    snapshot = freeze_snapshot(project=project, rounds=[1])
    [row] = read_snapshot(snapshot.path)
    assert row.judgment == str(second.pk)
    assert row.comparison == str(comparison.pk)
    assert list(snapshot.judgments.all()) == [second]


def test_judgments_of_later_rounds_and_other_projects_stay_out(project: Project, alice: User):
    mine = factories.make_comparison(project, prompt=train_prompt(project))
    factories.make_comparison(project, prompt=train_prompt(project, "later"), round_number=2)
    other = factories.make_project(slug="coffee", annotators=[alice])
    factories.make_comparison(other, prompt=train_prompt(other))
    judge_all(project, alice)
    judge_all(other, alice)
    snapshot = freeze_snapshot(project=project, rounds=[1])
    assert [row.comparison for row in read_snapshot(snapshot.path)] == [str(mine.pk)]


def test_no_judgment_at_all_is_refused_with_what_to_do(project: Project):
    with refused("no_judgments"):
        freeze_snapshot(project=project, rounds=[1])


def test_ties_and_held_out_prompts_alone_are_refused(project: Project, alice: User, rondo_home: Path):
    factories.make_comparison(project, prompt=factories.make_prompt(project, "h", split="held-out"))
    tied = factories.make_comparison(project, prompt=train_prompt(project))
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    judge(assignment.comparison, alice)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    assert assignment.comparison == tied
    submit_judgment(
        assignment=assignment,
        annotator=alice,
        answer=judgment_record(verdict="both_good"),
        idempotency_key=uuid.uuid4(),
    )
    with refused("no_preferences", count=2):
        freeze_snapshot(project=project, rounds=[1])
    assert not (rondo_home / "snapshots").exists()


def test_a_snapshot_of_many_rows_takes_few_queries(
    project: Project, alice: User, django_assert_max_num_queries
):
    for number in range(6):
        factories.make_comparison(project, prompt=train_prompt(project, f"question {number}"))
    judge_all(project, alice)
    assert Judgment.objects.count() == 6
    # Three to decide and count, one the groups, nine to read the rows, one the prompts; the rest write
    # snapshot and links.
    with django_assert_max_num_queries(25):
        snapshot = freeze_snapshot(project=project, rounds=[1])
    header = json.loads((snapshot.path / "snapshot.json").read_text())
    assert (header["rows"], header["project"], header["rounds"]) == (6, "tea", [1])
