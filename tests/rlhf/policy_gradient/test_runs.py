"""Runs of the policy gradient from their folder to their checkpoint: learning, resumed, stopped, reported."""

import itertools
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.policy_gradient.sampled_runs import (
    BEST_OF_K,
    CISPO,
    GRPO,
    GSPO,
    PPO,
    RAFT,
    REINFORCE,
    SHORT,
    make_sampled_run,
)
from tests.rlhf.runs import StopAfter, files_of, make_run, status_of, train
from training.contract import read_manifest, read_metrics
from training.contract.checkpoint import manifest_digest
from training.contract.run import (
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    read_evaluation,
    read_samples,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.actor import LanguageActor
from training.rlhf.policy_gradient.update import Evaluated
from training.rlhf.rewards.protocol import Chat, Reference, Score
from training.rlhf.runtime.stopping import StopRequest
from training.rlhf.tokens.packing import Batch

METHODS = {
    **{"ppo": PPO, "grpo": GRPO, "reinforce": REINFORCE, "gspo": GSPO, "cispo": CISPO, "raft": RAFT},
}
FEW = {"max_steps": 3}
LETTER = {"name": "letter", "kind": "pattern", "options": {"pattern": "e"}}
"""Earned by one answer in six of four tokens at first."""


@pytest.fixture(scope="module")
def whole_runs(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`whole_runs("ppo")` is a finished run that was never stopped."""

    @cache
    def whole(name: str) -> Path:
        # A normalised reward has running statistics, PPO an adaptive β and a value adapter: all come back.
        settings = {"rewards": [SHORT | {"normalise": True}], "watch": {"held_out": [LETTER], "window": 2}}
        run = make_sampled_run(
            tmp_path_factory.mktemp("whole") / name, base, METHODS[name], settings=settings
        )
        assert train(run) == EXIT_FINISHED
        return run

    return whole


@pytest.fixture(scope="module")
def few_steps(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`few_steps("ppo")` is a finished run of three steps. No penalty for what was cut off."""

    @cache
    def finished(name: str) -> Path:
        settings = {
            "rollout": {"samples": 4, "max_tokens": 12, "unfinished": "score"},
            "watch": {"length_drift": None, "held_out": [LETTER]},
        }
        folder = tmp_path_factory.mktemp("few") / name
        run = make_sampled_run(folder, base, METHODS[name], optimiser=FEW, settings=settings)
        assert train(run) == EXIT_FINISHED
        return run

    return finished


@pytest.mark.parametrize(
    "name", ["grpo", *(pytest.param(name, marks=pytest.mark.long) for name in METHODS if name != "grpo")]
)
def test_the_reward_rises(base: Path, tmp_path: Path, name: str) -> None:
    run = make_sampled_run(
        tmp_path / "run",
        base,
        METHODS[name],
        settings={"rewards": [LETTER], "rollout": {"samples": 8, "max_tokens": 4}},
        # Imitation of the best alone needs more steps, and smaller ones.
        optimiser={"batch_size": 5, "epochs": 40, "learning_rate": 0.01}
        if name == "raft"
        else {"batch_size": 5, "epochs": 28, "learning_rate": 0.02},
    )
    assert train(run) == EXIT_FINISHED
    rewards = [line["reward"] for line in read_metrics(run)]
    # 40 answers a step; 160 and 320 in the means, whose standard errors are at most 0.04 and 0.03.
    assert sum(rewards[:4]) / 4 < 0.3
    assert sum(rewards[-8:]) / 8 > 0.36


def test_answers_that_no_pair_has_cost_no_pass_and_change_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best of eight: of the eight answers to a prompt the reference sees three at most, the policy before the
    update one. The weights and the rewards are those of a run in which both see all."""
    settings = {"rewards": [LETTER], "rollout": {"samples": 8, "max_tokens": 6}}
    seen: dict[str, list[int]] = {"reference": [], "policy": []}
    reference, policy = (
        LanguageActor.reference_log_probabilities,
        LanguageActor.unfiltered_log_probabilities,
    )

    def counted(name: str, ask: Any) -> Any:
        def asked(actor: LanguageActor, rows: Any = None) -> torch.Tensor:
            seen[name].append(len(rows))
            values: torch.Tensor = ask(actor, None if whole else rows)
            return values

        return asked

    whole = False
    monkeypatch.setattr(LanguageActor, "reference_log_probabilities", counted("reference", reference))
    monkeypatch.setattr(LanguageActor, "unfiltered_log_probabilities", counted("policy", policy))
    runs = []
    for whole in (False, True):
        run = make_sampled_run(
            tmp_path / f"run-{whole}", base, BEST_OF_K, settings=settings, optimiser={"batch_size": 5} | FEW
        )
        assert train(run) == EXIT_FINISHED
        runs.append(run)
    assert all(count <= 15 for count in seen["reference"])
    assert any(count > 5 for count in seen["reference"])
    assert set(seen["policy"]) == {5}
    few, every = (read_metrics(run) for run in runs)
    for ours, theirs in zip(few, every, strict=True):
        for name in ("reward", "policy_loss", "pair_accuracy", "gradient_norm", "kl"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-6)
    assert few[0]["gradient_norm"] > 0
    assert few[-1]["kl"] != 0


def test_a_run_ends_with_the_step_that_spends_its_divergence(base: Path, tmp_path: Path) -> None:
    run = make_sampled_run(
        tmp_path / "run",
        base,
        BEST_OF_K,
        settings={
            "rewards": [LETTER],
            "rollout": {"samples": 8, "max_tokens": 4},
            "kl": {**BEST_OF_K["kl"], "budget": 1e-3},
        },
        optimiser={"batch_size": 5, "epochs": 20, "learning_rate": 0.02},
    )
    assert train(run) == EXIT_FINISHED
    lines = list(read_metrics(run))
    assert [line["kl"] > 1e-3 for line in lines] == [False] * (len(lines) - 1) + [True]
    assert 1 < len(lines) < 20
    assert read_manifest(run / "checkpoint").steps == len(lines)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("ppo", 3),
        ("grpo", 3),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("ppo", 2), ("grpo", 2), ("reinforce", 3))
        ),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_bytes(
    whole_runs: Callable[[str], Path], tmp_path: Path, name: str, steps: int
) -> None:
    whole = whole_runs(name)
    run = same_run(whole, tmp_path / "run")
    assert train(run, StopAfter(run, steps)) == EXIT_STOPPED
    assert status_of(run).step == steps
    assert train(run) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")
    assert (run / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    states = [files_of(folder / "state" / "step-6") for folder in (run, whole)]
    assert states[0] == states[1]
    untimed = [
        [
            {name: value for name, value in line.items() if "seconds" not in name}
            for line in read_metrics(folder)
        ]
        for folder in (run, whole)
    ]
    assert untimed[0] == untimed[1]


class StopsWhen(StopRequest):
    """Somebody who asks to stop the n-th time that the trainer looks."""

    def __init__(self, folder: Path, looks: int) -> None:
        super().__init__(folder)
        self._looks = looks

    @property
    def reason(self) -> str:
        self._looks -= 1
        return "stopped amid a step" if self._looks <= 0 else ""


@pytest.mark.parametrize("looks", [20, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 95))])
def test_a_step_that_is_broken_off_is_given_up_and_taken_anew(
    whole_runs: Callable[[str], Path], tmp_path: Path, looks: int
) -> None:
    whole = whole_runs("ppo")
    run = same_run(whole, tmp_path / "run")
    assert train(run, StopsWhen(run, looks)) == EXIT_STOPPED
    saved = [int(path.name.removeprefix("step-")) for path in run.glob("state/step-*")]
    assert status_of(run).step == max(saved, default=0)
    assert train(run) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")


@pytest.mark.slow
@pytest.mark.parametrize("looks", [17, pytest.param(2, marks=pytest.mark.long)])
def test_a_stop_amid_an_evaluation_tears_no_step(base: Path, tmp_path: Path, looks: int) -> None:
    often = {"evaluate_every": 1, "save_every": 2, "keep_best": True}
    runs = {
        "samples": make_sampled_run(tmp_path / "samples", base, GRPO, optimiser=often),
        "judgments": make_run(tmp_path / "judgments", base, optimiser={**often, "max_steps": 6}),
    }
    for name, whole in runs.items():
        assert train(whole) == EXIT_FINISHED
        run = same_run(whole, tmp_path / f"stopped {name}")
        assert train(run, StopsWhen(run, looks)) == EXIT_STOPPED
        assert train(run) == EXIT_FINISHED
        assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")


def test_the_first_inner_epoch_has_ratio_one_and_what_a_step_tells_adds_up(
    few_steps: Callable[[str], Path],
) -> None:
    run = few_steps("grpo")
    for line in read_metrics(run):
        for name in ("ratio_min", "ratio_mean", "ratio_max"):
            assert line[name] == pytest.approx(1, abs=1e-6)
        assert line["reward"] == pytest.approx(line["reward/short"])
        assert 0 <= line["unfinished"] <= 1
        # A uniform choice among 320 tokens has log 320 = 5.77 nats.
        assert 4.5 < line["entropy"] < 5.8
        assert line["tokens"] == pytest.approx(line["length"] * line["answers"])
        parts = line["seconds_rollout"] + line["seconds_reward"] + line["seconds_learning"]
        assert parts <= line["seconds"] + 0.01
    assert read_metrics(run)[0]["kl"] == 0
    assert read_metrics(run)[2]["kl"] != pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("method", [GRPO, PPO, REINFORCE], ids=["grpo", "ppo", "reinforce"])
def test_the_divergence_of_the_first_step_is_exactly_0_in_bfloat16_and_the_samplers_gap_is_its_own(
    base: Path, tmp_path: Path, method: dict[str, Any]
) -> None:
    settings = {"rollout": {"samples": 4, "max_tokens": 12, "top_p": 0.9}}
    run = make_sampled_run(
        tmp_path / "run", base, method, optimiser={"max_steps": 1}, settings=settings, dtype="bfloat16"
    )
    assert train(run) == EXIT_FINISHED
    (line,) = read_metrics(run)
    assert line["kl_base"] == line["kl_base_per_token"] == 0
    assert line.get("kl", 0) == 0
    assert line["sampler_gap"] > 1e-4, "sampler and trainer round otherwise in bfloat16"


def test_during_its_warm_up_the_value_head_learns_and_the_policy_stays(base: Path, tmp_path: Path) -> None:
    warm: dict[str, Any] = {**PPO, "update": {**PPO["update"], "value_warmup_steps": 2}}
    run = make_sampled_run(tmp_path / "run", base, warm, optimiser={"max_steps": 4})
    assert train(run) == EXIT_FINISHED
    lines = read_metrics(run)
    # After step 3, the first one that moves the policy, the fourth sees another policy than the base.
    assert [line["kl_base"] == 0 for line in lines] == [True, True, True, False]
    assert all(line["value_loss"] > 0 for line in lines)
    assert ["policy_loss" in line for line in lines] == [False, False, True, True]
    assert lines[1]["value_loss"] != lines[0]["value_loss"]


def test_samples_are_told_token_by_token(few_steps: Callable[[str], Path]) -> None:
    run = few_steps("ppo")
    samples = {step: read_samples(run, step) for step in (1, 2, 3)}
    assert all(samples.values())
    assert len((run / "samples.jsonl").read_text().splitlines()) == sum(map(len, samples.values()))
    for line in (line for lines in samples.values() for line in lines):
        assert "".join(token.text for token in line.tokens) == line.text
        assert sum(token.reward or 0 for token in line.tokens) == pytest.approx(line.reward, abs=1e-4)
        assert line.parts == {"short": line.reward}
        assert all(token.logp is not None and token.kl is not None for token in line.tokens)
        assert line.prompt != "p5", "a held-out prompt was sampled"
        # Of a conversation the last message is told.
        assert line.message == "how?" or line.prompt != "p1"
    assert any(token.advantage for token in samples[1][0].tokens)


@pytest.fixture
def adapters_used(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Under which adapters a step's answers were computed."""
    seen: list[str | None] = []
    plain = LanguageActor._states

    def spied(self: LanguageActor, batch: Batch, adapter: str | None) -> torch.Tensor:
        seen.append(adapter)
        return plain(self, batch, adapter)

    monkeypatch.setattr(LanguageActor, "_states", spied)
    return seen


def test_only_the_passes_that_are_needed_are_made(
    base: Path, tmp_path: Path, adapters_used: list[str | None]
) -> None:
    optimiser = {**FEW, "max_steps": 1, "micro_batch_tokens": 10_000}
    expected = {
        # Without a held-out evaluation: base and policy for the divergence that is reported, and one pass
        # that learns.
        "reinforce": (REINFORCE, [None, "policy", "policy"]),
        "grpo": (GRPO, [None, "policy", "policy"]),
        # Reference, then policy and value before the update, then 2 epochs of 2 minibatches.
        "ppo": (PPO, [None, *["policy", "value"] * 5]),
    }
    for name, (settings, passes) in expected.items():
        adapters_used.clear()
        run = make_sampled_run(
            tmp_path / name, base, settings, optimiser=optimiser, settings={"evaluation_prompts": 0}
        )
        assert train(run) == EXIT_FINISHED
        assert adapters_used == passes, name


def test_a_continued_policy_is_held_to_its_parent(
    few_steps: Callable[[str], Path], base: Path, tmp_path: Path, adapters_used: list[str | None]
) -> None:
    checkpoint = few_steps("grpo") / "checkpoint"
    more: dict[str, Any] = {"parent": str(checkpoint), "parent_digest": manifest_digest(checkpoint)}
    child = make_sampled_run(tmp_path / "child", base, GRPO, optimiser=FEW, **more)
    adapters_used.clear()
    assert train(child) == EXIT_FINISHED
    assert set(adapters_used) == {"policy", "reference", None}
    first, *_, last = read_metrics(child)
    assert first["kl"] == 0
    assert abs(first["kl_base"]) > 1e-3, "the parent has left the base"
    assert last["kl"] != last["kl_base"]


def test_the_checkpoint_is_a_policy_that_plain_peft_reads(
    few_steps: Callable[[str], Path], base: Path
) -> None:
    run = few_steps("ppo")
    manifest = read_manifest(run / "checkpoint", verify=True)
    assert (manifest.kind, manifest.heads, manifest.steps) == ("policy", [], 3)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run / "checkpoint")
        theirs = plain(ids).logits
        backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
        backbone.load_adapter("it", run / "checkpoint")
        with backbone.using("it"):
            ours = backbone.logits(backbone.hidden_states(ids, torch.ones_like(ids)).states)
        untrained = backbone.logits(backbone.hidden_states(ids, torch.ones_like(ids)).states)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert not torch.allclose(ours, untrained, atol=1e-3)
    state = load_file(run / "state" / "step-3" / "state.safetensors")
    assert "beside.value.head.value" in state


def test_held_out_prompts_are_answered_greedily_and_told_with_intervals(
    few_steps: Callable[[str], Path],
) -> None:
    run = few_steps("grpo")
    report = read_evaluation(run)
    assert report is not None
    metrics = read_manifest(run / "checkpoint").metrics
    assert report.figures == metrics
    assert metrics["held_out_prompts"] == 1
    assert metrics["held_out_reward"] == metrics["held_out_reward/short"] == -metrics["held_out_loss"]
    assert metrics["held_out_watched/letter"] in (0, 1)
    assert metrics["held_out_kl"] > 0
    assert metrics["held_out_length"] <= 12
    assert "watched/letter" in read_metrics(run)[0]


def test_memory_that_runs_out_halves_the_passes_and_changes_nothing_else(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"max_steps": 1, "micro_batch_tokens": 2048}
    whole = make_sampled_run(tmp_path / "whole", base, GRPO, optimiser=large)
    assert train(whole) == EXIT_FINISHED
    plain = LanguageActor.evaluate
    cramped = same_run(whole, tmp_path / "cramped")

    def evaluate(self: LanguageActor, rows: list[int]) -> Evaluated:
        if len(rows) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, rows)

    monkeypatch.setattr(LanguageActor, "evaluate", evaluate)
    assert train(cramped) == EXIT_FINISHED
    assert "Out of memory: forward passes have at most" in (cramped / "log.txt").read_text()
    for ours, theirs in zip(read_metrics(cramped), read_metrics(whole), strict=True):
        for name in ("reward", "policy_loss", "kl_loss", "kl", "gradient_norm", "updates"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), name


