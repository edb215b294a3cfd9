"""Labelling in a real browser: by keyboard, by mouse and without JavaScript."""

import re

from playwright.sync_api import expect

from annotation.choices import Verdict
from annotation.models import Assignment, Judgment, Project, User
from tests import factories
from tests.browser.conftest import Open
from tests.browser.labelling_scene import LABEL, drag_over, only_ranking, shown_order, texts_by_rank


def test_a_pair_is_judged_with_two_keys(items, project: Project, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    submit = page.get_by_role("button", name="Submit")
    expect(submit).to_have_attribute("aria-disabled", "true")
    shown = shown_order()
    page.keyboard.press("8")
    expect(page.locator("#submit-status")).to_have_text("B is better.")
    expect(submit).to_have_attribute("aria-disabled", "false")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    judgment = Judgment.objects.get()
    assert (judgment.verdict, judgment.strength) == (Verdict.RANKED, 3)
    assert texts_by_rank(judgment) == {1: {shown["B"]}, 2: {shown["A"]}}
    assert judgment.guideline == project.guidelines.get()


def test_an_untouched_pair_is_not_sent(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("Enter")
    expect(page.locator("#submit-status")).to_have_text(
        "Choose the better response, or a no-preference option."
    )
    assert page.locator('input[name="choice"]:checked').count() == 0
    assert not Judgment.objects.exists()


def test_four_answers_are_ranked_with_ties_by_letter_keys(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, LABEL)
    shown = shown_order()
    page.keyboard.type("bc=d")
    expect(page.locator("#submit-status")).to_have_text("Rank A too.")
    page.keyboard.press("a")
    expect(page.locator("#order")).to_have_value("B > C = D > A")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert texts_by_rank(Judgment.objects.get()) == {
        1: {shown["B"]},
        2: {shown["C"], shown["D"]},
        3: {shown["A"]},
    }


def test_typed_order_rank_buttons_and_keys_update_each_other(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, LABEL)
    order = page.locator("#order")
    pressed = page.locator('.rank__buttons [aria-pressed="true"]')
    page.keyboard.press("r")
    page.keyboard.type("d>a=b")
    assert pressed.evaluate_all("found => found.map(b => b.getAttribute('aria-label'))") == [
        "Rank response A 2",
        "Rank response B 2",
        "Rank response D 1",
    ]
    page.keyboard.type("x")
    expect(page.locator("#submit-status")).to_contain_text("“X” is no response here")
    page.keyboard.press("Backspace")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Rank response C 1", exact=True).click()
    expect(order).to_have_value("C = D > A = B")
    page.locator("[data-answer]").nth(1).focus()
    page.keyboard.press("4")
    expect(order).to_have_value("C = D > A > B")
    page.get_by_label("All bad").check(force=True)
    expect(order).to_have_value("")
    page.keyboard.press("Shift+D")
    expect(order).to_have_value("A = B = C > D")
    assert page.locator('input[name="choice"]:checked').count() == 0


def test_a_key_right_after_a_dialog_closed_is_not_its_buttons(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("2")
    page.keyboard.press("?")
    page.evaluate(
        """() => {
          const keys = document.querySelector("#keys");
          const close = keys.querySelector("button");
          keys.close();
          const key = { key: "Enter", bubbles: true, cancelable: true };
          close.dispatchEvent(new KeyboardEvent("keydown", key));
        }"""
    )
    expect(page.get_by_text("2 of 2")).to_be_visible()


def test_missing_info_takes_its_evidence_from_the_context(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    shown = shown_order()
    page.locator("[data-answer]").nth(1).focus()
    page.keyboard.press("m")
    page.keyboard.type("How to cool it without a thermometer")
    page.locator('[data-letter="B"] [data-picks-evidence]').focus()
    page.keyboard.press("Enter")
    # The first title has the focus; three sentences and the second title stand between.
    for _ in range(5):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("[data-cited]")).to_have_text(re.compile("five minutes after boiling"))
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    missing = Judgment.objects.get().missing_info.get()
    assert missing.completion.text == shown["B"]
    assert missing.text == "How to cool it without a thermometer"
    assert (missing.passage, missing.sentence) == (1, 0)
    assert missing.quote == "Water left to stand for five minutes after boiling has about 80 °C."


def test_the_last_answer_can_be_opened_again_with_all_that_was_entered(
    items, project: Project, alice: User, open_as: Open
):
    page = open_as(alice, LABEL)
    drag_over(page, "Boil the water")
    page.keyboard.press("i")
    page.keyboard.press("1")
    page.locator("#comment").fill("Short\nand clear")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.keyboard.press("z")
    expect(page.get_by_text("changing an annotation")).to_be_visible()
    expect(page.locator(".flag")).to_have_text("Boil the water")
    expect(page.locator("#comment")).to_have_value("Short\nand clear")
    expect(page.locator('[data-key="1"]')).to_be_checked()
    page.keyboard.press("9")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    first, second = Judgment.objects.order_by("pk")
    assert second.supersedes == first
    assert (first.strength, second.strength) == (4, 4)
    assert texts_by_rank(first)[1] == texts_by_rank(second)[2]
    assert second.span_flags.get().quote == first.span_flags.get().quote == "Boil the water"


def test_submitted_answers_stand_after_a_reload(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("+")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.reload()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    page.goto(page.url.replace("label/", ""))
    expect(page.get_by_text("1 of 2").last).to_be_visible()
    assert Judgment.objects.get().verdict == Verdict.BOTH_GOOD


def test_a_refused_answer_comes_back_with_all_that_was_entered(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    drag_over(page, "Boil the water")
    page.keyboard.press("u")
    page.keyboard.press("2")
    page.locator("#comment").fill("keep me")
    page.evaluate("""() => {
      const field = document.querySelector('[name="span_flags"]');
      field.value = field.value.replace('"quote":"Boil', '"quote":"Cook');
    }""")
    page.locator("#comment").press("Control+Enter")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("does not stand on its quote")
    expect(alert).to_be_focused()
    expect(page.locator("#comment")).to_have_value("keep me")
    expect(page.locator('[data-key="2"]')).to_be_checked()
    expect(page.locator(".flag")).to_have_text("Boil the water")
    assert not Judgment.objects.exists()


def test_skipping_asks_for_a_reason(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("s")
    page.get_by_label("I do not know enough to judge").check()
    page.get_by_role("button", name="Skip it").click()
    expect(page.locator(".candidate")).to_have_count(4)
    assert Assignment.objects.earliest("pk").reason == "lacks knowledge"


def test_work_that_arrives_opens_by_itself(project: Project, alice: User, open_as: Open):
    factories.make_prompt(project, "Still being answered?")
    page = open_as(alice, LABEL)
    expect(page.get_by_role("heading", name="The model is still generating")).to_be_visible()
    factories.make_comparison(project)
    expect(page.locator(".candidate")).to_have_count(2)


def test_an_expired_sign_in_loses_nothing(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("3")
    page.locator("#comment").fill("still here")
    session_cookie = next(cookie for cookie in page.context.cookies() if cookie["name"] == "sessionid")
    page.context.clear_cookies(name="sessionid")
    page.locator("#comment").press("Control+Enter")
    expect(page.locator("#submit-status")).to_contain_text("you have been signed out")
    expect(page.locator("#outbox")).to_contain_text("1 answer kept on this device")
    expect(page.locator("#comment")).to_have_value("still here")
    page.context.add_cookies([{"name": "sessionid", "value": session_cookie["value"], "url": page.url}])
    with page.expect_response("**/submit/"):
        page.get_by_role("button", name="Send now").click()
    expect(page.get_by_text("2 of 2")).to_be_visible()
    expect(page.locator("#outbox")).to_be_hidden()
    assert Judgment.objects.get().comment == "still here"


def test_the_keys_of_the_screen_are_shown(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog).to_contain_text("annotate the selection: Untruthful")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_pairs_and_rankings_are_judged_without_javascript(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, java_script_enabled=False)
    shown = shown_order()
    page.get_by_label("A is slightly better").check(force=True)
    page.locator(".missing > summary").first.click()
    page.get_by_label("What is missing").first.fill("the temperature")
    with page.expect_response("**/submit/"):
        page.get_by_role("button", name="Submit").click()
    expect(page.locator(".candidate")).to_have_count(4)
    pair = Judgment.objects.get()
    assert (texts_by_rank(pair)[1], pair.strength) == ({shown["A"]}, 1)
    assert pair.missing_info.get().text == "the temperature"
    shown = shown_order()
    for letter, rank in (("A", "2"), ("B", "1"), ("C", "2")):
        page.locator(f'select[aria-label="Rank of response {letter}"]').select_option(rank)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("Rank D too.")
    page.locator('select[aria-label="Rank of response D"]').select_option("4")
    with page.expect_response("**/submit/"):
        page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert texts_by_rank(Judgment.objects.latest("pk")) == {
        1: {shown["B"]},
        2: {shown["A"], shown["C"]},
        3: {shown["D"]},
    }
