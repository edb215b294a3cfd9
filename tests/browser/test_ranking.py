"""Ranking in a real browser: dragging by mouse and by finger, moving letters by keys, each way in step."""

import pytest
from playwright.sync_api import Page, expect

from annotation.models import Judgment, Project, User
from tests import factories
from tests.browser.conftest import Axe, Open

LABEL = "/projects/tea/label/"


@pytest.fixture
def four(project: Project):
    """One comparison of four short answers."""
    return factories.make_comparison(project, [f"Answer number {number}." for number in range(4)])


def chip(page: Page, letter: str):
    return page.locator(f'[data-chip="{letter}"]')


def middle(page: Page, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: Page, letter: str, zone: str) -> None:
    """Drag a letter with the mouse to the middle of a zone of the board."""
    page.mouse.move(*middle(page, f'[data-chip="{letter}"]'))
    page.mouse.down()
    page.mouse.move(*middle(page, zone), steps=8)
    page.mouse.up()


def place(number: int) -> str:
    """The zones of the board: gaps are even, tiers odd, -1 is where the unranked wait."""
    return f'[data-tiers] > [data-place="{number}"]'


def pressed_ranks(page: Page) -> list[str]:
    pressed = page.locator('.rank__buttons [aria-pressed="true"]')
    labels: list[str] = pressed.evaluate_all(
        "found => found.map(button => button.getAttribute('aria-label'))"
    )
    return labels


def test_letters_are_dragged_into_order_with_the_mouse(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    order = page.locator("#order")
    drag(page, "B", place(0))
    expect(order).to_have_value("B")
    drag(page, "A", place(2))
    expect(order).to_have_value("B > A")
    # Onto another: a tie. Between two: a tier of its own.
    drag(page, "C", place(1))
    expect(order).to_have_value("B = C > A")
    drag(page, "D", place(2))
    expect(order).to_have_value("B = C > D > A")
    assert pressed_ranks(page) == [
        "Rank response A 3",
        "Rank response B 1",
        "Rank response C 1",
        "Rank response D 2",
    ]
    # From a tie into a tier of its own, and out of the order altogether.
    drag(page, "C", place(6))
    expect(order).to_have_value("B > D > A > C")
    drag(page, "D", place(-1))
    expect(order).to_have_value("B > A > C")
    expect(page.locator("#submit-status")).to_have_text("Rank D too.")
    page.keyboard.press("d")
    expect(order).to_have_value("B > A > C > D")
    with page.expect_response("**/submit/"):
        page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="All done for now")).to_be_visible()
    assert sorted(Judgment.objects.get().ranks.values_list("rank", flat=True)) == [1, 2, 3, 4]


