"""Pages around the work, in both themes: sign-in, error pages, the account menu and its languages."""

import re
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.views import defaults
from playwright.sync_api import expect

from annotation.models import Project, User
from tests.browser.conftest import Axe, Open
from tests.browser.content import make_items

NARROW = {"width": 360, "height": 780}


def error_page(name: str, alice: User) -> Any:
    """Return the error page that Alice gets, by the name of the template."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    match name:
        case "400":
            client.handler.enforce_csrf_checks = False
            return client.post("/account/language/", {"language": "tlh"})
        case "403":
            return client.get("/projects/tea/rounds/1/")
        case "403_csrf":
            return client.post("/account/language/", {"language": "de"})
        case "404":
            return client.get("/nowhere/")
        case _:
            return defaults.server_error(RequestFactory().get("/"))


def test_the_sign_in_page_has_no_barrier(db: None, open_as: Open, barriers: Axe):
    page = open_as(None, "/login/")
    assert barriers(page) == []
    page.get_by_label("Username").fill("nobody")
    page.get_by_label("Password").fill("nothing")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert barriers(page) == []


@pytest.mark.parametrize("name", ["400", "403", "403_csrf", "404", "500"])
def test_an_error_page_has_no_barrier(project: Project, alice: User, open_as: Open, barriers: Axe, name: str):
    answer = error_page(name, alice)
    assert answer.status_code == int(name[:3])
    page = open_as(alice, "/")
    # Under a status of its own the browser would report it to the console, which no page may.
    page.route(
        "**/with-an-error/",
        lambda route: route.fulfill(status=200, content_type="text/html", body=answer.content),
    )
    page.goto(page.url + "with-an-error/")
    expect(page.locator(".error-page__code")).to_have_text(name[:3])
    assert barriers(page) == []
    page.get_by_role("link", name="To your projects").click()
    expect(page.get_by_role("heading", name="Projects")).to_be_visible()


def test_the_language_is_chosen_by_keyboard_in_the_account_menu(
    project: Project, alice: User, open_as: Open, both_themes: Axe
):
    page = open_as(alice, "/projects/tea/guidelines/", viewport=NARROW)
    page.locator(".bar .menu summary").focus()
    page.keyboard.press("Enter")
    assert both_themes(page) == []
    page.get_by_role("button", name="Deutsch").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Richtlinien")).to_be_visible()
    assert page.url.endswith("/projects/tea/guidelines/")
    expect(page.locator("html")).to_have_attribute("lang", "de")
    page.locator(".bar .menu summary").click()
    expect(page.get_by_role("button", name="Deutsch")).to_have_attribute("aria-pressed", "true")
    assert both_themes(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_labelling_screen_in_german_fits_and_has_no_barrier(
    project: Project, alice: User, open_as: Open, barriers: Axe
):
    make_items(project)
    User.objects.update(language="de")
    page = open_as(alice, "/projects/tea/label/")
    expect(page.get_by_role("button", name="Abgeben")).to_be_visible()
    status = page.locator("#submit-status")
    expect(status).to_have_text("Wählen Sie die bessere Antwort oder eine Option ohne Präferenz.")
    page.keyboard.press("8")
    expect(status).to_have_text("B ist besser.")
    expect(page.get_by_text(re.compile(r"vor \d+ s gespeichert"))).to_be_attached()
    assert barriers(page) == []
