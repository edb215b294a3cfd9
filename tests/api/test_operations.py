"""Operations are declared as functions: the base makes address, access, locking and answers of them."""

from types import ModuleType

import pytest
from django.urls import URLPattern, path
from pytest_django import Settings

from annotation.api.operations import urls_of
from annotation.models import Project, Prompt
from tests import factories
from tests.api.scene import Asker
from tests.guide_blocks import block

urlpatterns: list[URLPattern] = []
"""The guide's operations, as the URLs of a site."""


@pytest.fixture
def prompt(project: Project, settings: Settings) -> Prompt:
    """A prompt whose split the guide's program reads and sets."""
    module = ModuleType(__name__)
    exec(block("how-to/contribute.md", "from rest_framework"), vars(module))
    urlpatterns[:] = [path(f"api/v1/{url.pattern}", url.callback) for url in urls_of(module)]
    settings.ROOT_URLCONF = __name__
    return factories.make_prompt(project, "Tea?", split="train")


def test_the_guides_operation_reads_and_sets_a_row(prompt: Prompt, as_carol: Asker):
    address = f"/projects/tea/prompts/{prompt.pk}/split/"
    read = as_carol.get(address)
    assert (read.status_code, read.json()) == (200, {"split": "train"})
    answer = as_carol("PUT", address, {"split": "held-out"}, headers={"If-Match": read["ETag"]})
    assert (answer.status_code, answer.json()) == (200, {"split": "held-out"})
    assert as_carol("PUT", address, {"split": "train"}, headers={"If-Match": read["ETag"]}).status_code == 412
    prompt.refresh_from_db()
    assert prompt.split == "held-out"


def test_a_body_is_checked_and_a_row_of_another_project_is_not_there(prompt: Prompt, as_carol: Asker):
    assert as_carol("PUT", f"/projects/tea/prompts/{prompt.pk}/split/", {}).status_code == 422
    assert as_carol.get(f"/projects/tea/prompts/{prompt.pk + 1}/split/").status_code == 404


def test_managers_alone_get_in_where_no_role_is_named(prompt: Prompt, as_alice: Asker):
    assert as_alice.get(f"/projects/tea/prompts/{prompt.pk}/split/").status_code == 403
