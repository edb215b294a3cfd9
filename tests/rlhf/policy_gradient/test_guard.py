"""The guard of a run: signals that raise questions; runs that ask, wait, go on, go back and are killed."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.policy_gradient.sampled_runs import GRPO, SHORT, make_sampled_run, prompts
from tests.rlhf.runs import files_of, train
from training.contract import read_manifest, read_metrics
from training.contract.guard import (
    GUARD_FOLDER,
    GuardVerdict,
    read_question,
    read_questions,
    read_verdict,
    write_verdict,
)
from training.contract.methods.policy import GuardSettings
from training.contract.run import EXIT_FINISHED, EXIT_STOPPED
from training.rlhf.policy_gradient.guard import SPREAD, Guard, spacing_of
from training.rlhf.runtime.stopping import StopRequest

QUIET: dict[str, Any] = {"kl": None, "reward_slope": None, "length_drift": None, "head_disagreement": None}


def guard(spacing: int = 5, **settings: Any) -> Guard:
    return Guard(GuardSettings(**{**QUIET, **settings}), spacing=spacing)


def look(
    made: Guard, steps: int, *, first: int = 1, rewards: tuple[float, ...] = (0.0, 2.0), **curves: Any
) -> None:
    """Let a guard see so many steps; each curve gives a figure by step."""
    for step in range(first, first + steps):
        made.observe(step, {name: at(step) for name, at in curves.items()}, rewards)
        if made.raised:
            return


# ── Signals ──


def test_a_divergence_beyond_its_bound_raises_a_question_and_again_when_it_has_doubled() -> None:
    made = guard(kl=4.0)
    look(made, 30, kl=lambda step: 0.5 * step)
    assert made.raised is not None
    # The mean of steps 7 to 9 is 4.
    assert (made.raised.number, made.raised.step) == (1, 9)
    assert [(signal.name, signal.bound) for signal in made.raised.signals] == [("kl", 4.0)]
    made.settle(GuardVerdict(outcome="fine", asked=8))
    look(made, 30, first=10, kl=lambda step: 0.5 * step)
    assert made.raised is not None
    assert (made.raised.number, made.raised.step, made.raised.signals[0].bound) == (2, 17, 8.0)


def test_a_run_that_begins_far_from_its_reference_is_asked_about_only_once_it_goes_on() -> None:
    made = guard(kl=4.0)
    look(made, 40, kl=lambda step: 5.0)
    assert made.raised is None
    look(made, 40, first=41, kl=lambda step: 9.0)
    assert made.raised is not None


@pytest.mark.parametrize(("slope", "bound"), [(1.0, 1.5), (-0.5, 1 / 1.5)])
def test_responses_that_grow_or_shrink_raise_a_question(slope: float, bound: float) -> None:
    made = guard(length_drift=0.5)
    look(made, 30, length=lambda step: 20 + slope * step)
    assert made.raised is not None
    assert made.raised.signals[0].name == "length"
    assert made.raised.signals[0].bound == pytest.approx(bound)


def test_a_reward_that_rises_steeply_raises_a_question_and_a_slow_one_none() -> None:
    # Rewards of single answers deviate by √2; a rise of 0.25 a step is 1.0 in five steps.
    made = guard(reward_slope=1.0)
    look(made, 60, reward=lambda step: 0.25 * step)
    assert made.raised is None
    look(made, 9, first=61, reward=lambda step: 15 + 0.5 * (step - 60))
    assert made.raised is not None
    assert made.raised.signals[0].value >= 1.0


def test_an_ensemble_that_comes_to_disagree_raises_a_question() -> None:
    made = guard(head_disagreement=2.0)
    look(made, 20, reward_spread=lambda step: 0.1)
    assert made.raised is None
    look(made, 5, first=21, reward_spread=lambda step: 0.25)
    assert made.raised is not None
    assert made.raised.signals[0].name == "heads"


def test_what_the_settings_leave_out_is_not_looked_at() -> None:
    made = guard()
    look(made, 60, kl=lambda step: step, length=lambda step: step, reward=lambda step: 9.0 * step)
    assert made.raised is None


def test_questions_are_apart_and_no_other_is_raised_while_one_is_open() -> None:
    made = guard(kl=1.0, spacing=10)
    look(made, 12, kl=lambda step: 2.0**step)
    assert made.raised is not None
    assert made.raised.step == 10
    before = made.raised
    made.observe(11, {"kl": 1e6}, ())
    assert made.raised is before


def test_with_its_pairs_spent_a_run_ends_at_the_next_signal_without_a_question() -> None:
    made = guard(kl=1.0, most_pairs=16)
    look(made, 20, kl=lambda step: step / 3)
    made.settle(GuardVerdict(outcome="undecided", asked=16))
    assert made.result_step is None
    look(made, 30, first=8, kl=lambda step: step / 3)
    assert made.raised is not None
    assert not made.raised.is_asked


def test_figures_that_are_missing_or_not_finite_raise_nothing() -> None:
    made = guard(kl=1.0, length_drift=0.5)
    look(made, 30, kl=lambda step: math.nan)
    look(made, 30, first=31)
    assert made.raised is None


@pytest.mark.parametrize(
    ("step", "then"), [(4, 0), (5, 0), (8, 5), (10, 5), (15, 10), (20, 10), (40, 25), (60, 45)]
)
def test_a_question_compares_with_a_kept_state_some_steps_ago(step: int, then: int) -> None:
    assert guard().then_of(step) == then


def test_long_runs_keep_about_twenty_states() -> None:
    assert (spacing_of(20), spacing_of(100), spacing_of(1000)) == (5, 5, 50)


def test_a_guard_goes_on_from_its_state_as_if_it_had_never_been_away() -> None:
    def figures(step: int) -> dict[str, float]:
        return {"kl": 0.4 * step, "length": 20.0 + step, "reward": 0.2 * step, SPREAD: 0.1}

    settings: dict[str, Any] = {"kl": 4.0, "length_drift": 0.5, "reward_slope": 2.0, "head_disagreement": 2.0}
    whole, other = guard(**settings), guard(**settings)
    for step in range(1, 15):
        whole.observe(step, figures(step), (0.0, 1.0))
        other.observe(step, figures(step), (0.0, 1.0))
        resumed = guard(**settings)
        resumed.load_state_dict(other.state_dict())
        other = resumed
        assert other.state_dict() == whole.state_dict()
    assert whole.raised is not None


# ── Runs ──

ASKS = {**QUIET, "kl": 0.02}
"""What the tiny model exceeds after some steps."""
STEPS = 14


class Killed(BaseException):
    """The process is gone where it stands."""


class People(StopRequest):
    """People who answer questions by their numbers, looked for whenever a trainer looks for a stop."""

    def __init__(self, folder: Path, answers: Mapping[int, str], *, kill_at: str = "") -> None:
        super().__init__(folder)
        self._folder, self._answers, self._kill_at = folder, answers, kill_at

    @property
    def reason(self) -> str:
        if self._kill_at and (self._folder / GUARD_FOLDER / self._kill_at).exists():
            raise Killed
        for number, outcome in self._answers.items():
            if read_question(self._folder, number) and not read_verdict(self._folder, number):
                verdict = GuardVerdict(outcome=outcome, asked=8 * number)  # type: ignore[arg-type]
                write_verdict(self._folder, number, verdict)
        return super().reason


ANSWERS = {1: "fine", 2: "worse"}


def guarded_run(folder: Path, base: Path, **more: Any) -> Path:
    settings = {"guard": {**ASKS, **more}, "evaluation_prompts": 0}
    return make_sampled_run(
        folder, base, GRPO, settings=settings, optimiser={"epochs": 50, "max_steps": STEPS, "save_every": 3}
    )


def log_of(run: Path) -> str:
    return (run / "log.txt").read_text()


def test_a_question_has_responses_of_both_states_to_training_prompts(base: Path, tmp_path: Path) -> None:
    run = guarded_run(tmp_path / "run", base)
    assert train(run, People(run, {1: "fine", 2: "fine", 3: "fine"})) == EXIT_FINISHED
    question = read_questions(run)[0]
    assert question.step - question.then_step >= 3
    train_ids = {prompt.id for prompt in prompts() if prompt.split == "train"}
    asked = [pair.prompt for pair in question.pairs]
    assert asked
    assert set(asked) <= train_ids
    assert len(set(asked)) == len(asked)
    assert all(pair.now.text.strip() != pair.then.text.strip() for pair in question.pairs)
    assert question.sampling["max_tokens"] == 12
    assert read_manifest(run / "checkpoint").steps == STEPS


def test_a_run_that_people_find_fine_ends_with_the_same_bytes_as_one_without_a_guard(
    base: Path, tmp_path: Path
) -> None:
    run = guarded_run(tmp_path / "run", base)
    assert train(run, People(run, dict.fromkeys(range(1, 6), "fine"))) == EXIT_FINISHED
    plain = make_sampled_run(
        tmp_path / "plain",
        base,
        GRPO,
        settings={"evaluation_prompts": 0},
        optimiser={"epochs": 50, "max_steps": STEPS, "save_every": 3},
    )
    assert train(plain) == EXIT_FINISHED
    weights = "adapter_model.safetensors"
    assert (run / "checkpoint" / weights).read_bytes() == (plain / "checkpoint" / weights).read_bytes()


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with these answers from its beginning to its end."""
    run = guarded_run(tmp_path_factory.mktemp("whole") / "run", base)
    assert train(run, People(run, ANSWERS)) == EXIT_FINISHED
    return run


