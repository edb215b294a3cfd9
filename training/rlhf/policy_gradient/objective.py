"""Loss terms of one pass over some completions of a minibatch.

The loss of a token is −min(ρ A, clip(ρ) A) w + β KL − c H: the clipped policy gradient with its importance
weight w, the divergence where that has its place in the loss, and the entropy H. Tokens become one loss as
`aggregate` says, over the whole minibatch however it is cut into passes; the value head's loss, the mean
over tokens, is added.

Divergence in the loss is that of the next token, wherever the policy has come to stand. Unlike divergence in
the reward it does not hold a token to account for where it leads, so for answers of several tokens the two
have different optima.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from training.contract.methods.policy_gradient import KlSettings, UpdateSettings
from training.rlhf.kl import estimate
from training.rlhf.losses.policy import aggregated, importance_weights, policy_gradient, value
from training.rlhf.policy_gradient.credit import Credit
from training.rlhf.policy_gradient.episodes import Episodes
from training.rlhf.policy_gradient.tally import Tally


class Evaluated(NamedTuple):
    """Evaluation of b completions by a policy: (b, T) each, with gradient, anything outside the mask."""

    logp: Tensor
    """log π of the actions, under the temperature and the filters that they were drawn with."""
    entropy: Tensor | None = None
    """Of the distribution that each action was drawn from, in nats."""
    values: Tensor | None = None
    """Return expected by the value head from before each action on."""
    full_kl: Tensor | None = None
    """KL(π ‖ π_ref) of each action's distribution, over all actions."""


class Window(NamedTuple):
    """Normaliser of a minibatch: the divisor of its passes' losses."""

    tokens: float
    answers: float


