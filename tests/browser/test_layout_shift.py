"""Nothing on a page moves after it was seen: the shifts of a page's layout add up to next to nothing."""

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from annotation.models import Project, User
from tests.api.scene import make_scene
from tests.browser.conftest import Open, until, until_loaded
from tests.browser.test_navigation import PAGES
from tests.browser.test_run_page import write_steps
from training.models import SideBySide

pytestmark = pytest.mark.django_db(transaction=True)

_MOST = 0.05
_OBSERVE = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const moved = entry.sources.map(({ node }) => node?.outerHTML?.slice(0, 120) ?? node?.textContent ?? "");
    window.shifts.push({ value: entry.value, moved });
  }
}).observe({ type: "layout-shift", buffered: true });
"""


def shifts_of(page: Page, path: str) -> tuple[float, list[object]]:
    """Open a page and return the sum of its shifts, with what moved."""
    page.goto("/".join(page.url.split("/")[:3]) + path)
    # A page that has responses generated says why one is missing once that is known.
    until(page, "() => !document.querySelector('.is-writing')")
    # The observer hears of a frame after it was drawn.
    until_loaded(page)
    shifts = page.evaluate("window.shifts")
    return sum(shift["value"] for shift in shifts), [shift["moved"] for shift in shifts]


@pytest.mark.parametrize("width", [1400, 360])
def test_nothing_on_a_page_moves_once_it_was_drawn(
    project: Project, alice: User, carol: User, open_as: Open, width: int
):
    scene = make_scene(project, alice, carol)
    scene.run.path.mkdir(parents=True, exist_ok=True)
    write_steps(scene.run, 1, 120)
    answered = SideBySide.objects.create(
        project=project, messages=[{"role": "user", "content": "Tea?"}], sampling={}, seed=1, created_by=carol
    )
    for position, answer in enumerate(("Two minutes.", "Three minutes, at 80 °C."), start=1):
        answered.answers.create(
            position=position, checkpoint=scene.starter, messages=[], text=answer, written_at=timezone.now()
        )
    further = (scene.run, scene.round, scene.side_by_side, answered)
    page = open_as(carol, "/guide/design/", viewport={"width": width, "height": 900})
    page.add_init_script(_OBSERVE)
    shifts_by_path = {
        path: shifts_of(page, path) for path in (*PAGES, *(row.get_absolute_url() for row in further))
    }
    assert {path: shifts for path, shifts in shifts_by_path.items() if shifts[0] > _MOST} == {}


@pytest.mark.parametrize(("width", "blind"), [(1400, True), (360, False)])
def test_the_reason_why_a_response_is_missing_moves_nothing(
    project: Project, alice: User, carol: User, open_as: Open, width: int, blind: bool
):
    unanswered = make_scene(project, alice, carol).side_by_side
    SideBySide.objects.filter(pk=unanswered.pk).update(blind=blind)
    page = open_as(carol, "/guide/design/", viewport={"width": width, "height": 900})
    page.add_init_script(_OBSERVE)
    moved, what = shifts_of(page, unanswered.get_absolute_url())
    expect(page.locator("#answers .message--error")).to_have_count(2)
    assert moved == 0, what


def test_a_shift_is_noticed(project: Project, alice: User, open_as: Open):
    page = open_as(alice, "/guide/design/")
    page.add_init_script(_OBSERVE)
    shifts_of(page, "/guide/design/")
    page.evaluate("document.querySelector('h1').style.marginTop = '300px'")
    until(page, f"() => window.shifts.reduce((sum, shift) => sum + shift.value, 0) > {_MOST}")
