"""Episodes: the actions of a step's completions, their log-probabilities and rewards."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """B answers (or games), of T actions at most; answers to the same prompt lie together.

    What lies outside the mask may hold anything, NaN included.
    """

    mask: Tensor
    """(B, T) bool: the actions that the policy chose. Padding and other speakers' turns are False."""
    rewards: Tensor
    """(B, T) float32: what each action earned."""
    scored: Tensor
    """(B,) bool: False could not be scored. Such an answer takes no gradient and joins no baseline."""
    group: Tensor
    """(B,) int: the prompt that each belongs to. Equal numbers lie together."""
    old_logp: Tensor | None = None
    """(B, T) log π_old, by the trainer's own pass. None: the first pass of the update gives it."""
    behaviour_logp: Tensor | None = None
    """(B, T) log μ, as the sampler recorded it."""
    ref_logp: Tensor | None = None
    """(B, T) log π_ref."""
    trainer_logp: Tensor | None = None
    """(B, T) log π before the update, by the same passes as `ref_logp` and without filters: for the
    divergence that is reported."""
    base_logp: Tensor | None = None
    """(B, T) log-probabilities of the base, by the same passes."""
    old_values: Tensor | None = None
    """(B, T) what the value head expected before each action."""

    def __post_init__(self) -> None:
        for field in fields(self):
            tensor: Tensor | None = getattr(self, field.name)
            shape = self.mask.shape[:1] if field.name in ("scored", "group") else self.mask.shape
            if tensor is not None and tensor.shape != shape:
                raise ValueError(
                    f"{field.name} {tuple(tensor.shape)} must be {tuple(shape)}, as the mask demands"
                )
        if len(torch.unique(self.group)) != len(torch.unique_consecutive(self.group)):
            raise ValueError("group: answers to the same prompt must lie together")
        if not self.rewards[self.kept].isfinite().all():
            raise ValueError("rewards must be finite; an answer without a score is scored=False")

    @property
    def kept(self) -> Tensor:
        """(B, T) bool: the actions that are learned from, which are those of scored answers."""
        return self.mask.bool() & self.scored.bool().unsqueeze(-1)

    @property
    def drawn_logp(self) -> Tensor | None:
        """(B, T) log-probabilities under the policy that drew: the trainer's own, else the sampler's."""
        return self.behaviour_logp if self.old_logp is None else self.old_logp

    @property
    def groups(self) -> list[list[int]]:
        """Return rows of each prompt, in order."""
        sizes: list[int] = torch.unique_consecutive(self.group, return_counts=True)[1].tolist()
        return [rows.tolist() for rows in torch.split(torch.arange(len(self.group)), sizes)] if sizes else []
