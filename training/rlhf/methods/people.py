"""Groups, annotators, drift and reliability in the training of a reward model, and the report on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from training.contract import (
    GroupFigures,
    Interval,
    PeopleReport,
    ReliabilityFigures,
    RewardSettings,
)
from training.contract.people import DriftFigures
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.drift import discounts, drift_of, newest_round
from training.rlhf.measures.frozen_features import Values
from training.rlhf.measures.group_differences import group_differences
from training.rlhf.measures.linear_choice import (
    Choices,
    LinearScore,
    choices_of,
    fit_at,
    fit_cross_validated,
)
from training.rlhf.measures.pooled_choice import PooledScore, fit_pooled, people_of
from training.rlhf.methods.baselines import Pairs
from training.rlhf.methods.frozen_head import FrozenHead
from training.rlhf.methods.objectives.people import install_groups
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example

_FEWEST_HELD_OUT = 2

Scores = tuple[Floats, Mapping[str, Floats]]
"""The common score of all held-out completions, and each group's."""


@dataclass(frozen=True, slots=True)
class Discount:
    """The discount of older judgments in training."""

    newest: int
    half_life: float | None
    """In rounds; None where all judgments count alike."""
    drift: DriftFigures | None = None
    """The test; None where none was made."""

    def factor(self, example: Example) -> float:
        """Return how much of a judgment's weight counts."""
        if self.half_life is None:
            return 1.0
        return float(discounts([example.round], newest=self.newest, half_life=self.half_life)[0])

    def weighed(self, examples: Sequence[Example]) -> list[Example]:
        """Return the examples with their discounted weights."""
        return [replace(example, weight=example.weight * self.factor(example)) for example in examples]


NO_DISCOUNT = Discount(0, None)


def discount_of(
    settings: RewardSettings,
    train: Sequence[Example],
    features: Callable[[Sequence[Example]], Floats | None],
    *,
    whole: bool,
) -> Discount:
    """Return the discount that the settings ask for. features: of judgments, at one place; None without."""
    if settings.discount_drift == "off" or not train:
        return NO_DISCOUNT
    if settings.discount_drift == "half_life":
        newest = max(example.round for example in train)
        return Discount(newest, settings.drift_half_life)
    present = newest_round(train)
    table = None if present is None else features(train)
    if present is None or table is None:
        return NO_DISCOUNT
    choices = choices_of(train, whole=whole)
    rounds = [example.round for example in train for _ in _choices(example, whole=whole)]
    strength = fit_cross_validated(table, choices).strength
    drift = drift_of(table, choices, rounds, newest=present, strength=strength)
    if drift is None:
        return NO_DISCOUNT
    log.info(
        "Drift: a half-life of %g rounds changes the log-loss on round %d by %+.4f, p = %.3g; %s",
        drift.half_life,
        drift.round,
        -drift.gain.value,
        drift.p_value,
        "older annotations are discounted" if drift.applied else "all annotations count alike",
    )
    return Discount(present, drift.half_life if drift.applied else None, drift)


def _choices(example: Example, *, whole: bool) -> range:
    return range(len(choices_of([example], whole=whole).weight))


def fit_people(
    head: FrozenHead, features: Values, examples: Sequence[Example], settings: RewardSettings, *, whole: bool
) -> tuple[FrozenHead, PooledScore]:
    """Fit deviations of groups and annotators at the head's place; return them with the common head."""
    table = features[:, head.column].astype(np.float64)
    pooled = fit_pooled(
        table,
        choices_of(examples, whole=whole),
        people_of(examples),
        strength=head.score.strength,
        groups=settings.group_heads,
        rank=settings.annotator_rank if settings.annotator_heads else 0,
    )
    score = replace(head.score, weight=pooled.common, offset=-float(table.mean(0) @ pooled.common))
    log.info(
        "Penalty of groups' deviations %g, of annotators' %g; the response shown first leads by %+.3f",
        pooled.group_strength,
        pooled.annotator_strength,
        pooled.first_place,
    )
    return replace(head, score=score), pooled


