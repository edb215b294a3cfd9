"""An address with a NUL is answered 404 or 400 in every interface, on SQLite and PostgreSQL alike."""

import pytest
from django.test import Client

from annotation.models import User

pytestmark = pytest.mark.django_db


@pytest.fixture
def signed_in(admin: User) -> Client:
    """A browser of somebody who may see everything."""
    client = Client()
    client.force_login(admin)
    return client


@pytest.mark.parametrize("path", ["/checkpoints/a%00b/", "/snapshots/a%00b/", "/projects/a%00b/", "/a%00b"])
def test_a_page_whose_path_has_a_nul_is_not_there(signed_in: Client, path: str):
    answer = signed_in.get(path)
    assert (answer.status_code, b"Not here" in answer.content) == (404, True)


@pytest.mark.parametrize("path", ["/?text=%00", "/checkpoints/?text=a%00b", "/?%00=a"])
def test_a_page_with_a_nul_in_a_parameter_is_not_understood(signed_in: Client, path: str):
    answer = signed_in.get(path)
    assert (answer.status_code, b"Not understood" in answer.content) == (400, True)


def test_the_api_answers_with_problem_details(signed_in: Client):
    missing = signed_in.get("/api/v1/projects/a%00b/")
    assert (missing.status_code, missing["Content-Type"]) == (404, "application/problem+json")
    assert missing.json()["title"] == "Not Found"
    wrong = signed_in.get("/api/v1/projects/?page_size=%00")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_value")


def test_openais_interface_answers_with_its_error_object(client: Client):
    answer = client.get("/v1/models/a%00b")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


def test_an_escaped_percent_sign_is_no_nul(signed_in: Client):
    assert signed_in.get("/?text=%2500").status_code == 200
