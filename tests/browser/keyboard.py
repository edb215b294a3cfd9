"""Keys, and nothing but keys: what somebody does who has no mouse."""

from playwright.sync_api import Locator, Page, expect

MOST_TABS = 40
"""Presses of Tab that a control may be away from where the focus is, or from the skip link."""

_FOCUSED = "element => element === document.activeElement"
_SEEN = """() => {
  const { tagName, ariaLabel, textContent } = document.activeElement;
  return `${tagName} ${ariaLabel ?? textContent.trim().slice(0, 30)}`;
}"""


class Keyboard:
    """Reaches a control with Tab as a person does, and fails where that takes too long."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, *keys: str) -> None:
        """Press one key after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str) -> None:
        """Type into whatever has the focus."""
        self.page.keyboard.type(text)

    def skip(self) -> None:
        """Go past the bar and the sidebar with the skip link, the first stop of a page."""
        self.reach(self.page.locator(".skip-link"), most=1)
        self.press("Enter")
        expect(self.page.locator("#main")).to_be_focused()

    def reach(self, target: Locator, *, most: int = MOST_TABS) -> None:
        """Press Tab until the target has the focus."""
        target = target.first
        expect(target).to_be_visible()
        passed: list[str] = []
        while not target.evaluate(_FOCUSED):
            assert len(passed) < most, f"{target} is more than {most} Tabs away: {passed}"
            self.press("Tab")
            passed.append(self.page.evaluate(_SEEN))

    def link(self, name: str) -> None:
        """Follow the link of that name, and wait for the page and its scripts."""
        self.reach(self.page.get_by_role("link", name=name, exact=True))
        with self.page.expect_navigation():
            self.press("Enter")

    def button(self, name: str) -> None:
        """Press the button of that name."""
        self.reach(self.page.get_by_role("button", name=name, exact=True))
        self.press("Enter")

    def enter(self, label: str, text: str) -> None:
        """Go to a field and type."""
        self.reach(self.page.get_by_label(label, exact=True))
        self.type(text)

    def choose(self, label: str, option: str) -> None:
        """Go through a list with the arrow until it shows the option."""
        combobox = self.page.get_by_role("combobox", name=label, exact=True)
        self.reach(combobox)
        for _ in range(combobox.locator("option").count()):
            if combobox.evaluate("list => list.selectedOptions[0].label") == option:
                return
            self.press("ArrowDown")
        raise AssertionError(f"{label} has no option {option}")
