"""Labelling in a real browser: by keyboard, by mouse, without JavaScript, in both themes, on a phone."""

import gzip
import re

import pytest
from playwright.sync_api import Page, Request, expect

from annotation.choices import Polarity, Verdict
from annotation.models import Assignment, Completion, Judgment, Project, SpanFlag, User
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.browser.content import ANSWERS, make_items

LABEL = "/projects/tea/label/"


@pytest.fixture
def items(project: Project):
    """A pair that comes first and a ranking of four after it, with context passages.

    Marks blame nobody: of a winner with marks one would be asked, and who wins is drawn here.
    """
    for category in project.categories.all():
        category.polarity = Polarity.NEUTRAL
        category.save()
    return make_items(project)


def only_ranking(items) -> None:
    pair, _ = items
    type(pair).objects.filter(pk=pair.pk).update(open_slots=0)


def texts_by_rank(judgment: Judgment) -> dict[int, set[str]]:
    texts: dict[int, set[str]] = {}
    for row in judgment.ranks.select_related("completion"):
        texts.setdefault(row.rank, set()).add(row.completion.text)
    return texts


def shown_order() -> dict[str, str]:
    """The text behind each letter on Alice's screen."""
    order = Assignment.objects.latest("pk").display_order
    texts = Completion.objects.in_bulk(order)
    return {letter: texts[pk].text for letter, pk in zip("ABCD", order, strict=False)}


def drag_over(page: Page, text: str) -> None:
    """Select a text in an answer with the mouse, from its left edge to its right edge."""
    box = page.evaluate(
        """(text) => {
          for (const answer of document.querySelectorAll("[data-answer]")) {
            const walker = document.createTreeWalker(answer, NodeFilter.SHOW_TEXT);
            while (walker.nextNode()) {
              const at = walker.currentNode.data.indexOf(text);
              if (at < 0) continue;
              const range = document.createRange();
              range.setStart(walker.currentNode, at);
              range.setEnd(walker.currentNode, at + text.length);
              answer.scrollIntoView();
              const { left, right, top, height } = range.getBoundingClientRect();
              return { left, right, y: top + height / 2 };
            }
          }
        }""",
        text,
    )
    page.mouse.move(box["left"] + 0.5, box["y"])
    page.mouse.down()
    page.mouse.move(box["right"] - 0.5, box["y"], steps=5)
    page.mouse.up()
    expect(page.locator(".marker")).to_be_visible()


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


def test_spans_are_marked_with_the_mouse_and_stored_in_code_points(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, LABEL)
    drag_over(page, "cooled a little 🍵")
    page.keyboard.press("u")
    expect(page.locator(".flag").first).to_have_text("cooled a little 🍵")
    drag_over(page, "minutes(celsius: float)")
    page.get_by_role("button", name="Irrelevant").click()
    drag_over(page, "about   the tea")
    page.keyboard.press("i")
    page.keyboard.press("-")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    stored = {(f.completion.text, f.category.key): f for f in SpanFlag.objects.all()}
    for answer, category, quote in (
        (ANSWERS[0], "untruthful", "cooled a little 🍵"),
        (ANSWERS[2], "irrelevant", "minutes(celsius: float)"),
        (ANSWERS[3], "irrelevant", "about   the tea"),
    ):
        flag = stored[answer, category]
        assert (flag.start, flag.end, flag.quote) == (
            answer.index(quote),
            answer.index(quote) + len(quote),
            quote,
        )