def fails_on_some(prompts: list[Chat], completions: list[str], references: list[Reference]) -> list[Score]:
    """A user's reward that does not foresee every completion."""
    del prompts, references
    if any("e" in text for text in completions):
        raise ZeroDivisionError("an e")
    return [Score(float(len(text))) for text in completions]


def test_a_reward_that_raises_costs_its_samples_and_not_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{__name__}.fails_on_some"
    monkeypatch.setenv("RONDO_REWARD_FUNCTIONS", path)
    part = {"name": "user", "kind": "function", "options": {"path": path}}
    run = make_sampled_run(tmp_path / "run", base, GRPO, optimiser=FEW, settings={"rewards": [part]})
    assert train(run) == EXIT_FINISHED
    lines = read_metrics(run)
    assert any(0 < line["unscored"] < 1 for line in lines)
    assert all(line["reward"] is not None for line in lines)
    assert "cannot score some answers: ZeroDivisionError: an e" in status_of(run).message


def raises(prompts: list[Chat], completions: list[str], references: list[Reference]) -> list[Score]:
    """A user's reward that cannot work."""
    raise KeyError("answer")


def infinite(prompts: list[Chat], completions: list[str], references: list[Reference]) -> list[Score]:
    """A user's reward that divides by what is 0."""
    return [Score(math.inf) for _ in completions]


