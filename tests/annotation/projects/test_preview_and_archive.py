"""The preview of the labelling screen, and archived projects."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Assignment, AuditEntry, Criterion, DisplayTally, Draft, Project, User
from annotation.services.assignments.next import assign_next
from annotation.services.projects.projects import archive_project
from annotation.services.projects.templates import TEMPLATES, create_from_template
from tests import factories
from tests.api.scene import Asker

ClientOf = Callable[[User], Client]


def preview(project: Project) -> str:
    return reverse("project-preview", args=[project.slug])


def test_a_preview_shows_a_comparison_and_reserves_nothing(
    project: Project, carol: User, client_of: ClientOf
):
    Criterion.objects.create(project=project, key="helpful", label="Helpful")
    comparison = factories.make_comparison(project, ("Two minutes, exactly.", "Ten hours."))
    before = Assignment.objects.count()
    answer = client_of(carol).get(preview(project))
    page = answer.content.decode()
    assert "Two minutes, exactly." in page
    assert answer["Cache-Control"] == "no-store"
    assert (Assignment.objects.count(), Draft.objects.count(), DisplayTally.objects.count()) == (before, 0, 0)
    comparison.refresh_from_db()
    assert comparison.open_slots == 1
    # No address of the page leads to work, and its submit is off, with the reason.
    assert "data-preview" in page
    assert "/label/0/" not in page
    assert 'disabled aria-describedby="preview-note"' in page


def test_a_preview_without_comparisons_shows_an_invented_one(
    project: Project, carol: User, client_of: ClientOf
):
    client = client_of(carol)
    assert "How long should green tea steep" in client.get(preview(project)).content.decode()
    for size in (1, 2, 3, 4):
        screen = client.get(preview(project), {"responses": size}).context["screen"]
        assert [c.letter for c in screen.candidates] == list("ABCD"[:size])
    # A number that there is none of is passed over.
    assert client.get(preview(project), {"responses": "99"}).context["screen"].size == 2


def test_an_invented_example_can_be_asked_for_beside_a_comparison(
    project: Project, carol: User, client_of: ClientOf
):
    factories.make_comparison(project, ("Two minutes, exactly.", "Ten hours."))
    answer = client_of(carol).get(preview(project), {"responses": "3"})
    assert (answer.context["screen"].size, answer.context["is_invented"]) == (3, True)


def test_a_quarantined_comparison_and_a_gold_item_are_not_shown(
    project: Project, carol: User, client_of: ClientOf
):
    factories.make_gold_item(project)
    factories.make_comparison(project, ("I am ChatGPT, a model by OpenAI.", "Ten hours."))
    assert project.comparisons.filter(withholding__isnull=False).exists()
    assert client_of(carol).get(preview(project)).context["is_invented"]


@pytest.mark.parametrize("key", TEMPLATES)
def test_each_template_can_be_previewed_before_there_is_any_work(key: str, admin: User, client_of: ClientOf):
    project = create_from_template(template=key, name="Cups", slug="cups", created_by=admin)
    page = client_of(admin).get(preview(project), {"responses": 3}).content.decode()
    labels = [row.label for row in project.categories.all()] + [row.label for row in project.criteria.all()]
    for label in labels:
        assert label in page or not project.ask_span_flags
    assert not Assignment.objects.exists()


def test_the_settings_lead_to_the_preview_and_not_to_the_labelling_screen(
    project: Project, carol: User, client_of: ClientOf
):
    page = client_of(carol).get(reverse("project-settings", args=["tea"])).content.decode()
    assert preview(project) in page


def test_an_archived_project_leaves_the_list_and_hands_out_no_work(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    factories.make_comparison(project)
    address = reverse("project-archive", args=[project.slug])
    assert client_of(carol).post(address).status_code == 302
    project.refresh_from_db()
    assert project.archived_at is not None
    assert assign_next(project=project, annotator=alice) is None
    client = client_of(alice)
    assert "This project is archived" in client.get(reverse("label", args=["tea"])).content.decode()
    assert [row.project for row in client.get("/").context["rows"]] == []
    assert [row.project for row in client.get("/?archived=1").context["rows"]] == [project]
    assert client_of(carol).post(address, {"restore": "1"}).status_code == 302
    assert [row.project for row in client.get("/").context["rows"]] == [project]
    project.refresh_from_db()
    assert assign_next(project=project, annotator=alice) is not None
    deeds = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert deeds == ["project.archive", "project.restore"]


def test_the_api_archives_and_restores(project: Project, carol: User):
    ask = Asker(carol)
    for archived in (True, True, False):
        answer = ask("PUT", "/projects/tea/archive/", {"archived": archived})
        assert (answer.status_code, answer.json()["archived_at"] is not None) == (200, archived)
    # The second did nothing.
    assert AuditEntry.objects.filter(action="project.archive").count() == 1


def test_archiving_twice_changes_nothing(project: Project, carol: User):
    first = archive_project(project=project, archived=True, changed_by=carol).archived_at
    assert archive_project(project=project, archived=True, changed_by=carol).archived_at == first
