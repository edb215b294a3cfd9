"""Additional questions about spans and about steps of a trace, answered by keys in Chromium."""

import pytest
from playwright.sync_api import Page, expect

from annotation.models import Assignment, Judgment, Project, User
from annotation.selectors.records import records_of
from annotation.services.projects.project_questions import ask_again
from annotation.services.texts import create_comparison
from tests import factories
from tests.annotation.questions.asking import ask, choices, points, shown_by
from tests.browser.conftest import Axe, Open
from tests.browser.test_additional_questions import picture
from tests.browser.test_marks import mark

pytestmark = pytest.mark.django_db(transaction=True)

LABEL = "/projects/tea/label/"
TEXT = "Boil the water for two minutes, then wait."


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def answers_in(judgment: Judgment) -> list[tuple[object, ...]]:
    record = records_of([judgment.pk])[judgment.pk]
    quotes = {span.place: span.quote for span in record.spans}
    return [
        (part.question, quotes[part.span] if part.span else part.step, part.value) for part in record.answers
    ]


def test_a_span_is_asked_in_its_editor_by_keys_alone(
    project: Project, alice: User, carol: User, open_as: Open, barriers: Axe
):
    factories.make_comparison(project, [TEXT, TEXT])
    ask(
        project,
        carol,
        "sure",
        kind="scale",
        text="How sure?",
        choices=points(1, 3),
        subject="span",
        is_required=True,
    )
    ask(project, carol, "why", subject="span", shown_when=shown_by("sure", "3"), is_required=True)
    ask(project, carol, "topic", subject="span", categories=("irrelevant",))
    page = open_as(alice, LABEL)
    mark(page, 2)
    press(page, "8")
    expect(page.locator("#submit-status")).to_contain_text("Answer “How sure?”")
    # Submitting leads to the question of the span that lacks an answer.
    press(page, "Control+Enter")
    sure = page.locator('.marker [data-question="sure"]')
    why = page.locator('.marker [data-question="why"]')
    expect(sure.locator("input").first).to_be_focused()
    expect(why).to_be_hidden()
    press(page, "3")
    expect(why.locator("textarea")).to_be_focused()
    expect(page.locator("#submit-status")).to_contain_text("Answer “Why?”")
    page.keyboard.type("It was\nmeasured.")
    # It is asked of another category alone.
    expect(page.locator('.marker [data-question="topic"]')).to_be_hidden()
    picture(page, "span")
    assert not barriers(page)
    press(page, "Escape")
    expect(page.locator(".flag[tabindex]")).to_be_focused()
    # The next span has answers of its own: from its note on to its questions.
    mark(page, 1, skip=3)
    page.locator(".flag[tabindex]").nth(1).focus()
    expect(page.locator("[data-note]")).to_be_visible()
    press(page, "n", "Enter")
    expect(sure.locator("input").first).to_be_focused()
    expect(sure.locator("input:checked")).to_have_count(0)
    press(page, "1")
    expect(page.locator(".flag[tabindex]").nth(1)).to_be_focused()
    press(page, "i")
    expect(page.locator('.marker [data-question="topic"]')).to_be_visible()
    press(page, "u")
    expect(page.locator('.marker [data-question="topic"]')).to_be_hidden()
    # A draft has them all.
    with page.expect_response("**/draft/"):
        press(page, "8")
    page.goto("about:blank")
    page = open_as(alice, LABEL)
    page.locator(".flag[tabindex]").first.focus()
    expect(page.locator('.marker [data-question="why"] textarea')).to_have_value("It was\nmeasured.")
    with page.expect_response("**/submit/"):
        press(page, "Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert answers_in(Judgment.objects.get()) == [
        ("sure", "Boil the", 3),
        ("sure", "minutes", 1),
        ("why", "Boil the", "It was\nmeasured."),
    ]


def test_a_question_about_spans_that_is_asked_again_opens_the_span(
    project: Project, alice: User, carol: User, open_as: Open
):
    comparison = factories.make_comparison(project, [TEXT, TEXT])
    judgment = factories.make_judgment(comparison, alice, strength=2)
    completion = comparison.candidates.order_by("index")[1].completion
    category = project.categories.get(key="untruthful")
    judgment.span_flags.create(completion=completion, category=category, start=5, end=8, quote="the")
    row = ask(project, carol, "topic", subject="span")
    assert ask_again(question=row, asked_by=carol) == 1
    page = open_as(alice, LABEL, viewport={"width": 360, "height": 800}, color_scheme="dark")
    expect(page.locator('.marker [data-question="topic"] input').first).to_be_focused()
    picture(page, "span-again-360-dark")
    press(page, "2")
    with page.expect_response("**/submit/"):
        press(page, "Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert answers_in(Judgment.objects.get(supersedes=judgment)) == [("topic", "the", "tax")]


def test_each_step_of_a_trace_is_asked_by_keys(
    project: Project, alice: User, carol: User, open_as: Open, barriers: Axe
):
    Project.objects.filter(pk=project.pk).update(ask_step_labels=True)
    project.refresh_from_db()
    ask(
        project,
        carol,
        "sound",
        kind="choice",
        text="Is it sound?",
        choices=choices("yes", "no", no="Z"),
        subject="step",
    )
    ask(project, carol, "why", subject="step", shown_when=shown_by("sound", "no"), is_required=True)
    prompt = factories.make_prompt(project)
    made = [
        factories.make_trace(prompt, factories.search_steps()),
        factories.make_trace(prompt, factories.search_steps("Ten hours.")),
    ]
    create_comparison(prompt=prompt, completions=made, round_number=1)
    page = open_as(alice, LABEL)
    steps = page.locator('[data-column]:not([data-kind="tool_result"])')
    expect(steps.first.locator('[data-question="sound"]')).to_be_visible()
    expect(page.locator('[data-kind="tool_result"] [data-question]')).to_have_count(0)
    press(page, "j")
    expect(steps.first.locator("summary")).to_be_focused()
    # The digit on the head labels the step, in a question it answers.
    press(page, "n")
    expect(steps.first.locator('[data-question="sound"] input').first).to_be_focused()
    press(page, "2")
    expect(steps.first.locator('[data-question="why"] textarea')).to_be_focused()
    expect(steps.first.locator("[data-step-label] input:checked")).to_have_count(0)
    press(page, "8")
    page.keyboard.press("Backspace")
    picture(page, "steps")
    assert not barriers(page)
    page.locator("body").click(position={"x": 2, "y": 2})
    press(page, "8")
    expect(page.locator("#submit-status")).to_have_text("Answer “Why?”.")
    steps.first.locator('[data-question="why"] textarea').fill("It guesses.")
    steps.nth(1).locator("summary").focus()
    press(page, "Shift+Z")
    expect(steps.nth(1).locator('[data-question="sound"] input').last).to_be_checked()
    steps.nth(1).locator('[data-question="why"] textarea').fill("Wrong tool.")
    with page.expect_response("**/submit/"):
        press(page, "Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    shown = Assignment.objects.get().display_order
    said = answers_in(Judgment.objects.get())
    # Two traces stand in rows: the second step in the order of the page is the first of the other trace.
    assert len(shown) == 2
    assert said == [("sound", 0, "no"), ("sound", 0, "no"), ("why", 0, said[2][2]), ("why", 0, said[3][2])]
    assert {said[2][2], said[3][2]} == {"It guesses.", "Wrong tool."}
