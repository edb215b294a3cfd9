"""Lessons on text: rules that score it, and strings that a small model learns to reverse."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from string import ascii_lowercase

import torch
from torch import nn

from training.contract import ContractError, read_metrics
from training.contract.methods import Settings
from training.contract.methods.policy import AdvantageSettings, UpdateSettings
from training.contract.run import CHECKPOINT_FOLDER, EXIT_FINISHED, RunSpec, write_spec
from training.rlhf.course.setting import Figures, LessonSetting
from training.rlhf.examples.games import GameSettings, Player, learn, play
from training.rlhf.examples.reverse import CHARACTERS, Names, character_model, freeze_names
from training.rlhf.rewards.protocol import Reward
from training.rlhf.rewards.sandbox import SandboxError
from training.rlhf.rewards.text_rewards import LineCount, Mathematics, ThinkAnswerFormat, UnitTests

TASKS = ("mathematics", "unit tests", "five lines")
REFERENCES = ("42", ["assert double(2) == 4", "assert double(-3) == -6"], 5)
LINES = tuple(f"Line {number} of a poem." for number in range(1, 8))
COMPLETIONS = (
    (
        "<think>17 + 25 = 42</think><answer>42</answer>",
        "<think>17 + 25 = 32</think><answer>32</answer>",
        "<think>I am sure.</think><answer>17</answer>",
        "It is 41.",
        "I cannot add.",
        "About forty.",
    ),
    (
        "<think>Twice n.</think><answer>\n```python\ndef double(n):\n    return 2 * n\n```\n</answer>",
        "<think>Square it.</think><answer>\n```python\ndef double(n):\n    return n * n\n```\n</answer>",
        "<think>Easy.</think><answer>\n```python\ndef double(n):\n    pass\n```\n</answer>",
        "```python\ndef double(n):\n    return n\n```",
        "```python\ndef twice(n):\n    return 2 * n\n```",
        "def double(n) return 2n",
    ),
    (
        "<think>Count.</think><answer>" + "\n".join(LINES[:5]) + "</answer>",
        "<think>Short.</think><answer>" + "\n".join(LINES[:1]) + "</answer>",
        "<think>Long.</think><answer>" + "\n".join(LINES[:7]) + "</answer>",
        "\n".join(LINES[:3]),
        "\n".join(LINES[:2]),
        " ".join(LINES[:5]),
    ),
)
"""By task; the first one is right."""


def rule_scores() -> list[list[float]]:
    """Return what its rule says of each completion, by task. The programs run in a sandbox."""
    scores = []
    with Mathematics() as mathematics:
        rules: tuple[Reward, ...] = (mathematics, UnitTests(workers=1), LineCount())
        for rule, reference, completions in zip(rules, REFERENCES, COMPLETIONS, strict=True):
            count = len(completions)
            try:
                verdicts = rule([[]] * count, completions, [reference] * count)
            except SandboxError as error:
                raise ContractError(f"the lesson's programs cannot run here: {error}") from None
            scores.append([verdict.value if verdict.scored else 0.0 for verdict in verdicts])
    return scores


class Exam:
    """One of three tasks, drawn by the seed, and six completions to choose from."""

    def __init__(self, scores: list[list[float]]) -> None:
        self._scores = scores

    def start(self, seed: int) -> list[float]:
        """Return the task, as a row of zeros with a one."""
        self._task = random.Random(seed).randrange(len(TASKS))  # noqa: S311 - a scene
        return [float(task == self._task) for task in range(len(TASKS))]

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Choose a completion and end."""
        return [0.0] * len(TASKS), self._scores[self._task][action], True


def rule_rewards(setting: LessonSetting) -> Figures:
    """Learn which completions rules pay for; broken: a rule that looks at the format alone."""
    right = rule_scores()
    paid = right
    if setting.broken:
        format_rule = ThinkAnswerFormat()
        paid = [
            [verdict.value for verdict in format_rule([[]] * len(some), some, [None] * len(some))]
            for some in COMPLETIONS
        ]
    method = GameSettings(
        name="",
        advantage=AdvantageSettings(kind="running_mean", whiten=True),
        update=UpdateSettings(),
        learning_rate=0.1,
        steps=setting.steps(80, short=2),
        games=48,
    )
    policy = nn.Linear(len(TASKS), len(COMPLETIONS[0]), bias=False)
    nn.init.zeros_(policy.weight)
    player = Player(policy, None)

    def share() -> float:
        chance = policy.weight.detach().T.softmax(-1)
        return float(chance[:, 0].mean())

    for record in learn(player, lambda: Exam(paid), method, seed=setting.seed):
        setting.report(record["step"], {"reward": record["return"], "right": share()})
    final = play(policy, [Exam(right) for _ in range(300)], torch.Generator().manual_seed(setting.seed))
    return {"right": float((final.rewards == 1).float().mean())}


# ── String reversal ──

LETTERS = 4


def string_reversal(setting: LessonSetting) -> Figures:
    """A character model of random weights imitates reversals, then learns by reward alone; broken: without
    the imitation."""
    draws = random.Random(setting.seed)  # noqa: S311 - a sample
    count = 80 if setting.short else 3000
    words = list(dict.fromkeys("".join(draws.choices(ascii_lowercase, k=LETTERS)) for _ in range(count)))
    held_out = len(words) // 10
    names = Names(train=tuple(words[held_out:]), dev=tuple(words[:held_out]), known=0)
    task = dataclasses.replace(CHARACTERS, max_tokens=24, answer_tokens=LETTERS + 2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        digest = freeze_names(folder / "snapshot", names, wording=task.wording, held_out=held_out).digest
        base = folder / "model"
        character_model(base, seed=setting.seed)
        if not setting.broken:
            steps = setting.steps(SFT_STEPS, short=2)
            _train(folder / "sft", base, digest, task.sft(max_steps=steps), setting)
            base = folder / "sft" / CHECKPOINT_FOLDER
        settings = task.policy_gradient(
            max_steps=setting.steps(RL_STEPS, short=2), batch_size=setting.steps(32, short=4)
        )
        rewards = _train(folder / "rl", base, digest, settings, setting)
    ends = max(1, len(rewards) // 10)
    first, last = sum(rewards[:ends]) / ends, sum(rewards[-ends:]) / ends
    return {"before": first, "right": last}


SFT_STEPS, RL_STEPS = 80, 100


def _train(folder: Path, base: Path, digest: str, settings: Settings, setting: LessonSetting) -> list[float]:
    """Train a run as a round does, in a process of its own; return the share of right answers by step, and
    report it as it comes. Empty for imitation."""
    spec = RunSpec(
        method=settings.method,
        base_model=str(base),
        snapshot=str(folder.parent / "snapshot"),
        snapshot_digest=digest,
        settings=settings,
        seed=setting.seed,
        name=folder.name,
        device="cpu",
    )
    write_spec(folder, spec)
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "training.rlhf", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # The same sums in the same order, however many cores there are.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        reported = 0
        try:
            while True:
                ended = process.poll() is not None
                rows = [row for row in read_metrics(folder) if "reward/exact" in row]
                for row in rows[reported:]:
                    setting.report(float(row["step"]), {"right": float(row["reward/exact"])})
                reported = len(rows)
                if ended:
                    break
                time.sleep(0.5)
        finally:
            process.kill()
    if process.returncode != EXIT_FINISHED:
        lines = (folder / "output.txt").read_text().strip().splitlines()
        raise ContractError(f"the run did not finish: {lines[-1] if lines else process.returncode}")
    return [float(row["reward/exact"]) for row in rows]
