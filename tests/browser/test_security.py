"""Signing in with a passkey, the pages of one's account, and what our policy refuses, in a real Chromium."""

import re

import pytest
from playwright.sync_api import Browser, Error, Page, expect
from pytest_django.live_server_helper import LiveServer

from annotation.models import Project, User
from annotation.services.projects.invitations import create_invitation
from tests.browser.conftest import Axe, Gate, Open
from tests.factories import PASSWORD

NARROW = {"width": 360, "height": 780}


def confirm(page: Page) -> None:
    """Give the password again where it is asked for."""
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()


def with_a_key(page: Page) -> None:
    """A browser that has a passkey in it and a thumb that says yes."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    options = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    devtools.send("WebAuthn.addVirtualAuthenticator", {"options": options})


def test_a_passkey_is_made_and_opens(db: None, alice: User, open_as: Open, axe: Axe):
    page = open_as(alice, "/account/")
    with_a_key(page)
    page.get_by_role("link", name="Second factor and passkeys").click()
    assert axe(page) == []
    page.goto(page.url + "webauthn/add/")
    confirm(page)
    assert axe(page) == []
    page.get_by_label("Passwordless").check()
    page.get_by_role("button", name="Add").click()
    expect(page).to_have_url(re.compile("recovery-codes|webauthn/$"))
    assert axe(page) == []
    page.locator(".bar .menu summary").click()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("heading", name="Projects")).to_be_visible()


def test_pages_around_the_account_have_no_barrier_and_fit(
    project: Project, carol: User, open_as: Open, both_themes: Axe
):
    made = create_invitation(project=project, created_by=carol, role="annotator", days=7, note="Dora")
    page = open_as(carol, "/account/", viewport=NARROW)
    base = page.url.removesuffix("/account/")
    for address in (
        "/account/",
        "/account/password/",
        "/account/second-factor/",
        "/projects/tea/invitations/",
        "/projects/tea/audit/",
        f"/invitations/{made.secret}/",
    ):
        page.goto(base + address)
        assert both_themes(page) == [], address
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, address
    page.goto(base + "/account/second-factor/totp/activate/")
    confirm(page)
    expect(page.get_by_label("Authenticator secret")).to_be_visible()
    assert both_themes(page) == []
    page.goto(base + "/account/delete/")
    assert both_themes(page) == []


def test_no_string_becomes_a_script(db: None, browser: Browser, live_server: LiveServer, gate: Gate):
    page = browser.new_page()
    page.goto(live_server.url + "/login/")
    for attempt in (
        "document.createElement('script').text = 'window.ran = 1'",
        "document.createElement('script').textContent = 'window.ran = 1'",
        "document.createElement('script').src = 'https://evil.example/x.js'",
        "document.createElement('script').src = 'data:text/javascript,window.ran=1'",
    ):
        with pytest.raises(Error, match="Trusted"):
            page.evaluate(f"() => {{ {attempt}; }}")
    # What our own pages need goes on: fragments of our server, and scripts of our server.
    page.evaluate("() => { document.createElement('div').innerHTML = '<b>x</b>'; }")
    page.evaluate("() => { document.createElement('script').src = '/static/js/theme.js'; }")
    page.close()
