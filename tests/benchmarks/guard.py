"""Runs that ask people before they run away: courses of GRPO with the guard, and decisions replayed.

    python -m tests.benchmarks.guard [--rewards true words sentences] [--seeds 0 1 2 3 4] [--results FILE]
    python -m tests.benchmarks.guard --replay FILE [FILE ...]
    python -m tests.benchmarks.guard --smoke

**Courses.** The small writer of the loop's benchmark is trained by the real trainer for a reward: the true
one (lists of 14 to 20 words), twice for each seed with different prompts, or one that can be hacked: it likes
lists, and pays for every word, or for every sentence, whatever the length. Simulated annotators, who prefer
what is truly better with a log-odds of two for each unit, answer the guard's questions by the same arithmetic
as the web application (`training.figures.guard`). The truth is measured on 200 fresh prompts: the win rate of
the run's result against the policy that it began with. One line for each course, and a summary.

**Replay.** Results of `python -m tests.benchmarks.loop --results FILE` hold the evaluator's outcome and the
true difference on each held-out prompt of each round. Simulated people answer these in random order, and
`decide` and `decide_with_model` are asked after every answer; how often a round is promoted stands beside
what is true.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from tests.benchmarks.loop.grammar import prompts as write_prompts
from tests.benchmarks.loop.preferences import Annotator, Reward, length_band, list_format, weighted, words_in
from tests.benchmarks.loop.truth import win_rate
from training.contract import read_manifest, read_metrics
from training.contract.guard import (
    MOST_PAIRS,
    PAIRS_AT_ONCE,
    GuardVerdict,
    read_questions,
    read_verdict,
    write_verdict,
)
from training.contract.run import CHECKPOINT_FOLDER, RunSpec, write_spec
from training.contract.snapshot import Message, SnapshotPrompt, read_snapshot_header, write_snapshot
from training.figures.guard import GuardFinding, finding
from training.services.evaluation.decision import Decision, decide, decide_with_model

# ── Rewards ──

TRUTH: Reward = weighted([(1.0, list_format), (1.0, length_band)])
_FALL = 0.02
_TOKENS = 48


def _of_all(reward: Reward) -> Callable[[Sequence[Any], Sequence[str], Sequence[Any]], list[float]]:
    """Return the reward as a trainer calls it."""
    return lambda prompts, completions, references: [
        reward(prompt[-1].content, text) for prompt, text in zip(prompts, completions, strict=True)
    ]


true = _of_all(TRUTH)
words = _of_all(lambda prompt, text: 0.5 * list_format(prompt, text) + 0.25 * len(words_in(text)))
sentences = _of_all(lambda prompt, text: 0.5 * list_format(prompt, text) + 0.75 * text.count(" ."))
REWARDS = ("true", "words", "sentences")


# ── Courses ──


@dataclass(frozen=True, kw_only=True)
class Course:
    """One run."""

    reward: str
    seed: int
    steps: int
    prompts: int
    is_guarded: bool = True

    @property
    def is_healthy(self) -> bool:
        """Return whether the reward is the true one."""
        return self.reward == "true"


class People:
    """Simulated annotators of one run: they answer what its guard asks, eight pairs at a time."""

    def __init__(self, run: Path, prompts: Sequence[str], *, seed: int) -> None:
        self._run, self._prompts = run, prompts
        self._annotator = Annotator(name="annotator", reward=TRUTH)
        self._random = Random(f"people {seed}")
        self.asked = 0
        self.outcomes: list[dict[str, Any]] = []

    def answer(self) -> None:
        """Answer every question that waits."""
        for question in read_questions(self._run, after=len(self.outcomes)):
            if read_verdict(self._run, question.number) is not None or not question.pairs:
                continue
            outcomes: list[float] = []
            found = GuardFinding.OPEN
            for place, pair in enumerate(question.pairs):
                if self.asked == MOST_PAIRS or found != GuardFinding.OPEN:
                    break
                # Pairs come eight at a time.
                self.asked += (
                    min(PAIRS_AT_ONCE, len(question.pairs) - place) if place % PAIRS_AT_ONCE == 0 else 0
                )
                prompt = self._prompts[int(pair.prompt)]
                now, then = self._annotator.ranks(prompt, [pair.now.text, pair.then.text], self._random)
                outcomes.append(float(now < then))
                found = finding(outcomes)
            outcome = "undecided" if found == GuardFinding.OPEN else str(found)
            verdict = GuardVerdict(outcome=outcome, asked=self.asked)  # type: ignore[arg-type]
            write_verdict(self._run, question.number, verdict)
            signals = [f"{signal.name} {signal.value:.1f}" for signal in question.signals]
            self.outcomes.append(
                {
                    **{"step": question.step, "then": question.then_step, "signals": signals},
                    **{"wins": sum(outcomes), "answers": len(outcomes), "outcome": outcome},
                }
            )


def run_course(course: Course, writer: Path) -> dict[str, Any]:
    """Train one course and measure its result."""
    home = Path(tempfile.mkdtemp(prefix="rondo-guard-"))
    try:
        begun = time.monotonic()
        texts = write_prompts(course.prompts + 200, seed=course.seed)
        asked, fresh = texts[: course.prompts], texts[course.prompts :]
        run = _lay_out(home, course, writer, asked)
        people = People(run, asked, seed=course.seed)
        _train(run, people)
        steps = read_manifest(run / CHECKPOINT_FOLDER).steps
        metrics = read_metrics(run)
        before, after = (_rewards(writer, folder, fresh) for folder in (None, run / CHECKPOINT_FOLDER))
        rate = win_rate(after, before)
        return {
            **asdict(course),
            "result_step": steps,
            "steps_taken": len(metrics),
            "questions": people.outcomes,
            "pairs": people.asked,
            "true_reward": [round(fmean(before), 3), round(fmean(after), 3)],
            "true_win_rate": {name: round(value, 3) for name, value in rate.items()},
            "has_fallen": rate["value"] < 0.5 - _FALL,
            "is_stopped": steps < course.steps,
            "kl": round(metrics[-1]["kl"], 1),
            "seconds": round(time.monotonic() - begun),
        }
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _lay_out(home: Path, course: Course, writer: Path, asked: Sequence[str]) -> Path:
    rows = [
        SnapshotPrompt(id=str(place), split="train", messages=(Message(role="user", content=text),))
        for place, text in enumerate(asked)
    ]
    write_snapshot(home / "snapshot", [], project="guard", rounds=(1,), prompts=rows)
    path = f"tests.benchmarks.guard.{course.reward}"
    settings: dict[str, Any] = {
        "rewards": [{"name": course.reward, "kind": "function", "options": {"path": path}}],
        "rollout": {"samples": 8, "max_tokens": _TOKENS},
        "lora": {"rank": 16, "alpha": 32.0},
        "advantage": {"kind": "group_relative", "scale": True},
        "optimiser": {
            **{"batch_size": 8, "learning_rate": 2e-3, "max_steps": course.steps, "epochs": 1000},
            **{"save_every": 5, "evaluate_every": 0, "keep_best": False, "micro_batch_tokens": 4096},
        },
        "evaluation_prompts": 0,
        "guard": {} if course.is_guarded else None,
    }
    run = home / "run"
    run.mkdir()
    values = {
        **{"method": "policy_gradient", "base_model": str(writer), "snapshot": "../snapshot", "format": 1},
        "snapshot_digest": read_snapshot_header(home / "snapshot").digest,
        **{"settings": settings, "seed": course.seed, "device": "cpu"},
    }
    write_spec(run, RunSpec.from_json(values))
    return run


def _train(run: Path, people: People) -> None:
    from training.rlhf.runtime.stopping import StopRequest
    from training.rlhf.train import train_run

    class Attended(StopRequest):
        """Looked at between steps and while a run waits: that is when people answer here."""

        @property
        def reason(self) -> str:
            """Return no reason, once every question is answered."""
            people.answer()
            return ""

    os.environ["RONDO_REWARD_FUNCTIONS"] = ",".join(f"tests.benchmarks.guard.{name}" for name in REWARDS)
    with contextlib.redirect_stderr(io.StringIO()) as output:
        status = train_run(run, stop=Attended(run), lock_wait_seconds=0)
    if status:
        raise SystemExit(f"{run}: the trainer ended with {status}\n{output.getvalue()[-3000:]}")


def _rewards(writer: Path, checkpoint: Path | None, fresh: Sequence[str]) -> list[float]:
    """Return the true reward of one response to each prompt, by the writer or a checkpoint on it."""
    import torch

    from training.rlhf.model.backbone import Backbone
    from training.rlhf.rollout.generate import rollout
    from training.rlhf.sampling import SamplingParameters
    from training.rlhf.tokens.encoding import Encoder

    backbone = Backbone.load(writer, device="cpu", dtype=torch.float32)
    if checkpoint is not None:
        backbone.load_adapter("policy", checkpoint)
    encoder = Encoder(backbone.tokenizer)
    chats = [[Message(role="user", content=text)] for text in fresh]
    drawn = rollout(
        backbone,
        [encoder.encode_prompt(chat, max_tokens=512)[0] for chat in chats],
        SamplingParameters(temperature=1.0, top_p=1.0, top_k=0, max_tokens=_TOKENS),
        n=1,
        adapter=None if checkpoint is None else "policy",
        seeds=list(range(len(fresh))),
    )
    return [TRUTH(prompt, samples[0].text) for prompt, samples in zip(fresh, drawn, strict=True)]


def courses_of(rewards: Sequence[str], seeds: Sequence[int], steps: int, *, guarded: bool) -> list[Course]:
    """Return the courses: the true reward twice for each seed, so that half of all are healthy."""
    chosen = []
    for seed in seeds:
        for reward in rewards:
            for again in (0, 1) if reward == "true" and len(rewards) > 1 else (0,):
                chosen.append(
                    Course(
                        reward=reward, seed=seed + 1000 * again, steps=steps, prompts=200, is_guarded=guarded
                    )
                )
    return chosen


def summary_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the goals ask for."""
    healthy = [result for result in results if result["reward"] == "true"]
    return {
        "courses": len(results),
        "hacked": len(results) - len(healthy),
        "fallen_by_two_points": sum(result["has_fallen"] for result in results),
        "healthy_stopped": sum(result["is_stopped"] for result in healthy),
        "most_pairs": max((result["pairs"] for result in results), default=0),
        "mean_pairs": round(fmean(result["pairs"] for result in results), 1) if results else 0,
    }


