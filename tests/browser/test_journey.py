"""A newcomer's first hour, with a tiny model: start, judge, train, compare; nothing of it is lost."""

import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.hands import Hands, Judged
from tests.tiny import tiny_model_folder
from tests.webapp.running import PATIENCE, RunningUp, free_port, still_alive

pytestmark = pytest.mark.slow

STARTER = "SmolLM2-135M-Instruct"
POLICY = "first-project-round-1-policy"
STEPS = 60
SAVE_EVERY = 5


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("starter") / STARTER)


@pytest.fixture
def rondo(tmp_path: Path, base: Path) -> Iterator["Rondo"]:
    running = Rondo(tmp_path / "var", base)
    yield running
    running.stop()


class Rondo:
    """An installation that can be started, stopped and looked into."""

    def __init__(self, home: Path, base: Path) -> None:
        self.home = home
        self.base = base
        self.up: RunningUp | None = None

    def start(self) -> RunningUp:
        port = str(free_port())
        self.up = RunningUp(
            self.home,
            free_port(),
            RONDO_STARTER_MODEL=str(self.base),
            RONDO_MODEL_SERVER_PORT=port,
            RONDO_SWEEP_SECONDS="1",
            RONDO_HEARTBEAT_SECONDS="1",
            RONDO_STALE_SECONDS="6",
            OMP_NUM_THREADS="1",
        )
        self.up.wait_for("Rondo is at")
        return self.up

    def stop(self) -> None:
        if self.up and self.up.process.poll() is None:
            family = self.up.family()
            self.up.stop(signal.SIGINT)
            assert still_alive(family) == []

    def count(self, table: str) -> int:
        with sqlite3.connect(f"file:{self.home / 'rondo.sqlite3'}?mode=ro", uri=True) as database:
            (number,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(number)

    def resumed_at(self, method: str) -> int:
        """The step from which the run of this method went on, as its log says; waits until it does."""
        log = self.home / "runs" / f"first-project-round-1-{method}" / "log.txt"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if steps := re.findall(r"Going on after step (\d+)", log.read_text()):
                return int(steps[-1])
            time.sleep(0.2)
        raise AssertionError(f"it began anew or not at all:\n{log.read_text()}")


def test_once_around_the_loop_by_hand(rondo: Rondo, browser: Browser):
    up = rondo.start()
    annotator_password = up.wait_for(r"sign in as annotator with (\S+)")[1]
    admin_password = up.wait_for(r"sign in as admin with (\S+)")[1]

    annotator = Hands(browser, up.address)
    annotator.sign_in("annotator", annotator_password)
    judged = annotator.judge(pairs=6, rankings=6)
    assert_stored(rondo, judged)

    # All of it is there after a restart.
    rondo.stop()
    up = rondo.start()
    assert_stored(rondo, judged)
    annotator = Hands(browser, up.address)
    annotator.sign_in("annotator", annotator_password)
    annotator.page.goto(f"{up.address}/projects/first-project/")
    done = judged.pairs + judged.rankings
    assert re.search(rf"\b{done} of \d+", annotator.page.locator("main").inner_text())

    admin = Hands(browser, up.address)
    admin.sign_in("admin", admin_password)
    admin.open_round_in_the_admin()
    admin.change_recipe(steps=STEPS, save_every=SAVE_EVERY)
    admin.start_training()

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
