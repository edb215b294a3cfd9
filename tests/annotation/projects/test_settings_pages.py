"""Settings, guidelines and members of a project on its own pages."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState, Role
from annotation.forms.projects import ProjectSettingsForm
from annotation.models import AuditEntry, Judgment, Membership, Project, User
from annotation.services.projects.invitations import change_role, remove_member
from tests import factories
from tests.refusals import refused

ClientOf = Callable[[User], Client]


def sent(project: Project, **changes: object) -> dict[str, object]:
    """Return the fields that the browser sends for the form, unchanged except for `changes`."""
    form = ProjectSettingsForm(instance=project)
    values = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    values |= changes
    return {name: value for name, value in values.items() if value is not None and value is not False}


def test_a_manager_changes_settings_and_the_log_names_them(
    project: Project, carol: User, client_of: ClientOf
):
    address = reverse("project-settings", args=[project.slug])
    answer = client_of(carol).post(address, sent(project, overlap=3, gold_feedback=True, gold_share=0.1))
    assert answer.status_code == 302
    project.refresh_from_db()
    assert (project.overlap, project.gold_feedback, project.gold_share) == (3, True, 0.1)
    entry = AuditEntry.objects.get(action="project.settings")
    assert (entry.actor, entry.details) == (
        carol,
        {
            "changed": ["gold_feedback", "gold_share", "overlap"],
            "from": {"gold_feedback": False, "gold_share": 0.0, "overlap": 1},
            "to": {"gold_feedback": True, "gold_share": 0.1, "overlap": 3},
        },
    )
    log = client_of(carol).get(reverse("project-audit", args=[project.slug])).content.decode()
    assert "overlap: 1 → 3" in log


def test_a_higher_overlap_is_asked_for_the_open_comparisons_too(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    done = factories.make_comparison(project)
    factories.make_judgment(done, alice)
    waiting, in_hand = (factories.make_comparison(project) for _ in range(2))
    factories.lease_to(in_hand, alice)
    address = reverse("project-settings", args=[project.slug])
    client = client_of(carol)
    assert "Also for the 2 open comparisons" in client.get(address).content.decode()
    client.post(address, sent(project, overlap=3))
    waiting.refresh_from_db()
    assert waiting.overlap == 1
    project.refresh_from_db()
    client.post(address, sent(project, raise_open=True))
    for comparison, places in ((done, (1, 0)), (waiting, (3, 3)), (in_hand, (3, 2))):
        comparison.refresh_from_db()
        assert (comparison.overlap, comparison.open_slots) == places


@pytest.mark.parametrize(
    ("field", "value"), [("overlap", 0), ("gold_share", 1.5), ("name", ""), ("lease_minutes", "x")]
)
def test_a_wrong_setting_is_refused_at_its_field_and_nothing_is_saved(
    project: Project, carol: User, client_of: ClientOf, field: str, value: object
):
    before = Project.objects.filter(pk=project.pk).values().get()
    address = reverse("project-settings", args=[project.slug])
    answer = client_of(carol).post(address, sent(project, daily_limit=5) | {field: value})
    assert answer.status_code == 422
    assert field in answer.context["form"].errors
    assert Project.objects.filter(pk=project.pk).values().get() == before


def test_a_new_version_of_the_guidelines_is_published(project: Project, carol: User, client_of: ClientOf):
    before = project.guidelines.count()
    address = reverse("guidelines-edit", args=[project.slug])
    assert client_of(carol).post(address, {"text": "# Rules\r\n\r\nBe fair."}).status_code == 302
    assert project.guidelines.count() == before + 1
    assert project.guidelines.order_by("-version")[0].text == "# Rules\n\nBe fair."
    assert client_of(carol).post(address, {"text": "  "}).status_code == 422


def test_roles_change_and_a_project_keeps_a_manager(
    project: Project, carol: User, alice: User, client_of: ClientOf
):
    client = client_of(carol)
    mine, hers = (Membership.objects.get(project=project, user=user) for user in (carol, alice))
    client.post(reverse("member", args=[project.slug, mine.pk]), {"role": "annotator"})
    mine.refresh_from_db()
    assert mine.role == Role.MANAGER
    client.post(reverse("member", args=[project.slug, hers.pk]), {"role": "manager"})
    hers.refresh_from_db()
    assert hers.role == Role.MANAGER
    change_role(membership=mine, role=Role.REVIEWER, changed_by=alice)
    assert AuditEntry.objects.filter(action="member.role").count() == 2
    with refused("last_manager"):
        remove_member(membership=hers, removed_by=carol)


def test_who_is_removed_gives_back_their_lease_and_leaves_their_judgments(
    project: Project, carol: User, alice: User, client_of: ClientOf
):
    factories.make_judgment(factories.make_comparison(project), alice)
    held = factories.lease_to(factories.make_comparison(project), alice)
    membership = Membership.objects.get(project=project, user=alice)
    client_of(carol).post(reverse("member", args=[project.slug, membership.pk]), {"remove": "1"})
    held.refresh_from_db()
    assert held.state == AssignmentState.RELEASED
    assert Judgment.objects.filter(annotator=alice).count() == 1
    assert client_of(alice).get(reverse("project", args=[project.slug])).status_code == 404


def test_members_of_another_project_are_out_of_reach(
    project: Project, carol: User, bob: User, client_of: ClientOf
):
    other = factories.make_project(slug="other", annotators=[bob])
    foreign = Membership.objects.get(project=other, user=bob)
    answer = client_of(carol).post(reverse("member", args=[project.slug, foreign.pk]), {"remove": "1"})
    assert answer.status_code == 404
    assert Membership.objects.filter(pk=foreign.pk).exists()
