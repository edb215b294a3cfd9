"""A round that has step labels and no preference trains a process reward model."""

import uuid

import pytest

from annotation.choices import Verdict
from annotation.models import Project, User
from annotation.record.judgment import StepLabelPart
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from annotation.services.texts import create_comparison
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused
from training.services.snapshots import freeze_snapshot, refuse_unless_learnable

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_labels_of_steps_are_enough_to_learn_from_on_training_prompts(
    project: Project, alice: User, split: str
):
    project.ask_step_labels, project.ask_verdict = True, False
    project.save()
    prompt = factories.make_prompt(project, split=split)
    trace = factories.make_trace(prompt, factories.search_steps())
    create_comparison(prompt=prompt, completions=[trace], round_number=1)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    submit_judgment(
        assignment=assignment,
        annotator=alice,
        answer=judgment_record(
            verdict=Verdict.NOT_ASKED,
            step_labels=(StepLabelPart(completion=str(trace.pk), step=0, label="wrong"),),
        ),
        idempotency_key=uuid.uuid4(),
    )
    if split == "train":
        assert freeze_snapshot(project=project, rounds=[1]).counts["judgments"] == 1
    else:
        with refused("no_preferences", count=1):
            refuse_unless_learnable(project, [1])
