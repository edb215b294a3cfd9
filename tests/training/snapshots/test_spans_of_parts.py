"""Spans of sub-categories and of merits in snapshots, and in what heads learn."""

import json

import pytest

from annotation.choices import Polarity
from annotation.models import Project, User
from annotation.services.projects.questions import set_category
from tests import factories
from tests.annotation.judgments.answers import span
from training.contract.snapshot import SnapshotRow, read_snapshot
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


def test_a_row_says_parent_and_merit_only_of_spans_that_have_them(project: Project, alice: User, carol: User):
    for key, more in (("contradicts", {"parent": "untruthful"}), ("praise", {"polarity": Polarity.MERIT})):
        set_category(project=project, key=key, values={"label": key, **more}, changed_by=carol)
    project.refresh_from_db()
    prompt = factories.make_prompt(project, split="train")
    comparison = factories.make_comparison(project, ["one two three", "no"], prompt=prompt)
    marks = [
        span(comparison, quote, category=key)
        for quote, key in (("one", "contradicts"), ("two", "praise"), ("three", "irrelevant"))
    ]
    factories.make_judgment(comparison, alice, spans=tuple(marks))
    [row] = read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    written = {each["category"]: each for each in json.loads(row.to_json())["spans"]}
    plain = set(written["irrelevant"])
    assert not plain & {"parent", "is_liked"}
    assert set(written["contradicts"]) - plain == {"parent"}
    assert set(written["praise"]) - plain == {"is_liked"}
    assert SnapshotRow.from_json(json.loads(row.to_json())) == row
