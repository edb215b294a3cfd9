"""Sidebar, tabs, command palette and the pages that they lead to, in both themes and without a mouse."""

from playwright.sync_api import Page, expect

from annotation.models import Project, User
from tests.api.scene import make_scene
from tests.browser.conftest import Axe, Open, until_loaded

PAGES = (
    *("/", "/projects/tea/", "/projects/tea/rounds/", "/projects/tea/runs/", "/search/?q=tea&project=tea"),
    *("/inbox/", "/guide/design/"),
    *("/projects/tea/runs/compare/", "/projects/tea/prompt-sets/", "/compare/?project=tea&find=tea"),
    *("/projects/tea/data/prompts/", "/projects/tea/data/comparisons/", "/projects/tea/data/annotations/"),
    *("/projects/tea/prompts/new/", "/checkpoints/?project=tea&sort=-accuracy"),
    *("/projects/tea/settings/questions/", "/projects/tea/settings/categories/"),
    *("/projects/tea/settings/preview/", "/projects/tea/settings/categories/add/"),
    *("/projects/tea/settings/", "/projects/tea/members/", "/projects/tea/allocation/"),
    *("/projects/tea/guidelines/", "/projects/tea/guidelines/edit/", "/projects/tea/export/"),
    "/projects/tea/export/?format=bio&tag=none",
    *("/projects/tea/my-work/", "/projects/tea/annotators/"),
)


def go(page: Page, path: str) -> None:
    page.goto("/".join(page.url.split("/")[:3]) + path)
    until_loaded(page)


def test_home_overview_and_lists_have_no_barrier(
    project: Project, alice: User, carol: User, open_as: Open, barriers: Axe
):
    make_scene(project, alice, carol)
    page = open_as(carol, "/")
    for path in PAGES:
        go(page, path)
        assert barriers(page) == [], path


def test_the_page_of_a_new_project_has_no_barrier(admin: User, open_as: Open, barriers: Axe):
    assert barriers(open_as(admin, "/projects/new/")) == []


def test_the_palette_opens_searches_and_leads_by_keyboard(
    project: Project, alice: User, carol: User, open_as: Open, axe: Axe
):
    make_scene(project, alice, carol)
    page = open_as(carol, "/projects/tea/")
    page.keyboard.press("Control+k")
    page.keyboard.type("reward-t")
    expect(page.locator("#palette-results a").first).to_contain_text("reward-tea")
    assert axe(page) == []
    page.keyboard.press("ArrowDown")
    expect(page.locator("#palette-results a:focus")).to_contain_text("reward-tea")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="reward-tea")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()


def test_the_sidebar_is_a_drawer_on_a_narrow_page(project: Project, carol: User, open_as: Open, axe: Axe):
    page = open_as(carol, "/projects/tea/", viewport={"width": 360, "height": 800})
    sidebar = page.get_by_role("navigation", name="Project", exact=True)
    expect(sidebar).to_be_hidden()
    page.get_by_role("button", name="Open the menu").press("Enter")
    expect(sidebar).to_be_visible()
    assert axe(page) == []
    page.keyboard.press("Escape")
    expect(sidebar).to_be_hidden()
    page.get_by_role("button", name="Open the menu").press("Enter")
    sidebar.get_by_role("link", name="Quality").click()
    expect(page.get_by_role("link", name="Statistics", exact=True)).to_have_attribute("aria-current", "page")
