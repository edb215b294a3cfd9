"""Presets: ways to train a policy, by their usual names."""

from __future__ import annotations

from collections.abc import Callable

from training.contract import (
    AdvantageSettings,
    KlSettings,
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
    SftSettings,
    UpdateSettings,
)
from training.recipe.recipe import ROUND_REWARD_MODEL, PolicySettings

_OWN = (RewardPart(name="people", kind="model", checkpoint=ROUND_REWARD_MODEL),)


def _ppo() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=_OWN,
        context=True,
        advantage=AdvantageSettings(kind="gae", whiten=True),
        kl=KlSettings(place="reward", kind="k1"),
        update=UpdateSettings(inner_epochs=4, minibatches=2),
    )


def _grpo() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=_OWN,
        context=True,
        advantage=AdvantageSettings(kind="group_relative", scale=True),
        update=UpdateSettings(aggregate="sequence"),
    )


def _dr_grpo() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=_OWN,
        context=True,
        advantage=AdvantageSettings(kind="group_relative", scale=False),
        kl=KlSettings(place="none"),
        update=UpdateSettings(aggregate="constant"),
    )


def _rloo() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=_OWN,
        context=True,
        advantage=AdvantageSettings(kind="leave_one_out"),
        kl=KlSettings(place="reward", kind="k1"),
        update=UpdateSettings(aggregate="constant"),
    )


def _reinforce() -> PolicySettings:
    return PolicyGradientSettings(
        rewards=_OWN,
        context=True,
        advantage=AdvantageSettings(kind="running_mean"),
        kl=KlSettings(place="reward", kind="k1"),
    )


PRESETS: dict[str, tuple[str, Callable[[], PolicySettings]]] = {
    "preference": (
        "DPO: direct preference optimisation",
        lambda: PreferenceSettings(context=True, use_corrections=True),
    ),
    "kto": ("KTO: good and bad answers one by one", lambda: KtoSettings(context=True)),
    "sft": ("SFT: supervised fine-tuning", lambda: SftSettings(context=True)),
    "ppo": ("PPO: clipped policy gradient with a value head", _ppo),
    "grpo": ("GRPO: policy gradient within groups of answers", _grpo),
    "dr_grpo": ("Dr. GRPO: GRPO without its biases", _dr_grpo),
    "rloo": ("RLOO: leave-one-out baseline", _rloo),
    "reinforce": ("REINFORCE: running-mean baseline", _reinforce),
}
"""Title and settings by name; see the table in `contract.methods.policy_gradient`."""
