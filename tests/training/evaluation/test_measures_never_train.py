"""Gold, qualification and retests measure people. No count of a round and no snapshot holds them."""

import io
import json
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from pytest_django import DjangoDbBlocker

from annotation.choices import Purpose
from annotation.models import Assignment, Judgment, Project, User
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.annotation.labelling.work import answer
from tests.refusals import refused
from tests.shared_rows import made_in, shared_rows
from training.contract.snapshot import read_snapshot
from training.models import Round
from training.selectors.rounds import decided_judgments, material_of
from training.services.checkpoints import register_starter
from training.services.snapshots import freeze_snapshot, refuse_unless_learnable

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def scene(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Tina passed two qualification items, then judged 12 of work, 12 gold items and some retests."""
    with shared_rows(django_db_blocker):
        with made_in(tmp_path_factory.mktemp("measured")):
            tina, max_ = factories.make_user("tina"), factories.make_user("max")
            project = factories.make_project(slug="measured", annotators=[tina], managers=[max_])
            project.qualification_pass_share = 0.5
            project.gold_share = 0.5
            project.retest_share = 1.0
            project.save()
            for _ in range(2):
                factories.make_gold_item(project, purpose=Purpose.QUALIFICATION)
            for number in range(12):
                factories.make_gold_item(project)
                prompt = factories.make_prompt(project, f"Why is tea green, {number}?", split="train")
                factories.make_comparison(project, prompt=prompt)
            while (assignment := assign_next(project=project, annotator=tina)) is not None:
                answer(assignment)
        yield


@pytest.fixture
def measured(scene: None, db: None) -> Project:
    """The project of the scene."""
    return Project.objects.get(slug="measured")


def test_the_scene_holds_every_kind(measured: Project):
    kinds = Judgment.objects.values_list("comparison__purpose", flat=True)
    assert set(kinds) == {"work", "gold", "qualification"}
    assert Assignment.objects.filter(retest_of__isnull=False, judgments__isnull=False).exists()


def test_a_round_counts_work_alone(measured: Project, carol: User):
    round_ = Round.objects.create(project=measured, number=1, policy=register_starter(), created_by=carol)
    material = material_of(round_)
    assert (material.judgments, material.decided) == (12, 12)
    assert decided_judgments(measured, [1]).count() == 12


def test_a_snapshot_holds_work_alone(measured: Project, carol: User):
    snapshot = freeze_snapshot(project=measured, rounds=[1], created_by=carol)
    rows = list(read_snapshot(snapshot.path))
    assert len(rows) == 12
    known = set(
        measured.comparisons.exclude(purpose=Purpose.WORK).values_list("completions__text", flat=True)
    )
    assert known == {"answer 0", "answer 1"}
    assert not any(completion.text in known for row in rows for completion in row.completions)


def test_an_export_holds_work_alone(measured: Project):
    out = io.StringIO()
    call_command("export_judgments", format="jsonl", project=measured.slug, stdout=out)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 12
    assert "answer 0" not in out.getvalue()


def test_from_measures_alone_nothing_can_be_learnt(project: Project, alice: User):
    project.qualification_pass_share = 1.0
    project.save()
    factories.make_gold_item(project, purpose=Purpose.QUALIFICATION)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    answer(assignment)
    with refused("no_judgments"):
        refuse_unless_learnable(project, [1])
