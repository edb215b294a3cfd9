"""A round in a browser, from its recipe to the next round, while one program after the other is killed."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.hands import PATIENCE, Hands
from tests.browser.installation import Rondo
from tests.tiny import tiny_model_folder

pytestmark = pytest.mark.slow

STARTER = "SmolLM2-135M-Instruct"
ROUND = "/projects/first-project/rounds/1/"
POLICY = "first-project-round-1-policy"
ANNOTATORS = ("ann", "ben", "cem")
PASSWORD = "steep green tea 7"
SAVE_EVERY = 5
STATE = "SELECT state FROM training_round WHERE number = {}"

PEOPLE = f"""
from annotation.choices import Role
from annotation.models import Membership, Project, User
project = Project.objects.get()
roles = {{"mona": Role.MANAGER}} | dict.fromkeys({ANNOTATORS}, Role.ANNOTATOR)
for name, role in roles.items():
    user = User.objects.create_user(name, password={PASSWORD!r})
    Membership.objects.create(project=project, user=user, role=role)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("starter") / STARTER)


@pytest.fixture
def rondo(tmp_path: Path, base: Path) -> Iterator[Rondo]:
    running = Rondo(tmp_path / "var", base)
    yield running
    running.stop()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_round_ends_as_it_should_though_web_worker_and_model_server_are_killed_on_the_way(
    rondo: Rondo, browser: Browser
):
    up = rondo.start()
    rondo.run(PEOPLE)
    manager = signed_in(browser, up.address, "mona")
    write_recipe(manager)

    # Three label at once; the web server is killed among them.
    annotators = [signed_in(browser, up.address, name) for name in ANNOTATORS]
    for annotator in annotators:
        annotator.begin_to_judge()
    acknowledged = judge_in_turn(annotators, rounds=2)
    up.find("gunicorn").send_signal(signal.SIGKILL)
    up.wait_for("web .*started again")
    acknowledged += judge_in_turn(annotators, rounds=3)
    assert acknowledged == rondo.count("annotation_judgment") == 15

    # The manager starts training; the worker is killed in the middle of it.
    manager.page.goto(f"{up.address}{ROUND}")
    manager.page.locator("#round-start").click()
    manager.page.locator("#confirm").click()
    killed_after = wait_until_saved(rondo, "reward")
    up.find("celery").send_signal(signal.SIGKILL)
    up.wait_for("worker .*started again")
    assert rondo.resumed_at("reward") >= killed_after

    # The new policy is judged by what it answers; the server that it answers through is killed.
    rondo.wait_for_value(STATE.format(1), ["evaluating"])
    up.find("training.serving").send_signal(signal.SIGKILL)
    up.wait_for("model server .*started again")

    # Promoted, shown so without a reload, and the next round asks people about its answers.
    rondo.wait_for_value(STATE.format(1), ["promoted", "rejected", "failed"])
    assert rondo.value(STATE.format(1)) == "promoted", manager.page.locator("main").inner_text()
    expect(manager.page.locator("#round-progress")).to_contain_text(POLICY, timeout=PATIENCE)
    policy = "SELECT c.name FROM training_round r JOIN training_checkpoint c ON c.id = r.policy_id"
    assert rondo.value(f"{policy} WHERE r.number = 2") == POLICY
    rondo.wait_for_value("SELECT max(round_number) FROM annotation_comparison", [2])
    for annotator in annotators:
        annotator.begin_to_judge()
    acknowledged += judge_in_turn(annotators, rounds=1)
    assert acknowledged == rondo.count("annotation_judgment") == 18
    assert [hands.complaints for hands in (manager, *annotators)] == [[]] * 4


def signed_in(browser: Browser, address: str, name: str) -> Hands:
    hands = Hands(browser, address)
    hands.sign_in(name, PASSWORD)
    return hands


def judge_in_turn(annotators: list[Hands], *, rounds: int) -> int:
    """Each judges what is on their own screen, one after the other, so often; how many were acknowledged."""
    for turn in range(rounds):
        for shift, annotator in enumerate(annotators):
            annotator.judge_one(turn + shift)
            expect(annotator.page.locator("form#judgment")).to_be_visible(timeout=PATIENCE)
    return rounds * len(annotators)


def write_recipe(manager: Hands) -> None:
    """Some of it in the form, the rest as JSON: short training with a middle to be killed in."""
    page = manager.page
    page.goto(f"{manager.address}{ROUND}recipe/")
    page.eval_on_selector_all(".recipe__section", "all => all.forEach(one => one.open = true)")
    page.locator("#evaluation-prompts").fill("4")
    # A tiny model is better or worse by chance alone: one condition that holds stands for all.
    page.locator("#promotion-not_worse").uncheck()
    page.locator("#promotion-most_length_ratio").fill("1000")
    page.get_by_role("button", name="Save recipe").click()
    expect(page.locator("#evaluation-prompts")).to_have_value("4")
    page.get_by_text("As JSON").click()
    recipe = json.loads(page.locator("#recipe-json").input_value())
    assert recipe["promotion"]["most_length_ratio"] == 1000
    for method, steps in (("reward", 40), ("policy", 10)):
        recipe[method]["optimiser"] |= {"epochs": 1000, "max_steps": steps, "save_every": SAVE_EVERY}
    page.locator("#recipe-json").fill(json.dumps(recipe))
    page.get_by_role("button", name="Save JSON").click()
    page.get_by_text("As JSON").click()
    stored = json.loads(page.locator("#recipe-json").input_value())
    assert stored["reward"]["optimiser"]["max_steps"] == 40


def wait_until_saved(rondo: Rondo, method: str) -> int:
    """The first step that a run of round 1 has saved its state at; waits for it."""
    query = f"SELECT current FROM training_roundstep WHERE kind LIKE '%{method}%' AND state = 'running'"
    return int(str(rondo.wait_for_value(query, range(SAVE_EVERY + 1, 1000)))) // SAVE_EVERY * SAVE_EVERY
