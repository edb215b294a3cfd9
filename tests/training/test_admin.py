"""The Django admin: the button that starts training, and what cannot be changed there."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from annotation.models import Project, User
from tests import factories
from training.choices import RoundState
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.services.rounds.actions import ACTIONS
from training.services.rounds.controls import open_first_round
from training.services.rounds.executor import advance_round

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]

SignIn = Callable[[User], Client]


def address(name: str, round_: Round) -> str:
    return reverse(f"admin:training_round_{name}", args=[round_.pk])


def test_the_admin_starts_a_round_after_a_question(labelled: Round, admin: User, client_of: SignIn):
    client = client_of(admin)
    page = client.get(address("change", labelled)).content.decode()
    assert f'href="{address("start", labelled)}"' in page
    question = client.get(address("start", labelled)).content.decode()
    assert "The snapshot will hold 4 annotations" in question
    labelled.refresh_from_db()
    assert labelled.state == RoundState.LABELLING

    response = client.post(address("start", labelled), follow=True)
    labelled.refresh_from_db()
    assert (labelled.state, labelled.started_by) == (RoundState.TRAINING_REWARD_MODELS, admin)
    page = response.content.decode()
    assert f'hx-get="{address("progress", labelled)}"' in page
    assert "Train reward model" in page

    advance_round(labelled.pk)
    page = client.get(address("progress", labelled)).content.decode()
    assert "hx-get" not in page
    assert page.count('data-state="done"') == 7
    assert "data-curves=" in page


def test_a_refusal_stands_on_the_page(project: Project, admin: User, client_of: SignIn):
    round_ = open_first_round(project=project)
    page = client_of(admin).post(address("start", round_), follow=True).content.decode()
    assert "Tea has no judgments yet" in page


@pytest.mark.parametrize("name", list(ACTIONS))
def test_who_may_only_look_at_rounds_starts_none(labelled: Round, client_of: SignIn, name: str):
    dave = factories.make_user("dave", is_staff=True)
    dave.user_permissions.add(Permission.objects.get(codename="view_round"))
    client = client_of(dave)
    page = client.get(address("change", labelled)).content.decode()
    assert "Start training round" not in page
    assert client.post(address(name, labelled)).status_code == 403
    assert client.get(address("progress", labelled)).status_code == 200
    labelled.refresh_from_db()
    assert labelled.state == RoundState.LABELLING


def test_a_manager_who_is_no_staff_is_not_let_into_the_admin(labelled: Round, carol: User, client_of: SignIn):
    response = client_of(carol).post(address("start", labelled))
    assert response.status_code == 302
    assert "login" in response["Location"]
    labelled.refresh_from_db()
    assert labelled.state == RoundState.LABELLING


def test_the_recipe_can_be_changed_until_training_and_is_checked(
    labelled: Round, admin: User, client_of: SignIn
):
    client = client_of(admin)
    inline = {"steps-TOTAL_FORMS": "0", "steps-INITIAL_FORMS": "0"}
    wrong = client.post(address("change", labelled), {"recipe": '{"sampling": {"temperature": 9}}', **inline})
    assert "sampling, temperature: must be at most 2, not 9" in wrong.content.decode()
    client.post(address("change", labelled), {"recipe": '{"sampling": {"temperature": 1.5}}', **inline})
    labelled.refresh_from_db()
    assert labelled.parsed_recipe.sampling.temperature == 1.5

    Round.objects.update(state=RoundState.PROMOTED)
    client.post(address("change", labelled), {"recipe": "{}", **inline})
    labelled.refresh_from_db()
    assert labelled.parsed_recipe.sampling.temperature == 1.5


def test_the_admin_drafts_a_projects_first_round_and_opens_it(
    project: Project, admin: User, client_of: SignIn
):
    response = client_of(admin).post(reverse("admin:training_round_add"), {"project": project.pk})
    assert response.status_code == 302
    round_ = Round.objects.get()
    assert (round_.project, round_.number, round_.created_by) == (project, 1, admin)
    assert (round_.state, round_.steps.count()) == (RoundState.DRAFT, 0)
    client_of(admin).post(address("open", round_))
    round_.refresh_from_db()
    assert (round_.state, round_.steps.count()) == (RoundState.SAMPLING, 1)


def test_what_services_wrote_is_read_only(labelled: Round, admin: User, client_of: SignIn):
    client = client_of(admin)
    client.post(address("start", labelled))
    advance_round(labelled.pk)
    for model in (Snapshot, Run, Checkpoint, RoundStep):
        place, row = f"admin:training_{model._meta.model_name}", model.objects.first()
        assert client.get(reverse(f"{place}_add")).status_code == 403
        for form in ("change", "delete"):
            assert client.post(reverse(f"{place}_{form}", args=[row.pk]), {}).status_code == 403


def test_the_index_of_the_admin_begins_with_rounds_and_projects(admin: User, client_of):
    groups = client_of(admin).get("/admin/").context["app_list"]
    assert [model["object_name"] for model in groups[0]["models"][:2]] == ["Round", "Project"]
    assert [str(group["name"]) for group in groups[:4]] == [
        "Rounds and projects",
        "Data",
        "Questions and quality",
        "People",
    ]
    named = [model["object_name"] for group in groups for model in group["models"]]
    # Every model once, also those that no group names.
    assert len(named) == len(set(named))
    assert {"Round", "CompletionScore", "EmailAddress"} <= set(named)
