"""Three annotators talk with the starter model in Chromium for ten turns each, while programs are killed.

    python -m tests.benchmarks.conversations [--turns 10] [--starter FOLDER]

Starts a Rondo of its own with the real model server, measures the time to the first token of a single
annotator, then lets three talk at once. Kills the model server after a third of the messages and a web
process after two thirds. Says what is in the database, exports it, imports it into an empty project, compares
both, and trains a reward model and a policy on the second for two steps each.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.webapp.running import ROOT, RunningUp, free_port

PEOPLE = ("ann", "ben", "cem")
PROJECT, COPY = "tea", "copy"
STARTER = "SmolLM2-135M-Instruct"
KEY = "RONDO_MODEL_SERVER_KEY"
SAME_KEY = "RONDO_SERVER_KEY_STARTER"
QUESTIONS = ("How hot should water for tea be?", "Why?", "And for green tea?", "Say it in one sentence.")
MODULE = "tests.benchmarks.conversations"
PATIENCE = 1500.0
STATE = """() => {
  const has = (selector) => document.querySelector(selector);
  const coming = [...document.querySelectorAll("[data-coming]")];
  const state = has("form#judgment, #message")?.closest("[inert]") ? "waits" : has("form#judgment") ? "judge"
    : coming.length ? (coming.some((one) => one.textContent) ? "comes" : "waits")
    : has("#message") ? "talk" : has("[data-talk]") ? "end" : "gone";
  return [state, Number(has(".screen__where strong")?.textContent.match(/[0-9]+/)?.[0])];
}"""
"""State of the page, and number of the turn."""


# ── In the installation ───────────────────────────────────────────────────────────────


def prepare() -> list[str]:
    """A project in which three annotators talk with the starter, once by itself and once by its address."""
    from django.conf import settings

    from annotation.choices import SourceKind
    from annotation.models import CompletionSource, User
    from tests import factories
    from tests.benchmarks.labelling.fill import session_of
    from training.choices import CheckpointKind
    from training.models import Checkpoint
    from training.services.conversations import save_conversation_settings

    people = [User.objects.create_user(name) for name in PEOPLE]
    manager = User.objects.create_user("manager")
    project = factories.make_project(slug=PROJECT, annotators=people, managers=[manager])
    remote = {
        "server_url": f"{settings.RONDO_MODEL_SERVER_URL}/v1",
        "server_model": STARTER,
        "server_key": SAME_KEY,
    }
    checkpoints = [
        Checkpoint.objects.create(
            name=name,
            kind=CheckpointKind.STARTER,
            project=project,
            base_model=STARTER,
            source=CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT),
            **more,
        )
        for name, more in ((STARTER, {}), ("starter-by-address", remote))
    ]
    save_conversation_settings(
        project=project, actor=manager, checkpoints=checkpoints, most_turns=20, max_tokens=48
    )
    return [session_of(person) for person in people]


def look() -> dict[str, Any]:
    """The conversations as tests of faults see them, and whether the copy is equal."""
    from annotation.models import Judgment, Project
    from tests.annotation.exchange.test_conversations import described
    from tests.faults.talks import look as turns

    projects = {project.slug: project for project in Project.objects.all()}
    equal = COPY in projects and described(projects[COPY]) == described(projects[PROJECT])
    counts = {
        slug: Judgment.objects.filter(comparison__project=project).count()
        for slug, project in projects.items()
    }
    return {"turns": turns() if COPY not in projects else [], "equal": equal, "judgments": counts}


def train() -> dict[str, Any]:
    """Start a round on the copy whose runs take two steps."""
    from annotation.models import Project, User
    from tests.loop.recipe import tiny_recipe
    from training.services.rounds.controls import open_first_round, start_round

    project = Project.objects.get(slug=COPY)
    recipe = tiny_recipe(steps=2)
    for method in ("reward", "policy"):
        recipe[method]["optimiser"] |= {"learning_rate": 1e-4, "micro_batch_tokens": 4096}
    round_ = open_first_round(project=project, recipe=recipe)
    start_round(round_=round_, started_by=User.objects.get(username="manager"))
    return {"round": round_.pk}


def runs() -> list[Any]:
    """State and step of every run, and what the round says."""
    from training.models import Round, Run

    return [
        list(Run.objects.order_by("pk").values_list("name", "state", "step")),
        list(Round.objects.order_by("pk").values_list("state", flat=True)),
    ]


def copy() -> dict[str, Any]:
    """An empty project."""
    from annotation.models import User
    from tests import factories

    factories.make_project(slug=COPY, managers=[User.objects.get(username="manager")])
    return {}


# ── Around it ─────────────────────────────────────────────────────────────────────────


class Talker:
    """One annotator at one page, who does whatever the page asks next."""

    def __init__(self, context: BrowserContext, address: str, turns: int, seed: int) -> None:
        self.page: Page = context.new_page()
        self.turns = turns
        self.name = PEOPLE[seed]
        self.chance = random.Random(seed)
        self.said = 0
        self.sent_at = 0.0
        self.waits: list[float] = []
        self.reloads = 0
        self.is_done = False
        self.page.goto(f"{address}/projects/{PROJECT}/conversations/")
        self.page.get_by_role("button", name="Begin").last.click()
        self.place = self.page.url

    def act(self) -> None:
        """Take one step, if there is one to take."""
        # As often as an eye would notice; more would only keep the models from their work.
        self.page.wait_for_timeout(30)
        state, number = self.page.evaluate(STATE)
        if state == "talk":
            self.said = number - 1
        if state in ("comes", "judge") and self.sent_at:
            self.waits.append(time.monotonic() - self.sent_at)
            self.sent_at = 0.0
        if state == "judge":
            self.page.keyboard.press(self.chance.choice("12345789"))
            self.page.keyboard.press("Enter")
            self.page.wait_for_timeout(100)
        elif state == "talk" and self.said < self.turns:
            self.page.locator("#message").fill(
                f"{QUESTIONS[self.said % len(QUESTIONS)]} ({self.name} {self.said + 1})"
            )
            self.page.keyboard.press("Enter")
            self.sent_at = time.monotonic()
            self.said += 1
            self.page.wait_for_timeout(20)
        elif state == "talk":
            self.page.locator(".talk__end summary").click()
            self.page.get_by_role("radio", name="4", exact=True).check()
            self.page.get_by_role("button", name="End the conversation").click()
            self.page.wait_for_timeout(200)
        elif state == "end":
            self.is_done = True
        elif state == "gone":
            # What a person does before a page that says that the server is away.
            self.reloads += 1
            self.page.wait_for_timeout(1000)
            self.page.goto(self.place)


class House:
    """A Rondo with the starter, and commands that look into it."""

    def __init__(self, home: Path, starter: Path | None) -> None:
        self.home = home
        self.port, self.models = free_port(), free_port()
        self.variables: dict[str, Any] = {
            "RONDO_MODEL_SERVER_PORT": str(self.models),
            **dict.fromkeys((KEY, SAME_KEY), "k" * 40),
            "RONDO_MODEL_SERVER_HOSTS": f"127.0.0.1:{self.models}",
            **({"RONDO_STARTER_MODEL": str(starter)} if starter else {}),
        }
        self.up = RunningUp(home, self.port, "--no-first-project", **self.variables)
        self.up.wait_for("Rondo is at")
        self.address = f"http://127.0.0.1:{self.port}"

    def run(self, *words: str) -> str:
        """Run a Python command in the installation; return what it prints."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RONDO_")}
        environment |= {"RONDO_HOME": str(self.home), "DJANGO_SETTINGS_MODULE": "webapp.settings"}
        environment |= self.variables
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def scene(self, what: str) -> Any:
        """The answer of one of the functions above."""
        return json.loads(self.run("-m", MODULE, what).splitlines()[-1])

    def kill(self, words: str) -> None:
        """SIGKILL one process whose command line contains `words`; of several the last."""
        processes = [process for process in self.up.family() if words in _command_line(process)]
        processes[-1].send_signal(signal.SIGKILL)


