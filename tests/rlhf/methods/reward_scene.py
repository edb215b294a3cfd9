"""Rankings that a reward model learns from, and one step over them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.rlhf.methods.test_methods import CPU, LORA, batch_of, spec_of
from tests.rlhf.runs import row
from training.contract.methods.reward import RewardSettings
from training.contract.snapshot import SnapshotRow
from training.rlhf.data import build_examples
from training.rlhf.loop.training_loop import Account
from training.rlhf.methods.reward import RewardModelling, read_rewards
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import pack

TEXTS = ["the sun", "no", "why not", "the answer is long", "yes"]


def reward_method(backbone: Backbone, *, parent: str | None = None, **settings) -> RewardModelling:
    resolved = RewardSettings(lora=LORA, **settings)
    return RewardModelling(backbone, spec_of(backbone, resolved, parent=parent), resolved)


def ranking(name: str, ranks: Sequence[int], **more: Any) -> SnapshotRow:
    return row(name, TEXTS[: len(ranks)], ranks, prompt=f"question {name}", **more)


def mixed() -> list[SnapshotRow]:
    """Rankings of two to five answers by three annotators: strict, tied, all tied, one answer unranked."""
    rankings = [[1, 2], [2, 1, 3], [1, 1, 2], [2, 3, 1, 3], [1, 1, 1], [3, 1, 0, 2], [2, 2, 1, 1, 3], [1, 1]]
    return [
        ranking(f"m{index}", ranks, annotator=f"annotator-{index % 3}", weight=1 + index % 2)
        for index, ranks in enumerate(rankings)
    ]


def examples_of(backbone: Backbone, rows: Sequence[SnapshotRow], *, ties: bool = True) -> list[Example]:
    requirements = UsedLabels(ranks="tied" if ties else "decided", criteria=None)
    return build_examples(rows, backbone.tokenizer, max_tokens=128, context=False, labels=requirements).train


def scores_of(backbone: Backbone, example: Example) -> list[float]:
    with torch.no_grad():
        scores: list[float] = read_rewards(backbone, "reward", pack([example], device=CPU)).tolist()
    return scores


def gradients(backbone: Backbone) -> Iterator[torch.Tensor]:
    for parameter in backbone.parameters("reward").values():
        yield (
            torch.zeros_like(parameter).reshape(-1) if parameter.grad is None else parameter.grad.reshape(-1)
        )
        parameter.grad = None


def step(
    backbone: Backbone, method: RewardModelling, examples: list[Example], groups: list[list[Example]]
) -> tuple[float, dict[str, float], torch.Tensor]:
    """Loss, figures and gradient of one step over `examples`, cut into `groups`."""
    account = Account(method, examples)
    for group in groups:
        batch = batch_of(group)
        loss = account.add(method.outcome(batch, group, dropout=True), batch.tokens, group)
        if loss is not None:
            loss.backward()
    total = account.total(Processes(), held_out=True)
    return total.loss, total.figures, torch.cat(list(gradients(backbone)))
