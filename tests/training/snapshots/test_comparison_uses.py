"""A comparison leads to the snapshot rows, runs and checkpoints that used it, and the rows lead back."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Project, User
from tests import factories
from tests.api.scene import make_scene
from training.selectors.checkpoints import uses_of_comparison
from training.services.rounds.controls import open_first_round
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]


def test_a_comparison_names_the_snapshots_and_runs_that_used_it(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    scene = make_scene(project, alice, carol)
    (use,) = uses_of_comparison(scene.comparison)
    assert (use.snapshot, use.judgments, use.runs) == (
        scene.snapshot,
        [scene.judgment.pk],
        [(scene.run, None)],
    )
    address = reverse("statistics-item", args=[project.slug, scene.comparison.pk])
    text = client_of(carol).get(address).content.decode()
    assert scene.run.get_absolute_url() in text
    row = f"{scene.snapshot.get_absolute_url()}?judgment={scene.judgment.pk}#judgment-{scene.judgment.pk}"
    assert row in text
    shown = client_of(carol).get(row.partition("#")[0]).content.decode()
    assert f'id="judgment-{scene.judgment.pk}"' in shown
    assert f'href="{address}"' in shown
    for completion in scene.comparison.completions.all():
        assert reverse("completion", args=[completion.pk]) in text


def test_an_unused_comparison_says_so(project: Project, carol: User, client_of: ClientOf):
    comparison = factories.make_comparison(project)
    address = reverse("statistics-item", args=[project.slug, comparison.pk])
    assert (
        "No snapshot holds an annotation of this comparison."
        in client_of(carol).get(address).content.decode()
    )


def test_a_snapshot_opens_at_the_page_of_a_judgment(
    project: Project, alice: User, carol: User, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
):
    round_ = open_first_round(project=project)
    prompt = factories.make_prompt(project, "How long should tea steep?", split="train")
    judgments = [
        factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice) for _ in range(3)
    ]
    snapshot = freeze_snapshot(project=project, rounds=[round_.number])
    monkeypatch.setattr("training.views.runs._ROWS_ON_A_PAGE", 1)
    client = client_of(carol)
    for number, judgment in enumerate(judgments, start=1):
        page = client.get(snapshot.get_absolute_url(), {"judgment": str(judgment.pk)}).context["page"]
        assert page.number == number
    for nonsense in ("x", str(2**63)):
        page = client.get(snapshot.get_absolute_url(), {"judgment": nonsense}).context["page"]
        assert page.number == 1
