"""A round ends as it should though each of its programs and servers is killed by SIGKILL on the way.

Once each, at a moment that is waited for. `tests/benchmarks/faults.py` kills fifty times, at drawn moments.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.installation import Installation
from tests.faults.ledger import Ledger, Said, faults_in
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from training.contract import read_metrics

STEPS = 40


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Installation]:
    tiny_model_folder(tmp_path / "models" / TINY)
    installation = Installation(tmp_path, tmp_path / "models")
    yield installation
    installation.close()


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(900)
def test_one_kill_of_each_kind_loses_no_answer_trains_nothing_twice_and_leaves_nothing_behind(
    house: Installation,
):
    chance = random.Random(1)
    house.prepare(prompts=10, people=2, overlap=2, steps=STEPS, save_every=2, judgments=12)
    house.start()
    house.people_come([house.place], think=0.3)
    house.wait(lambda: house.ledger.acknowledged >= 2, "the first answers")
    for victim in ("web", "postgres", "redis"):
        before = house.ledger.acknowledged
        assert house.kill(victim, chance)
        house.wait(partial(house.has_more_than, before), f"an answer after {victim}")

    house.wait(lambda: house.steps_taken("reward") > 2, "a step of the reward model")
    assert house.kill("trainer", chance)
    house.wait(lambda: house.steps_taken("policy") > 2, "a step of the policy")
    assert house.kill("worker", chance)
    house.wait(lambda: house.state_of_round(1) == "evaluating", "the evaluation")
    assert house.kill("model server", chance)
    house.wait(lambda: house.state_of_round(1) in ("promoted", "failed"), "the end of round 1")
    house.wait(lambda: house.state_of_round(2) == "labelling", "round 2")
    house.people_go()
    assert house.stop() == []

    seen = house.look()
    assert faults_in(house.ledger.path, seen["judgments"]) == {}
    assert seen["rounds"][0] == {"number": 1, "state": "promoted", "policy": TINY, "errors": [], "held": []}
    assert seen["rounds"][1]["policy"] == "tea-round-1-policy"
    assert [(run["name"], run["state"], run["steps_of_rounds"]) for run in seen["runs"]] == [
        ("tea-round-1-reward", "finished", 1),
        ("tea-round-1-policy", "finished", 1),
    ]
    for run in seen["runs"]:
        steps = [row["step"] for row in read_metrics(house.home / run["folder"])]
        assert steps == list(range(1, STEPS + 1))
    assert (seen["learned_from_twice"], seen["answered_twice"], seen["snapshots"]) == (0, 0, 1)
    assert house.left_over() == []


def test_the_ledger_finds_what_is_lost_doubled_or_changed(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    judgments = [
        Said(key=str(number), assignment=number, choice="win:a", comment=f"answer {number}")
        for number in range(5)
    ]
    for judgment in judgments:
        ledger.sent(judgment)
    for judgment in judgments[:4]:
        ledger.stored(judgment, tries=1)
    ledger.refused(judgments[4], status=422)
    ledger.close()

    def row(number: int, **other: object) -> dict[str, object]:
        content = {"assignment": number, "choice": "win:a", "comment": f"answer {number}"}
        return {"key": str(number), "annotator": 1, "comparison": number, **content, **other}

    assert faults_in(ledger.path, [row(0), row(1), row(2), row(3)]) == {}
    stored = [row(1), row(2, comment="other words"), row(3), row(3), row(4), row(9)]
    assert faults_in(ledger.path, stored) == {
        "lost": ["0"],
        "refused, yet stored": ["4"],
        "stored with another content": ["2", "2"],
        "stored twice": ["3"],
        "said twice by one person": ["3", "3"],
        "never sent": ["9"],
    }
