"""Labelling item after item: the prompt in sight, nothing that jumps, and no mouse needed."""

import pytest
from playwright.sync_api import Page, expect

from annotation.choices import Polarity
from annotation.models import Criterion, Judgment, Project, User
from tests import factories
from tests.browser.conftest import Axe, Open, until
from tests.browser.content import ANSWERS, PASSAGES, make_items

LABEL = "/projects/tea/label/"

LONG = "\n\n".join(f"Paragraph {number} of an answer that goes on for a while." for number in range(40))

_SHIFTS = """async () => {
  let sum = 0;
  const count = (list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value;
  };
  const observer = new PerformanceObserver(count);
  observer.observe({ type: "layout-shift", buffered: true });
  await new Promise((done) => setTimeout(done, 300));
  count({ getEntries: () => observer.takeRecords() });
  return sum;
}"""


def shifts(page: Page) -> float:
    """The layout shift of a page so far, less what follows an input, as Chromium counts it."""
    page.wait_for_load_state("networkidle")
    total: float = page.evaluate(_SHIFTS)
    return total


@pytest.fixture
def long_pair(project: Project):
    """Two pairs with answers longer than any screen."""
    return [
        factories.make_comparison(project, [f"{LONG} a{number}", f"{LONG} b{number}"], question=question)
        for number, question in enumerate(("Why is tea bitter?", "How hot is hot?"))
    ]


