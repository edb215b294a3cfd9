"""The admin in a real browser: every page is held to our Content-Security-Policy by `open_as`."""

from collections.abc import Callable

import pytest
from django.contrib import admin as django_admin
from django.urls import reverse
from playwright.sync_api import Page

from annotation.models import Project, User
from tests import factories


@pytest.mark.django_db(transaction=True)
def test_every_form_of_the_admin_works_under_the_policy(
    open_as: Callable[..., Page], project: Project, alice: User, admin: User
) -> None:
    """Lists are opened in test_stored_script.py."""
    factories.make_judgment(factories.make_comparison(project), alice)
    page = open_as(admin, "/admin/")
    assert page.title().endswith("Rondo")
    opened = 0
    for model in django_admin.site._registry:
        row = model._default_manager.first()
        if row is not None:
            name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
            address = page.url.partition("/admin/")[0] + reverse(name, args=[row.pk])
            answer = page.goto(address)
            assert answer is not None
            assert answer.status == 200, address
            opened += 1
    # `open_as` fails at the end if the browser refused a script or a style on any of them.
    assert opened >= 8


@pytest.mark.django_db(transaction=True)
def test_the_scripts_of_the_admin_run(open_as: Callable[..., Page], admin: User, project: Project) -> None:
    page = open_as(admin, "/admin/annotation/project/add/")
    page.fill("#id_name", "Tea for two")
    # Where the project's form fills the slug from its name, that is JavaScript at work; the theme
    # switch of the header is on every page.
    before = page.evaluate("document.documentElement.dataset.theme")
    page.locator("button.theme-toggle").first.click()
    assert page.evaluate("document.documentElement.dataset.theme") != before
