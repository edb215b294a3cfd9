"""A calibration session by four people: a lead opens it, three answer blind, see the votes, talk, change."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from annotation.choices import Role
from annotation.models import CalibrationSession, Judgment, Membership, Project, User
from tests import factories
from tests.browser.conftest import Axe, Open

GOOD = "Two to three minutes, in water of 80 °C."
HOME = "/projects/tea/"


@pytest.fixture
def dora(project: Project) -> User:
    dora = factories.make_user("dora")
    Membership.objects.create(project=project, user=dora, role=Role.ANNOTATOR)
    return dora


def look(page: Page, name: str) -> None:
    """Keep pictures of a page where PICTURES_OF_CALIBRATION names a folder."""
    if folder := os.environ.get("PICTURES_OF_CALIBRATION"):
        for scheme, width in (("light", 1400), ("dark", 1400), ("light", 360), ("dark", 360)):
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.screenshot(path=Path(folder) / f"{name}-{width}-{scheme}.png", full_page=True)


def prefer(page: Page, *, good: bool) -> None:
    """Choose the good response, or the other, wherever it stands, and submit."""
    # Keys are heard once the page is loaded.
    page.wait_for_load_state("load")
    is_first = GOOD in page.locator(".candidate").first.inner_text()
    key = "1" if is_first == good else "8"
    page.keyboard.press(key)
    expect(page.locator(f'[data-key="{key}"]')).to_be_checked()
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")


def test_a_session_from_its_opening_to_the_change_of_a_mind(
    project: Project, alice: User, bob: User, dora: User, carol: User, open_as: Open, barriers: Axe
):
    for question in ("How long does green tea steep?", "And sencha?"):
        factories.make_comparison(project, [GOOD, "Ten hours."], question=question)
    lead = open_as(carol, f"{HOME}calibration/")
    lead.get_by_role("link", name="New session").click()
    lead.get_by_label("Name").fill("Spring")
    for name in ("alice", "bob", "dora"):
        lead.get_by_label(name).check()
    lead.get_by_role("button", name="Begin").click()
    expect(lead.get_by_text("hidden", exact=True)).to_be_visible()
    session = CalibrationSession.objects.get()
    here = f"{HOME}calibration/{session.pk}/"
    first, second = (item.comparison.prompt.last_question for item in session.items.order_by("index"))

    # Two prefer the good response of the first comparison, Dora the other; all the good one of the second.
    people = {user.username: open_as(user, here) for user in (alice, bob, dora)}
    for name, page in people.items():
        page.get_by_role("link", name="Annotate").click()
        page.wait_for_url("**/label/")
        expect(page.locator(".question__prompt")).to_contain_text(first)
        prefer(page, good=name != "dora")
        expect(page.locator(".question__prompt")).to_contain_text(second)
        prefer(page, good=True)
    page = people["bob"]
    page.goto(page.url.split("/projects")[0] + here)
    expect(page.get_by_text("You are done")).to_be_visible()
    expect(page.locator("[data-vote]")).to_have_count(0)
    assert not Judgment.objects.exists()
    assert barriers(page) == []
    look(page, "before")

    lead.reload()
    expect(lead.get_by_text("Everybody has answered.")).to_be_visible()
    look(lead, "lead-before")
    lead.get_by_role("button", name="Reveal").click()
    # + + − and + + +: observed 4 / 2 of 6, expected 2 · 5 · 1 / (6 · 5): α = 1 − (1 / 3) / (1 / 3) = 0.
    before = lead.locator("[data-before] strong").first
    expect(before).to_have_text("0.00")

    page = people["dora"]
    page.goto(page.url.split("/projects")[0] + here)
    page.get_by_role("link", name=first).click()
    expect(page.locator("[data-vote]")).to_have_count(3)
    page.get_by_label("Comment").fill("I read the second one too fast.")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".comments")).to_contain_text("I read the second one too fast.")
    assert barriers(page) == []
    look(page, "item")
    page.get_by_role("link", name="Change my annotation").click()
    expect(page.locator("form#judgment")).to_be_visible()
    prefer(page, good=True)

    lead.reload()
    expect(before).to_have_text("0.00")
    # All six are +: one value alone, so there is no α; everybody agrees on both comparisons.
    expect(lead.locator("[data-after] strong")).to_have_count(0)
    rows = lead.get_by_role("region", name="Comparisons, least agreement first").locator("tbody tr")
    expect(rows.first.locator("td").nth(1)).to_have_text("100 %")
    lead.get_by_role("button", name="Close the session").click()
    expect(lead.get_by_text("closed", exact=True)).to_be_visible()
    assert barriers(lead) == []
    look(lead, "closed")
    lead.get_by_role("link", name=first).click()
    expect(lead.locator('[data-vote="dora"]')).to_contain_text("changed")
    look(lead, "item-closed")
