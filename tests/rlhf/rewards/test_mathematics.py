"""Results compared as mathematics, in a process that may be killed."""

import threading
import time

import pytest

from training.rlhf.rewards.text_rewards import Mathematics


@pytest.fixture(scope="module")
def mathematics():
    with Mathematics() as reward:
        yield reward


def score(reward, completion: str, reference):
    return reward([()], [completion], [reference])[0]


@pytest.mark.parametrize(
    ("completion", "reference", "equal"),
    [
        ("so the answer is \\boxed{\\frac{1}{2}}", "0.5", 1),
        ("It is $\\frac{1}{\\sqrt{2}}$.", "\\sqrt{2}/2", 1),
        ("First 3, then 12", "12", 1),
        ("First 12, then 3", "12", 0),
        ("$\\{2, 1\\}$", "\\{1,2\\}", 1),
        ("$x = 5$", 5, 1),
        ("$(x+1)^2$", "x^2+2x+1", 1),
        ("$(x+1)^2$", "x^2+1", 0),
        ("I do not know", "7", 0),
        ("", "7", 0),
    ],
)
def test_results_are_equal_as_mathematics_not_as_text(mathematics, completion, reference, equal):
    assert score(mathematics, completion, reference).value == equal


@pytest.mark.parametrize("reference", [None, "", "nobody can tell", ["1"]])
def test_without_a_reference_that_can_be_read_nothing_is_scored(mathematics, reference):
    assert not score(mathematics, "7", reference).scored


def test_only_what_stands_in_the_answer_tags_counts_if_told():
    with Mathematics(in_answer_tags=True) as reward:
        assert score(reward, "<think>7, no, 8</think><answer>\\frac{16}{2}</answer>", "8").value == 1
        assert score(reward, "<think>8</think><answer>7</answer>", "8").value == 0
        assert score(reward, "8", "8").value == 0


def test_a_tower_of_powers_is_stopped_and_the_next_is_scored():
    with Mathematics(seconds=0.5) as reward:
        assert score(reward, "\\boxed{2}", "2").value == 1
        started = time.monotonic()
        stopped = score(reward, "$9^{9^{9^{9}}}$", "5")
        assert time.monotonic() - started < 5
        assert not stopped.scored
        assert "0.5 s" in stopped.reason
        # In a new process.
        assert score(reward, "\\boxed{2}", "2").value == 1


def test_it_works_outside_the_main_thread(mathematics):
    values = []
    thread = threading.Thread(target=lambda: values.append(score(mathematics, "\\boxed{4}", "2+2").value))
    thread.start()
    thread.join(60)
    assert values == [1]


def test_a_closed_reward_leaves_no_process():
    reward = Mathematics()
    score(reward, "1", "1")
    process = reward._process
    assert process.poll() is None
    reward.close()
    assert process.poll() is not None
