"""Decisions by people and a model, simulated: wrong promotions, and the answers that a decision takes.

    python -m tests.benchmarks.decisions [--part wrong,misled,power,pools,hour] [--rounds 2000]
    python -m tests.benchmarks.decisions --smoke

A round draws a pool of held-out prompts at random (for a claim about these prompts: one with exactly that
share of wins). People's outcome is a win with the true win rate; the evaluator's is the same with the
probability `agreement`, else the opposite. People answer prompts of the pool in random order, and
`decide_with_model` is asked after every answer from the tenth to the eightieth, then after each fortieth part
of what is there; the first verdict ends the round. Says one line of JSON for each setting.

A look is left out while the estimate lies within 1.8 standard errors of one half: no such look decides (the
evidence of ln 40 takes 2.7).
"""

import argparse
import itertools
import json
import math
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from training.figures.win_rates import Claim
from training.services.evaluation.decision import LEAST_ANSWERS, Decision, decide, decide_with_model

_UNDECIDED_WITHIN = 1.8
_CHUNK = 50


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One kind of round."""

    part: str
    win_rate: float
    pool: int
    answers: int
    """Most answers that people give."""
    agreement: float | None = None
    """Of the evaluator with people; None for one that does not look at the responses."""
    says: float = 0.5
    """The win rate that such an evaluator reports."""
    tie_rate: float = 0.0
    claim: Claim = "new_prompts"
    alone: bool = False
    """Decide by people alone."""
    # A round's draws hang on what is shown of its setting: the parts that plan nothing keep theirs.
    planned: int | None = field(default=None, repr=False)
    """After so many answers a test of them alone decides, too."""
    noise: float = field(default=0.0, repr=False)
    """Share of people's answers that are the other way round."""


CLAIMS: tuple[Claim, ...] = ("new_prompts", "these_prompts")


def settings() -> Iterator[Setting]:
    """Yield the settings of all parts."""
    for claim, pool, agreement in itertools.product(
        CLAIMS, (40, 100, 300, 1000), (0.3, 0.5, 0.75, 0.87, 0.95)
    ):
        ties = 0.2 if pool == 300 else 0.0
        wrong = Setting(part="wrong", win_rate=0.5, pool=pool, answers=min(pool, 400), tie_rate=ties)
        yield replace(wrong, agreement=agreement, claim=claim)
    for pool in (100, 1000):
        yield Setting(part="misled", win_rate=0.44, pool=pool, answers=min(pool, 400), says=0.75)
    for win_rate, answers in ((0.7, 200), (0.6, 700)):
        power = Setting(part="power", win_rate=win_rate, pool=1000, answers=answers)
        yield from (replace(power, agreement=agreement) for agreement in (0.75, 0.87))
        yield replace(power, alone=True)
    for pool in (40, 60, 100, 200, 400):
        small = Setting(part="pools", win_rate=0.7, pool=pool, answers=pool)
        yield from (replace(small, agreement=0.8, claim=claim) for claim in CLAIMS)
        yield replace(small, alone=True)
    hour = Setting(part="hour", win_rate=0.5, pool=59, answers=25, agreement=0.8, claim="these_prompts")
    hour = replace(hour, planned=25, noise=0.12)
    for ties, win_rate in itertools.product(
        (0.0, 0.25), (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
    ):
        yield replace(hour, win_rate=win_rate, tie_rate=ties)


SMOKE = (
    Setting(part="wrong", win_rate=0.5, pool=60, answers=40, agreement=0.8),
    Setting(part="power", win_rate=0.8, pool=60, answers=40, agreement=0.8),
)


def first_verdict(setting: Setting, seed: int) -> tuple[Decision, int]:
    """Simulate one round; return its first verdict and the answers that it took."""
    source = random.Random(f"{setting}/{seed}")
    outcomes, scores = [], []
    for place in range(setting.pool):
        if setting.claim == "these_prompts":
            # The claim is about this pool: exactly so many of its prompts are won.
            won = place < round(setting.win_rate * setting.pool)
        else:
            won = source.random() < setting.win_rate
        if setting.agreement is None:
            score = source.random() < setting.says
        else:
            score = won if source.random() < setting.agreement else not won
        scores.append(float(score))
        tied = source.random() < setting.tie_rate
        mistaken = bool(setting.noise) and source.random() < setting.noise
        outcomes.append(0.5 if tied else float(won != mistaken))
    order = source.sample(range(setting.pool), setting.answers)
    answers = [(position, outcomes[position]) for position in order]
    for size in _looks(setting.answers):
        if setting.planned is None and not _may_decide(answers[:size], scores, setting):
            continue
        if setting.alone:
            verdict = decide([outcome for _, outcome in answers[:size]])
        else:
            verdict = decide_with_model(answers[:size], scores, claim=setting.claim, planned=setting.planned)
        if verdict != Decision.NOT_ENOUGH_EVIDENCE:
            return verdict, size
    return Decision.NOT_ENOUGH_EVIDENCE, setting.answers


def _looks(answers: int) -> Iterator[int]:
    size = LEAST_ANSWERS
    while size < answers:
        yield size
        size += max(size // 40, 1)
    yield answers


def _may_decide(answers: list[tuple[int, float]], scores: list[float], setting: Setting) -> bool:
    """Return whether an estimate by people alone or by both lies far enough from one half."""
    size = len(answers)
    mean = sum(outcome for _, outcome in answers) / size
    of_answered = sum(scores[position] for position, _ in answers) / size
    left = 1.0 if setting.claim == "new_prompts" else max(1 - size / setting.pool, 1e-9)
    error = 0.5 * math.sqrt(left / size)
    corrected = mean - (of_answered - sum(scores) / len(scores))
    # The least error that an evaluator could leave stands for the corrected estimate.
    return abs(mean - 0.5) > _UNDECIDED_WITHIN * error or abs(corrected - 0.5) > error


def _chunk(setting: Setting, start: int, rounds: int) -> list[tuple[Decision, int]]:
    return [first_verdict(setting, seed) for seed in range(start, min(start + _CHUNK, rounds))]


def report(setting: Setting, courses: list[tuple[Decision, int]]) -> dict[str, object]:
    """Return the shares of verdicts and the answers within which half and 80 % of rounds are promoted."""
    rounds = len(courses)
    promoted = sorted(size for verdict, size in courses if verdict == Decision.PROMOTE)

    def within(share: float) -> int | None:
        place = math.ceil(share * rounds) - 1
        return promoted[place] if place < len(promoted) else None

    changed = {key: value for key, value in asdict(setting).items() if value not in (None, False)}
    return {
        **changed,
        "rounds": rounds,
        "promoted": round(len(promoted) / rounds, 4),
        "rejected": round(sum(verdict == Decision.REJECT for verdict, _ in courses) / rounds, 4),
        "half_within": within(0.5),
        "80_percent_within": within(0.8),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default="wrong,misled,power,pools,hour")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="two small settings, ten rounds each")
    options = parser.parse_args()
    rounds = 10 if options.smoke else options.rounds
    with ProcessPoolExecutor(options.processes) as processes:
        parts = options.part.split(",")
        for setting in SMOKE if options.smoke else (one for one in settings() if one.part in parts):
            chunks = processes.map(partial(_chunk, setting, rounds=rounds), range(0, rounds, _CHUNK))
            print(json.dumps(report(setting, [course for chunk in chunks for course in chunk])), flush=True)


if __name__ == "__main__":
    main()