def test_what_is_typed_or_pressed_moves_the_letters_on_the_board(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    tiers = page.locator("[data-tiers] > .tier:not(.tier--none)")
    page.keyboard.type("bc=d")
    expect(tiers).to_have_text(["B", "CD"])
    expect(page.locator(place(-1))).to_have_text("A")
    page.keyboard.press("r")
    page.keyboard.type("a=d>b>c")
    expect(tiers).to_have_text(["AD", "B", "C"])
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Rank response B 1", exact=True).click()
    expect(tiers).to_have_text(["ABD", "C"])
    # Several good, one bad: two keys.
    page.keyboard.press("Shift+B")
    expect(tiers).to_have_text(["ACD", "B"])
    page.get_by_label("All bad").check(force=True)
    expect(tiers).to_have_count(0)
    expect(page.locator(place(-1))).to_have_text("ABCD")


def test_a_digit_is_the_rank_of_the_response_that_has_the_focus_and_nothing_else(
    four, alice: User, open_as: Open
):
    page = open_as(alice, LABEL)
    order = page.locator("#order")
    # Nothing has the focus: a digit ranks nothing, and the page says what it is for.
    page.keyboard.press("2")
    expect(page.locator("#submit-status")).to_have_text(
        "Focus a response (Tab or click), then press its rank."
    )
    expect(order).to_have_value("")
    page.locator("[data-answer]").nth(2).focus()
    page.keyboard.press("2")
    page.locator("[data-answer]").nth(0).focus()
    page.keyboard.press("1")
    expect(order).to_have_value("A > C")
    assert pressed_ranks(page) == ["Rank response A 1", "Rank response C 2"]
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    keys = page.locator("#keys")
    expect(keys).to_contain_text("rank of the response that has the focus")
    expect(keys.locator("dt", has_text="1 … 4")).to_have_count(1)


def test_letters_are_moved_with_arrow_keys_alone(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    order = page.locator("#order")
    chip(page, "C").focus()
    page.keyboard.press("Enter")
    expect(order).to_have_value("C")
    chip(page, "A").focus()
    page.keyboard.press("ArrowLeft")
    expect(chip(page, "A")).to_be_focused()
    # From the unranked it comes in at the end; from there on it ties first, then passes.
    expect(order).to_have_value("C > A")
    page.keyboard.press("ArrowLeft")
    expect(order).to_have_value("A = C")
    expect(page.locator("#announcer")).to_have_text("A has rank 1, tied with C")
    page.keyboard.press("ArrowLeft")
    expect(order).to_have_value("A > C")
    page.keyboard.press("ArrowLeft")
    expect(order).to_have_value("A > C")
    expect(chip(page, "A")).to_have_attribute("aria-label", "Response A, rank 1")
    page.keyboard.press("Delete")
    expect(order).to_have_value("C")
    expect(chip(page, "A")).to_be_focused()
    assert not Judgment.objects.exists()


def test_an_order_is_never_there_by_itself(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    expect(page.locator(place(-1))).to_have_text("ABCD")
    page.keyboard.press("Enter")
    expect(page.locator("#submit-status")).to_have_text(
        "Rank the responses, or choose a no-preference option."
    )
    # A press without a drag ranks the letter as its key does; a drag that comes back changes nothing.
    chip(page, "B").click()
    expect(page.locator("#order")).to_have_value("B")
    page.mouse.move(*middle(page, '[data-chip="A"]'))
    page.mouse.down()
    page.mouse.move(*middle(page, place(1)), steps=5)
    page.mouse.move(*middle(page, place(-1)), steps=5)
    page.mouse.up()
    expect(page.locator("#order")).to_have_value("B")
    assert not Judgment.objects.exists()


def finger(page: Page, letter: str, zone: str) -> None:
    """Drag with a finger, as the touch screen of a phone reports it."""
    devtools = page.context.new_cdp_session(page)
    chip(page, letter).scroll_into_view_if_needed()
    (x, y), (to_x, to_y) = middle(page, f'[data-chip="{letter}"]'), middle(page, zone)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        devtools.send(
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": px, "y": py} for px, py in points]},
        )

    touch("touchStart", (x, y))
    for step in range(1, 9):
        touch("touchMove", (x + (to_x - x) * step / 8, y + (to_y - y) * step / 8))
    touch("touchEnd")
    devtools.detach()


def test_letters_are_dragged_with_a_finger_on_a_phone(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    order = page.locator("#order")
    finger(page, "D", place(0))
    expect(order).to_have_value("D")
    finger(page, "A", place(2))
    expect(order).to_have_value("D > A")
    finger(page, "B", place(1))
    expect(order).to_have_value("B = D > A")
    # Room for a finger, and no scrolling sideways.
    box = chip(page, "C").bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 44
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_nine_answers_fit_on_a_phone(project: Project, alice: User, open_as: Open, axe: Axe):
    factories.make_comparison(project, [f"Answer number {number}." for number in range(9)])
    page = open_as(alice, LABEL, viewport={"width": 360, "height": 740})
    page.keyboard.type("i=hgfedcba")
    expect(page.locator("#order")).to_have_value("H = I > G > F > E > D > C > B > A")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert axe(page) == []


def test_nothing_moves_for_who_asked_for_less_motion(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL, reduced_motion="reduce")
    moving = page.evaluate(
        """() => [...document.querySelectorAll("#screen *")].filter((element) => {
          const { transitionDuration, animationName, animationDuration } = getComputedStyle(element);
          const turns = animationName !== "none" && parseFloat(animationDuration) > 0.01;
          return turns || parseFloat(transitionDuration) > 0.01;
        }).length"""
    )
    assert moving == 0
    drag(page, "B", place(0))
    expect(page.locator("#order")).to_have_value("B")


def drag_card(page: Page, letter: str, other: str, part: float, *, finish: bool = True) -> None:
    """Drag a card by its head onto another, so far across that one's width."""
    page.mouse.move(*middle(page, f'[data-letter="{letter}"] [data-grip]'))
    page.mouse.down()
    box = page.locator(f'[data-letter="{other}"]').bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * part, box["y"] + box["height"] / 2, steps=8)
    if finish:
        page.mouse.up()


def test_whole_cards_are_dragged_before_behind_and_onto_each_other(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    order = page.locator("#order")
    # A has no rank yet: what is put before it is first, and it comes next.
    drag_card(page, "B", "A", 0.1)
    expect(order).to_have_value("B > A")
    drag_card(page, "C", "B", 0.5)
    expect(order).to_have_value("B = C > A")
    drag_card(page, "D", "C", 0.9)
    expect(order).to_have_value("B = C > D > A")
    drag_card(page, "A", "B", 0.1)
    expect(order).to_have_value("A > B = C > D")
    # The cards themselves stay where they are: a letter keeps its place on the screen.
    letters = page.locator(".candidate").evaluate_all("found => found.map(card => card.dataset.letter)")
    assert letters == ["A", "B", "C", "D"]
    with page.expect_response("**/submit/"):
        page.keyboard.press("Enter")
    assert sorted(Judgment.objects.get().ranks.values_list("rank", flat=True)) == [1, 2, 2, 3]


def test_a_card_is_dropped_on_the_board_or_put_back_with_escape(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    order = page.locator("#order")
    page.mouse.move(*middle(page, '[data-letter="C"] [data-grip]'))
    page.mouse.down()
    page.mouse.move(*middle(page, place(0)), steps=8)
    page.mouse.up()
    expect(order).to_have_value("C")
    drag_card(page, "A", "C", 0.1, finish=False)
    expect(page.locator('[data-letter="C"]')).to_have_attribute("data-drop", "before")
    page.keyboard.press("Escape")
    page.mouse.up()
    expect(order).to_have_value("C")
    expect(page.locator("[data-drop], .candidate--dragged")).to_have_count(0)


def test_a_click_on_the_head_of_a_card_lets_a_digit_rank_it(four, alice: User, open_as: Open):
    page = open_as(alice, LABEL)
    page.locator('[data-letter="B"] [data-grip]').click()
    page.keyboard.press("2")
    expect(page.locator('[data-letter="B"] .rank__select')).to_have_value("2")
