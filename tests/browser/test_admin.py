"""The admin in a real browser: every page is held to our Content-Security-Policy by `open_as`."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from annotation.models import Project, User
from tests import factories


@pytest.mark.django_db(transaction=True)
def test_every_list_and_form_of_the_admin_works_under_the_policy(
    open_as: Callable[..., Page], project: Project, alice: User, admin: User
) -> None:
    factories.make_judgment(factories.make_comparison(project), alice)
    page = open_as(admin, "/admin/")
    assert page.title().endswith("Rondo")
    links = page.eval_on_selector_all("#content-main a", "elements => elements.map(one => one.href)")
    assert len(links) > 20
    opened = 0
    for address in sorted(set(links)):
        page.goto(address)
        row = page.query_selector("#result_list th a")
        if row is not None:
            page.goto(str(row.evaluate("one => one.href")))
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
