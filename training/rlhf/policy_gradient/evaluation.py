"""Reward of a policy's greedy completions on held-out prompts.

    held_out_reward        mean over the prompts whose answer was scored, with _low and _high
    held_out_reward/NAME   the same of one part of the reward
    held_out_watched/NAME  the same of a reward that is not trained for
    held_out_length        mean tokens of an answer, with _low and _high
    held_out_kl            nats per answer from the reference, over the whole vocabulary before each token of
                           the greedy answer, with _low and _high; where a reference is asked for
    held_out_unfinished, held_out_unscored   shares of the answers
    held_out_prompts       how many there were
    held_out_loss          −held_out_reward: what the best state has least of

Intervals are of 95 %, by resampling prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from training.rlhf.measures.calibration import cluster_bootstrap
from training.rlhf.policy_gradient.method import part_figures, sample_figures, worth
from training.rlhf.policy_gradient.sampling import Sampled
from training.rlhf.policy_gradient.watch import LENGTH, REWARD
from training.rlhf.rewards.combination import Combined


def evaluation_figures(
    sampled: Sampled, combined: Combined, watched: Combined | None, divergence: Tensor | None
) -> dict[str, float]:
    """The figures above, of one answer to each prompt. divergence: (B,) nats; None without a reference."""
    totals = combined.totals
    scored = [index for index, score in enumerate(totals) if score.scored]
    of_samples = sample_figures(sampled, totals)
    figures = {"unfinished": of_samples["unfinished"], "prompts": float(len(totals))}
    figures["unscored"] = 1 - len(scored) / len(totals)
    ids = [prompt.id for prompt in sampled.prompts]
    figures |= _interval(REWARD, [worth(totals[index]) for index in scored], [ids[index] for index in scored])
    figures |= _interval(LENGTH, [float(length) for length in sampled.lengths], ids)
    if divergence is not None:
        figures |= _interval("kl", divergence.double().tolist(), ids)
    if scored:
        figures["loss"] = -figures[REWARD]
    figures |= part_figures(combined, watched)
    return {f"held_out_{name}": value for name, value in figures.items()}


def _interval(name: str, values: Sequence[float], prompts: Sequence[str]) -> dict[str, float]:
    if not values:
        return {}
    estimate = cluster_bootstrap(values, prompts)
    result = {name: estimate.mean}
    if estimate.low is not None and estimate.high is not None:
        result |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return result
