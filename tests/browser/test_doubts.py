"""Questions before a submit: asked on the item's own screen, before the next one is shown."""

from playwright.sync_api import Page, expect

from annotation.models import Criterion, Judgment, Project, SpanFlag, User
from tests import factories
from tests.browser.conftest import Open
from tests.browser.test_drafts import LABEL, prepared

ASKED = "Not submitted yet. Submit anyway?"


def offer(project: Project, size: int) -> None:
    """Two comparisons of so many responses, so that the next one lies ready while the first is judged."""
    for item in range(2):
        texts = [f"Response {number} of item {item}." for number in range(size)]
        factories.make_comparison(project, texts, prompt=factories.make_prompt(project, f"Question {item}"))


def open_ready(open_as: Open, user: User) -> Page:
    page = open_as(user, LABEL)
    prepared(page)
    return page


def submit(page: Page) -> None:
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")


def mark(page: Page, letter: str) -> None:
    """Mark the first word of a response with the keyboard."""
    page.locator(f'[data-letter="{letter}"] [data-answer]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    expect(page.locator(f'[data-letter="{letter}"] .flags li')).not_to_have_count(0)


def prompt_on_screen(page: Page) -> str:
    return page.locator(".question__prompt").inner_text()


def submit_statuses(page: Page) -> list[int]:
    """The status of every response to a submit from now on."""
    statuses: list[int] = []
    page.on("response", lambda it: statuses.append(it.status) if "/submit/" in it.url else None)
    return statuses


def break_the_quote(page: Page) -> None:
    """Make the span's quote another than its text: only the server can see that."""
    page.evaluate("""() => {
      const field = document.querySelector('[name="span_flags"]');
      field.value = field.value.replace('"quote":"', '"quote":"x');
    }""")


def test_spans_on_a_response_ranked_first_are_asked_about_before_the_next_item_is_shown(
    project: Project, alice: User, open_as: Open
):
    offer(project, 3)
    page = open_ready(open_as, alice)
    statuses = submit_statuses(page)
    shown = prompt_on_screen(page)
    mark(page, "B")
    page.keyboard.type("bca")
    # The rule can be read before anything is sent.
    expect(page.locator("#submit-status")).to_contain_text("B is ranked above A, but has more")
    page.keyboard.press("Control+Enter")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text(ASKED)
    expect(alert).to_contain_text("B is ranked above A, but has more or more severe error spans.")
    expect(alert).to_be_focused()
    assert prompt_on_screen(page) == shown
    assert statuses == []
    submit(page)
    expect(page.locator(".question__prompt")).not_to_have_text(shown)
    assert statuses == [204]
    assert SpanFlag.objects.get().judgment.ranks.count() == 3


def test_the_question_goes_when_the_answer_no_longer_raises_it(project: Project, alice: User, open_as: Open):
    offer(project, 3)
    page = open_ready(open_as, alice)
    statuses = submit_statuses(page)
    mark(page, "C")
    page.keyboard.type("cba")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("C is ranked above A")
    page.keyboard.press("Backspace")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.keyboard.press("Escape")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.keyboard.type("bac")
    submit(page)
    assert statuses == [204]
    assert Judgment.objects.count() == 1


def test_enter_held_down_does_not_answer_the_question(project: Project, alice: User, open_as: Open):
    offer(project, 3)
    page = open_ready(open_as, alice)
    page.keyboard.type("abc")
    page.keyboard.down("Enter")
    page.keyboard.down("Enter")
    page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    expect(page.get_by_role("alert")).to_contain_text("This is exactly the order shown.")
    assert not Judgment.objects.exists()


def test_the_winner_of_a_pair_with_error_spans_and_missing_ratings_are_asked_about_at_once(
    project: Project, alice: User, open_as: Open
):
    Criterion.objects.create(project=project, key="helpful", label="Helpful")
    offer(project, 2)
    page = open_ready(open_as, alice)
    statuses = submit_statuses(page)
    mark(page, "A")
    page.keyboard.press("Escape")
    page.locator('#verdict [data-key="2"]').check(force=True)
    page.locator('#verdict [data-key="4"]').check(force=True)
    page.keyboard.press("Control+Enter")
    doubts = page.get_by_role("alert").locator("li")
    expect(doubts).to_have_text(
        ["A is ranked above B, but has more or more severe error spans.", "No response is rated."]
    )
    submit(page)
    assert statuses == [204]


def test_the_total_never_falls_on_a_screen_that_was_made_ahead_of_time(
    project: Project, alice: User, open_as: Open
):
    offer(project, 3)
    page = open_ready(open_as, alice)
    expect(page.locator(".screen__where")).to_contain_text("1 of 2")
    for number in range(3):
        factories.make_comparison(project, question=f"Later {number}")
    mark(page, "A")
    break_the_quote(page)
    page.keyboard.type("bca")
    submit(page)
    expect(page.locator(".screen__where")).to_contain_text("1 of 5")
    page.locator("[data-removes-flag]").click()
    submit(page)
    # The screen that comes now was made when there were two.
    expect(page.locator(".screen__where")).to_contain_text("2 of 5")
    assert page.locator(".screen__progress").get_attribute("max") == "5"


def test_a_refusal_that_only_the_server_can_give_comes_back_with_everything(
    project: Project, alice: User, open_as: Open
):
    """The browser checks first, the server decides."""
    offer(project, 3)
    page = open_ready(open_as, alice)
    shown = prompt_on_screen(page)
    mark(page, "A")
    break_the_quote(page)
    page.keyboard.type("bca")
    submit(page)
    expect(page.get_by_role("alert")).to_contain_text("does not stand on its quote")
    assert prompt_on_screen(page) == shown
    expect(page.locator("#order")).to_have_value("B > C > A")
    expect(page.locator('[data-letter="A"] .flags li')).to_have_count(1)