class Objective:
    """The loss, of which every pass computes its part."""

    def __init__(
        self,
        episodes: Episodes,
        credit: Credit,
        *,
        settings: UpdateSettings,
        kl: KlSettings,
        beta: float,
        constant: float | None,
        only_value: bool = False,
    ) -> None:
        """As for `update_policy`, and with its errors."""
        self._beta = beta if kl.place == "loss" else 0.0
        self._constant = constant if settings.aggregate == "constant" else None
        if settings.aggregate == "constant" and constant is None:
            raise ValueError("aggregate 'constant' needs a constant: the longest answer allowed")
        if episodes.old_logp is None and settings.minibatches > 1:
            raise ValueError(
                "with several minibatches old_logp must be given: the second would see a policy that the "
                "first has moved (`evaluated_once` gives it)"
            )
        if settings.truncate is not None and episodes.behaviour_logp is None:
            raise ValueError("truncate weighs against the sampler: behaviour_logp is needed")
        if self._beta and kl.kind != "full" and episodes.ref_logp is None:
            raise ValueError("divergence in the loss needs ref_logp")
        if only_value and credit.returns is None:
            raise ValueError("there is no value head that could learn alone")
        self._only_value = only_value
        self._episodes = episodes
        self._credit = credit
        self._settings = settings
        self._kl = kl
        self._kept = episodes.kept
        self._old = episodes.old_logp
        self._given = episodes.old_logp is not None
        self._first_seen: set[int] = set()

    @property
    def touches_all(self) -> bool:
        """Return whether answers without an advantage take a gradient too."""
        return self._beta > 0 or self._settings.entropy > 0 or self._credit.returns is not None

    def unseen(self, rows: list[int]) -> set[int]:
        """Those whose first pass is still to come, which will give their old log-probabilities."""
        return set() if self._given else set(rows) - self._first_seen

    def forget(self, rows: set[int]) -> None:
        """These rows' first pass did not count."""
        self._first_seen -= rows

    def terms(self, rows: list[int], evaluated: Evaluated, window: Window, tally: Tally) -> dict[str, Tensor]:
        """Parts of the loss by name, scalars with gradient; figures go into the tally."""
        mask = self._kept[rows]
        logp = _within(mask, evaluated.logp)
        old = _within(mask, self._old_logp(rows, evaluated.logp))
        tokens = float(mask.sum())
        settings = self._settings
        per_token, statistics = policy_gradient(
            logp,
            old,
            self._credit.advantages[rows],
            mask,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            weight=self._weights(rows, old, mask, tally, tokens),
            reduction="none",
        )
        for name, figure in statistics.items():
            if name in ("ratio_min", "ratio_max"):
                tally.extend(name, figure)
            else:
                tally.add(name, figure, tokens)
        terms = {"policy_loss": self._term(per_token, mask, window)}
        if self._beta:
            divergence = self._divergence(rows, logp, evaluated, mask)
            terms["kl_loss"] = self._beta * self._term(divergence, mask, window)
        if evaluated.entropy is not None:
            spread = _within(mask, evaluated.entropy)
            tally.add("entropy", spread.detach().sum() / max(tokens, 1), tokens)
            if settings.entropy:
                terms["entropy_loss"] = -settings.entropy * self._term(spread, mask, window)
        elif settings.entropy:
            raise ValueError("an entropy bonus needs the actor's entropy")
        if self._credit.returns is not None:
            terms["value_loss"] = settings.value_weight * self._value_loss(rows, evaluated, mask, window)
        return {"value_loss": terms["value_loss"]} if self._only_value else terms

    def _old_logp(self, rows: list[int], logp: Tensor) -> Tensor:
        if not self._given:
            if self._old is None:
                self._old = logp.new_zeros(self._kept.shape)
            if not self._first_seen.issuperset(rows):
                self._old[rows] = logp.detach()
                self._first_seen.update(rows)
        assert self._old is not None  # noqa: S101
        return self._old[rows].detach()

    def _weights(
        self, rows: list[int], old: Tensor, mask: Tensor, tally: Tally, tokens: float
    ) -> Tensor | None:
        """Importance weights, None where there are to be none."""
        if self._episodes.behaviour_logp is None:
            return None
        drawn = _within(mask, self._episodes.behaviour_logp[rows].to(old.dtype))
        tally.add("sampler_gap", (old - drawn).abs().sum() / max(tokens, 1), tokens)
        if self._settings.truncate is None:
            return None
        weights = importance_weights(old, drawn, mask, truncate=self._settings.truncate)
        tally.add("importance_weight", weights.sum() / max(tokens, 1), tokens)
        cut = ((old - drawn).exp() > self._settings.truncate) & mask
        tally.add("importance_truncated", cut.sum() / max(tokens, 1), tokens)
        return weights

    def _divergence(self, rows: list[int], logp: Tensor, evaluated: Evaluated, mask: Tensor) -> Tensor:
        """KL of each token as the settings estimate it, 0 outside the mask: (b, T)."""
        if self._kl.kind == "full":
            if evaluated.full_kl is None:
                raise ValueError("full divergence needs the actor's full_kl")
            return _within(mask, evaluated.full_kl)
        assert self._episodes.ref_logp is not None  # noqa: S101 - looked at in __init__
        return estimate(logp, _within(mask, self._episodes.ref_logp[rows].detach()), self._kl.kind)

    def _value_loss(self, rows: list[int], evaluated: Evaluated, mask: Tensor, window: Window) -> Tensor:
        before, returns = self._episodes.old_values, self._credit.returns
        if evaluated.values is None or before is None or returns is None:
            raise ValueError("gae needs the actor's values and old_values")
        return value(
            evaluated.values,
            before[rows],
            returns[rows],
            mask,
            clip=self._settings.value_clip,
            window=window.tokens,
        )

    def _term(self, values: Tensor, mask: Tensor, window: Window) -> Tensor:
        divisor = window.tokens if self._settings.aggregate == "token" else window.answers
        return aggregated(values, mask, self._settings.aggregate, constant=self._constant, window=divisor)


def _within(mask: Tensor, values: Tensor) -> Tensor:
    """0 outside the mask, before any arithmetic: a NaN multiplied by 0 later still spoils the gradient."""
    return torch.where(mask, values, torch.zeros_like(values))