def not_a_number(prompts: list[Chat], completions: list[str], references: list[Reference]) -> list[Score]:
    """A user's reward that has no verdict on anything."""
    return [Score(math.nan) for _ in completions]


_SCORED_BATCHES = itertools.count()


def scores_twice(prompts: list[Chat], completions: list[str], references: list[Reference]) -> list[Score]:
    """A user's reward whose server goes away after two steps."""
    if next(_SCORED_BATCHES) >= 2:
        return [Score.cannot("the server is away") for _ in completions]
    return [Score(float(len(text))) for text in completions]


def function_part(monkeypatch: pytest.MonkeyPatch, function: Any) -> dict[str, Any]:
    path = f"{__name__}.{function.__name__}"
    monkeypatch.setenv("RONDO_REWARD_FUNCTIONS", path)
    return {"name": "user", "kind": "function", "options": {"path": path}}


@pytest.mark.parametrize(
    ("function", "reason"),
    [(raises, "KeyError"), (infinite, "must be finite"), (not_a_number, "not a number")],
)
def test_a_reward_without_a_score_for_the_first_step_fails_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, reason: str
) -> None:
    part = function_part(monkeypatch, function)
    run = make_sampled_run(tmp_path / "run", base, GRPO, settings={"rewards": [part]})
    assert train(run) == EXIT_FAILED
    message = status_of(run).message
    assert message.startswith("no completion of the first step has a score: 16 × ")
    assert reason in message
    assert not (run / "checkpoint").exists()
    assert not (run / "metrics.jsonl").exists()


