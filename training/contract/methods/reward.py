"""Reward models: the target of the score, and the further heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from annotation.record.base import AS_WRITTEN, NotNegative, Positive, Text, record, require
from training.contract.methods.common import JudgedSettings

STEPS = "steps"
"""Granularity of a process reward model."""
_FAULTS = ("wrong", "unnecessary")
"""Labels of a step that a head may learn to tell from the others."""

HeadName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,49}$")]
Smoothing = Annotated[float, Field(ge=0, lt=0.5), AS_WRITTEN]

Ties = Literal["exact", "efron", "breslow", "davidson"]


@record
class RatingHead:
    """A head fitted to the ratings of one criterion, or to the answers to one of the project's additional
    questions, read at the end of a response."""

    name: HeadName
    """Name of the head in the checkpoint."""
    criterion: Text
    """The criterion whose ratings it learns; with answers the key of a question that is asked of each
    response."""
    answers: tuple[str, ...] = ()
    """Answers to that question in order, the lowest first: points of a scale, or keys of choices. Others
    teach nothing. Empty for a criterion."""
    loss: Literal["regression", "ordinal", "binary"] = "ordinal"
    """regression: squared error on the rating scaled to 0..1. ordinal: cumulative link with learned
    thresholds (McCullagh 1980). binary: probability of a thumb up or of the upper half of the scale."""
    weight: Positive = 1.0
    """Share of this head's loss in the whole."""

    def __post_init__(self) -> None:
        _check_answers(self.answers, least=2 if self.answers else 0)


@record
class Covariate:
    """An answer on each response that explains a part of a preference beside the score.

    Its coefficient is learned with the score and left out where the score is read. So the score says which of
    two responses is preferred that have the same answer.
    """

    question: Text
    """Key of a question that is asked of each response."""
    answers: tuple[str, ...]
    """Answers in order, the lowest first, which count in equal steps. Another answer, or none, counts as the
    middle."""

    def __post_init__(self) -> None:
        _check_answers(self.answers, least=2)


def _check_answers(answers: tuple[str, ...], *, least: int) -> None:
    """Raise `ContractError` for too few answers, or for one that stands there twice."""
    require(len(answers) >= least, "answers", f"name at least {least}, the lowest first")
    require(len(set(answers)) == len(answers), "answers", "name each once")


@record
class SegmentHead:
    """A head that scores every segment of an answer at its last token (Wu et al. 2023, section 3.1).

    It learns whether a span flag of one of its categories touches the segment. Of granularity "steps" it is a
    process reward model (Lightman et al. 2023): it learns whether annotators labelled the step with one of
    its categories, which are then `wrong`, `unnecessary` or both.
    """

    name: HeadName
    """Name of the head in the checkpoint."""
    categories: Annotated[tuple[str, ...], Field(min_length=1)]
    """Keys of the error categories; a flag of any of them makes a segment faulty. Of steps: wrong,
    unnecessary or both."""
    granularity: Literal["sub-sentence", "sentence", "whole", "steps"] = "sentence"
    """Unit of the segment scores. steps: the labelled steps of agent traces; of other text paragraphs, or the
    sentences of a single one."""
    weight: Positive = 1.0
    """Share of this head's loss in the whole."""

    def __post_init__(self) -> None:
        odd = sorted(set(self.categories) - set(_FAULTS)) if self.granularity == STEPS else []
        require(
            not odd,
            "categories",
            f"steps are labelled {' or '.join(_FAULTS)}, not {', '.join(odd)}; name one of these or both",
        )


@record
class CompletenessHead:
    """A head on the whole answer, fitted to preferences that missing-information flags imply.

    Of two answers to a prompt, the one that lacks fewer things is more complete (Wu et al. 2023, section
    3.1); a corrected answer is more complete than an original that lacked something.
    """

    name: HeadName = "completeness"
    """Name of the head in the checkpoint."""
    categories: tuple[str, ...] = ()
    """Keys of the categories that count; none counts all."""
    weight: Positive = 1.0
    """Share of this head's loss in the whole."""


