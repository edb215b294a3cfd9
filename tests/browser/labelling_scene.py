"""The labelling screen in a browser: selections with the mouse, letters on the screen, stored ranks."""

from playwright.sync_api import Page, expect

from annotation.models import Assignment, Completion, Judgment

LABEL = "/projects/tea/label/"


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
