"""Answers to additional questions in snapshots."""

import json

import pytest

from annotation.models import Project, User
from annotation.record.judgment import AnswerPart
from tests import factories
from tests.annotation.questions.asking import answer, ask
from training.contract.snapshot import SnapshotRow, read_snapshot
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


def test_a_snapshot_carries_the_answers_with_their_versions(project: Project, alice: User, carol: User):
    ask(project, carol, "faults")
    ask(project, carol, "ease", subject="completion")
    comparison = factories.make_comparison(project, prompt=factories.make_prompt(project, split="train"))
    comparison.project = project
    first = str(comparison.completions.order_by("pk").values_list("pk", flat=True)[0])
    given = (answer("faults", ("tone", "form")), answer("ease", 3, completion=first))
    factories.make_judgment(comparison, alice, answers=given)
    [row] = read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    assert row.answers == (
        AnswerPart(question="faults", value=("tone", "form"), version=1),
        AnswerPart(question="ease", value=3, completion=first, version=1),
    )
    assert SnapshotRow.from_json(json.loads(row.to_json())) == row


def test_a_row_without_answers_keeps_its_bytes(project: Project, alice: User, carol: User):
    prompt = factories.make_prompt(project, split="train")
    factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice)
    ask(project, carol, "faults")
    [row] = read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    assert "answers" not in json.loads(row.to_json())
