"""Groups, annotators, drift and reliability in the training of a reward model, and the report on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from training.contract import ContractError
from training.contract.methods.reward import RewardSettings
from training.contract.validation import (
    DriftFigures,
    GroupFigures,
    Interval,
    PeopleReport,
    Population,
    ReliabilityFigures,
)
from training.rlhf.measures.calibration import Floats
from training.rlhf.measures.features import Values
from training.rlhf.measures.linear_choice import (
    choices_of,
    fit_at,
    fit_cross_validated,
)
from training.rlhf.measures.people import (
    PooledScore,
    discounts,
    fit_pooled,
    group_differences,
    measure_drift,
    newest_round,
    number_people,
)
from training.rlhf.methods.baselines import FrozenHead, Pairs
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch

# ── Heads of annotators and groups: the shared head and offsets to it ──
#
# Preferences are long-tailed: what one annotator or group wants and others do not goes into an offset, and
# what all want into the shared head. Offsets are saved with the head as `HEAD.annotator.PSEUDONYM` and
# `HEAD.group.NAME`, (1, hidden) each. A group's reward is
#
#     r_g(x) = score(x) + (x − c) · offset_g
#
# where c, `HEAD.centre`, is the mean of the training completions' features, or 0 where nothing is saved. So
# the rewards of all groups have the same mean, and the worst-off group is known.

Kind = Literal["annotator", "group"]
CENTRE = f"{SCORE}.centre"
_GROUP = f"{SCORE}.group."


class PeopleOffsets:
    """Offsets to one head by annotator or by group. They begin at 0; others have the shared head."""

    def __init__(self, backbone: Backbone, adapter: str, head: str, kind: Kind) -> None:
        self._backbone = backbone
        self._adapter = adapter
        self._kind = kind
        self._prefix = f"{head}.{kind}."

    def begin(self, examples: Iterable[Example]) -> None:
        """Give an offset to everyone in the examples who has none yet."""
        names = sorted({self._name(example) for example in examples} - {""})
        if len(names) == 1:
            log.warning(
                "%s_heads: all judgments that teach are by %s, whose offset cannot be told from what is "
                "common; the score leans on what both have learned",
                self._kind,
                names[0],
            )
        there = self._backbone.extras(self._adapter)
        for name in names:
            if self._prefix + name not in there:
                self._backbone.add_extra(
                    self._adapter, self._prefix + name, torch.zeros(1, self._backbone.hidden_size)
                )

    def known(self, examples: list[Example]) -> Tensor:
        """(E,) whether the annotator or group of each has an offset; on the CPU."""
        there = set(self._backbone.extras(self._adapter))
        return torch.tensor([self._prefix + self._name(example) in there for example in examples])

    def offsets(self, states: Tensor, batch: Batch, examples: list[Example]) -> tuple[Tensor, Tensor]:
        """Return the offsets to scores, (R,), and their squared norms, (E,). states: (T, hidden)."""
        there = set(self._backbone.extras(self._adapter))
        nobody = torch.zeros(1, self._backbone.hidden_size, device=states.device)
        rows = [
            self._backbone.extra(self._adapter, name) if name in there else nobody  # noqa: S610
            for name in (self._prefix + self._name(example) for example in examples)
        ]
        offsets = torch.cat(rows)
        added = (states[batch.last].float() * offsets[batch.answer_example]).sum(-1)
        return added, (offsets**2).sum(-1)

    def _name(self, example: Example) -> str:
        return example.annotator if self._kind == "annotator" else example.group


def group_names(backbone: Backbone, adapter: str) -> tuple[str, ...]:
    """Return the groups whose reward an adapter has."""
    return tuple(sorted(name[len(_GROUP) :] for name in backbone.extras(adapter) if name.startswith(_GROUP)))


def group_scores(backbone: Backbone, adapter: str, states: Tensor) -> dict[str, Tensor]:
    """Return each group's reward of completions: (N, hidden) to (N,) by group."""
    scores = backbone.score(adapter, states)
    centred = states.float()
    if CENTRE in backbone.extras(adapter):
        centred = centred - backbone.extra(adapter, CENTRE)  # noqa: S610 - no query set of Django's
    return {
        name: scores + centred @ backbone.extra(adapter, _GROUP + name)[0]  # noqa: S610
        for name in group_names(backbone, adapter)
    }


def install_groups(backbone: Backbone, adapter: str, offsets: Mapping[str, Tensor], centre: Tensor) -> None:
    """Give an adapter the groups' offsets to its score, (hidden,) each, with the centre that they are of."""
    backbone.add_extra(adapter, CENTRE, centre)
    for name, offset in offsets.items():
        backbone.add_extra(adapter, _GROUP + name, offset.unsqueeze(0))


def check_population(backbone: Backbone, adapter: str, population: Population) -> None:
    """Raise `ContractError` where a reward of groups is asked for that the adapter does not have."""
    if population.reward == "common":
        return
    there = group_names(backbone, adapter)
    if not there:
        raise ContractError("the reward model has no heads of groups; train it with group_heads")
    if odd := sorted(set(population.groups) - set(there)):
        raise ContractError(f"the reward model has no group {', '.join(odd)}; it has {', '.join(there)}")


def population_scores(backbone: Backbone, adapter: str, states: Tensor, population: Population) -> Tensor:
    """Return the reward that a population stands for: (N, hidden) to (N,).

    common: the shared score. groups: the mean of the groups' rewards by their weights. worst_group: the
    smallest reward of the groups, all of them where none is named.
    """
    if population.reward == "common":
        return backbone.score(adapter, states)
    by_group = group_scores(backbone, adapter, states)
    names = sorted(population.groups or by_group)
    rewards = torch.stack([by_group[name] for name in names])
    if population.reward == "worst_group":
        return rewards.amin(0)
    weights = torch.tensor([population.groups.get(name, 1.0) for name in names], device=rewards.device)
    return weights @ rewards / weights.sum()


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


def choose_discount(
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
    drift = measure_drift(table, choices, rounds, newest=present, strength=strength)
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
        number_people(examples),
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
        score = fit_at(surface[0], choices_of(examples, whole=False), 0.01)
        return np.logaddexp(0, -pairs.margins(score(surface[1])))

    weighted = cost(train)
    unweighted = cost([replace(example, weight=1.0) for example in train])
    return ReliabilityFigures(
        judgments=len(held_out),
        log_loss=pairs.interval(weighted),
        unweighted_log_loss=pairs.interval(unweighted),
        gain=pairs.interval(unweighted - weighted),
    )
