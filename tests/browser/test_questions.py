"""Every question by the keyboard alone, all of them without JavaScript, and the scripts that go with them."""

import pytest
from playwright.sync_api import Page, expect

from annotation.choices import RatingScale, Verdict
from annotation.models import Assignment, Completion, Criterion, ItemFlag, Judgment, Membership, Project, User
from annotation.services.projects.projects import publish_guideline
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.browser.content import ANSWERS, PASSAGES, QUESTION

LABEL = "/projects/tea/label/"
EVERYTHING = {"ask_correction": True, "ask_critique": True, "ask_demonstration": True}


def asks(project: Project, *, criteria: bool = False, **settings: bool) -> None:
    Project.objects.filter(pk=project.pk).update(**settings)
    scales = [("helpful", RatingScale.FIVE), ("tone", RatingScale.THUMBS)] if criteria else []
    for place, (key, scale) in enumerate(scales):
        Criterion.objects.create(project=project, key=key, label=key.title(), scale=scale, position=place)


def offer(project: Project, *texts: str) -> None:
    prompt = factories.make_prompt(project, QUESTION, context=PASSAGES)
    factories.make_comparison(project, texts, prompt=prompt)


def shown() -> list[Completion]:
    """The completions on Alice's screen, in its order."""
    order = Assignment.objects.latest("pk").display_order
    return [Completion.objects.get(pk=pk) for pk in order]


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def submit(page: Page) -> Judgment:
    """Send with the keyboard and wait until it is stored."""
    with page.expect_response("**/submit/"):
        press(page, "Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    judgment: Judgment = Judgment.objects.get()
    return judgment


# ── By the keyboard alone ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("side_by_side", [True, False])
def test_answers_are_rated_digit_after_digit(
    side_by_side: bool, project: Project, alice: User, open_as: Open
):
    asks(project, criteria=True, rate_side_by_side=side_by_side)
    offer(project, *ANSWERS[:2])
    page = open_as(alice, LABEL)
    first, second = shown()
    press(page, "8", "v", "4")
    expect(page.locator("#submit-status")).to_have_text("Still to be rated: 3 of 4.")
    # Side by side: A and B on the first criterion, then on the second. One by one: all of A, then all of B.
    press(page, *(("2", "+", "-") if side_by_side else ("+", "2", "-")))
    expect(page.locator("#submit-status")).to_have_text("B is better.")
    judgment = submit(page)
    assert judgment.strength == 3
    assert {(r.criterion.key, r.completion): r.value for r in judgment.ratings.all()} == {
        ("helpful", first): 4,
        ("helpful", second): 2,
        ("tone", first): 1,
        ("tone", second): 0,
    }


def test_a_rating_is_taken_back_and_changed_by_arrow_keys(project: Project, alice: User, open_as: Open):
    asks(project, criteria=True)
    offer(project, *ANSWERS[:2])
    page = open_as(alice, LABEL)
    press(page, "v", "4")
    chosen = page.locator("[data-rating]").first.locator("input:checked")
    expect(chosen).to_have_value("4")
    press(page, "Shift+Tab", "ArrowLeft")
    expect(chosen).to_have_value("3")
    press(page, "Backspace")
    expect(chosen).to_have_count(0)


def test_a_text_is_edited_and_the_difference_stands_below_it(project: Project, alice: User, open_as: Open):
    asks(project, ask_correction=True)
    offer(project, "Steep it ten minutes.\r\nNo more.", "No.")
    page = open_as(alice, LABEL)
    card = page.locator(".candidate").filter(has_text="Steep it")
    card.locator("[data-answer]").focus()
    press(page, "o", "Control+Home", *["ArrowRight"] * 9, *["Delete"] * 3)
    page.keyboard.type("two")
    expect(card.locator(".diff del")).to_have_text("ten")
    expect(card.locator(".diff ins")).to_have_text("two")
    press(page, "Escape", "=")
    judgment = submit(page)
    correction = judgment.corrections.get()
    assert correction.text == "Steep it two minutes.\r\nNo more."
    assert correction.edits.values_list("start", "end", "quote", "replacement").get() == (9, 12, "ten", "two")


def test_an_edit_that_is_undone_is_none(project: Project, alice: User, open_as: Open):
    asks(project, ask_correction=True)
    offer(project, *ANSWERS[2:4])
    page = open_as(alice, LABEL)
    page.locator("[data-answer]").first.focus()
    press(page, "o")
    page.keyboard.type("so ")
    expect(page.locator(".correction [data-edited]").first).to_be_visible()
    page.get_by_role("button", name="As it was").focus()
    press(page, "Enter")
    expect(page.locator(".correction [data-edited]").first).to_be_hidden()
    press(page, "Escape", "=")
    assert submit(page).corrections.count() == 0


def test_critiques_and_an_answer_of_ones_own_are_written(project: Project, alice: User, open_as: Open):
    asks(project, ask_critique=True, ask_demonstration=True, ask_verdict=False)
    offer(project, *ANSWERS[:2])
    page = open_as(alice, LABEL)
    expect(page.locator("#submit-status")).to_have_text("Write your own response, or choose “cannot judge”.")
    _, second = shown()
    press(page, "w")
    page.keyboard.type("Two minutes.")
    press(page, "Enter")
    page.keyboard.type("At 80 °C.")
    page.locator("[data-answer]").last.focus()
    press(page, "k")
    page.keyboard.type("Too long.")
    judgment = submit(page)
    assert judgment.verdict == Verdict.NOT_ASKED
    assert judgment.demonstration.text == "Two minutes.\nAt 80 °C."
    assert [(c.completion, c.text) for c in judgment.critiques.all()] == [(second, "Too long.")]


def test_missing_info_gets_a_place_and_more_than_one_piece_of_evidence(
    project: Project, alice: User, open_as: Open
):
    offer(project, "Steep 🍵 it well.", "No.")
    page = open_as(alice, LABEL)
    card = page.locator(".candidate").filter(has_text="Steep 🍵")
    card.locator("[data-answer]").focus()
    press(page, "m")
    page.keyboard.type("How hot?")
    evidence = card.locator('select[name="missing-evidence"]')
    evidence.select_option("0:")
    card.locator("[data-adds-evidence]").focus()
    press(page, "Enter")
    evidence.select_option("1:1")
    card.locator("[data-places]").focus()
    press(page, "Enter")
    expect(card.locator("[data-placing]")).to_be_focused()
    # From the beginning: before the tea, before "it".
    press(page, "ArrowRight", "ArrowRight", "Enter")
    expect(card.locator("[data-placed]")).to_have_text("before “it well.”")
    expect(card.locator(".insert-caret")).to_be_visible()
    press(page, "Escape", "=")
    row = submit(page).missing_info.get()
    # "Steep 🍵 it": the tea is one code point, at 6; "it" begins at 8.
    assert (row.text, row.insert_at) == ("How hot?", 8)
    assert {(row.passage, row.sentence)} | {
        (more["passage"], more["sentence"]) for more in row.further_evidence
    } == {(0, None), (1, 1)}


def test_a_place_is_pointed_at_by_mouse_also_behind_a_mark(project: Project, alice: User, open_as: Open):
    offer(project, "Steep 🍵 it well.", "No.")
    page = open_as(alice, LABEL)
    card = page.locator(".candidate").filter(has_text="Steep 🍵")
    card.locator("[data-answer]").focus()
    press(page, "ArrowRight", "u", "Escape")
    expect(card.locator(".flag")).to_be_visible()
    card.locator(".missing summary").click()
    card.locator("[data-places]").click()
    expect(card.locator("[data-placing]")).to_be_focused()
    box = page.evaluate(
        """() => {
          const walker = document.createTreeWalker(document.querySelector("#screen"), NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const at = walker.currentNode.data.indexOf("well");
            if (at < 0 || !walker.currentNode.parentElement.closest("[data-start]")) continue;
            const range = document.createRange();
            range.setStart(walker.currentNode, at);
            range.setEnd(walker.currentNode, at + 1);
            const { left, top, height } = range.getBoundingClientRect();
            return { x: left + 1, y: top + height / 2 };
          }
        }"""
    )
    page.mouse.click(box["x"], box["y"])
    expect(card.locator("[data-placed]")).to_have_text("before “well.”")
    assert card.locator('[name="missing-insert"]').input_value() == "11"


def test_changed_rules_are_read_and_the_notice_goes(project: Project, alice: User, open_as: Open, axe: Axe):
    offer(project, *ANSWERS[:2])
    Membership.objects.filter(user=alice).update(guideline_seen=1)
    publish_guideline(project=project, text="Prefer **short** answers.", author=None)
    page = open_as(alice, LABEL)
    notice = page.locator("#rules-changed form")
    expect(notice).to_contain_text("The guidelines have changed.")
    assert axe(page) == []
    press(page, "1")
    page.get_by_role("button", name="I have read them").focus()
    press(page, "Enter")
    expect(notice).to_have_count(0)
    expect(page.locator('input[name="choice"]:checked')).to_have_count(1)
    assert Membership.objects.get(user=alice).guideline_seen == 2


def test_a_flag_is_sent_and_everything_stays(project: Project, alice: User, open_as: Open):
    offer(project, *ANSWERS[:2])
    page = open_as(alice, LABEL)
    press(page, "1", "x", "ArrowDown")
    page.get_by_role("button", name="Report it").focus()
    press(page, "Enter")
    # The menu closes; its message stands at the top of the comparison.
    expect(page.locator(".screen > [role=alert], .screen__bar + [role=alert]")).to_contain_text(
        "Reported to the reviewers."
    )
    expect(page.locator('input[name="choice"]:checked')).to_have_count(1)
    assert ItemFlag.objects.get().reason == "harmful or private"


# ── Without JavaScript ────────────────────────────────────────────────────────────────


def test_without_javascript_every_question_but_marks_is_answered(
    project: Project, alice: User, open_as: Open
):
    asks(project, criteria=True, **EVERYTHING)
    offer(project, "Steep it ten minutes.\r\nNo more.", "No.")
    page = open_as(alice, LABEL, java_script_enabled=False)
    first, second = shown()
    page.get_by_label("Your own response").fill("Two minutes.\nNot more.")
    for name, value in (("Helpful, response A", "5"), ("Helpful, response B", "1")):
        page.get_by_role("radiogroup", name=name).get_by_role("radio", name=value, exact=True).check(
            force=True
        )
    page.get_by_role("radiogroup", name="Tone, response A").get_by_role("radio", name="thumb up").check(
        force=True
    )
    page.get_by_label("Critique of response B").fill("Says nothing.")
    for edit in page.locator(".correction summary").all():
        edit.click()
    letter = "A" if "Steep" in first.text else "B"
    field = page.get_by_label(f"Text of response {letter}, to edit")
    field.fill(field.input_value().replace("ten", "two"))
    page.get_by_role("radio", name="A is better").check(force=True)
    page.get_by_role("button", name="Submit").click()

    # One rating is left out: the page comes back with all that was entered, and with the difference.
    expect(page.get_by_role("alert")).to_contain_text("Still to be rated: Tone (B).")
    expect(page.locator(".diff del")).to_have_text("ten")
    page.get_by_role("radiogroup", name="Tone, response B").get_by_role("radio", name="thumb down").check(
        force=True
    )
    with page.expect_response("**/submit/"):
        page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()

    judgment = Judgment.objects.get()
    assert (judgment.verdict, judgment.strength) == (Verdict.RANKED, 3)
    assert {row.completion: row.rank for row in judgment.ranks.all()} == {first: 1, second: 2}
    assert judgment.demonstration.text == "Two minutes.\nNot more."
    assert {(r.criterion.key, r.completion): r.value for r in judgment.ratings.all()} == {
        ("helpful", first): 5,
        ("helpful", second): 1,
        ("tone", first): 1,
        ("tone", second): 0,
    }
    assert [(c.completion, c.text) for c in judgment.critiques.all()] == [(second, "Says nothing.")]
    assert judgment.corrections.get().text == "Steep it two minutes.\r\nNo more."


def test_all_questions_together_are_accessible_and_fit_every_width(
    project: Project, alice: User, open_as: Open, barriers: Axe
):
    asks(project, criteria=True, **EVERYTHING)
    offer(project, *ANSWERS)
    page = open_as(alice, LABEL)
    for summary in page.locator(".candidate details > summary").all():
        summary.click()
    assert barriers(page) == []