def test_the_prompt_stays_in_sight_and_opens_to_the_whole(long_pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    pinned = page.locator(".pinned__box")
    expect(pinned).to_be_hidden()
    page.mouse.wheel(0, 900)
    expect(pinned).to_be_visible()
    expect(pinned.locator("summary")).to_contain_text("Why is tea bitter?")
    pinned.locator("summary").press("Enter")
    expect(pinned.locator(".turn")).to_contain_text("Why is tea bitter?")
    # Enter on it opens it; it submits nothing.
    assert not Judgment.objects.exists()
    page.mouse.wheel(0, -5000)
    expect(pinned).to_be_hidden()
    # Who opened it finds it open on the next comparison as well.
    page.keyboard.press("1")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(pinned).to_be_hidden()
    page.mouse.wheel(0, 900)
    expect(pinned.locator(".turn")).to_contain_text("How hot is hot?")


def test_the_prompt_takes_a_small_part_of_a_phone(long_pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL, viewport={"width": 360, "height": 740})
    page.mouse.wheel(0, 1500)
    strip = page.locator(".pinned__box")
    expect(strip).to_be_visible()
    box = strip.bounding_box()
    assert box is not None
    assert box["height"] <= 48
    strip.locator("summary").click()
    box = strip.bounding_box()
    assert box is not None
    assert box["height"] <= 740 / 2
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_strip_of_the_prompt_covers_no_control_that_has_the_focus(long_pair, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.mouse.wheel(0, 900)
    expect(page.locator(".pinned__box")).to_be_visible()
    answer = page.locator("[data-answer]").first
    page.locator('[data-letter="B"] [data-answer]').focus()
    page.keyboard.press("Shift+Tab")
    focused = page.evaluate("document.activeElement.getBoundingClientRect().bottom")
    strip = page.locator(".pinned__box").bounding_box()
    assert strip is not None
    assert focused > strip["y"] + strip["height"]
    expect(answer).to_be_visible()


@pytest.mark.parametrize("width", [1400, 360])
def test_nothing_jumps_on_the_labelling_screen(width: int, project: Project, alice: User, open_as: Open):
    make_items(project)
    page = open_as(alice, LABEL, viewport={"width": width, "height": 800})
    assert shifts(page) <= 0.05
    page.mouse.wheel(0, 600)
    assert shifts(page) <= 0.05
    page.keyboard.press("4")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    assert shifts(page) <= 0.05


def test_a_pair_a_ranking_and_spans_are_labelled_without_a_mouse(
    project: Project, alice: User, open_as: Open
):
    for category in project.categories.all():
        category.polarity = Polarity.NEUTRAL
        category.save()
    make_items(project)
    spans = factories.make_project(slug="spans", annotators=[alice], ask_verdict=False)
    prompt = factories.make_prompt(spans, "Is this right?", context=PASSAGES)
    factories.make_comparison(spans, ANSWERS[:1], prompt=prompt)

    page = open_as(alice, "/")
    # From home by Tab and Enter alone.
    link = page.locator('a[href="/projects/tea/label/"]').first
    for _ in range(40):
        if link.evaluate("found => found === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/label/")
    expect(page.locator(".candidate")).to_have_count(2)
    # The keys work once the scripts have run.
    page.wait_for_load_state("networkidle")
    page.keyboard.press("3")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    page.keyboard.type("b=ca")
    page.keyboard.press("d")
    expect(page.locator("#order")).to_have_value("B = C > A > D")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()

    page.goto("/".join(page.url.split("/")[:3]) + "/projects/spans/label/")
    expect(page.locator(".candidate")).to_have_count(1)
    for _ in range(40):
        if page.evaluate("document.activeElement.hasAttribute('data-answer')"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("u")
    expect(page.locator(".flag").first).to_be_visible()
    page.keyboard.press("1")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    pair, ranking, marked = Judgment.objects.order_by("pk")
    assert pair.strength == 2
    assert sorted(ranking.ranks.values_list("rank", flat=True)) == [1, 1, 2, 3]
    assert marked.span_flags.get().category.key == "untruthful"


@pytest.fixture
def long_prompt(project: Project):
    """A pair with a prompt of more than 700 px and two criteria."""
    for key in ("helpful", "safe"):
        Criterion.objects.create(project=project, key=key, label=key.title(), position=1)
    return factories.make_comparison(project, ANSWERS[:2], question=LONG)


def test_a_long_prompt_leaves_responses_and_dock_on_the_screen(long_prompt, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    for width, height in ((1400, 900), (768, 900), (360, 740)):
        page.set_viewport_size({"width": width, "height": height})
        page.reload()
        prompt = page.locator(".question__prompt")
        assert prompt.bounding_box()["height"] <= height * 0.35
        assert prompt.evaluate("element => element.scrollHeight") > 700
        for part in (".candidate__text >> nth=0", ".dock"):
            box = page.locator(part).bounding_box()
            assert 0 < box["y"] < height
        dock = page.locator(".dock").bounding_box()
        assert dock["y"] + dock["height"] <= height


@pytest.mark.parametrize("size", [2, 4])
def test_the_dock_of_a_phone_sticks_and_covers_nothing_for_good(
    project: Project, alice: User, open_as: Open, size: int
):
    for key in ("helpful", "safe"):
        Criterion.objects.create(project=project, key=key, label=key.title(), position=1)
    answers = [f"{LONG} {letter}" for letter in "abcd"[:size]]
    factories.make_comparison(project, answers, question="Why is tea bitter?")
    page = open_as(alice, LABEL, viewport={"width": 360, "height": 740})
    dock = page.locator(".dock")
    for place in (0, 900, 10**6):
        page.evaluate("top => scrollTo(0, top)", place)
        box = dock.bounding_box()
        assert box["y"] + box["height"] <= 740, place
        assert box["height"] <= 740 * 0.4
        expect(page.get_by_role("button", name="Submit")).to_be_in_viewport()
    # The last response, with its ratings, ends above the dock at the end of the page.
    last = page.locator(".candidate").last.bounding_box()
    assert last["y"] + last["height"] <= dock.bounding_box()["y"]
    # Whatever gets the focus stands clear of the dock.
    covered = page.evaluate(
        """() => [...document.querySelectorAll("#judgment :is(button, input, select, textarea, [tabindex])")]
        .filter((element) => !element.closest(".dock") && element.checkVisibility() && !element.disabled)
        .filter((element) => {
          scrollTo(0, 0);
          element.focus();
          const box = element.getBoundingClientRect();
          const dock = document.querySelector(".dock").getBoundingClientRect();
          return document.activeElement === element && box.height < 300 && box.bottom > dock.top + 1;
        }).map((element) => element.outerHTML.slice(0, 120))"""
    )
    assert covered == []


def test_a_long_prompt_is_read_by_keyboard(long_prompt, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    prompt = page.locator(".question__prompt")
    expect(prompt).to_have_attribute("tabindex", "0")
    prompt.focus()
    page.keyboard.press("End")
    until(page, "() => document.querySelector('.question__prompt').scrollTop > 300")


def test_a_short_prompt_is_no_stop_of_tab(items, alice: User, open_as: Open):
    prompt = open_as(alice, LABEL).locator(".question__prompt")
    expect(prompt).to_be_visible()
    expect(prompt).not_to_have_attribute("tabindex", "0")


def test_the_dock_counts_the_ratings_and_leads_to_the_first_that_is_missing(
    long_prompt, project: Project, alice: User, open_as: Open
):
    page = open_as(alice, LABEL)
    left = page.get_by_role("button", name="Ratings 0/4")
    expect(left).to_be_in_viewport()
    left.click()
    group = page.get_by_role("radiogroup", name="Helpful, response A")
    expect(group.get_by_role("radio").first).to_be_focused()
    page.keyboard.press("1")
    expect(page.get_by_role("button", name="Ratings 1/4")).to_be_visible()
    # What has the focus is not under the dock.
    second = page.get_by_role("radiogroup", name="Helpful, response B").bounding_box()
    assert second["y"] + second["height"] <= page.locator(".dock").bounding_box()["y"]


def test_a_long_prompt_has_no_barriers(long_prompt, alice: User, open_as: Open, barriers: Axe):
    assert barriers(open_as(alice, LABEL)) == []
