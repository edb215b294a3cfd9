"""Traces in Chromium: walked, folded, labelled by keys; long texts on demand; hostile output does nothing."""

import pytest
from playwright.sync_api import Page, expect

from annotation.choices import TraceStepKind
from annotation.models import Judgment, Project, User
from annotation.services.texts import create_comparison
from annotation.text.traces import UnwrittenStep
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.browser.payloads import payloads

pytestmark = pytest.mark.django_db(transaction=True)

LABEL = "/projects/tea/label/"
LONG = "".join(f"line {number}\n" for number in range(5_000))


def offer(project: Project, *traces: list[UnwrittenStep]) -> None:
    # Corrections are asked too: they are for plain responses, and must not stand in the way of a trace.
    Project.objects.filter(pk=project.pk).update(ask_step_labels=True, ask_correction=True)
    prompt = factories.make_prompt(project)
    made = [factories.make_trace(prompt, steps) for steps in traces]
    create_comparison(prompt=prompt, completions=made, round_number=1)


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_steps_are_walked_folded_and_labelled_by_keys_alone(
    project: Project, alice: User, open_as: Open, axe: Axe
):
    steps = factories.search_steps(result=LONG)
    offer(project, steps, steps)
    page = open_as(alice, LABEL)
    left, right = (page.locator(f".trace-pair__row > :nth-child({side})") for side in (1, 2))
    assert axe(page) == []
    # From label to label in the left column, over the result, which is no step of the agent.
    press(page, "j", "1", "2")
    expect(left.nth(3).locator("summary")).to_be_focused()
    # Up to the result; opened, its next part comes by itself.
    press(page, "ArrowUp", "ArrowRight")
    expect(left.nth(2).locator("details")).to_have_attribute("open", "")
    expect(left.nth(2).locator("pre")).to_contain_text("line 2000")
    assert "line 4900" not in page.content()
    expect(left.nth(2).locator("[data-left]")).to_be_visible()
    # What is open leads to its like; a label is taken back.
    press(page, "ArrowRight")
    expect(right.nth(2).locator("summary")).to_be_focused()
    press(page, "ArrowDown", "3", "0", "ArrowUp", "ArrowUp", "3")
    press(page, "9")
    with page.expect_response("**/submit/"):
        press(page, "Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    judgment = Judgment.objects.get()
    first, second = judgment.assignment.display_order
    labels = judgment.labelled_steps.values_list("step__completion", "step__index", "label")
    assert sorted(labels) == sorted([(first, 0, "correct"), (first, 1, "wrong"), (second, 1, "unnecessary")])


def test_a_long_trace_stays_light_and_hostile_output_does_nothing(
    project: Project, alice: User, open_as: Open
):
    hostile = payloads()
    steps = [
        UnwrittenStep(
            kind=TraceStepKind.TOOL_RESULT,
            role="tool",
            tool=text[:100],
            content=f"{text}\n{LONG[:9_000]}",
            is_error=True,
        )
        for text in hostile[:199]
    ]
    whole = UnwrittenStep(kind=TraceStepKind.MESSAGE, content="\n".join(hostile))
    offer(project, [*steps, whole])
    page = open_as(alice, LABEL)
    expect(page.locator("[data-step]")).to_have_count(200)
    assert page.evaluate("document.querySelectorAll('.trace-steps *').length") < 6_000
    assert page.evaluate("document.querySelector('.trace-steps').textContent.length") < 200_000
    more = page.locator("[data-step]").last.locator("[data-more]")
    while more.count():
        with page.expect_response("**/steps/**"):
            more.click()
        page.wait_for_timeout(50)
    shown = page.locator("[data-step]").last.locator("pre").text_content()
    assert shown == "\n".join(hostile)
    for number in range(0, 199, 20):
        page.locator("[data-step] summary").nth(number).click()
    assert page.evaluate("window.pwned") is None
    assert (
        page.evaluate(
            "document.querySelectorAll('.trace-steps :is(script, img, iframe, svg, object, video)').length"
        )
        == 0
    )
