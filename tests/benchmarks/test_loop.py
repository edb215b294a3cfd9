"""The benchmark of the loop in its smallest size, and the parts whose figures must be right."""

import math
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import httpx
import pytest

from annotation.models import User
from tests.benchmarks.loop.arms import (
    Judged,
    World,
    affordable,
    as_pairs,
    as_rankings,
    hours_to_reach,
    interval,
)
from tests.benchmarks.loop.forge import ROOT, command, wait_for
from tests.benchmarks.loop.machine import Machine
from tests.benchmarks.loop.preferences import (
    SCENES,
    Annotator,
    CostModel,
    keywords,
    length_band,
    list_format,
)
from tests.benchmarks.loop.rounds import judgment_of, off_topic_spans
from tests.benchmarks.loop.truth import accuracy, decision_agrees, win_rate


@pytest.mark.long
@pytest.mark.slow
def test_two_rounds_with_simulated_annotators_end_with_sane_figures():
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.loop", "--smoke"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = [line for line in done.stdout.splitlines() if line.startswith("| scene=format")]
    assert [line.split(" | ")[2] for line in rounds] == ["1", "2"]


@pytest.mark.django_db
def test_a_person_of_several_arms_keeps_account_and_token(tmp_path: Path):
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, text=request.headers["Authorization"])
    )
    machine = Machine(home=tmp_path, transport=transport, server_url="", server_key="")
    assert machine.person("ann", superuser=True) is machine.person("ann")
    assert machine.person("ann") is not machine.person("bob")
    assert User.objects.get(username="ann").is_superuser