def install_people(backbone: Backbone, adapter: str, pooled: PooledScore, centre: Floats) -> None:
    """Save the deviations with the score: of groups as offsets that serve, of annotators as a record.

    `score.directions` (K, hidden), `score.coordinates.PSEUDONYM` (K,), `score.place.PSEUDONYM` and
    `score.place`, (1,) each.
    """
    install_groups(
        backbone,
        adapter,
        {name: torch.tensor(values, dtype=torch.float32) for name, values in pooled.groups.items()},
        torch.tensor(centre, dtype=torch.float32),
    )
    extras: dict[str, Any] = {"place": [pooled.first_place]}
    if len(pooled.directions):
        extras["directions"] = pooled.directions
        extras |= {f"coordinates.{name}": weights for name, weights in pooled.annotators.items()}
    extras |= {f"place.{name}": [lead] for name, lead in pooled.annotator_places.items()}
    for name, values in extras.items():
        backbone.add_extra(adapter, f"{SCORE}.{name}", torch.tensor(np.array(values), dtype=torch.float32))


def report_people(
    *,
    train: Sequence[Example],
    held_out: Sequence[Example],
    scores: Scores,
    surface: tuple[Floats, Floats],
    discount: Discount,
    pooled: PooledScore | None,
) -> PeopleReport | None:
    """Return how people differ; None where there is nothing to say.

    scores: the model's, of all held-out completions. surface: features of both sets.
    """
    groups = _groups(train, held_out, scores, surface[0])
    reliability = _reliability(train, held_out, surface)
    if not groups and reliability is None and discount is NO_DISCOUNT and pooled is None:
        return None
    return PeopleReport(
        groups=groups,
        drift=discount.drift,
        half_life=discount.half_life,
        reliability_weights=reliability,
        group_strength=_finite(pooled.group_strength) if pooled else None,
        annotator_strength=_finite(pooled.annotator_strength) if pooled else None,
        first_place=pooled.first_place if pooled else None,
    )


def says_of_people(examples: Sequence[Example]) -> bool:
    """Return whether judgments name groups or weigh differently."""
    return any(example.group for example in examples) or len({example.weight for example in examples}) > 1


def people_to_json(report: PeopleReport) -> dict[str, Any]:
    """Return the report as JSON values."""
    return asdict(report)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _groups(
    train: Sequence[Example], held_out: Sequence[Example], scores: Scores, surface: Floats
) -> tuple[GroupFigures, ...]:
    names = sorted({example.group for example in (*train, *held_out)} - {""})
    differences = group_differences(surface, train)
    figures = []
    for name in names:
        judged = [example for example in train if example.group == name]
        mine = [example for example in held_out if example.group == name]
        figures.append(
            GroupFigures(
                name=name,
                annotators=len({example.annotator for example in judged}),
                trained=len(judged),
                judgments=len(mine),
                prompts=len({example.prompt for example in mine}),
                differences=differences.get(name, ()),
                **_agreement(mine, held_out, scores, name),
            )
        )
    return tuple(figures)


def _agreement(
    mine: Sequence[Example], held_out: Sequence[Example], scores: Scores, name: str
) -> dict[str, Interval]:
    """Return the accuracy of the common and of the group's score on its held-out judgments, and the gain."""
    if not mine:
        return {}
    common, by_group = scores
    here = np.concatenate([[example.group == name] * len(example.answers) for example in held_out])
    pairs = Pairs.of(mine)
    margins = pairs.margins(common[here])
    figures = {"accuracy": pairs.accuracy(_right(margins))}
    if name in by_group:
        group_margins = pairs.margins(by_group[name][here])
        figures["own_accuracy"] = pairs.accuracy(_right(group_margins))
        figures["gain"] = pairs.interval(np.logaddexp(0, -margins) - np.logaddexp(0, -group_margins))
    return figures


def _right(margins: Floats) -> Floats:
    return np.asarray((np.sign(margins) + 1) / 2)


def _reliability(
    train: Sequence[Example], held_out: Sequence[Example], surface: tuple[Floats, Floats]
) -> ReliabilityFigures | None:
    """Return the effect of the weights on a score of surface features; None where all weigh alike."""
    if len({example.weight for example in train}) < 2 or len(held_out) < _FEWEST_HELD_OUT:
        return None
    pairs = Pairs.of(held_out)

    def cost(examples: Sequence[Example]) -> Floats:
        score = _fitted(surface[0], choices_of(examples, whole=False))
        return np.logaddexp(0, -pairs.margins(score(surface[1])))

    weighted = cost(train)
    unweighted = cost([replace(example, weight=1.0) for example in train])
    return ReliabilityFigures(
        judgments=len(held_out),
        log_loss=pairs.interval(weighted),
        unweighted_log_loss=pairs.interval(unweighted),
        gain=pairs.interval(unweighted - weighted),
    )


def _fitted(table: Floats, choices: Choices) -> LinearScore:
    """Fit at one strength, so that the two fits differ in the weights alone."""
    return fit_at(table, choices, 0.01)
