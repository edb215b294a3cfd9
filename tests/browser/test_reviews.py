"""Reviews and the manager's queues in a browser: accessible, readable on a phone, done without scripts."""

import pytest
from playwright.sync_api import Locator, expect

from annotation.choices import ReviewReason
from annotation.models import GoldAnswer, ItemFlag, Judgment, Project, Review, User
from annotation.services.reviews import open_review
from tests import factories
from tests.browser.conftest import Axe, Open

LONG = (
    "Green tea wants **cooler water**: about 80 °C, for two to three minutes.\n\n"
    "1. Boil the water and let it stand for five minutes.\n2. Pour it over the leaves.\n3. Wait.\n\n"
    "Longer than that, and it tastes bitter, because more of the catechins dissolve."
)


@pytest.fixture
def busy(project: Project, alice: User, bob: User) -> Project:
    """A disputed pair, a flagged ranking, a comparison of one mind, a gold item, a withheld text."""
    project.overlap = 2
    project.review_disagreements = True
    project.save()
    prompt = factories.make_prompt(
        project,
        "How long should green tea steep, and how hot may the water be?",
        context=[("Green tea", ["Green tea is steeped at 80 °C.", "It takes two minutes."])],
    )
    pair = factories.make_comparison(project, [LONG, "Ten hours, in boiling water."], prompt=prompt)
    factories.make_judgment(pair, alice, (1, 2), strength=4, comment="B would be undrinkable.")
    factories.make_judgment(pair, bob, (2, 1), strength=1, comment="I like it strong.")
    ranking = factories.make_comparison(
        project, ["Two.", LONG, "I cannot say.", "It depends on the tea."], question="Which tea is green?"
    )
    judgment = factories.make_judgment(ranking, alice, (2, 1, 3, 2))
    ItemFlag.objects.create(
        assignment=judgment.assignment, reason="The prompt makes no sense", details="Several teas are green."
    )
    open_review(comparison=ranking, reason=ReviewReason.FLAGGED)
    alike = factories.make_comparison(project, question="Does black tea want boiling water?")
    for user in (alice, bob):
        factories.make_judgment(alike, user, (1, 2))
    factories.make_gold_item(project)
    factories.make_comparison(
        project,
        [f"{LONG} As SmolLM2, I prefer it cool. {LONG}", "Two minutes."],
        question="What do you drink?",
    )
    return project


def paths(project: Project) -> list[str]:
    reviews = Review.objects.filter(comparison__project=project).order_by("pk")
    home = f"/projects/{project.slug}/"
    return [
        *(f"{home}{name}/" for name in ("reviews", "withheld", "gold")),
        *(f"{home}reviews/{review.pk}/" for review in reviews),
        *(f"{home}gold/{review.comparison_id}/" for review in reviews),
        f"{home}gold/{GoldAnswer.objects.get().comparison_id}/",
        f"{home}items/{reviews[0].comparison_id}/comments/",
    ]


def test_every_page_is_accessible_and_fits_on_a_phone(
    busy: Project, carol: User, open_as: Open, barriers: Axe
):
    page = open_as(carol, "/")
    for path in paths(busy):
        page.goto(page.evaluate("location.origin") + path)
        assert barriers(page) == [], path


def test_a_ranking_is_decided_with_the_keyboard_alone(busy: Project, rita: User, open_as: Open):
    review = Review.objects.get(reason=ReviewReason.FLAGGED)
    page = open_as(rita, f"/projects/{busy.slug}/reviews/{review.pk}/")
    # What the one annotator said is filled in already; the reviewer puts another order in its place.
    expect(page.locator("#order")).to_be_visible()
    for _ in range(4):
        page.keyboard.press("Backspace")
    for key in ("b", "a", "=", "c", "d"):
        page.keyboard.press(key)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".decision")).to_have_text("B > A = C > D")


def test_a_vote_is_taken_over_by_its_key(busy: Project, rita: User, open_as: Open):
    review = Review.objects.get(reason=ReviewReason.DISAGREEMENT)
    page = open_as(rita, f"/projects/{busy.slug}/reviews/{review.pk}/")
    chosen = page.locator('input[name="choice"]:checked')
    expect(chosen).to_have_count(0)
    page.keyboard.press("Alt+2")
    expect(chosen).to_have_count(1)
    expect(page.locator('[data-vote="2"]')).to_have_attribute("aria-current", "true")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".decision")).to_be_visible()


def test_a_part_of_a_vote_is_taken_over_by_its_key_and_the_reason_stays(
    busy: Project, rita: User, open_as: Open, barriers: Axe
):
    review = Review.objects.get(reason=ReviewReason.DISAGREEMENT)
    page = open_as(rita, f"/projects/{busy.slug}/reviews/{review.pk}/")
    page.locator("#comment").fill("As they say.")
    page.locator("#comment").blur()
    chosen = page.locator('input[name="choice"]:checked')
    expect(chosen).to_have_count(0)
    page.keyboard.press("Alt+Shift+Digit2")
    expect(chosen).to_have_count(1)
    expect(page.locator("#comment")).to_have_value("As they say.")
    assert barriers(page) == []
    page.keyboard.press("Control+Enter")
    expect(page.locator(".decision")).to_be_visible()


MOST_CLICKS = 6


class Hand:
    """A pointer that counts its clicks; a field that is typed into is clicked first."""

    def __init__(self) -> None:
        self.clicks = 0

    def click(self, target: Locator) -> None:
        self.clicks += 1
        target.click()


def test_an_annotation_is_returned_and_its_correction_seen_in_few_clicks(
    project: Project, alice: User, rita: User, open_as: Open, barriers: Axe
):
    comparison = factories.make_comparison(project, [LONG, "Ten hours."])
    judgment = factories.make_judgment(comparison, alice, (2, 1), strength=4)
    review = open_review(comparison=comparison, reason=ReviewReason.REQUESTED)
    home, hand = f"/projects/{project.slug}/", Hand()
    page = open_as(rita, f"{home}reviews/{review.pk}/")
    hand.click(page.get_by_text("Return with a comment"))
    hand.click(page.get_by_label("What should the annotator look at?"))
    page.keyboard.type("Nobody steeps tea for ten hours.")
    hand.click(page.get_by_role("button", name="Return", exact=True))
    expect(page.get_by_role("status").first).to_contain_text("Returned.")

    page = open_as(alice, f"{home}label/")
    expect(page.locator(".returned")).to_contain_text("Nobody steeps tea for ten hours.")
    expect(page.locator('input[name="choice"]:checked')).to_have_count(1)
    assert not barriers(page)
    better = "1" if page.locator(".candidate").first.inner_text().count("cooler") else "9"
    page.keyboard.press(better)
    with page.expect_response("**/submit/"):
        hand.click(page.get_by_role("button", name="Submit the correction"))

    page = open_as(rita, f"{home}inbox/".replace(home, "/"))
    hand.click(page.get_by_role("button", name="An annotation that you returned was answered"))
    expect(page.locator(".returns")).to_contain_text("corrected")
    expect(page.get_by_text("Before: ")).to_be_visible()
    assert not barriers(page)
    assert hand.clicks <= MOST_CLICKS
    assert Judgment.objects.filter(supersedes=judgment).exists()


def test_a_withheld_text_is_released_by_a_button_that_says_what_it_is_about(
    busy: Project, carol: User, open_as: Open
):
    page = open_as(carol, f"/projects/{busy.slug}/withheld/", java_script_enabled=False)
    expect(page.locator("mark")).to_contain_text("SmolLM2")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("status")).to_contain_text("Released")
    expect(page.get_by_text("No response is quarantined.")).to_be_visible()