def test_what_the_benchmark_has_started_ends_when_it_is_killed(tmp_path: Path):
    (tmp_path / "asleep.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    address = str(tmp_path / "forge.sock")
    serve = "import sys; from tests.benchmarks.loop.forge import serve; serve(sys.argv[1])"
    forge = subprocess.Popen(
        [sys.executable, "-c", serve, address],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(address)
    client = subprocess.Popen(command(address, "asleep"), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert client.stdout.readline() == b"up\n"
    # A process that is killed leaves its ends of pipes to the system, which closes them.
    forge.stdin.close()
    assert forge.wait(30) != 0
    # Its client is told, and the stream that the child held is let go.
    assert client.wait(30) != 0
    assert client.stdout.read() == b""


def test_true_rewards_are_as_reckoned_by_hand():
    assert length_band("", "one two three") == -(14 - 3) / 4
    assert length_band("", " ".join(["word"] * 16)) == 0
    assert list_format("", "- a\nb\n- c\n- d") == 2 * 3 / 4
    assert keywords("write about tea and rain", "tea is warm .") == 1.5
    assert keywords("write about tea and rain", "rain and tea") == 3
    assert keywords("write about tea and rain", "tea " * 28) == 1.5 - 4 / 4


def test_an_annotator_prefers_the_better_of_two_as_often_as_bradley_and_terry_say():
    annotator = Annotator(name="a", reward=lambda prompt, text: float(text), sharpness=1.5)
    random = Random(1)
    wins = sum(annotator.ranks("", ["1.0", "0.2"], random)[0] == 1 for _ in range(20_000))
    # A standard error is 0.003.
    assert wins / 20_000 == pytest.approx(1 / (1 + math.exp(-1.5 * 0.8)), abs=0.012)


def test_habits_show_in_what_an_annotator_says():
    random = Random(2)
    first = Annotator(name="a", reward=lambda prompt, text: 0.0, first_bonus=1.0)
    wins = sum(first.ranks("", ["x", "y"], random)[0] == 1 for _ in range(20_000))
    assert wins / 20_000 == pytest.approx(1 / (1 + math.exp(-1.0)), abs=0.012)
    undecided = Annotator(name="b", reward=lambda prompt, text: 0.0, tie_below=1e9)
    assert undecided.ranks("", ["x", "y", "z"], random) == [1, 1, 1]


def test_the_mixture_means_what_its_annotators_mean_together():
    scene = SCENES["mixture"]
    people = scene.annotators(1)
    prompt, text = "write about tea and rain", "- tea is warm .\nrain is old ."
    together = sum(annotator.reward(prompt, text) for annotator in people) / len(people)
    assert together == pytest.approx(scene.truth(1)(prompt, text))


def test_a_judgment_costs_reading_deciding_and_marking():
    cost = CostModel(prompt=5, response=8, bit=4, span=6)
    assert cost.seconds(2) == 5 + 16 + 4
    assert cost.seconds(4, spans=2) == pytest.approx(5 + 32 + 4 * math.log2(24) + 12)


def test_responses_that_all_tie_are_judged_equal():
    assert judgment_of(["a", "b"], [1, 1]) == {"verdict": "equal"}
    assert judgment_of(["a", "b"], [2, 1]) == {"verdict": "ranked", "ranks": {"a": 2, "b": 1}}


def test_spans_mark_the_lines_off_topic():
    text = "tea is warm .\nships is old .\nrain is deep ."
    answer = {"answer": "x", "text": text, "text_hash": "h"}
    [span] = off_topic_spans("write about tea and rain", answer)
    assert text[span["start"] : span["end"]] == span["quote"] == "ships is old ."


def test_a_win_rate_counts_ties_one_half():
    assert win_rate([1, 2, 3, 3], [0, 2, 4, 1])["value"] == (1 + 0.5 + 0 + 1) / 4


def test_accuracy_leaves_out_what_the_truth_ties():
    # Three prompts: ordered right, tied by the truth, ordered wrong.
    assert accuracy([1, 1, 1, 0, 1, 0], [5, 0, 0, 1, 9, 1], pairs=3) == 0.5
    assert accuracy([1, 1], [0, 5], pairs=1) is None


@pytest.mark.parametrize(
    ("verdict", "low", "high", "agrees"),
    [
        ("promote", 0.55, 0.7, True),
        ("promote", 0.3, 0.45, False),
        ("reject", 0.3, 0.45, True),
        ("reject", 0.55, 0.7, False),
        ("not_enough_evidence", 0.55, 0.7, None),
    ],
)
def test_a_decision_is_wrong_where_the_truth_clearly_says_the_opposite(verdict, low, high, agrees):
    assert decision_agrees(verdict, {"value": (low + high) / 2, "low": low, "high": high}) is agrees


def test_an_hour_pays_for_as_many_judgments_as_the_cost_model_says():
    # A pair: 5 s, two times 8 s and one bit of 4 s; four responses: 5 + 32 + 4 · log2(24) s.
    assert affordable(1, 2) == 3600 // 25
    assert affordable(1, 4) == int(3600 / (37 + 4 * math.log2(24))) == 65


def test_a_ranking_is_read_as_its_pairs_or_as_choices_from_what_is_left():
    ranking = Judged((10, 11, 12), (2, 1, 2))
    # Three pairs share the weight of two; one of them ties.
    assert as_pairs([ranking]) == [((11, 10), 2 / 3), ((11, 12), 2 / 3)]
    assert as_pairs([ranking], ties=True)[1:3] == [((10, 12), 1 / 3), ((12, 10), 1 / 3)]
    assert as_rankings([ranking]) == [((11, 10, 12), 1.0)]


def test_more_pairs_teach_more_and_none_teach_nothing():
    world = World("format", 0, comparisons=120)
    assert world.accuracy([]) == 0.5
    few, many = (world.accuracy(as_pairs(world.judged(count, 2))) for count in (8, 120))
    assert few < many > 0.75


def test_an_ai_annotator_is_right_as_often_as_stated():
    world = World("format", 0, comparisons=120)
    judged = [judgment for _ in range(20) for judgment in world.by_ai(0, 120, 0.8)]
    right = [
        (world.truth[judgment.rows[0]] > world.truth[judgment.rows[1]]) == (judgment.ranks[0] == 1)
        for judgment in judged
        if world.truth[judgment.rows[0]] != world.truth[judgment.rows[1]]
    ]
    # More than 1,000 draws: a standard error is below 0.013.
    assert len(right) > 1_000
    assert sum(right) / len(right) == pytest.approx(0.8, abs=0.05)


def test_the_hours_to_an_accuracy_lie_on_the_line_between_two_points():
    assert hours_to_reach([1, 2, 4], [0.6, 0.7, 0.9], 0.8) == pytest.approx(3)
    assert hours_to_reach([1, 2], [0.6, 0.7], 0.8) is None
    mean, low, high = interval([0.6, 0.7, 0.8])
    # The deviation is 0.1, Student's t with two degrees of freedom 4.303.
    assert (mean, low, high) == pytest.approx((0.7, 0.7 - 0.2484, 0.7 + 0.2484), abs=1e-3)
