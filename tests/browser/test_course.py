"""A lesson by keyboard on a narrow screen: started, watched, passed, in both themes without a barrier."""

from playwright.sync_api import expect

from annotation.choices import JobState
from annotation.models import Project, User
from tests.browser.conftest import Axe, Open
from training.models import LessonRun

NARROW = {"width": 360, "height": 780}
POINTS = [[1, {"distance": 0.9, "reward": -0.2}], [100, {"distance": 0.01, "reward": 0.6}]]


def test_a_lesson_is_run_and_passed_by_keyboard(
    project: Project, alice: User, open_as: Open, both_themes: Axe
):
    page = open_as(alice, "/learn/?project=tea", viewport=NARROW)
    assert both_themes(page) == []
    page.get_by_role("link", name="DPO").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Run the lesson").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop the run")).to_be_visible()
    assert both_themes(page) == []
    runs = LessonRun.objects.filter(created_by=alice, lesson="dpo", broken=False)
    runs.update(state=JobState.RUNNING, worker="w", points=POINTS[:1])
    expect(page.get_by_text("Training…")).to_be_visible()
    runs.update(
        state=JobState.FINISHED,
        worker="",
        points=POINTS,
        figures={"distance": 0.01},
        is_kept=True,
        finished_at="2026-11-01T10:00Z",
    )
    expect(page.get_by_text("the claim holds")).to_be_visible()
    page.locator("#plain summary").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("cell", name="0.9")).to_be_visible()
    assert both_themes(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_class_has_no_barrier(
    project: Project, alice: User, carol: User, open_as: Open, both_themes: Axe
):
    LessonRun.objects.create(
        created_by=alice, lesson="dpo", state=JobState.FINISHED, is_kept=True, finished_at="2026-11-01T10:00Z"
    )
    page = open_as(carol, "/projects/tea/class/", viewport=NARROW)
    expect(page.get_by_role("row", name="alice")).to_contain_text("1 / 11")
    assert both_themes(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
