"""Policies trained without sampling: on demonstrations, preferences or thumbs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from annotation.record.base import NotNegative, Positive, record, require
from training.contract.methods.common import JudgedSettings, require_reference
from training.contract.methods.reward import Smoothing, Ties

SftSource = Literal["demonstrations", "corrections", "preferred"]
ThumbSource = Literal["thumbs", "ratings", "verdicts", "ranks"]


@record
class SftSettings(JudgedSettings):
    """Supervised fine-tuning: loss −log π on the answer's tokens, none on the prompt's (Ouyang et al.
    2022)."""

    method: ClassVar[Literal["sft"]] = "sft"
    default_rates: ClassVar = {"lora": 1e-3, "none": 2e-5}

    sources: Annotated[tuple[SftSource, ...], Field(min_length=1)] = ("demonstrations", "corrections")
    """Training texts: responses that annotators wrote, responses that they corrected, and responses
    that they ranked first."""
    normalise: Literal["token", "sequence"] = "token"
    """token: every token of a step has the same weight; sequence: every response has."""


@record
class ReferenceSettings(JudgedSettings):
    """A method that measures how far the policy diverges from a reference."""

    beta: Positive = 0.1
    """KL penalty coefficient (β); smaller moves further."""
    reference: str = "parent"
    """The policy that divergence is measured from: parent, the one that training continues; base, the model
    under the adapters, so that rounds do not drift on and on; or a checkpoint, by its name in a recipe and by
    its folder in a run."""
    reference_digest: str | None = None
    """Digest of the manifest of a reference that is a checkpoint; filled in when training starts, so leave it
    empty."""

    def __post_init__(self) -> None:
        require_reference(self.reference, self.reference_digest)


@record
class PreferenceSettings(ReferenceSettings):
    """Direct preference optimisation of a policy (Rafailov et al. 2023, equation 7)."""

    method: ClassVar[Literal["preference"]] = "preference"
    default_rates: ClassVar = {"lora": 2e-4, "none": 2e-5}

    loss: Literal["sigmoid", "ipo", "hinge", "robust", "plackett_luce"] = "sigmoid"
    """Shape of the loss on the margin of a pair; plackett_luce takes the whole ranking (appendix A.3)."""
    ties: Ties = "exact"
    """Treatment of ties in plackett_luce; the pairwise losses leave ties out."""
    label_smoothing: Smoothing = 0.0
    """Probability that a stated preference is taken to be the other way round. Not for plackett_luce."""
    length_normalised: bool = False
    """Divide the log-probability of a response by its number of tokens, so that length alone has no
    effect (Meng et al. 2024); use a larger beta, about 1 to 3."""
    sft_weight: NotNegative = 0.0
    """Weight of −log π per token of the best response (Pang et al. 2024), which keeps it likely."""
    use_corrections: bool = False
    """Add a pair for every corrected response: the corrected text is preferred to the original.
    Held-out metrics use human preferences only. Off by default in a run."""
    correction_tokens: Literal["all", "changed"] = "all"
    """Tokens of such a pair whose log-probabilities the loss sums: all; or changed, those that the
    correction wrote or removed. What follows a change is then context and teaches nothing."""

    def __post_init__(self) -> None:
        ReferenceSettings.__post_init__(self)
        require(
            self.correction_tokens == "all" or self.use_corrections,
            "correction_tokens",
            "'changed' is about corrections; set use_corrections to true, or leave it at 'all'",
        )
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


@record
class KtoSettings(ReferenceSettings):
    """KTO: each answer is good or bad by itself (Ethayarajh et al. 2024)."""

    method: ClassVar[Literal["kto"]] = "kto"
    default_rates: ClassVar = {"lora": 1e-3, "none": 2e-5}

    sources: Annotated[tuple[ThumbSource, ...], Field(min_length=1)] = ("thumbs", "ratings", "verdicts")
    """Source of desirable and undesirable responses: thumbs; ratings above or below the middle of
    their scale; the preferences 'both good' and 'both bad'; first and last place of a ranking."""
    criteria: tuple[str, ...] = ()
    """Criteria whose thumbs and ratings count; none counts all."""
    weight_desirable: Positive | None = None
    """Weight of desirable responses; null balances both kinds."""
    weight_undesirable: Positive | None = None
    """Weight of undesirable responses; null as above."""
