"""Policies trained without sampling: on demonstrations, on preferences, on thumbs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from training.contract.files import require
from training.contract.methods.common import MethodSettings, OptimiserSettings, require_reference
from training.contract.methods.reward import Ties

SftSource = Literal["demonstrations", "corrections", "preferred"]
ThumbSource = Literal["thumbs", "ratings", "verdicts", "ranks"]


def _gentle() -> OptimiserSettings:
    return OptimiserSettings(learning_rate=5e-5)


@dataclass(frozen=True, kw_only=True, slots=True)
class SftSettings(MethodSettings):
    """Supervised fine-tuning: the answer's tokens cost −log π, the prompt's nothing (Ouyang et al. 2022)."""

    method: ClassVar[Literal["sft"]] = "sft"

    sources: tuple[SftSource, ...] = ("demonstrations", "corrections")
    """Which texts are taught: answers that annotators wrote, answers that they corrected, and answers
    that they ranked first."""
    normalise: Literal["token", "sequence"] = "token"
    """token: every token of a step counts the same; sequence: every answer does."""

    def __post_init__(self) -> None:
        MethodSettings.__post_init__(self)
        require(bool(self.sources), "sources", "name at least one")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceSettings(MethodSettings):
    """Direct preference optimisation of a policy (Rafailov et al. 2023, equation 7)."""

    method: ClassVar[Literal["preference"]] = "preference"

    optimiser: OptimiserSettings = field(default_factory=_gentle)
    """Steps and step sizes."""
    beta: float = 0.1
    """How dear it is to leave the reference; smaller moves further."""
    reference: str = "parent"
    """The policy that divergence is measured from: parent, the one that training continues; base, the model
    under the adapters, so that rounds do not drift on and on; or a checkpoint, by its name in a recipe and by
    its folder in a run."""
    reference_digest: str | None = None
    """Digest of the manifest of a reference that is a checkpoint; filled in when training starts, so leave it
    empty."""
    loss: Literal["sigmoid", "ipo", "hinge", "robust", "plackett_luce"] = "sigmoid"
    """Shape of the loss on the margin of a pair; plackett_luce takes the whole ranking (appendix A.3)."""
    ties: Ties = "exact"
    """How plackett_luce counts tied answers; the losses on pairs leave ties out."""
    label_smoothing: float = 0.0
    """Probability that a stated preference is taken to be the other way round. Not for plackett_luce."""
    length_normalised: bool = False
    """Divide an answer's log-probability by its tokens, so that length alone earns nothing
    (Meng et al. 2024); beta then wants to be larger, about 1 to 3."""
    sft_weight: float = 0.0
    """Weight of −log π per token of the best answer (Pang et al. 2024), which keeps it likely."""
    use_corrections: bool = False
    """Learn from every corrected answer, beside the rankings, that the corrected text is better than the
    original. Held-out figures stay those of what people chose. Off in a run that does not say so."""

    def __post_init__(self) -> None:
        MethodSettings.__post_init__(self)
        require(self.beta > 0, "beta", "must be positive")
        require_reference(self.reference, self.reference_digest)
        require(0 <= self.label_smoothing < 0.5, "label_smoothing", "must lie in [0, 0.5)")
        require(self.sft_weight >= 0, "sft_weight", "must not be negative")
        require(
            self.loss != "plackett_luce" or not self.label_smoothing,
            "label_smoothing",
            "is not defined for whole rankings; set it to 0",
        )
        require(
            self.loss == "plackett_luce" or self.ties == "exact",
            "ties",
            f"{self.ties!r} serves loss 'plackett_luce' alone; leave it at 'exact'",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KtoSettings(MethodSettings):
    """KTO: every answer alone is good or bad (Ethayarajh et al. 2024)."""

    method: ClassVar[Literal["kto"]] = "kto"

    optimiser: OptimiserSettings = field(default_factory=_gentle)
    """Steps and step sizes."""
    beta: float = 0.1
    """How dear it is to leave the reference; smaller moves further."""
    reference: str = "parent"
    """The policy that divergence is measured from: parent, the one that training continues; base, the model
    under the adapters, so that rounds do not drift on and on; or a checkpoint, by its name in a recipe and by
    its folder in a run."""
    reference_digest: str | None = None
    """Digest of the manifest of a reference that is a checkpoint; filled in when training starts, so leave it
    empty."""
    sources: tuple[ThumbSource, ...] = ("thumbs", "ratings", "verdicts")
    """What makes an answer good or bad: thumbs; ratings above or below the middle of their scale; the
    verdicts 'both good' and 'both bad'; and first against last place of a ranking."""
    criteria: tuple[str, ...] = ()
    """Criteria whose thumbs and ratings count; none counts all."""
    weight_desirable: float | None = None
    """Weight of good answers; null weighs both kinds so that they count the same in all."""
    weight_undesirable: float | None = None
    """Weight of bad answers; null as above."""

    def __post_init__(self) -> None:
        MethodSettings.__post_init__(self)
        require(self.beta > 0, "beta", "must be positive")
        require_reference(self.reference, self.reference_digest)
        require(bool(self.sources), "sources", "name at least one")
        for name in ("weight_desirable", "weight_undesirable"):
            value = getattr(self, name)
            require(value is None or value > 0, name, "must be positive or null")
