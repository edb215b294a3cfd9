"""Side by side, an arena and the leaderboard in a real browser: seen at three widths, used by keyboard."""

import re
import uuid

import pytest
from django.db import transaction
from playwright.sync_api import Page, expect

from annotation.choices import Purpose, Split, Verdict
from annotation.models import Project, User
from annotation.services.judgments.submission import record_vote, voted_comparison
from tests import factories
from tests.browser.conftest import Axe, Open
from tests.records import judgment_record
from tests.training.comparing.arena_scene import engines_of, make_checkpoints
from tests.training.engine.streaming_server import StreamingServer
from training.models import ArenaBallot, ArenaLink, Checkpoint, SideBySide
from training.services.arenas import create_arena, prepare_arena
from training.services.leaderboard import count_votes

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("starter", "round-1-policy", "round-2-policy", "round-3-policy-with-a-rather-long-name")
TEXTS = {
    "starter": "Steep green tea for two minutes in boiling water.",
    "round-1-policy": "Steep green tea for two to three minutes, in water that has cooled to 80 °C.",
    "round-2-policy": "Two to three minutes, in water that has cooled to 80 °C; longer makes it bitter.",
    NAMES[3]: "It depends on the leaves. Start with two minutes at 80 °C, taste, and go on from there.",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    fake_server = StreamingServer()
    fake_server.text = lambda body: TEXTS[body["model"]]
    monkeypatch.setattr("training.services.side_by_side.engine_for", fake_server.engine)
    monkeypatch.setattr("training.views.side_by_side.Engine", fake_server.engine)
    return fake_server


@pytest.fixture
def checkpoints(project: Project, server: StreamingServer) -> list[Checkpoint]:
    return make_checkpoints(project, NAMES)


@pytest.fixture
def arena(project: Project, carol: User, checkpoints: list[Checkpoint], server: StreamingServer) -> ArenaLink:
    for number in range(3):
        factories.make_prompt(project, f"How long should green tea steep, {number}?", split=Split.HELD_OUT)
    made = create_arena(
        project=project,
        created_by=carol,
        name="Which response is better?",
        checkpoints=checkpoints[:2],
        prompts=3,
        for_guests=True,
    )
    prepare_arena(made.pk, engines=engines_of(server))
    return made


@pytest.fixture
def voted(project: Project, alice: User, checkpoints: list[Checkpoint]) -> None:
    """Two hundred votes: the later the checkpoint the better, with some ties."""
    for number in range(60):
        prompt = factories.make_prompt(
            project, f"Question {number}?", tags=["tea"] if number % 3 else ["water"]
        )
        first, second = checkpoints[number % 4], checkpoints[(number + 1 + number // 4 % 3) % 4]
        answers = [
            factories.make_completions(prompt, [TEXTS[each.name]], source=each.source)[0]
            for each in (first, second)
        ]
        comparison = voted_comparison(
            prompt=prompt, completions=answers, round_number=1 + number % 3, purpose=Purpose.WORK
        )
        tie = number % 7 == 0
        better = answers[0] if (first.pk > second.pk) != (number % 5 == 0) else answers[1]
        ranks = {} if tie else {answer.pk: 1 if answer == better else 2 for answer in answers}
        with transaction.atomic():
            record_vote(
                comparison=comparison,
                voter=alice,
                shown=[answer.pk for answer in answers],
                answer=judgment_record(verdict=Verdict.EQUAL if tie else Verdict.RANKED, ranks=ranks),
                idempotency_key=uuid.uuid4(),
            )
    count_votes()


def ask(page: Page, *, unblinded: bool = False) -> None:
    page.get_by_label("Third").select_option("round-2-policy")
    page.get_by_label("Second").select_option("round-1-policy")
    page.get_by_label("Or type one").fill("How long should green tea steep?")
    if unblinded:
        page.get_by_label("Show names before the vote").check()
    page.get_by_role("button", name="Generate").click()


def test_axe_finds_nothing_and_no_page_is_wider_than_its_window(
    project: Project, carol: User, arena: ArenaLink, voted: None, open_as: Open, barriers: Axe
):
    page = open_as(carol, "/compare/")

    def sound(name: str) -> None:
        assert barriers(page) == [], name

    sound("compare")
    ask(page)
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    page.eval_on_selector_all("main details", "all => all.forEach(one => one.open = true)")
    sound("beside-blind")
    page.get_by_role("button", name="Show names now").click()
    expect(page.locator("ins").first).to_be_visible()
    page.eval_on_selector_all("main details", "all => all.forEach(one => one.open = true)")
    sound("beside")
    for position, rank in enumerate("213", start=1):
        page.get_by_label(f"Response {position}").select_option(rank)
    page.get_by_role("button", name="Submit ranking").click()
    expect(page.get_by_text("Your vote: 2 > 1 > 3.")).to_be_visible()
    sound("beside-voted")
    origin = page.evaluate("location.origin")
    for name, address in {
        "board": f"/projects/{project.slug}/leaderboard/",
        "style": f"/projects/{project.slug}/leaderboard/?style=on",
        "rounds": f"/projects/{project.slug}/leaderboard/groups/",
        "items": f"/projects/{project.slug}/leaderboard/items/?left={arena.checkpoints.first().source_id}",
        "arenas": f"/projects/{project.slug}/arenas/",
        "ballot": arena.get_absolute_url(),
    }.items():
        page.goto(origin + address)
        sound(name)
    page.keyboard.press("2")
    expect(page.get_by_role("link", name="Next pair")).to_be_visible()
    sound("told")


def test_answers_appear_as_they_are_written_and_are_compared_at_the_end(
    project: Project, carol: User, checkpoints: list[Checkpoint], open_as: Open
):
    page = open_as(carol, "/compare/")
    ask(page, unblinded=True)
    expect(page).to_have_url(re.compile(r"/compare/[\w-]{20,}/$"))
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    expect(page.locator("ins").first).to_be_visible()
    page.get_by_label("Response 1").select_option("2")
    page.get_by_label("Response 2").select_option("1")
    page.get_by_label("Response 3").select_option("1")
    page.get_by_role("button", name="Submit ranking").click()
    expect(page.get_by_text("Your vote: 2 = 3 > 1.")).to_be_visible()
    address = page.url
    page.get_by_label("Your next message").fill("And black tea?")
    page.get_by_label("after").select_option("2")
    page.get_by_role("button", name="Generate").click()
    expect(page.get_by_text("And black tea?")).to_be_visible()
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    assert SideBySide.objects.count() == 2
    page.get_by_role("link", name="Previous turn").click()
    expect(page).to_have_url(address)


def test_blind_answers_have_no_names_until_the_vote(
    project: Project, carol: User, checkpoints: list[Checkpoint], open_as: Open
):
    page = open_as(carol, "/compare/")
    ask(page)
    expect(page.get_by_role("heading", name="Which is better?")).to_be_visible()
    assert "policy" not in page.content()
    page.get_by_role("button", name="All bad").click()
    expect(page.get_by_role("heading", name="round-1-policy")).to_be_visible()


def test_a_guest_votes_by_keyboard_without_an_account(arena: ArenaLink, open_as: Open):
    page = open_as(None, arena.get_absolute_url())
    page.get_by_role("button", name="Begin").focus()
    page.keyboard.press("Enter")
    for _ in range(3):
        expect(page.get_by_role("button", name="Response 1 is better")).to_be_visible()
        assert "policy" not in page.content()
        # The buttons are there before the script that hears the keys.
        page.wait_for_load_state("load")
        page.keyboard.press("1")
        expect(page.get_by_text("Your vote: response 1 is better.")).to_be_visible()
        assert "round-1-policy" in page.content()
        page.get_by_role("link", name="Next pair").press("Enter")
    expect(page.get_by_text("You have seen every pair. Thank you.")).to_be_visible()
    assert ArenaBallot.objects.filter(judgment__annotator__is_guest=True).count() == 3
