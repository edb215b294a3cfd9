"""The best state is chosen on training prompts that nothing is learned from, not on those that report."""

from pathlib import Path
from typing import Any

import pytest

from training.contract.methods.common import OptimiserSettings
from training.rlhf.data import Examples
from training.rlhf.loop.state import BestState
from training.rlhf.loop.training_loop import chooses_state, split_validation
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.example import Example


def judged(prompts: int) -> Examples:
    """Two judgments of each training prompt, and one held out."""
    train = [Example(f"j{number}", (), (), prompt=f"p{number // 2}") for number in range(2 * prompts)]
    return Examples(train=train, held_out=[Example("h", (), (), prompt="held")], dropped=[], shortened=0)


def test_about_a_tenth_of_the_prompts_chooses_and_teaches_nothing():
    examples = judged(1000)
    rest, validation = split_validation(examples)
    prompts = {example.prompt for example in validation}
    # Binomial with n = 1000, p = 0.1: outside of 63 to 137 with a chance below 1 in 10,000.
    assert 63 <= len(prompts) <= 137
    assert len(validation) == 2 * len(prompts)
    assert not prompts & {example.prompt for example in rest.train}
    assert len(rest.train) + len(validation) == 2000
    assert rest.held_out == examples.held_out
    # A prompt keeps its side when others join it.
    _, later = split_validation(judged(1500))
    assert {example.prompt for example in later if int(example.prompt[1:]) < 1000} == prompts


def test_of_few_judgments_none_is_cut_off():
    few = judged(40)
    assert split_validation(few) == (few, [])


@pytest.mark.parametrize(
    ("chosen", "chooses"),
    [
        ({"evaluate_every": 10}, True),
        ({"evaluate_every": 0}, False),  # one state alone is evaluated, the last
        ({"evaluate_every": 50, "max_steps": 50}, False),
        ({"evaluate_every": 10, "keep_best": False}, False),
        ({"evaluate_every": 10, "keep_best": False, "patience": 2}, True),
    ],
)
def test_only_a_run_that_chooses_among_states_gives_up_judgments(chosen: dict[str, Any], chooses: bool):
    optimiser = OptimiserSettings(**chosen)
    assert chooses_state(optimiser, examples=800, start_is_candidate=False) is chooses


def test_a_start_that_may_stay_is_a_choice():
    optimiser = OptimiserSettings(evaluate_every=0)
    assert chooses_state(optimiser, examples=800, start_is_candidate=True)


def test_the_validation_loss_chooses_where_the_held_out_loss_would_choose_otherwise(tmp_path: Path):
    best = BestState(tmp_path, Processes())
    evaluations = [(0.7, 0.5), (0.6, 0.6), (0.65, 0.4), (float("nan"), 0.1)]
    accepted = [
        best.offer(
            None,  # its weights are not asked for
            "reward",
            step=step,
            figures={"validation_loss": validation, "held_out_loss": held_out},
            keep=False,
        )
        for step, (validation, held_out) in enumerate(evaluations, start=1)
    ]
    assert accepted == [True, True, False, False]
    assert (best.step, best.figures["held_out_loss"], best.stale) == (2, 0.6, 2)
