"""Reward models: what a score is fitted to, and which heads stand beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

from training.contract.files import require, require_types
from training.contract.methods.common import MethodSettings

_HEAD_NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")

Ties = Literal["exact", "efron", "breslow", "davidson"]


def _require_head_name(name: str) -> None:
    require(
        _HEAD_NAME.fullmatch(name) is not None,
        "name",
        f"{name!r} must be lower-case letters, digits, '-' and '_', beginning with a letter",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingHead:
    """A head fitted to the ratings of one criterion, read at the end of an answer."""

    name: str
    """Name of the head in the checkpoint."""
    criterion: str
    """The criterion whose ratings it learns."""
    loss: Literal["regression", "ordinal", "binary"] = "ordinal"
    """regression: squared error on the rating scaled to 0..1. ordinal: cumulative link with learned
    thresholds (McCullagh 1980). binary: probability of a thumb up or of the upper half of the scale."""
    weight: float = 1.0
    """Share of this head's loss in the whole."""

    def __post_init__(self) -> None:
        require_types(self, "rating head")
        _require_head_name(self.name)
        require(bool(self.criterion), "criterion", "name the criterion")
        require(self.weight > 0, "weight", "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentHead:
    """A head that scores every segment of an answer at its last token (Wu et al. 2023, section 3.1).

    It learns whether a span flag of one of its categories touches the segment.
    """

    name: str
    """Name of the head in the checkpoint."""
    categories: tuple[str, ...]
    """Keys of the error categories; a flag of any of them makes a segment faulty."""
    granularity: Literal["sub-sentence", "sentence", "whole"] = "sentence"
    """What a segment is."""
    weight: float = 1.0
    """Share of this head's loss in the whole."""

    def __post_init__(self) -> None:
        require_types(self, "segment head")
        _require_head_name(self.name)
        require(bool(self.categories), "categories", "name at least one category")
        require(self.weight > 0, "weight", "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletenessHead:
    """A head on the whole answer, fitted to preferences that missing-information flags imply.

    Of two answers to one prompt the one that lacks fewer things is the more complete (Wu et al. 2023,
    section 3.1); a corrected answer is more complete than an original that lacked something.
    """

    name: str = "completeness"
    """Name of the head in the checkpoint."""
    categories: tuple[str, ...] = ()
    """Keys of the categories that count; none counts all."""
    weight: float = 1.0
    """Share of this head's loss in the whole."""

    def __post_init__(self) -> None:
        require_types(self, "completeness head")
        _require_head_name(self.name)
        require(self.weight > 0, "weight", "must be positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class RewardSettings(MethodSettings):
    """A reward model: heads on one adapter, each fitted to what people said of one thing."""

    method: ClassVar[Literal["reward"]] = "reward"

    loss: Literal["bradley_terry", "davidson", "plackett_luce", "none"] = "bradley_terry"
    """What the head `score` is fitted to: the decided pairs of a ranking; its pairs, ties among them; the
    whole ranking; or nothing, for a model of the other heads alone."""
    ties: Ties = "exact"
    """How Plackett-Luce counts tied answers: exactly, by an approximation, or as an outcome of their own
    with learned log odds (Davidson-Luce). Bradley-Terry leaves ties out."""
    margin_per_strength: float = 0.0
    """Margin asked for per step of stated strength (Touvron et al. 2023); 0 asks for none. Bradley-Terry
    only."""
    label_smoothing: float = 0.0
    """Probability that a stated preference is taken to be the other way round. Bradley-Terry only."""
    centring: float = 0.01
    """Weight of the mean squared sum of rewards, which fixes their origin (Eisenstein et al. 2023)."""
    ensemble: int = 1
    """Heads on the score, each trained on its own resample of the judgments; their spread is uncertainty."""
    annotator_heads: bool = False
    """Give every annotator an offset to the score's head, so that the shared head learns what is common."""
    annotator_penalty: float = 0.01
    """Weight of the squared norm of those offsets; the larger, the closer annotators stay to each other."""
    ratings: tuple[RatingHead, ...] = ()
    """Heads fitted to ratings."""
    segments: tuple[SegmentHead, ...] = ()
    """Heads fitted to span flags."""
    completeness: CompletenessHead | None = None
    """A head fitted to missing-information flags."""
    use_corrections: bool = False
    """Learn from every corrected answer, beside the rankings, that the corrected text is better than the
    original. Held-out figures stay those of what people chose. Off in a run that does not say so."""

    def __post_init__(self) -> None:
        # slots=True makes a new class, which a bare super() would not find.
        MethodSettings.__post_init__(self)
        require(
            self.adapter == "lora", "adapter", "a reward model is heads on an adapter; leave it at 'lora'"
        )
        require(self.margin_per_strength >= 0, "margin_per_strength", "must not be negative")
        require(0 <= self.label_smoothing < 0.5, "label_smoothing", "must lie in [0, 0.5)")
        require(self.centring >= 0, "centring", "must not be negative")
        require(1 <= self.ensemble <= 64, "ensemble", "must lie between 1 and 64")
        require(self.annotator_penalty >= 0, "annotator_penalty", "must not be negative")
        if self.loss != "bradley_terry":
            for name in ("margin_per_strength", "label_smoothing"):
                require(not getattr(self, name), name, "serves loss 'bradley_terry' alone; set it to 0")
        require(
            self.loss == "plackett_luce" or self.ties == "exact",
            "ties",
            f"{self.ties!r} serves loss 'plackett_luce' alone; leave it at 'exact'",
        )
        self._check_heads()

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the heads that a model trained with these settings has."""
        score = () if self.loss == "none" else ("score",)
        completeness = (self.completeness.name,) if self.completeness else ()
        return (
            *score,
            *(head.name for head in self.ratings),
            *(head.name for head in self.segments),
            *completeness,
        )

    def _check_heads(self) -> None:
        names = [head.name for head in self.ratings] + [head.name for head in self.segments]
        names += [self.completeness.name] if self.completeness else []
        taken = {name for name in names if names.count(name) > 1 or name == "score"}
        require(not taken, "heads", f"the name {', '.join(sorted(taken))} is taken; choose another")
        if self.loss == "none":
            require(bool(names), "loss", "'none' leaves nothing to learn; add another head")
            require(self.ensemble == 1, "ensemble", "belongs to the head 'score', which loss 'none' drops")
            require(not self.annotator_heads, "annotator_heads", "belong to the head 'score'")