@record
class RewardSettings(JudgedSettings):
    """A reward model: heads on one adapter, or on weights that are all trained, each fitted to one kind of
    judgment."""

    method: ClassVar[Literal["reward"]] = "reward"
    default_rates: ClassVar = {"lora": 1e-3, "none": 2e-5}

    features: Literal["adapted", "frozen", "surface", "length", "auto"] = "adapted"
    """What the score reads: states that change as it learns (adapted); those of the frozen base, with adapter
    none, fitted in seconds, layer and ridge chosen by cross-validation (frozen); what can be counted in a
    text (surface), or its length alone. auto: the best of these by cross-validation grouped by prompt; the
    adapted ones are tried from 500 decided annotations on."""
    head_from: Literal["random", "frozen"] = "random"
    """First weights of the head `score`: random ones, or the head fitted to frozen features, which then reads
    where that one does."""
    head_learns: bool = False
    """Train the head that began on frozen features, too; false keeps it and lets the adapter alone learn. A
    random head is always trained."""

    loss: Literal["bradley_terry", "davidson", "plackett_luce", "none"] = "bradley_terry"
    """Preferences that the head `score` is fitted to: the decided pairs of a ranking; its pairs, ties among
    them; the whole ranking; or nothing, for a model of the other heads alone."""
    ties: Ties = "exact"
    """Treatment of ties in Plackett-Luce: exact, by an approximation, or as a separate outcome with
    learned log odds (Davidson-Luce). Bradley-Terry leaves ties out."""
    margin_per_strength: NotNegative = 0.0
    """Margin asked for per step of stated strength (Touvron et al. 2023); 0 asks for none. Bradley-Terry
    only."""
    label_smoothing: Smoothing = 0.0
    """Probability that a stated preference is taken to be the other way round. Bradley-Terry only."""
    centring: NotNegative = 0.01
    """Weight of the mean squared sum of rewards, which fixes their origin (Eisenstein et al. 2023)."""
    ensemble: Annotated[int, Field(ge=1, le=64)] = 1
    """Score heads, each trained on its own resample of the annotations; their spread is the
    uncertainty."""
    annotator_heads: bool = False
    """Give every annotator an offset to the score's head, so that the shared head learns what is common."""
    group_heads: bool = False
    """Give every group of annotators an offset to the score's head, so that a policy can be trained for one
    group's reward, a weighted one or that of the worst-off group."""
    annotator_penalty: NotNegative = 0.01
    """Weight of the squared norm of those offsets; the larger, the closer annotators and groups stay to each
    other. With features frozen it is chosen by cross-validation."""
    annotator_rank: Annotated[int, Field(ge=1, le=16)] = 2
    """Directions in which annotators may differ with annotator_heads on frozen features."""
    discount_drift: Literal["auto", "off", "half_life"] = "off"
    """Discount of older annotations: auto, if that predicts the newest round significantly better
    (p < 0.05); half_life, always; off, never."""
    drift_half_life: Positive = 2.0
    """Rounds after which an annotation counts half with discount_drift half_life."""
    ratings: tuple[RatingHead, ...] = ()
    """Heads fitted to ratings, or to answers to additional questions."""
    covariates: tuple[Covariate, ...] = ()
    """Answers to additional questions that the score does not stand for."""
    segments: tuple[SegmentHead, ...] = ()
    """Heads fitted to span flags."""
    completeness: CompletenessHead | None = None
    """A head fitted to missing-information flags."""
    use_corrections: bool = False
    """Add a pair for every corrected response: the corrected text is preferred to the original.
    Held-out metrics use human preferences only. Off by default in a run."""

    def __post_init__(self) -> None:
        if self.is_fitted_at_once:
            self._check_fitted_at_once()
        if self.features == "auto":
            self._check_auto()
        if self.head_from == "frozen":
            require(self.features == "adapted", "head_from", "serves features 'adapted' alone")
            require(self.adapter == "lora", "head_from", "'frozen' needs an adapter; set adapter to 'lora'")
            self._check_score_alone("head_from")
            for name in ("annotator_heads", "group_heads"):
                require(not getattr(self, name), name, "head_from 'frozen' serves the score alone")
        require(
            self.head_from == "frozen" or not self.head_learns,
            "head_learns",
            "serves head_from 'frozen' alone; set it to false",
        )
        if self.loss != "bradley_terry":
            for name in ("margin_per_strength", "label_smoothing"):
                require(not getattr(self, name), name, "serves loss 'bradley_terry' alone; set it to 0")
        require(
            self.loss == "plackett_luce" or self.ties == "exact",
            "ties",
            f"{self.ties!r} serves loss 'plackett_luce' alone; leave it at 'exact'",
        )
        self._check_heads()
        self._check_covariates()

    @property
    def is_fitted_at_once(self) -> bool:
        """Return whether the score is fitted in one step, without an optimiser."""
        return self.features in ("frozen", "surface", "length")

    def chosen(self, *, adapted: bool) -> Self:
        """Return the settings of auto with an adapter that begins on frozen features, or without one."""
        if adapted:
            return replace(self, features="adapted", adapter="lora", head_from="frozen")
        return replace(self, features="frozen", adapter="none")

    @property
    def keeps_head(self) -> bool:
        """Return whether the score's head stays as it was fitted to frozen features."""
        return self.head_from == "frozen" and not self.head_learns

    @property
    def may_be_frozen(self) -> bool:
        """Return whether the same model could be fitted to frozen features: a score alone, without ties."""
        return (
            self.features == "adapted"
            and self.loss in ("bradley_terry", "plackett_luce")
            and self.ties == "exact"
            and not (self.ratings or self.segments or self.completeness)
            and (self.ensemble == 1 or not (self.annotator_heads or self.group_heads))
        )

    @property
    def questions(self) -> tuple[str, ...]:
        """Return the keys of the additional questions whose answers are learned from, each once."""
        keys = [head.criterion for head in self.ratings if head.answers]
        keys += [covariate.question for covariate in self.covariates]
        return tuple(dict.fromkeys(keys))

    @property
    def head_names(self) -> tuple[str, ...]:
        """Return the names of the heads that these settings train."""
        score = () if self.loss == "none" else ("score",)
        completeness = (self.completeness.name,) if self.completeness else ()
        return (
            *score,
            *(head.name for head in self.ratings),
            *(head.name for head in self.segments),
            *completeness,
        )

    def _check_fitted_at_once(self) -> None:
        name = repr(self.features)
        require(self.adapter == "none", "adapter", f"features {name} train no adapter; set it to 'none'")
        self._check_linear()
        require(
            self.ensemble == 1 or not (self.annotator_heads or self.group_heads),
            "ensemble",
            f"features {name} fit heads of annotators and groups to one score; set it to 1",
        )
        for setting in ("annotator_heads", "group_heads"):
            require(
                self.features == "frozen" or not getattr(self, setting),
                setting,
                f"features {name} have none; set features to 'frozen', or this to false",
            )

    def _check_auto(self) -> None:
        self._check_linear()
        require(self.adapter == "lora", "adapter", "features 'auto' may train one; set it to 'lora'")
        for setting in ("annotator_heads", "group_heads"):
            require(not getattr(self, setting), setting, "needs features 'frozen' or 'adapted'")
        require(self.head_from == "random", "head_from", "features 'auto' choose it; leave it at 'random'")

    def _check_linear(self) -> None:
        """Raise `ContractError` unless a linear score can be fitted."""
        require(
            self.loss in ("bradley_terry", "plackett_luce") and self.ties == "exact",
            "loss",
            f"features {self.features!r} are fitted by 'bradley_terry' or 'plackett_luce' without a model of "
            "ties",
        )
        for name in ("margin_per_strength", "label_smoothing"):
            require(not getattr(self, name), name, "serves features 'adapted' alone; set it to 0")
        self._check_score_alone("features")

    def _check_score_alone(self, setting: str) -> None:
        """Raise `ContractError` unless the head `score` is the only one."""
        value = getattr(self, setting)
        for name in ("ratings", "segments", "completeness"):
            require(not getattr(self, name), name, f"{setting} {value!r} serves the score alone")
        require(self.loss != "none", "loss", f"{setting} {value!r} needs a score to fit")

    def _check_covariates(self) -> None:
        questions = [covariate.question for covariate in self.covariates]
        require(len(set(questions)) == len(questions), "covariates", "name each question once")
        if questions:
            require(self.loss != "none", "covariates", "belong to the head 'score', which loss 'none' drops")
            for name in ("annotator_heads", "group_heads"):
                require(not getattr(self, name), name, "does not serve beside covariates; set it to false")

    def _check_heads(self) -> None:
        names = [head.name for head in self.ratings] + [head.name for head in self.segments]
        names += [self.completeness.name] if self.completeness else []
        repeated = {name for name in names if names.count(name) > 1 or name == "score"}
        require(not repeated, "heads", f"the name {', '.join(sorted(repeated))} is taken; choose another")
        if self.loss == "none":
            require(bool(names), "loss", "'none' leaves nothing to learn; add another head")
            require(self.ensemble == 1, "ensemble", "belongs to the head 'score', which loss 'none' drops")
            for name in ("annotator_heads", "group_heads"):
                require(not getattr(self, name), name, "belong to the head 'score'")
            require(self.discount_drift == "off", "discount_drift", "serves the head 'score' alone")
