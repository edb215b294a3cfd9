"""The bin of projects: what goes with one is shown, it comes back for 30 days, and then it is removed."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Comparison, Judgment, Project, Prompt, User
from annotation.services.projects.removal import bin_for, delete_project, empty_bin, restore_project
from tests import factories
from tests.refusals import refused
from training.models import Snapshot
from training.services.rounds.controls import open_first_round

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]
LATER = timezone.now() + timedelta(days=31)


@pytest.fixture
def judged(project: Project, alice: User) -> Judgment:
    return factories.make_judgment(factories.make_comparison(project), alice)


def test_the_page_shows_what_goes_and_asks_whether_it_was_exported(
    project: Project, alice: User, carol: User, oscar: User, client_of: ClientOf, judged: Judgment
):
    browser, address = client_of(carol), "/projects/tea/settings/delete/"
    page = browser.get(address).content.decode()
    for number, what in ((1, "annotations by people"), (1, "prompts"), (2, "responses"), (3, "members")):
        assert f'{what}: <strong class="number">{number}</strong>' in page
    assert browser.post(address).status_code == 422
    assert bin_for(carol).count() == 0
    browser.post(address, {"exported": "1"})
    assert [each.pk for each in bin_for(carol)] == [project.pk]
    for user in (alice, carol):
        assert client_of(user).get("/projects/tea/").status_code == 404
        assert "/projects/tea/" not in client_of(user).get("/").content.decode()
    assert client_of(carol).get("/api/v1/projects/tea/").status_code == 404
    # To others it is not there.
    assert not bin_for(alice).exists()
    assert client_of(alice).post(f"/bin/{project.pk}/restore/").status_code == 404
    assert browser.post(f"/bin/{project.pk}/restore/").headers["Location"] == "/projects/tea/"
    assert client_of(alice).get("/projects/tea/").status_code == 200
    assert Judgment.objects.get() == judged
    actions = AuditEntry.objects.filter(action__in=("project.delete", "project.undelete"))
    assert list(actions.order_by("pk").values_list("action", flat=True)) == [
        "project.delete",
        "project.undelete",
    ]


def test_only_managers_delete_and_nothing_comes_back_after_thirty_days(
    project: Project, alice: User, carol: User
):
    with refused("manager_deletes_project", NotAllowed):
        delete_project(project=project, deleted_by=alice)
    with refused("project_not_in_bin"):
        restore_project(project=project, restored_by=carol)
    delete_project(project=project, deleted_by=carol)
    with refused("project_deleted"):
        delete_project(project=project, deleted_by=carol)
    Project.objects.update(deleted_at=timezone.now() - timedelta(days=31))
    assert not bin_for(carol).exists()
    with refused("project_not_in_bin"):
        restore_project(project=project, restored_by=carol)


def test_after_thirty_days_a_project_is_removed_with_its_rounds_and_nothing_else(
    project: Project, alice: User, carol: User, judged: Judgment
):
    other = factories.make_project(slug="coffee", annotators=[alice], managers=[carol])
    kept = factories.make_judgment(factories.make_comparison(other), alice)
    open_first_round(project=project)
    delete_project(project=project, deleted_by=carol)
    assert empty_bin() == 0
    assert empty_bin(now=LATER) == 1
    assert list(Project.objects.all()) == [other]
    assert list(Judgment.objects.all()) == [kept]
    assert set(Prompt.objects.values_list("project", flat=True)) == {other.pk}
    assert set(Comparison.objects.values_list("project", flat=True)) == {other.pk}
    assert AuditEntry.objects.filter(action="project.delete").exists()


def test_a_project_of_which_a_snapshot_holds_annotations_stays_for_the_record(
    project: Project, carol: User, judged: Judgment
):
    snapshot = Snapshot.objects.create(project=project, digest="0" * 64, folder="s", rounds=[1], counts={})
    snapshot.judgments.add(judged)
    delete_project(project=project, deleted_by=carol)
    assert empty_bin(now=LATER) == 0
    assert snapshot.judgments.get() == judged