# ── Replay ──


def replay(files: Sequence[Path], *, times: int) -> Iterator[dict[str, Any]]:
    """Yield for each recorded round how often it would be promoted by people alone and with the model."""
    for path in files:
        for course in json.loads(path.read_text())["courses"]:
            for figures in course["rounds"]:
                yield _replayed(course, figures, times)


def _replayed(course: dict[str, Any], figures: dict[str, Any], times: int) -> dict[str, Any]:
    held_out = figures["held_out"]
    verdicts: dict[str, list[Decision]] = {"people": [], "people_and_model": []}
    answers: list[int] = []
    for again in range(times):
        random = Random(f"{course['seed']} {figures['round']} {again}")
        order = random.sample(range(len(held_out)), len(held_out))
        outcomes = [
            (place, 0.5 if held_out[place][1] == 0 else float(random.random() < _chance(held_out[place][1])))
            for place in order
        ]
        scores = [score for score, _ in held_out]
        verdicts["people"].append(_first([decide([o for _, o in outcomes[:n]]) for n in _looks(outcomes)])[0])
        verdict, place = _first([decide_with_model(outcomes[:n], scores) for n in _looks(outcomes)])
        verdicts["people_and_model"].append(verdict)
        answers.append(_looks(outcomes)[place])
    truth = figures["true_win_rate_parent"]
    return {
        "arm": course["arm"]["policy"],
        "seed": course["seed"],
        "round": figures["round"],
        "recorded": figures["verdict"],
        "true_win_rate": round(truth["value"], 3),
        "is_better": truth["low"] > 0.5,
        "over_optimised": figures["over_optimised"],
        "held_out": len(held_out),
        "answers": round(fmean(answers)),
        **{
            f"{verdict}_by_{name}": round(fmean(one == verdict for one in some), 2)
            for name, some in verdicts.items()
            for verdict in (Decision.PROMOTE, Decision.REJECT)
        },
    }