def _command_line(process: psutil.Process) -> str:
    """Return the words of a process; those of one that has just ended are none."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def main() -> None:
    """Run everything and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument(
        "--starter", type=Path, help="a folder in transformers' format; fetched when left out"
    )
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="rondo-conversations-"))
    house = House(home, options.starter)
    try:
        sessions = [str(session) for session in house.scene("prepare")]
        house.up.wait_for(rf"model +{STARTER} is ready")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            _talk(house, browser, sessions, options.turns)
            browser.close()
        _exchange(house)
        _train(house)
    finally:
        house.up.stop(signal.SIGINT)
        shutil.rmtree(home, ignore_errors=True)


def _talk(house: House, browser: Any, sessions: list[str], turns: int) -> None:
    talkers = []
    for seed, session in enumerate(sessions):
        context = browser.new_context(base_url=house.address)
        context.add_cookies([{"name": "sessionid", "value": session, "url": house.address}])
        talkers.append(Talker(context, house.address, turns, seed))
    # The first alone, on an idle model server, for half of the turns.
    first = talkers[0]
    while first.said < max(1, turns // 2) or first.sent_at:
        first.act()
    print(f"first token, one annotator, idle: {_seconds(first.waits)}", flush=True)
    first.waits.clear()
    _talk_at_once(house, talkers, turns)
    _check(house.scene("look")["turns"], turns)


def _talk_at_once(house: House, talkers: list[Talker], turns: int) -> None:
    kills = [(turns, "training.serving"), (turns * 2, "webapp.wsgi:application")]
    began = time.monotonic()
    while not all(talker.is_done for talker in talkers):
        for annotator in talkers:
            if not annotator.is_done:
                annotator.act()
        message_count = sum(talker.said for talker in talkers)
        if kills and message_count >= kills[0][0]:
            _number, words = kills.pop(0)
            house.kill(words)
            print(f"killed {words} after {message_count} messages", flush=True)
        if time.monotonic() - began > PATIENCE:
            raise SystemExit("They did not come to an end.")
    waits = [wait for talker in talkers for wait in talker.waits]
    print(f"first token, three annotators, with the kills: {_seconds(waits)}")
    reloads = sum(talker.reloads for talker in talkers)
    print(f"{3 * turns} turns, the last {len(waits)} in {time.monotonic() - began:.0f} s; reloads {reloads}")


def _check(seen: list[Any], turns: int) -> None:
    """Stop unless every turn is there once, with one annotation and whole responses."""
    keys = [key for conversation in seen for turn in conversation["turns"] for key in turn["keys"]]
    assert len(seen) == len(PEOPLE)
    for talk in seen:
        assert talk["ended"], talk["annotator"]
        assert [turn["index"] for turn in talk["turns"]] == list(range(1, turns + 1))
        for turn in talk["turns"]:
            assert (len(turn["keys"]), turn["assignments"]) == (1, 1)
            assert all(text and text == stored for _seed, text, stored in turn["responses"])
    assert len(keys) == len(set(keys)) == len(PEOPLE) * turns
    print(
        f"{len(seen)} conversations, {len(keys)} turns, each annotated once, every response whole", flush=True
    )


def _exchange(house: House) -> None:
    path = house.home / "talks.jsonl"
    words = ("manage.py", "export_judgments", "--project", PROJECT, "--format")
    for name in ("hh-rlhf", "trl-preference", "chatbot-arena", "openai-preference"):
        house.run(*words, name, "--output", f"{path}.{name}")
        print(f"{name}: {len(Path(f'{path}.{name}').read_text().splitlines())} lines")
    house.run(*words, "jsonl", "--output", str(path))
    house.scene("copy")
    house.run("manage.py", "import_judgments", str(path), "--project", COPY)
    seen = house.scene("look")
    print(f"export and import: equal {seen['equal']}, annotations {seen['judgments']}", flush=True)
    assert seen["equal"]


def _train(house: House) -> None:
    house.scene("train")
    deadline = time.monotonic() + PATIENCE
    last = None
    while time.monotonic() < deadline:
        seen = house.scene("runs")
        if seen != last:
            print(f"training: {seen}", flush=True)
        last = seen
        trained = [name for name, _state, step in seen[0] if step >= 2]
        if len(trained) == 2:
            return
        time.sleep(3)
    raise SystemExit("Training did not end.")


def _seconds(waits: list[float]) -> str:
    return f"median {statistics.median(waits):.2f} s, longest {max(waits):.2f} s of {len(waits)}"


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in ("prepare", "look", "train", "runs", "copy"):
        import django

        django.setup()
        print(json.dumps(globals()[sys.argv[1]]()))
    else:
        main()
