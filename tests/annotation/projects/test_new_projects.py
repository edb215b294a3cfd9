"""Creating projects: the page, the templates, the rule of who may, and the same through the API."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from annotation.choices import Granularity, Role, Verdict
from annotation.errors import NotAllowed
from annotation.forms.judgment import rating_field
from annotation.models import AuditEntry, FileImport, Judgment, Membership, Project, User
from annotation.selectors import access
from annotation.services.projects.projects import create_project
from annotation.services.projects.templates import TEMPLATES, create_from_template
from tests import factories
from tests.api.scene import Asker
from tests.refusals import refused

ClientOf = Callable[[User], Client]
ADDRESS = "/projects/new/"
VOTES = "prompt,answer_1,answer_2,winner\nTea?,Green.,Black.,1\n"


@pytest.fixture
def staff(db: None) -> User:
    """Stella may enter the administration; she is no superuser."""
    return factories.make_user("stella", is_staff=True)


@pytest.mark.parametrize("key", TEMPLATES)
def test_a_project_of_each_template_can_be_labelled(key: str, staff: User, client_of: ClientOf):
    project = create_from_template(template=key, name="Cups", slug="cups", created_by=staff)
    texts = ("Green.", "Black.", "White.") if key == "ranking" else ("Green.", "Black.")
    factories.make_comparison(project, texts)
    client = client_of(staff)
    screen = client.get(reverse("label", args=["cups"])).context["screen"]
    tokens = [candidate.token for candidate in screen.candidates]
    values: dict[str, Any] = {"idempotency_key": screen.idempotency_key, "span_flags": "[]"}
    if key == "ranking":
        values |= {f"rank-{token}": rank for rank, token in enumerate(tokens, start=1)}
        values |= {f"critique-{token}": "The date is wrong." for token in tokens}
    elif project.ask_verdict:
        values["choice"] = f"win:{tokens[0]}:4" if project.ask_strength else f"win:{tokens[0]}"
    for criterion in project.criteria.all():
        values |= {rating_field(token, criterion.key): 1 for token in tokens}
    address = reverse("submit", args=["cups", screen.assignment.pk])
    answer = client.post(address, values)
    # Some ask once more before they take it.
    if answer.status_code == 422:
        values["confirmed"] = answer.context["screen"].confirmed
        answer = client.post(address, values)
    assert answer.status_code == 302, answer.content.decode()
    judgment = Judgment.objects.get()
    assert judgment.verdict == (Verdict.NOT_ASKED if key == "safety" else Verdict.RANKED)
    assert judgment.ratings.count() == (4 if key == "safety" else 0)
    assert judgment.critiques.count() == (3 if key == "ranking" else 0)


def test_the_fine_grained_template_has_the_three_error_types_of_the_paper(staff: User):
    project = create_from_template(template="fine-grained", name="QA", slug="qa", created_by=staff)
    assert [(c.key, c.granularity) for c in access.categories_of(project)] == [
        ("irrelevant", Granularity.SUB_SENTENCE),
        ("untruthful", Granularity.SENTENCE),
        ("missing", Granularity.WHOLE),
    ]
    assert (project.ask_span_flags, project.ask_missing_info, project.ask_strength) == (True, True, False)


@pytest.mark.parametrize("key", TEMPLATES)
def test_what_a_template_shows_is_what_its_project_asks(key: str, staff: User):
    labels = {str(part.label) for part in TEMPLATES[key].parts()}
    project = create_from_template(template=key, name="Cups", slug="cups", created_by=staff)
    assert ("Preference" in labels) == project.ask_verdict
    assert ("Critique of each response" in labels) == project.ask_critique
    assert {str(category) for category in project.categories.all()} <= labels
    assert {str(criterion) for criterion in project.criteria.all()} <= labels


def test_the_page_creates_a_project_and_its_creator_manages_it(staff: User, client_of: ClientOf):
    client = client_of(staff)
    page = client.get(ADDRESS)
    assert [template.key for _radio, template in page.context["choices"]] == list(TEMPLATES)
    answer = client.post(ADDRESS, {"name": "Tea & Cups", "template": "helpfulness"})
    assert answer["Location"] == reverse("transfers", args=["tea-cups"])
    project = Project.objects.get()
    assert Membership.objects.get(project=project, user=staff).role == Role.MANAGER
    guideline = access.current_guideline(project)
    assert guideline is not None
    assert guideline.created_by == staff
    assert AuditEntry.objects.get(action="project.create").actor == staff
    assert client.get(answer["Location"]).status_code == 200


def test_a_project_from_a_file_leads_to_the_preview_of_its_import(staff: User, client_of: ClientOf):
    values = {"name": "Votes", "template": "import"}
    client = client_of(staff)
    without = client.post(ADDRESS, values)
    assert without.status_code == 422
    assert without.context["form"].errors["upload"] == ["Choose a file, or another template."]
    upload = SimpleUploadedFile("votes.csv", VOTES.encode())
    answer = client.post(ADDRESS, {**values, "upload": upload})
    record = FileImport.objects.get()
    assert answer["Location"] == reverse("transfer", args=["votes", record.pk])
    assert record.created_by == staff


def test_a_file_that_cannot_be_read_creates_no_project(staff: User, client_of: ClientOf):
    upload = SimpleUploadedFile("votes.jsonl", b"\x00\x01 nothing")
    answer = client_of(staff).post(ADDRESS, {"name": "Votes", "template": "import", "upload": upload})
    assert answer.status_code == 422
    assert answer.context["form"].errors
    assert not Project.objects.exists()


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"name": "Tea"}, "slug", "The address tea is taken. Choose another name or address."),
        ({"name": "Other", "slug": "tea"}, "slug", "The address tea is taken."),
        ({"name": "New"}, "slug", "Rondo's own"),
        ({"name": "茶"}, "slug", "The name has no letter for an address."),
        ({"name": ""}, "name", "required"),
        ({"name": "Other", "template": "none"}, "template", "Select a valid choice"),
    ],
)
def test_a_name_or_address_that_cannot_be_is_refused_at_its_field(
    project: Project, staff: User, client_of: ClientOf, values: dict[str, str], field: str, words: str
):
    answer = client_of(staff).post(ADDRESS, {"template": "blank", **values})
    assert answer.status_code == 422
    assert words in answer.context["form"].errors[field][0]
    assert Project.objects.count() == 1


def test_staff_and_who_has_the_permission_create_projects_and_nobody_else(
    carol: User, staff: User, admin: User, client_of: ClientOf
):
    assert client_of(carol).get(ADDRESS).status_code == 403
    assert client_of(carol).post(ADDRESS, {"name": "Tea", "template": "blank"}).status_code == 403
    ask = Asker(carol)
    assert ask.post("/projects/", {}).status_code == 403
    with refused("may_not_create_projects", NotAllowed):
        create_project(name="Tea", slug="tea", created_by=carol)
    carol.user_permissions.add(Permission.objects.get(codename="add_project"))
    askers = {carol: ask, staff: Asker(staff), admin: Asker(admin)}
    for number, (user, asker) in enumerate(askers.items()):
        assert client_of(user).get(ADDRESS).status_code == 200
        body = {"name": "Tea", "slug": f"tea-{number}", "template": "safety"}
        made = asker.post("/projects/", body)
        assert (made.status_code, made.json()["role"]) == (201, "manager")
        assert [criterion["key"] for criterion in made.json()["criteria"]] == ["harmless", "refusal"]


def test_the_api_refuses_an_unknown_template_and_a_taken_address(project: Project, staff: User):
    ask = Asker(staff)
    assert ask.post("/projects/", {"name": "T", "slug": "t", "template": "no"}).status_code == 422
    assert ask.post("/projects/", {"name": "T", "slug": "tea"}).status_code == 422
    with refused("unknown_template") as refusal:
        create_from_template(template="no", name="T", slug="t", created_by=staff)
    assert refusal.value.field == "template"


def test_home_offers_a_new_project_to_those_who_may_create_one(
    project: Project, carol: User, staff: User, client_of: ClientOf
):
    assert ADDRESS not in client_of(carol).get("/").content.decode()
    # In the header, and in the words to who has no project.
    assert client_of(staff).get("/").content.decode().count(f'href="{ADDRESS}"') == 2