def test_a_part_of_the_reward_that_raises_for_every_completion_fails_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = function_part(monkeypatch, raises)
    run = make_sampled_run(tmp_path / "run", base, GRPO, settings={"rewards": [SHORT, part]})
    assert train(run) == EXIT_FAILED
    assert status_of(run).message.startswith(
        "the reward 'user' raised for every completion of the first step"
    )


def test_a_part_that_serves_none_of_the_prompts_is_no_fault(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = function_part(monkeypatch, not_a_number)
    run = make_sampled_run(tmp_path / "run", base, GRPO, optimiser=FEW, settings={"rewards": [SHORT, part]})
    assert train(run) == EXIT_FINISHED


def test_a_reward_that_stops_to_score_fails_the_run_after_some_steps(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = function_part(monkeypatch, scores_twice)
    run = make_sampled_run(tmp_path / "run", base, GRPO, settings={"rewards": [part]})
    assert train(run) == EXIT_FAILED
    assert "no completion of the last 3 steps has a score: 16 × " in status_of(run).message
    assert len(read_metrics(run)) == 4


def test_a_reward_that_always_ties_teaches_nothing_and_says_so(base: Path, tmp_path: Path) -> None:
    always = {"name": "always", "kind": "length", "options": {"most": 1000}}
    none = {**GRPO, "kl": {"place": "none"}}
    run = make_sampled_run(tmp_path / "run", base, none, optimiser=FEW, settings={"rewards": [always]})
    assert train(run) == EXIT_FINISHED
    for line in read_metrics(run):
        assert (line["tied"], line["updates"], line["skipped"], line["reward"]) == (1, 0, 0, 1)
    trained = load_file(run / "checkpoint" / "adapter_model.safetensors")
    assert all(not value.any() for name, value in trained.items() if "lora_B" in name)
    assert "all answers to a prompt earned the same" in (run / "log.txt").read_text()


def test_a_policy_is_distilled_on_its_own_samples_from_a_checkpoint_that_teaches(
    base: Path, tmp_path: Path, whole_runs: Callable[[str], Path]
) -> None:
    """On-policy distillation (Agarwal et al. 2024), by the reverse divergence."""
    teacher = whole_runs("grpo") / "checkpoint"
    run = make_sampled_run(
        tmp_path / "run",
        base,
        {
            **{"advantage": {"kind": "return"}, "update": {"loss": "distil"}},
            "kl": {"place": "loss", "kind": "full", "beta": 1.0},
        },
        settings={"rollout": {"samples": 4, "max_tokens": 8}, "reference": str(teacher)},
        optimiser={"batch_size": 5, "epochs": 15, "learning_rate": 0.01},
    )
    assert train(run) == EXIT_FINISHED
    divergence = [line["kl_loss"] for line in read_metrics(run)]
    assert min(divergence) > 0
    assert sum(divergence[-3:]) < 0.3 * sum(divergence[:3])


def test_prompts_whose_answers_all_earned_the_same_are_drawn_again_as_others_and_a_resumed_run_draws_them_too(
    base: Path, tmp_path: Path
) -> None:
    rollout = {"samples": 2, "max_tokens": 4}

    def run_of(name: str, redraws: int) -> Path:
        settings = {"rewards": [LETTER], "rollout": {**rollout, "redraws": redraws}}
        optimiser = {"max_steps": 4, "batch_size": 2, "save_every": 1}
        return make_sampled_run(tmp_path / name, base, GRPO, settings=settings, optimiser=optimiser)

    plain, whole = run_of("plain", 0), run_of("whole", 5)
    assert train(plain) == train(whole) == EXIT_FINISHED
    once, again = read_metrics(plain), read_metrics(whole)
    # Two answers of four tokens earn the same more often than not; a run has five prompts.
    assert any(line["redrawn"] > 0 for line in again)
    assert "redrawn" not in once[0]
    assert sum(line["tied"] for line in again) < sum(line["tied"] for line in once)
    for line, other in zip(again, once, strict=True):
        assert line["answers"] == other["answers"]
        # All prompts beside those of the step are tried before one that ties stays.
        assert line["tied"] == 0 or line["redrawn"] == 5 - line["answers"] / 2
    run = same_run(whole, tmp_path / "resumed")
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    assert train(run) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")
    assert (run / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()


def test_steps_that_are_not_finite_are_skipped_and_end_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LanguageActor.evaluate

    def evaluate(self: LanguageActor, rows: list[int]) -> Evaluated:
        evaluated = plain(self, rows)
        return evaluated._replace(logp=evaluated.logp * torch.nan)

    run = make_sampled_run(tmp_path / "run", base, GRPO)
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    before = files_of(run / "state")
    monkeypatch.setattr(LanguageActor, "evaluate", evaluate)
    assert train(run) == EXIT_FAILED
    assert "not finite in 3 steps in a row" in status_of(run).message
    assert files_of(run / "state") == before
    assert [line["skipped"] for line in read_metrics(run)] == [0, 0, 1, 1, 1]


def test_a_watch_that_warns_can_end_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(self: Any, step: int, figures: dict[str, float]) -> list[str]:
        del figures
        self._warned = ["length"] if step == 2 else []
        return ["it may be gamed"] if step == 2 else []

    monkeypatch.setattr("training.rlhf.policy_gradient.guard.Watch.observe", warned)
    for action, steps in (("warn", 6), ("stop", 2)):
        run = make_sampled_run(tmp_path / action, base, GRPO, settings={"watch": {"action": action}})
        assert train(run) == EXIT_FINISHED
        assert read_manifest(run / "checkpoint").steps == steps
        assert "Watch: it may be gamed" in status_of(run).message


def test_all_weights_can_be_trained_on_samples_and_resumed(base: Path, tmp_path: Path) -> None:
    full = {"adapter": "none"}
    gentle = {"learning_rate": 1e-3}
    run = make_sampled_run(tmp_path / "run", base, GRPO, settings=full, optimiser=gentle)
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    assert train(run) == EXIT_FINISHED
    whole = same_run(run, tmp_path / "whole")
    assert train(whole) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")
    lines = read_metrics(run)
    # The reference is the base as it stands in its folder: nothing lies between them before the first step.
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-4)
    assert lines[-1]["kl"] != pytest.approx(0, abs=1e-4)
    assert all(line["ratio_max"] == pytest.approx(1, abs=1e-6) for line in lines)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        trained, untrained = (
            AutoModelForCausalLM.from_pretrained(path)(ids).logits for path in (run / "checkpoint", base)
        )
    assert not torch.allclose(trained, untrained, atol=1e-3)
