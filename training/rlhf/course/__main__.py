"""Run a lesson: `python -m training.rlhf.course SLUG --out FILE [--seed N] [--broken] [--short] [--own …]`.

Writes one JSON object a line: `{"step": …, "values": {…}}` for each point of the curve as it comes, and
`{"figures": {…}}` at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from training.contract import ContractError
from training.contract.course import BY_SLUG
from training.rlhf.course import games, preferences, text
from training.rlhf.course.setting import Figures, LessonSetting

RUNS: Mapping[str, Callable[[LessonSetting], Figures]] = {
    "reinforce-cart-pole": games.reinforce_cart_pole,
    "grid-world": games.grid_world_walk,
    "plackett-luce": preferences.plackett_luce_and_bradley_terry,
    "dpo": preferences.direct_preference_optimisation,
    "thirty-votes": preferences.reward_model_from_votes,
    "rule-rewards": text.rule_rewards,
    "reward-hacking": games.reward_hacking,
    "string-reversal": text.string_reversal,
    "ppo-and-grpo": games.ppo_and_grpo,
    "fine-grained-rewards": games.fine_grained,
    "service-bot": games.service_bot,
}
"""By slug, what each lesson of `training.contract.course` trains."""


def main() -> int:
    """Run the lesson that the command line names; 0, or 1 with the reason."""
    parser = argparse.ArgumentParser(prog="python -m training.rlhf.course", description=__doc__)
    parser.add_argument("lesson", choices=sorted(BY_SLUG))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--broken", action="store_true", help="with the setting changed that the lesson names"
    )
    parser.add_argument("--short", action="store_true", help="in its smallest form")
    parser.add_argument("--own", type=Path, metavar="FILE", help="annotations of the person who runs it")
    options = parser.parse_args()
    # Matrices are small: a second thread costs more than it brings, and the same sums come out everywhere.
    torch.set_num_threads(1)
    with options.out.open("w", encoding="utf-8") as out:

        def write(line: Mapping[str, object]) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        setting = LessonSetting(
            seed=options.seed,
            broken=options.broken,
            short=options.short,
            own=options.own,
            report=lambda step, values: write({"step": step, "values": dict(values)}),
        )
        try:
            figures = RUNS[options.lesson](setting)
        except ContractError as error:
            print(error, file=sys.stderr)
            return 1
        write({"figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