def test_a_run_that_people_find_worse_ends_with_the_earlier_state(whole: Path, tmp_path: Path) -> None:
    run = whole
    question = read_questions(run)[1]
    assert read_manifest(run / "checkpoint").steps == question.then_step
    assert question.then_step > 0
    assert len(read_metrics(run)) <= question.step + 5
    # The weights are those of a run of so many steps under the same schedule.
    plain = same_run(run, tmp_path / "plain")
    assert train(plain, People(plain, ANSWERS)) == EXIT_FINISHED
    assert files_of(plain / "checkpoint") == files_of(run / "checkpoint")


def test_where_nobody_answers_a_run_waits_so_long_and_ends_with_the_earlier_state(
    base: Path, tmp_path: Path
) -> None:
    run = guarded_run(tmp_path / "run", base, minutes=0.01)
    assert train(run) == EXIT_FINISHED
    [question] = read_questions(run)
    assert read_manifest(run / "checkpoint").steps == question.then_step
    # It went on for five steps meanwhile, and no further.
    assert len(read_metrics(run)) == min(question.step + 5, STEPS)
    assert "nobody answered in 0.01 minutes" in log_of(run)


def test_a_run_with_its_pairs_spent_writes_a_question_without_pairs_and_ends(
    base: Path, tmp_path: Path
) -> None:
    class Spends(People):
        @property
        def reason(self) -> str:
            if read_question(self._folder, 1) and not read_verdict(self._folder, 1):
                write_verdict(self._folder, 1, GuardVerdict(outcome="undecided", asked=8))
            return StopRequest.reason.fget(self)  # type: ignore[attr-defined, no-any-return]

    run = guarded_run(tmp_path / "run", base, most_pairs=8)
    assert train(run, Spends(run, {})) == EXIT_FINISHED
    first, second = read_questions(run)
    assert len(first.pairs) <= 8
    assert second.pairs == ()
    assert read_manifest(run / "checkpoint").steps == second.then_step


