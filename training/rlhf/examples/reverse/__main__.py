"""Teach a model to spell names backwards: `python -m training.rlhf.examples.reverse`, or `make reverse`.

First by imitation (method sft), then by reward alone (method policy_gradient), all weights trained, each as a
run folder that `python -m training.rlhf` trains; a second call goes on where the first was stopped.

Writes to --out: `curve.svg`, the mean reward of a step's answers over steps; `results.txt` and
`results.json`, the share of names of the dev split, those that stand in train left out, that are reversed
without a mistake, greedily and at temperature 0.1, after each of the two runs.

Without --model: a character-level model of 660,000 parameters, drawn from the seed. With --model FOLDER:
the course's setting, for SmolLM2-135M: 500 names, one epoch of imitation, three of reinforcement. On a GPU:

    python -m training.rlhf.examples.reverse --model FOLDER --device cuda --seeds 0

On a CPU a step of that takes tens of seconds; --sft-steps 10 --rl-steps 10 --prompts 4 tries
it out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from training.contract import (
    CHECKPOINT_FOLDER,
    EXIT_FINISHED,
    LOG_FILE,
    ContractError,
    RunSpec,
    Settings,
    SnapshotHeader,
    read_metrics,
    write_spec,
)
from training.rlhf.examples.reverse.accuracy import exact_match
from training.rlhf.examples.reverse.characters import character_model
from training.rlhf.examples.reverse.curve import draw, smoothed, table
from training.rlhf.examples.reverse.names import Names, freeze_names, read_names
from training.rlhf.examples.reverse.task import CHARACTERS, COURSE, GOAL, Task
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.config import resolve_device

_HELD_OUT = 256
"""Names that a run is evaluated on while it trains."""
_WINDOW = 20
"""Steps that a point of the curve is the mean of."""


def main() -> int:
    """Parse the command line, train and measure; 0 when all runs ended, 1 with the reason when not."""
    arguments = _arguments()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    task = CHARACTERS if arguments.model is None else COURSE
    out: Path = arguments.out
    try:
        names = read_names(arguments.data)
        header = freeze_names(out / "snapshot", names, wording=task.wording, held_out=_HELD_OUT)
        results = [_Seed(seed, arguments, task, names, header).results() for seed in arguments.seeds]
    except (ContractError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    _write(out, results, names, name_count=len(names.dev[: task.asked]))
    return 0


class _Seed:
    """The two runs of one seed, and what they came to."""

    def __init__(
        self, seed: int, arguments: argparse.Namespace, task: Task, names: Names, header: SnapshotHeader
    ) -> None:
        self._seed = seed
        self._arguments = arguments
        self._task = task
        self._asked = names.dev[: task.asked]
        self._digest = header.digest
        self._folder: Path = arguments.out.resolve() / f"seed-{seed}"

    def results(self) -> dict[str, Any]:
        """Train what is not trained yet, and measure."""
        base: Path | None = self._arguments.model
        if base is None:
            base = self._folder / "model"
            if not (base / "config.json").is_file():
                count = character_model(base, seed=self._seed)
                _say(f"seed {self._seed}: a model of {count:,} parameters")
        sft, rl = self._folder / "sft", self._folder / "rl"
        arguments = self._arguments
        seconds = [self._train(sft, base.resolve(), self._task.sft(max_steps=arguments.sft_steps))]
        imitated = self._measured("after imitation", sft)
        settings = self._task.policy_gradient(max_steps=arguments.rl_steps, batch_size=arguments.prompts)
        seconds.append(self._train(rl, sft / CHECKPOINT_FOLDER, settings))
        reinforced = self._measured("after reinforcement", rl)
        return {
            "seed": self._seed,
            "imitation": {**imitated, "seconds": seconds[0]},
            "reinforcement": {**reinforced, "seconds": seconds[1]},
            "reward": [(row["step"], row["reward/exact"]) for row in read_metrics(rl)],
        }

    def _train(self, folder: Path, base: Path, settings: Settings) -> float:
        """Train a run in a process of its own; the seconds that it took, in earlier calls too."""
        write_spec(
            folder,
            RunSpec(
                method=settings.method,
                base_model=str(base),
                snapshot=str(self._arguments.out.resolve() / "snapshot"),
                snapshot_digest=self._digest,
                settings=settings,
                seed=self._seed,
                name=f"reverse-{folder.name}-{self._seed}",
                device=self._arguments.device,
            ),
        )
        clock = folder / "seconds.json"
        before = json.loads(clock.read_text()) if clock.is_file() else 0.0
        if (folder / CHECKPOINT_FOLDER).is_dir():
            return float(before)
        started = time.monotonic()
        status = subprocess.run(
            [sys.executable, "-m", "training.rlhf", str(folder)], stdin=subprocess.DEVNULL
        )
        if status.returncode != EXIT_FINISHED:
            raise RuntimeError(f"{folder}: the run did not finish; {folder / LOG_FILE} says why")
        seconds = float(before + time.monotonic() - started)
        clock.write_text(json.dumps(seconds))
        return seconds

    def _measured(self, when: str, run: Path) -> dict[str, float]:
        backbone = Backbone.load(
            run / CHECKPOINT_FOLDER, device=resolve_device(self._arguments.device), dtype=torch.float32
        )
        shares = {
            name: exact_match(
                backbone,
                self._asked,
                adapter=None,
                wording=self._task.wording,
                temperature=temperature,
                max_tokens=self._task.answer_tokens,
                seed=self._seed,
            )
            for name, temperature in (("greedy", 0.0), ("at 0.1", 0.1))
        }
        _say(f"seed {self._seed}, {when}: greedy {shares['greedy']:.1%}, at T = 0.1 {shares['at 0.1']:.1%}")
        return shares


def _write(out: Path, results: list[dict[str, Any]], names: Names, *, name_count: int) -> None:
    rows = [
        {
            "seed": str(result["seed"]),
            "after": when,
            "greedy": f"{result[when]['greedy']:.1%}",
            "T = 0.1": f"{result[when]['at 0.1']:.1%}",
            "minutes": f"{result[when]['seconds'] / 60:.1f}",
        }
        for result in results
        for when in ("imitation", "reinforcement")
    ]
    summary = (
        f"Names reversed without a mistake, of {name_count} of the dev split; {names.known} others of it "
        f"stand in train too and are left out. The course's recipe ends at {GOAL:.1%}.\n\n{table(rows)}"
    )
    (out / "results.txt").write_text(summary, encoding="utf-8")
    (out / "results.json").write_text(
        json.dumps({"goal": GOAL, "asked": name_count, "seeds": results}, indent=2)
    )
    curves = {f"seed {result['seed']}": smoothed(result["reward"], _WINDOW) for result in results}
    title = f"Right answers among the samples of a step, mean of {_WINDOW} steps"
    (out / "curve.svg").write_text(draw(curves, title=title, goal=GOAL), encoding="utf-8")
    _say(f"\n{summary}\n{out / 'curve.svg'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.rlhf.examples.reverse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("names.json"), metavar="FILE", help="names.json")
    parser.add_argument("--out", type=Path, default=Path("var/reverse"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="the course's setting, with this base model"
    )
    parser.add_argument("--sft-steps", type=int, metavar="N", help="optimiser steps of imitation")
    parser.add_argument("--rl-steps", type=int, metavar="N", help="steps of reinforcement")
    parser.add_argument("--prompts", type=int, metavar="N", help="prompts of a step of reinforcement")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), metavar="N", help="of measuring"
    )
    return parser.parse_args()


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
