"""Lessons in which people's preferences are fitted: rankings, pairs, one's own votes, and a policy by DPO."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.contract import ContractError
from training.rlhf.course.setting import Figures, LessonSetting
from training.rlhf.losses import bradley_terry, dpo, plackett_luce
from training.rlhf.measures.features import text_features
from training.rlhf.measures.linear_choice import Choices, fit_at

ITEMS, RANKED = 10, 4
"""Completions in all, and how many of them a ranking holds."""


def plackett_luce_and_bradley_terry(setting: LessonSetting) -> Figures:
    """Estimate known utilities from rankings, whole by Plackett-Luce and as pairs by Bradley-Terry.

    Broken: Bradley-Terry takes neighbours in the ranking alone, which keeps its error however many rankings
    there are (Azari Soufiani et al. 2014).
    """
    draws = torch.Generator().manual_seed(setting.seed)
    truth = torch.linspace(-2, 2, ITEMS)
    most = 64 if setting.short else 8192
    shown = torch.stack([torch.randperm(ITEMS, generator=draws)[:RANKED] for _ in range(most)])
    # The order of utilities with Gumbel noise is a draw from Plackett-Luce.
    noise = -torch.empty(most, RANKED).exponential_(generator=draws).log()
    order = (truth[shown] + noise).argsort(-1, descending=True)
    ranked = shown.gather(-1, order)
    places = [(i, j) for i in range(RANKED) for j in range(i + 1, RANKED) if j == i + 1 or not setting.broken]
    left, right = ([place[side] for place in places] for side in (0, 1))
    figures = {}
    count = 32
    while count <= most:
        some = ranked[:count]
        figures = {
            "plackett_luce": _error(partial(_whole, some), truth),
            "bradley_terry": _error(partial(_pairs, some[:, left], some[:, right]), truth),
        }
        setting.report(math.log2(count), figures)
        count *= 2
    return {**figures, "ratio": figures["bradley_terry"] / figures["plackett_luce"]}


def _whole(ranked: Tensor, utilities: Tensor) -> Tensor:
    ranks = torch.arange(1, RANKED + 1).expand(len(ranked), RANKED)
    return plackett_luce(utilities[ranked], ranks)


def _pairs(better: Tensor, worse: Tensor, utilities: Tensor) -> Tensor:
    return bradley_terry(utilities[better], utilities[worse])


def minimise(cost: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return the argument at which a convex cost is least, by L-BFGS."""
    found = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([found], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = cost(found)
        torch.autograd.backward(value)
        return value

    # Its step has no types.
    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return found.detach()


def _error(cost: Callable[[Tensor], Tensor], truth: Tensor) -> float:
    """Return how far estimated utilities lie from the true ones: root mean square, their means aside."""
    # A weak pull to 0 keeps an item that was never beaten finite.
    found = minimise(lambda utilities: cost(utilities) + 1e-4 * utilities.square().sum(), torch.zeros(ITEMS))
    return float(((found - found.mean()) - (truth - truth.mean())).square().mean().sqrt())


PROMPTS, COMPLETIONS, BETA = 8, 6, 0.5


def direct_preference_optimisation(setting: LessonSetting) -> Figures:
    """Train a table of log-probabilities by DPO on pairs, and compare it with the policy that maximises
    reward less β KL, which is known here: π*(y|x) ∝ π_ref(y|x) exp(r(x, y) / β).

    Broken: the loss is not told what the reference says.
    """
    draws = torch.Generator().manual_seed(setting.seed)
    reference = torch.randn(PROMPTS, COMPLETIONS, generator=draws).log_softmax(-1)
    rewards = torch.randn(PROMPTS, COMPLETIONS, generator=draws)
    pairs = 256 if setting.short else 20_000
    prompt = torch.randint(PROMPTS, (pairs,), generator=draws)
    both = torch.stack([torch.randperm(COMPLETIONS, generator=draws)[:2] for _ in range(pairs)])
    lead = rewards[prompt, both[:, 0]] - rewards[prompt, both[:, 1]]
    first = torch.rand(pairs, generator=draws) < lead.sigmoid()
    chosen = torch.where(first, both[:, 0], both[:, 1])
    rejected = torch.where(first, both[:, 1], both[:, 0])
    told = torch.zeros_like(reference) if setting.broken else reference
    best = (reference + rewards / BETA).log_softmax(-1)
    policy = reference.clone().requires_grad_()
    optimiser = torch.optim.Adam([policy], lr=0.05)
    steps = setting.steps(200, short=3)
    distance = math.inf
    for step in range(steps):
        rows = torch.randint(pairs, (2048,), generator=draws)
        at, won, lost = prompt[rows], chosen[rows], rejected[rows]
        logp = policy.log_softmax(-1)
        loss = dpo(logp[at, won], logp[at, lost], told[at, won], told[at, lost], beta=BETA)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        with torch.no_grad():
            logp = policy.log_softmax(-1)
            distance = float((logp.exp() * (logp - best)).sum(-1).mean())
            earned = float((logp.exp() * rewards).sum(-1).mean())
        if step % 4 == 0 or step == steps - 1:
            setting.report(step + 1, {"distance": distance, "reward": earned})
    return {"distance": distance, "reward": earned}


# ── A reward model from thirty votes ──

PACKAGED_VOTES = Path(__file__).with_name("votes.json")
"""Ninety votes of simulated annotators of the demo project: prompt, chosen and rejected response."""
VOTES, REPEATS = 30, 20


def reward_model_from_votes(setting: LessonSetting) -> Figures:
    """Fit a linear reward to thirty votes, and count held-out votes that it orders as the voter did.

    Each of twenty splits trains on a part of the thirty and asks about six others. Broken: chosen and
    rejected are swapped in training, as by a column with the wrong name.
    """
    rows = json.loads((setting.own or PACKAGED_VOTES).read_text(encoding="utf-8"))
    if len(rows) < VOTES:
        raise ContractError(f"{len(rows)} votes: the lesson needs {VOTES}")
    draws = random.Random(setting.seed)  # noqa: S311 - a sample
    votes = draws.sample(rows, VOTES)
    features = np.array([text_features(vote["prompt"], vote[side]) for vote in votes for side in _SIDES])
    held_out = VOTES // 5
    share = 0.0
    for count in range(4, VOTES - held_out + 1, 4):
        right = 0.0
        for _ in range(2 if setting.short else REPEATS):
            order = draws.sample(range(VOTES), VOTES)
            asked, known = np.array(order[:held_out]), np.array(order[held_out:][:count])
            pairs = np.stack([2 * known, 2 * known + 1], axis=1)
            choices = Choices(pairs[:, ::-1] if setting.broken else pairs, np.ones(count), known)
            scores = fit_at(features, choices, STRENGTH)(features)
            lead = scores[2 * asked] - scores[2 * asked + 1]
            right += float(((lead > 0) + 0.5 * (lead == 0)).mean())
        share = right / (2 if setting.short else REPEATS)
        setting.report(count, {"share": share})
    return {"share": share}


_SIDES = ("chosen", "rejected")
STRENGTH = 0.3
"""Of the ridge."""