def test_spans_are_marked_changed_and_removed_with_the_keyboard_alone(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    letter = next(letter for letter, text in shown_order().items() if text == ANSWERS[0])
    answer = page.locator(f'[data-letter="{letter}"] [data-answer]')
    answer.focus()
    # Steep | it | for | about | two: five steps, then two words more across the end of the bold text.
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("u")
    flags = page.locator(".flag[tabindex]")
    expect(flags).to_have_count(1)
    page.keyboard.press("Tab")
    expect(flags.first).to_be_focused()
    page.keyboard.press("i")
    expect(flags.first).to_be_focused()
    expect(flags.first).to_have_attribute("data-category", "irrelevant")
    # A second one over part of the first; both stay, and the first is then removed.
    answer.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("u")
    expect(flags).to_have_count(2)
    flags.first.focus()
    page.keyboard.press("Delete")
    expect(flags).to_have_count(1)
    page.keyboard.press("=")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    flag = SpanFlag.objects.get()
    assert flag.category.key == "untruthful"
    assert flag.quote == ANSWERS[0][flag.start : flag.end]
    assert (flag.quote, flag.start) == ("water", ANSWERS[0].index("water"))


def test_a_quote_across_markup_is_the_source_between(items, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    letter = next(letter for letter, text in shown_order().items() if text == ANSWERS[0])
    page.locator(f'[data-letter="{letter}"] [data-answer]').focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    for _ in range(2):
        page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("u")
    page.keyboard.press("=")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_text("2 of 2")).to_be_visible()
    flag = SpanFlag.objects.get()
    # Steep it for **about two minutes** in water: "two" begins at 21, "in" ends at 37.
    assert (flag.start, flag.end, flag.quote) == (21, 37, "two minutes** in")


def test_a_key_marks_what_is_selected_now_not_what_was_a_moment_ago(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, LABEL)
    # The page has taken note of "Boil"; then the selection grows and the key follows in the same instant.
    select = """async ([first, last]) => {
      const answers = document.querySelector("#screen .candidates");
      const walker = document.createTreeWalker(answers, NodeFilter.SHOW_TEXT);
      const isIt = (text) => text.data.includes(first) && text.parentElement.closest("[data-answer]");
      while (walker.nextNode() && !isIt(walker.currentNode));
      const node = walker.currentNode;
      const from = node.data.indexOf(first);
      getSelection().setBaseAndExtent(node, from, node, from + first.length);
      await new Promise((done) => setTimeout(done, 300));
      getSelection().setBaseAndExtent(node, from, node, node.data.indexOf(last) + last.length);
      const key = { key: "u", bubbles: true, cancelable: true };
      document.body.dispatchEvent(new KeyboardEvent("keydown", key));
    }"""
    page.evaluate(select, ["Boil", "water"])
    expect(page.locator(".flag").first).to_have_text(re.compile("^Boil.*water$"))


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


def test_the_screen_is_light_and_asks_for_little(items, alice: User, open_as: Open):
    only_ranking(items)
    page = open_as(alice, "/projects/tea/guidelines/")
    page.wait_for_load_state("networkidle")
    bodies: dict[str, bytes] = {}

    def keep(request: Request) -> None:
        response = request.response()
        assert response is not None
        bodies[request.url] = response.body()

    page.on("requestfinished", keep)
    page.goto(page.url.replace("guidelines/", "label/"), wait_until="networkidle")
    # The typeface and the frame are two of them.
    assert len(bodies) <= 11
    # WhiteNoise sends static files as collectstatic has compressed them; pages go as they are.
    sent = [gzip.compress(body) if "/static/" in url else body for url, body in bodies.items()]
    assert sum(map(len, sent)) < 100_000


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(
    theme: str, items, project: Project, alice: User, carol: User, open_as: Open, axe: Axe
):
    page = open_as(None, "/login/", color_scheme=theme)
    assert axe(page) == []
    page = open_as(carol, "/", color_scheme=theme)
    assert axe(page) == []
    for path in ("/projects/tea/", "/projects/tea/guidelines/"):
        page.goto(re.sub(r"(://[^/]+).*", r"\1", page.url) + path)
        assert axe(page) == []
    page = open_as(alice, LABEL, color_scheme=theme)
    page.keyboard.press("p")
    drag_over(page, "Boil the water")
    page.keyboard.press("i")
    page.keyboard.press("m")
    page.keyboard.type("something")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    assert axe(page) == []
    page.keyboard.press("?")
    assert axe(page) == []
    page.keyboard.press("Escape")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    page.keyboard.type("ab=c")
    assert axe(page) == []
    page.keyboard.press("d")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert axe(page) == []


@pytest.mark.parametrize("width", [360, 768])
def test_no_page_scrolls_sideways(width: int, items, alice: User, open_as: Open):
    page = open_as(alice, LABEL, viewport={"width": width, "height": 740})
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    root = page.url.removesuffix(LABEL)
    assert page.evaluate(overflow) <= 0
    page.keyboard.press("p")
    page.keyboard.press("m")
    assert page.evaluate(overflow) <= 0
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    expect(page.locator(".candidate")).to_have_count(4)
    assert page.evaluate(overflow) <= 0
    for path in ("/", "/projects/tea/", "/projects/tea/guidelines/", "/login/"):
        page.goto(root + path)
        assert page.evaluate(overflow) <= 0


def test_the_theme_that_was_chosen_stays_with_the_browser(alice: User, open_as: Open):
    page = open_as(alice, "/", color_scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_label("Account of alice").click()
    page.get_by_role("button", name="Dark").click()
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark
