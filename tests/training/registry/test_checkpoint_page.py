"""A checkpoint's page on what its run left out and warned about."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Project, User
from tests.factories import make_source
from training.choices import CheckpointKind
from training.models import Checkpoint


@pytest.mark.django_db
def test_a_checkpoints_page_counts_what_was_left_out_and_repeats_warnings(
    project: Project, carol: User, client_of: Callable[[User], Client]
):
    dropped = [{"judgment": f"j{i}", "completion": "", "reason": "the answer is empty"} for i in range(100)]
    Checkpoint.objects.create(
        name="of-a-large-snapshot",
        kind=CheckpointKind.STARTER,
        project=project,
        source=make_source("of-a-large-snapshot"),
        manifest={
            "dropped": dropped,
            "dropped_counts": {"the answer is empty": 2345},
            "warnings": ["All judgments to train on are by one annotator (a1)"],
        },
    )
    page = client_of(carol).get(reverse("checkpoint", args=["of-a-large-snapshot"])).content.decode()
    assert "2345 × the answer is empty" in page
    assert page.count("judgment j") == 50
    assert "2345 in all; dropped.jsonl in the run's folder" in page.replace("&#x27;", "'")
    assert "All judgments to train on are by one annotator (a1)" in page