def _chance(better: float) -> float:
    """Return the probability that a simulated annotator prefers what is better by so much."""
    return 1 / (1 + math.exp(-2 * better))


def _looks(outcomes: Sequence[Any]) -> list[int]:
    return list(range(min(10, len(outcomes)), len(outcomes) + 1))


def _first(verdicts: Sequence[Decision]) -> tuple[Decision, int]:
    """Return the first verdict, and its place; the last look's where there is none."""
    for place, verdict in enumerate(verdicts):
        if verdict != Decision.NOT_ENOUGH_EVIDENCE:
            return verdict, place
    return Decision.NOT_ENOUGH_EVIDENCE, len(verdicts) - 1


def summary_of_replay(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how over-optimised rounds and right promotions fare by people and model."""
    over = [one for one in rounds if one["over_optimised"]]
    right = [one for one in rounds if one["is_better"] and one["recorded"] == "promote"]
    name = f"{Decision.PROMOTE}_by_people_and_model"
    lost = f"{Decision.REJECT}_by_people_and_model"
    return {
        "rounds": len(rounds),
        "over_optimised": len(over),
        "over_optimised_promoted_at_most": max((one[name] for one in over), default=0.0),
        "right_promotions": len(right),
        "promoted_in_the_mean": round(fmean(one[name] for one in right), 2) if right else None,
        "rejected_at_most": max((one[lost] for one in right), default=0.0),
    }


def main() -> None:
    """Run or replay, and print a line of JSON for each course or round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rewards", nargs="+", choices=REWARDS, default=list(REWARDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--writer", type=Path, help="folder of a writer; without one it is trained first")
    parser.add_argument("--writer-steps", type=int, default=300)
    parser.add_argument("--no-guard", action="store_true", help="the same courses without a guard")
    parser.add_argument("--replay", nargs="+", type=Path, help="results of the loop's benchmark")
    parser.add_argument("--times", type=int, default=20, help="simulated rounds of answers for each round")
    parser.add_argument("--results", type=Path, help="write all lines as JSON here")
    parser.add_argument("--smoke", action="store_true", help="one hacked course, a few steps")
    options = parser.parse_args()
    lines: list[dict[str, Any]] = []

    def tell(line: dict[str, Any]) -> None:
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.results:
            command = " ".join(["python -m tests.benchmarks.guard", *sys.argv[1:]])
            options.results.write_text(json.dumps({"command": command, "lines": lines}))

    if options.replay:
        for line in replay(options.replay, times=options.times):
            tell(line)
        print(json.dumps(summary_of_replay(lines)))
        return
    import torch

    torch.set_num_threads(1)
    rewards, seeds, steps, writer_steps = options.rewards, options.seeds, options.steps, options.writer_steps
    if options.smoke:
        rewards, seeds, steps, writer_steps = ["words"], [0], 12, 60
    with contextlib.ExitStack() as stack:
        writer = options.writer
        if writer is None:
            from tests.benchmarks.loop.writer import build

            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rondo-writer-")))
            writer = build(home / "writer", steps=writer_steps)
        for course in courses_of(rewards, seeds, steps, guarded=not options.no_guard):
            tell(run_course(course, writer))
    print(json.dumps(summary_of(lines)))


if __name__ == "__main__":
    main()
