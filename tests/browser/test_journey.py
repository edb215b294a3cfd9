"""A newcomer's first hour, with a tiny model: start, judge, train, compare; nothing of it is lost."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.hands import Hands, Judged
from tests.browser.installation import Rondo
from tests.tiny import tiny_model_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STARTER = "SmolLM2-135M-Instruct"
POLICY = "first-project-round-1-policy"
STEPS = {"by hand": 6, "interrupted": 60}
"""Of each training: interrupted ones need a middle."""
SAVE_EVERY = 5


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("starter") / STARTER)


@pytest.fixture
def rondo(tmp_path: Path, base: Path) -> Iterator[Rondo]:
    running = Rondo(tmp_path / "var", base)
    yield running
    running.stop()


@pytest.mark.parametrize("way", ["by hand", pytest.param("interrupted", marks=pytest.mark.long)])
def test_once_around_the_loop(way: str, rondo: Rondo, browser: Browser):
    up = rondo.start()
    # Who can read this file can sign sessions; who can read the other sees every judgment.
    for name in ("secret_key", "rondo.sqlite3"):
        assert (rondo.home / name).stat().st_mode & 0o077 == 0
    annotator_password = up.wait_for(r"sign in as annotator with (\S+)")[1]
    admin_password = up.wait_for(r"sign in as admin with (\S+)")[1]

    annotator = Hands(browser, up.address)
    annotator.sign_in("annotator", annotator_password)
    number = 6 if way == "interrupted" else 2
    judged = annotator.judge(pairs=number, rankings=number)
    assert_stored(rondo, judged)

    annotator.page.goto(f"{up.address}/projects/first-project/")
    done = judged.pairs + judged.rankings
    assert re.search(rf"\b{done} of \d+", annotator.page.locator("main").inner_text())

    admin = Hands(browser, up.address)
    admin.sign_in("admin", admin_password)
    admin.open_round_in_the_admin()
    admin.change_recipe(steps=STEPS[way], save_every=SAVE_EVERY)
    admin.start_training()
    if way == "interrupted":
        # Cancelled in the middle and started again: it goes on where it stopped.
        cancelled_after = admin.wait_for_training_step("Train reward model", SAVE_EVERY)
        admin.cancel()
        admin.start_again()
        assert rondo.resumed_at("reward") >= cancelled_after

        # A worker killed in the middle is started again, and training goes on from the last saved step.
        killed_after = admin.wait_for_training_step("Train policy", 2 * SAVE_EVERY)
        up.find("celery").send_signal(signal.SIGKILL)
        up.wait_for("worker .*started again")
    admin.wait_until_trained()
    if way == "interrupted":
        assert rondo.resumed_at("policy") > killed_after - SAVE_EVERY

    scores = admin.compare(STARTER, POLICY, "Why is the sky blue?")
    assert len(scores) == 2
    assert all(re.fullmatch(r"-?\d+\.\d{3}", score) for score in scores)
    assert annotator.complaints == admin.complaints == []


def assert_stored(rondo: Rondo, judged: Judged) -> None:
    assert rondo.count("annotation_judgment") == judged.pairs + judged.rankings
    assert rondo.count("annotation_rankedcompletion") == 2 * judged.pairs + 4 * judged.rankings
    assert rondo.count("annotation_spanflag") == judged.spans == 2
    assert rondo.count("annotation_missinginfo") == judged.missing == 1
