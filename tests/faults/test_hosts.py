"""A round on five hosts goes on while one is cut off, one stands still and one has a slow line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.hosts import Host
from tests.faults.ledger import faults_in
from tests.faults.team import Team
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from training.contract import read_metrics

STEPS = 300
TRAINER = "-m training.rlhf "


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    tiny_model_folder(tmp_path / "models" / TINY)
    team = Team(tmp_path, tmp_path / "models")
    yield team
    team.close()


def answers_come(team: Team, number: int, when: str) -> None:
    """So many further answers are acknowledged."""
    target = team.ledger.acknowledged + number
    team.wait(lambda: team.ledger.acknowledged >= target, f"an answer {when}")


def is_training(team: Team, kind: str, method: str) -> Host:
    """The host that trains, once it has taken some steps."""
    team.wait(lambda: team.steps_taken(method) > 2 and team.who_does(kind), f"a step of the {method}")
    host = team.who_does(kind)
    assert host is not None
    return host


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.namespaces
@pytest.mark.timeout(900)
def test_a_round_loses_and_doubles_nothing_when_hosts_are_cut_off_stand_still_and_are_slow(team: Team):
    team.prepare(prompts=16, people=4, overlap=2, steps=STEPS, save_every=5, judgments=24)
    team.start()
    team.people_come(team.places, think=0.5)
    answers_come(team, 4, "on two web hosts")
    team.webs[0].cut_off()
    answers_come(team, 4, "with one web host cut off")
    team.webs[0].plug_in()
    team.line(slow=True)
    answers_come(team, 4, "with a slow line")
    team.line(slow=False)

    # The worker host that trains is cut off: the other one goes on, and it lets go by itself.
    cut_off = is_training(team, "train_reward_model", "reward")
    other = team.the_other(cut_off)
    cut_off.cut_off()
    team.wait(lambda: not cut_off.family(TRAINER), "the end of the trainer that was cut off")
    team.wait(lambda: team.who_does("train_policy") is other, "the other worker's next step")
    cut_off.plug_in()

    # Now that one stands still: the first, back on the cable, takes over, and no trainer disturbs another.
    frozen = is_training(team, "train_policy", "policy")
    assert frozen is other
    frozen.freeze()
    team.wait(lambda: team.who_does("train_policy") is cut_off, "the worker that was cut off")
    frozen.thaw()
    team.wait(lambda: not frozen.family(TRAINER), "the end of the trainer that stood still")
    team.wait(lambda: team.state_of_round(1) in ("promoted", "failed"), "the end of round 1")
    team.wait(lambda: team.state_of_round(2) == "labelling", "round 2")
    team.people_go()

    seen = team.look()
    assert faults_in(team.ledger.path, seen["judgments"]) == {}
    first, second = seen["rounds"]
    assert (first["state"], first["errors"], first["held"]) == ("promoted", [], [])
    assert second["policy"] == "tea-round-1-policy"
    assert [(run["name"], run["state"], run["steps_of_rounds"]) for run in seen["runs"]] == [
        ("tea-round-1-reward", "finished", 1),
        ("tea-round-1-policy", "finished", 1),
    ]
    for run in seen["runs"]:
        steps = [row["step"] for row in read_metrics(team.home / run["folder"])]
        assert steps == list(range(1, STEPS + 1))
    assert (seen["learned_from_twice"], seen["answered_twice"], seen["snapshots"]) == (0, 0, 1)
