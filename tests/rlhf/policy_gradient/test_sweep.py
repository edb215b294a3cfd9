"""A sweep over reward weights: the right runs are made, and their Pareto front is that of brute force."""

import argparse
import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from training.contract import ContractError
from training.contract.methods.policy import PolicyGradientSettings, RewardPart
from training.contract.run import EvaluationReport, RunSpec, read_spec, write_evaluation, write_spec
from training.rlhf.policy_gradient.sweep import front_svg, main, non_dominated, parse_weights, sweep

RIGHT = RewardPart(name="right", kind="exact_match")
SHORT = RewardPart(name="short", kind="length", weight=0.5, options={"most": 9})
PEOPLE = RewardPart(name="people", kind="model", checkpoint="../reward/checkpoint")


def test_the_front_is_what_nothing_else_beats() -> None:
    # (1, 3), (2, 2), (3, 1) trade one for the other; (2, 1) and (1, 2) lose to (2, 2); twins are kept.
    points = [(1, 3), (2, 2), (3, 1), (2, 1), (1, 2), (2, 2)]
    assert non_dominated(points) == [0, 1, 2, 5]
    assert non_dominated([]) == []


def test_the_front_of_random_points_is_that_of_brute_force() -> None:
    draw = random.Random(0)
    points = [tuple(draw.randrange(6) for _ in range(3)) for _ in range(60)]
    expected = [
        index
        for index, (a, b, c) in enumerate(points)
        if not any(x >= a and y >= b and z >= c and x + y + z > a + b + c for x, y, z in points)
    ]
    assert non_dominated(points) == expected
    assert 0 < len(expected) < len(points)


@pytest.mark.parametrize("points", [[(1.0, float("nan"))], [(1.0,), (1.0, 2.0)]])
def test_points_that_cannot_be_compared_are_refused(points: list[tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="figures"):
        non_dominated(points)


def test_the_plot_is_well_formed_and_escapes_names() -> None:
    drawn = ElementTree.fromstring(front_svg([(0, 1), (1, 1)], ["a<b", "c&d"], [1], ("x", "y")))
    circles = drawn.findall("{http://www.w3.org/2000/svg}circle")
    assert [circle.get("class") for circle in circles] == ["behind", "front"]
    assert [circle.get("cx") for circle in circles] == ["60.0", "420.0"]
    assert circles[0][0].text == "a<b: x 0, y 1"


def make_run(folder: Path, *rewards: RewardPart) -> Path:
    spec = RunSpec(
        method="policy_gradient",
        base_model="/models/tiny",
        snapshot="../snapshot",
        snapshot_digest="d" * 64,
        settings=PolicyGradientSettings(rewards=rewards),
    )
    write_spec(folder, spec)
    return folder


def evaluated(figures: Callable[[PolicyGradientSettings], dict[str, float]]) -> Callable[[Path], int]:
    """A trainer that only writes what the settings make of the held-out rewards."""

    def train(folder: Path) -> int:
        settings = read_spec(folder).settings
        assert isinstance(settings, PolicyGradientSettings)
        rewards = {f"held_out_reward/{name}": value for name, value in figures(settings).items()}
        write_evaluation(folder, EvaluationReport(step=1, figures=rewards, details={}))
        return 0

    return train


def weights_of(settings: PolicyGradientSettings) -> dict[str, float]:
    return {part.name: part.weight for part in settings.rewards}


def test_each_set_of_weights_is_a_run_and_the_front_names_the_best(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", RIGHT, SHORT)
    # A negative weight is worse for both.
    figures = evaluated(
        lambda s: {n: w if min(weights_of(s).values()) >= 0 else w - 2 for n, w in weights_of(s).items()}
    )
    sets: list[dict[str, float]] = [{"right": 1, "short": 0}, {"right": 0.2}, {"right": -1, "short": 1}]
    assert sweep(run, tmp_path / "sweep", sets, train=figures) == 0
    report = json.loads((tmp_path / "sweep" / "pareto.json").read_text())
    assert [(entry["name"], entry["held_out"], entry["on_front"]) for entry in report["runs"]] == [
        ("right-1_short-0", {"right": 1, "short": 0}, True),
        ("right-0.2_short-0.5", {"right": 0.2, "short": 0.5}, True),
        ("right--1_short-1", {"right": -3, "short": -1}, False),
    ]
    assert "right-1_short-0" in (tmp_path / "sweep" / "pareto.svg").read_text()


def test_a_run_of_a_sweep_differs_from_its_model_in_weights_alone_and_finds_its_folders(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "runs" / "run", RIGHT, PEOPLE)
    into = tmp_path / "elsewhere" / "sweep"
    assert sweep(run, into, [{"people": 2.0}], train=evaluated(weights_of)) == 0
    made, spec = read_spec(into / "right-1_people-2"), read_spec(run)
    assert made.snapshot == str(tmp_path / "runs" / "snapshot")
    assert isinstance(made.settings, PolicyGradientSettings)
    right, people = made.settings.rewards
    assert (people.checkpoint, people.weight) == (str(tmp_path / "runs" / "reward" / "checkpoint"), 2.0)
    assert right == RIGHT
    assert dataclasses.replace(made, settings=spec.settings, snapshot=spec.snapshot, cache=spec.cache) == spec


def test_a_run_that_did_not_finish_ends_the_sweep_with_its_status_and_no_front(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", RIGHT, SHORT)
    assert sweep(run, tmp_path / "sweep", [{"right": 1.0}], train=lambda folder: 3) == 3
    assert "the run did not finish" in capsys.readouterr().err
    assert not (tmp_path / "sweep" / "pareto.json").exists()


@pytest.mark.parametrize(
    ("rewards", "sets", "more", "message"),
    [
        ((RIGHT, SHORT), [{"long": 1.0}], {}, "has no reward long"),
        ((RIGHT,), [{"right": 1.0}], {}, "a front needs at least two parts"),
        ((RIGHT, SHORT), [{"right": 1.0}, {"short": 0.5}], {}, "right-1_short-0.5: given twice"),
        ((RIGHT, SHORT), [{}], {"axes": ["right", "long"]}, "axes: name two of right, short"),
        ((RIGHT, SHORT), [{}], {"axes": ["right"]}, "axes: name two of right, short"),
        ((RIGHT, SHORT), [{}], {"train": evaluated(lambda s: {"right": 1.0})}, "no held-out figure of short"),
    ],
)
def test_what_cannot_be_swept_is_refused_by_name(
    tmp_path: Path,
    rewards: tuple[RewardPart, ...],
    sets: list[dict[str, float]],
    more: dict[str, Any],
    message: str,
) -> None:
    run = make_run(tmp_path / "run", *rewards)
    with pytest.raises(ContractError, match=message):
        sweep(run, tmp_path / "sweep", sets, **({"train": evaluated(weights_of)} | more))


def test_the_command_reads_weights_and_tells_refusals_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_weights("people=1, short=0.5") == {"people": 1.0, "short": 0.5}
    with pytest.raises(argparse.ArgumentTypeError, match="'short' is not NAME=WEIGHT"):
        parse_weights("people=1,short")
    run = make_run(tmp_path / "run", RIGHT, SHORT)
    assert main([str(run), "--into", str(tmp_path / "into"), "--weights", "long=1"]) == 2
    assert "has no reward long" in capsys.readouterr().err
