"""Heads of annotators and groups: the shared head and offsets to it.

Preferences are long-tailed: what one annotator or group wants and others do not goes into an offset, and what
all want into the shared head. Offsets are saved with the head as `HEAD.annotator.PSEUDONYM` and
`HEAD.group.NAME`, (1, hidden) each. A group's reward is

    r_g(x) = score(x) + (x − c) · offset_g

where c, `HEAD.centre`, is the mean of the training completions' features, or 0 where nothing is saved. So the
rewards of all groups have the same mean, and the worst-off group can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from training.contract import ContractError, Population
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.runtime.run_folder import log
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch

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
