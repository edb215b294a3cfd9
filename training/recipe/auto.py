"""The policy's settings by the number of decided annotations: what `policy_method` auto stands for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from training.contract.methods.common import OptimiserSettings
from training.contract.methods.policy import (
    AdvantageSettings,
    GuardSettings,
    KlSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RolloutSettings,
    UpdateSettings,
)
from training.recipe.recipe import FEW_LAYERS, PEOPLE, PolicySettings, Recipe, SamplingSettings

_VISITS = 3
"""Times at most that a prompt is sampled in a run: with few prompts a run is shorter."""
_PROMPTS_A_STEP = 8
_ROLLOUT = RolloutSettings(samples=8, unfinished="score")
"""The reward model has seen truncated responses judged, so that it scores them itself."""
_AS_JUDGED = replace(_ROLLOUT, temperature=SamplingSettings().temperature)
"""Responses as those that people judged: at a higher temperature most are unlike them."""
_NEAR = 5.0
"""Nats per response. In the first-hour benchmark a policy for a reward model of forty annotations was better
the further it went up to about here, and wrote seven words at eleven nats."""
_LONGEST_ROLLOUT = 512


def _sampled(steps: int, rate: float) -> OptimiserSettings:
    return OptimiserSettings(
        learning_rate=rate,
        warmup_steps=2,
        batch_size=_PROMPTS_A_STEP,
        max_steps=steps,
        epochs=_VISITS,
        save_every=2,
        keep_best=False,
        evaluate_every=0,
    )


def _best_of_k() -> PolicySettings:
    return PolicyGradientSettings(
        lora=FEW_LAYERS,
        rewards=PEOPLE,
        rollout=_AS_JUDGED,
        advantage=AdvantageSettings(kind="best_and_worst"),
        kl=KlSettings(place="loss", kind="k3", beta=0.1, budget=_NEAR),
        update=UpdateSettings(loss="dpo"),
        optimiser=_sampled(steps=20, rate=2e-3),
        evaluation_prompts=0,
    )


def _preference() -> PolicySettings:
    return PreferenceSettings(
        lora=FEW_LAYERS,
        use_corrections=True,
        beta=0.1,
        optimiser=OptimiserSettings(
            warmup_steps=4, batch_size=8, epochs=3, max_steps=120, save_every=5, evaluate_every=0
        ),
    )


def _grpo() -> PolicySettings:
    return PolicyGradientSettings(
        lora=FEW_LAYERS,
        rewards=PEOPLE,
        rollout=_ROLLOUT,
        advantage=AdvantageSettings(kind="group_relative", scale=True),
        kl=KlSettings(place="loss", kind="k3", beta=0.05),
        update=UpdateSettings(aggregate="sequence"),
        optimiser=_sampled(steps=60, rate=3e-4),
        evaluation_prompts=0,
        guard=GuardSettings(),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRow:
    """Settings of a policy from a number of decided annotations on."""

    key: str
    least: int
    """Decided annotations on training prompts from which on they are taken."""
    title: str | Promise
    reason: str | Promise
    make: Callable[[], PolicySettings]


POLICY_ROWS = (
    PolicyRow(
        key="best_of_k",
        least=0,
        title=gettext_lazy("DPO on the best and the worst of eight samples by the reward model"),
        reason=gettext_lazy(
            "Few annotations teach a policy little by themselves. A reward model made of them ranks fresh "
            "responses to every prompt, and their best and worst are pairs that people need not label."
        ),
        make=_best_of_k,
    ),
    PolicyRow(
        key="preference",
        least=200,
        title=gettext_lazy("DPO on people’s annotations"),
        reason=gettext_lazy(
            "There are enough annotations to learn from directly: in the loop benchmark the win rate rose "
            "further than with GRPO."
        ),
        make=_preference,
    ),
    PolicyRow(
        key="grpo",
        least=2000,
        title=gettext_lazy("GRPO by the reward model"),
        reason=gettext_lazy(
            "So many annotations make a reward model that can be trusted with responses that nobody has "
            "seen: the policy learns from its own samples for longer."
        ),
        make=_grpo,
    ),
)
"""The fewest annotations first. The bounds are those of the first-hour and the loop benchmark."""


def row_for(judgments: int) -> PolicyRow:
    """Return the settings for so many decided annotations."""
    return [row for row in POLICY_ROWS if row.least <= judgments][-1]


def row_of(policy: PolicySettings) -> PolicyRow | None:
    """Return the row whose settings these are, apart from the guard and what follows from the rest of the
    recipe: steps, length and context. None where they are none's."""
    for row in POLICY_ROWS:
        made = row.make()
        if type(made) is type(policy) and _comparable(made) == _comparable(policy):
            return row
    return None


def with_chosen_policy(recipe: Recipe, *, judgments: int, prompts: int) -> Recipe:
    """Return the recipe with the policy's settings for so many decided annotations and training prompts.

    Unchanged unless `policy_method` is auto.
    """
    if recipe.policy_method != "auto":
        return recipe
    policy = replace(row_for(judgments).make(), context=recipe.reward.context)
    if isinstance(policy, PolicyGradientSettings):
        most = policy.optimiser.max_steps or 1
        steps = max(1, min(most, math.ceil(_VISITS * prompts / _PROMPTS_A_STEP)))
        # As long as the responses that people judge.
        longest = min(recipe.sampling.max_tokens, _LONGEST_ROLLOUT)
        policy = replace(
            policy,
            optimiser=replace(policy.optimiser, max_steps=steps),
            rollout=replace(policy.rollout, max_tokens=longest),
        )
    return replace(recipe, policy=policy)


def fixed_where_changed(before: Recipe, after: Recipe) -> Recipe:
    """Return the recipe with `policy_method` fixed if its policy was changed by hand while that stayed auto.

    Whoever writes other settings into the JSON of a recipe wants them to count.
    """
    by_hand = before.policy_method == after.policy_method == "auto" and before.policy != after.policy
    return replace(after, policy_method="fixed") if by_hand else after


def _comparable(policy: PolicySettings) -> PolicySettings:
    optimiser = replace(policy.optimiser, max_steps=None, learning_rate=None)
    if isinstance(policy, PolicyGradientSettings):
        policy = replace(policy, rollout=replace(policy.rollout, max_tokens=_LONGEST_ROLLOUT), guard=None)
    return replace(policy, optimiser=optimiser, context=False)
