"""Methods made directly, without a run, and one step of them: for tests of what a step costs."""

from __future__ import annotations

from typing import Any

import torch

from tests.rlhf.model.test_backbone import disturb
from training.contract.methods import Settings
from training.contract.methods.policy import KtoSettings, PreferenceSettings, SftSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import RunSpec
from training.contract.snapshot import SnapshotRow
from training.rlhf.data import build_examples
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.loop.training_loop import Account
from training.rlhf.methods.dpo import DirectPreference
from training.rlhf.methods.kto import KahnemanTversky
from training.rlhf.methods.reward import RewardModelling
from training.rlhf.methods.sft import SupervisedFineTuning
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, passes

CPU = torch.device("cpu")
_METHODS: dict[type, Any] = {
    RewardSettings: RewardModelling,
    PreferenceSettings: DirectPreference,
    SftSettings: SupervisedFineTuning,
    KtoSettings: KahnemanTversky,
}


def method_of(backbone: Backbone, settings: Settings, *, moved: float = 0.05, **spec: Any) -> TrainingMethod:
    """The method with an adapter that is as if it had been trained a while, or with `moved` 0 is new."""
    run = RunSpec(
        method=settings.method,
        base_model=str(backbone.folder),
        snapshot="snapshot",
        snapshot_digest="0",
        settings=settings,
        **spec,
    )
    made: TrainingMethod = _METHODS[type(settings)](backbone, run, settings)
    if moved:
        disturb(backbone, made.adapter, scale=moved)
    return made


def examples_of(method: TrainingMethod, backbone: Backbone, rows: list[SnapshotRow]) -> list[Example]:
    """The training examples that the method wants of the rows."""
    examples = build_examples(rows, backbone.tokenizer, max_tokens=256, context=False, labels=method.wanted)
    return examples.train


def step(method: TrainingMethod, examples: list[Example], *, tokens: int = 10_000, world: int = 1) -> float:
    """The loss of one step, whose gradients are left with the parameters, as the loop computes it: in passes
    of at most `tokens`, in as many processes as `world` says, one after the other."""
    method.prepare(examples, Processes())
    account = Account(method, examples)
    loss = 0.0
    for rank in range(world):
        for group in passes(examples, tokens=tokens, rank=rank, world=world):
            batch = pack(group, device=CPU)
            share = account.add(method.outcome(batch, group, dropout=True), batch.tokens, group)
            if share is not None:
                share.backward()
                loss += share.item()
    return loss


def figures(method: TrainingMethod, examples: list[Example], *, held_out: bool = False) -> dict[str, float]:
    """The method's figures over the examples as one batch, without gradient."""
    with torch.no_grad():
        method.prepare(examples, Processes())
        observed = method.outcome(pack(examples, device=CPU), examples, dropout=False).observed
    return method.figures(observed, held_out=held_out)
