"""Additional questions: a lead builds a project with four of them, and an annotator answers them by keys."""

import os
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from annotation.models import Assignment, Judgment, Project, ProjectQuestion, User
from annotation.selectors.records import records_of
from annotation.services.projects.project_questions import ask_again
from tests import factories
from tests.annotation.questions.asking import ask
from tests.browser.conftest import Axe, Open

LABEL = "/projects/tea/label/"
MOST_CLICKS = 25


class Pointer:
    """Clicks, counted; a field that is typed into is clicked first."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, target: Locator) -> None:
        self.clicks += 1
        target.click()

    def fill(self, label: str, text: str) -> None:
        self.clicks += 1
        self.page.get_by_label(label, exact=True).fill(text)

    def choose(self, label: str, value: str) -> None:
        self.clicks += 1
        self.page.get_by_label(label, exact=True).select_option(value)

    def button(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name, exact=True))


def picture(page: Page, name: str) -> None:
    """Keep a picture where a person wants to look at one."""
    if folder := os.environ.get("PICTURES_OF_QUESTIONS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_a_lead_builds_four_questions_and_an_annotator_answers_them_by_keys(
    project: Project, alice: User, carol: User, open_as: Open, barriers: Axe
):
    Project.objects.filter(pk=project.pk).update(ask_comment=False)
    factories.make_comparison(project, ["Two minutes.", "Ten hours."])
    page = open_as(carol, "/projects/tea/settings/questions/")
    hand = Pointer(page)
    hand.click(page.get_by_role("link", name="Question", exact=True))
    hand.fill("Question", "What is it about?")
    hand.fill("Choices, or labels of points", "Time [T]\nTaste\nSomething else")
    preview = page.locator("#question-preview")
    expect(preview.get_by_role("radio")).to_have_count(3)
    expect(preview).to_contain_text("What is it about?")
    hand.click(page.get_by_label("Required"))
    picture(page, "editor")
    hand.button("Add and write another")
    hand.fill("Question", "How easy was it?")
    hand.choose("Answered by", "scale")
    expect(preview.get_by_role("radio")).to_have_count(5)
    hand.button("Add and write another")
    hand.fill("Question", "How many minutes does it name?")
    hand.choose("Answered by", "number")
    hand.choose("Asked of", "completion")
    hand.fill("Unit", "min")
    hand.button("Add and write another")
    hand.fill("Question", "What else?")
    hand.choose("Answered by", "text")
    hand.click(page.locator("summary", has_text="Show only after one of these answers"))
    hand.click(page.get_by_label("What is it about?: Something else"))
    picture(page, "editor-conditional")
    hand.button("Add")
    expect(page.locator("#project-question-list li")).to_have_count(4)
    picture(page, "list")
    assert not barriers(page)
    hand.click(page.locator(".page-header").get_by_role("link", name="Preview"))
    expect(page.locator("#questions")).to_be_visible()
    assert hand.clicks <= MOST_CLICKS
    kinds = list(ProjectQuestion.objects.order_by("position").values_list("kind", flat=True))
    assert kinds == ["choice", "scale", "number", "text"]

    page = open_as(alice, LABEL)
    what_else = page.locator('#questions [data-question="what-else"]')
    expect(what_else).to_be_hidden()
    page.keyboard.press("8")
    expect(page.locator("#submit-status")).to_have_text("Answer “What is it about?”.")
    for key in ("n", "3"):
        page.keyboard.press(key)
    expect(what_else).to_be_visible()
    expect(page.locator("#announcer")).to_have_text("New question: What else?")
    # Its own key changes the choice, and the question that hung on it goes.
    page.keyboard.press("Shift+T")
    expect(what_else).to_be_hidden()
    page.locator('[data-question="what-is-it-about"] input').first.focus()
    page.keyboard.press("3")
    page.keyboard.press("4")
    expect(page.locator('[data-question="how-easy-was-it"] input:checked')).to_have_value("4")
    page.keyboard.press("Tab")
    picture(page, "label")
    assert not barriers(page)
    page.locator('[data-kind="number"] input').first.focus()
    page.keyboard.type("x")
    expect(page.locator("#submit-status")).to_contain_text("How many minutes does it name?")
    page.keyboard.press("Backspace")
    page.keyboard.type("2,5")
    page.keyboard.press("Enter")
    page.keyboard.type("600")
    page.keyboard.press("Enter")
    expect(what_else.locator("textarea")).to_be_visible()
    what_else.locator("textarea").focus()
    page.keyboard.type("Heat.")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    judgment = Judgment.objects.get()
    shown = Assignment.objects.get().display_order
    answers = records_of([judgment.pk])[judgment.pk].answers
    assert {(part.question, part.completion): part.value for part in answers} == {
        ("what-is-it-about", None): "something-else",
        ("how-easy-was-it", None): 4,
        ("how-many-minutes-does-it-name", str(shown[0])): 2.5,
        ("how-many-minutes-does-it-name", str(shown[1])): 600,
        ("what-else", None): "Heat.",
    }


def test_a_question_asked_again_comes_with_everything_else_filled_in(
    project: Project, alice: User, carol: User, open_as: Open
):
    comparison = factories.make_comparison(project, ["Two minutes.", "Ten hours."])
    judgment = factories.make_judgment(comparison, alice, comment="Mine.", strength=2)
    row = ask(project, carol, "topic", is_required=True)
    ask_again(question=row, asked_by=carol)
    page = open_as(alice, LABEL, viewport={"width": 360, "height": 800}, color_scheme="dark")
    expect(page.locator('[data-question="topic"] input').first).to_be_focused()
    expect(page.get_by_label("Comment")).to_have_value("Mine.")
    picture(page, "again-360-dark")
    page.keyboard.press("2")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    revised = Judgment.objects.get(supersedes=judgment)
    record = records_of([revised.pk])[revised.pk]
    assert (record.comment, record.strength, record.answers[0].value) == ("Mine.", 2, "tax")
