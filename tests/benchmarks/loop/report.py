"""Courses as a table, a summary, and what is not sane about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from tests.benchmarks.loop.rounds import Course, Size
from tests.benchmarks.loop.truth import decision_agrees

_COLUMNS = (
    *("arm", "seed", "round", "labels", "hours", "true reward", "against base", "against parent"),
    *("proxy gain", "reward accuracy", "KL", "verdict", "agrees", "seconds"),
)


def table_head() -> str:
    """Return the first two lines of the table."""
    return f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def row_of(course: Course, figures: dict[str, Any]) -> str:
    """Return the line of one round."""
    agrees = decision_agrees(figures["verdict"], figures["true_win_rate_parent"])
    cells = [
        *(course.arm.name, course.seed, figures["round"], figures["labels_in_all"]),
        f"{figures['annotator_hours']:.2f}",
        f"{figures['true_reward']:.2f}",
        _share(figures["true_win_rate_base"]),
        _share(figures["true_win_rate_parent"]),
        f"{figures['proxy_gain']:+.2f}",
        "" if figures["reward_accuracy"] is None else f"{figures['reward_accuracy']:.3f}",
        "" if figures["kl"] is None else f"{figures['kl']:.2f}",
        figures["verdict"],
        {True: "yes", False: "no", None: "open"}[agrees],
        f"{figures['seconds']:.0f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _share(rate: dict[str, float]) -> str:
    return f"{rate['value']:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]"


def summary_of(courses: Sequence[Course]) -> str:
    """Return how often decisions agree, and how many rounds raised the win rate against the base."""
    rounds = [(course, figures) for course in courses for figures in course.rounds]
    decided = [decision_agrees(figures["verdict"], figures["true_win_rate_parent"]) for _, figures in rounds]
    clear = [agrees for agrees in decided if agrees is not None]
    acted = [
        decision_agrees(figures.get("acted", figures["verdict"]), figures["true_win_rate_parent"])
        for _, figures in rounds
    ]
    over = sum(figures["over_optimised"] for _, figures in rounds)
    last = [course.rounds[-1]["true_win_rate_base"]["value"] for course in courses if course.rounds]
    return (
        f"{len(rounds)} rounds: {len(clear)} decided by evidence, {sum(clear)} of them as the truth has it; "
        f"with those that a manager decided by the point estimate, {sum(map(bool, acted))} of {len(acted)}; "
        f"{over} over-optimised; at the end {fmean(last) if last else 0.5:.0%} against the base"
    )


def problems_of(courses: Sequence[Course], size: Size) -> list[str]:
    """Return what cannot be right: rounds without labels, figures out of range, a base that is not beaten."""
    problems = []
    for course in courses:
        if len(course.rounds) != size.rounds:
            problems.append(f"{course.arm.name}: {len(course.rounds)} of {size.rounds} rounds were measured")
        for figures in course.rounds:
            where = f"{course.arm.name}, seed {course.seed}, round {figures['round']}"
            if not figures["labels"]:
                problems.append(f"{where}: nothing was labelled")
            # Estimated from one response to each held-out prompt, it may come out below 0.
            if figures["kl"] is None or not math.isfinite(figures["kl"]):
                problems.append(f"{where}: the KL divergence is {figures['kl']}")
            accuracy = figures["reward_accuracy"]
            # Later the responses of parent and new policy are so alike that little is left to tell apart.
            if figures["round"] == 1 and (accuracy is None or accuracy < 0.5):
                problems.append(f"{where}: the reward model's accuracy is {accuracy}, no better than chance")
        if course.rounds and course.rounds[-1]["true_win_rate_base"]["value"] < 0.5:
            problems.append(f"{course.arm.name}, seed {course.seed}: what is served is worse than the base")
    return problems