def test_a_stopped_run_asks_nothing_again_and_goes_on_to_the_same_bytes(
    base: Path, whole: Path, tmp_path: Path
) -> None:
    class StopsWhileItWaits(People):
        @property
        def reason(self) -> str:
            return "stopped" if read_question(self._folder, 1) else ""

    run = guarded_run(tmp_path / "run", base)
    assert train(run, StopsWhileItWaits(run, {})) == EXIT_STOPPED
    asked = (run / GUARD_FOLDER / "question-1.json").read_bytes()
    assert train(run, People(run, ANSWERS)) == EXIT_FINISHED
    assert (run / GUARD_FOLDER / "question-1.json").read_bytes() == asked
    assert files_of(whole / "checkpoint") == files_of(run / "checkpoint")
    assert files_of(whole / GUARD_FOLDER) == files_of(run / GUARD_FOLDER)


@pytest.mark.parametrize(
    "kill_at",
    [
        *("question-1.json", "verdict-1.json"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("question-2.json", "verdict-2.json")),
    ],
)
def test_a_run_that_is_killed_at_any_point_of_a_question_asks_the_same_and_ends_the_same(
    base: Path, whole: Path, tmp_path: Path, kill_at: str
) -> None:
    run = guarded_run(tmp_path / "run", base)
    with pytest.raises(Killed):
        train(run, People(run, ANSWERS, kill_at=kill_at))
    asked = files_of(run / GUARD_FOLDER)
    assert train(run, People(run, ANSWERS)) == EXIT_FINISHED
    assert {name: content for name, content in files_of(run / GUARD_FOLDER).items() if name in asked} == asked
    assert files_of(whole / "checkpoint") == files_of(run / "checkpoint")
    assert files_of(whole / GUARD_FOLDER) == files_of(run / GUARD_FOLDER)


def test_states_that_no_question_needs_any_more_are_deleted(base: Path, tmp_path: Path) -> None:
    run = guarded_run(tmp_path / "run", base, kl=1e9)
    assert train(run) == EXIT_FINISHED
    kept = {int(path.name.removeprefix("kept-")) for path in (run / "state").glob("kept-*")}
    # At the end, step 14, a question would compare with the state after step 5.
    assert kept == {5, 10}
    assert read_questions(run) == []


def test_a_run_without_a_guard_keeps_no_states(base: Path, tmp_path: Path) -> None:
    run = make_sampled_run(tmp_path / "run", base, GRPO, settings={"rewards": [SHORT]})
    assert train(run) == EXIT_FINISHED
    assert not list((run / "state").glob("kept-*"))
