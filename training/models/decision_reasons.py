"""Reasons for a decision, stored as a code with its figures and translated when shown.

A round stores its reasons as JSON. Rounds decided before there were codes have English sentences, shown
unchanged.
"""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext, gettext_lazy

Reason = str | dict[str, Any]
"""`code` with the values in its sentence; or an older plain text."""

_SENTENCES = {
    "not_evaluated": gettext_lazy("The new policy is not evaluated yet."),
    "no_held_out": gettext_lazy("The project has no held-out prompts: nothing was measured on any."),
    "people_came": gettext_lazy("%(judgments)s of %(wanted)s annotations by people are in."),
    "people_asked": gettext_lazy(
        "People decide: %(asked)s of the wanted %(needed)s blind comparisons on held-out prompts can be "
        "asked. %(needed)s show a true win rate of 70%% with a probability of 80%% (power) at a confidence "
        "of 95%%."
    ),
    "win_rate_alone": gettext_lazy("%(rate)s: %(value)s."),
    "answers_expected": gettext_lazy(
        "About %(answers)s more annotations on held-out prompts are expected to decide it."
    ),
    "answers_cannot_decide": gettext_lazy(
        "The held-out prompts that are left would decide it with a probability of %(chance)s: people are "
        "asked no further."
    ),
    "not_worth_having": gettext_lazy(
        "%(rate)s: %(value)s, shown to be below %(bound)s, so the difference is not worth having."
    ),
    "larger_pool": gettext_lazy(
        "With %(prompts)s held-out prompts that the reward model scored, %(answers)s annotations in all "
        "would be expected to do."
    ),
    "people_cannot_come": gettext_lazy("People cannot decide: no pair is open for annotation."),
    "win_rate_not_measured": gettext_lazy("%(rate)s: not measured."),
    "win_rate_better": gettext_lazy("%(rate)s: %(value)s, shown to be better."),
    "win_rate_open": gettext_lazy(
        "%(rate)s: %(value)s. The interval includes one half, so nothing is shown."
    ),
    "few_differ": gettext_lazy(
        "%(rate)s: %(value)s. One response wins on %(differing)s held-out prompts, the others are ties, and "
        "the recipe asks for at least %(minimum)s."
    ),
    "no_conditions": gettext_lazy("The recipe asks for no evidence, so a person decides."),
    "reward_model_unknown": gettext_lazy(
        "The reward model is not validated: its accuracy on held-out annotations was not measured."
    ),
    "reward_model_few": gettext_lazy(
        "The reward model is not validated: %(judgments)s held-out annotations measure its "
        "accuracy, and the recipe asks for at least %(minimum)s."
    ),
    "reward_model_chance": gettext_lazy(
        "The reward model is not validated. %(rate)s: %(value)s; the interval includes one half."
    ),
    "reward_model_wrong": gettext_lazy(
        "The reward model is not validated. %(rate)s: %(value)s; it contradicts people."
    ),
    "people_contradict": gettext_lazy(
        "People show the opposite of the reward model, and people decide: the policy may have learned what "
        "the reward model likes rather than what people like (over-optimisation)."
    ),
    "same_reward_model": gettext_lazy(
        "The policy was trained for the scores of the same reward model that judges it here: its win rate is "
        "not independent evidence."
    ),
    "same_judgments": gettext_lazy(
        "The evaluating reward model was trained on the same annotations as the policy: its win"
        " rate is not independent evidence."
    ),
    "win_rate_worse": gettext_lazy("%(rate)s: %(value)s, shown to be worse."),
    "win_rate_not_worse": gettext_lazy("%(rate)s: %(value)s, not shown to be worse."),
    "win_rate_not_known": gettext_lazy("%(rate)s: not known, and at least %(bound)s is asked for."),
    "win_rate_least": gettext_lazy("%(rate)s: %(value)s; the lower end must reach %(bound)s."),
    "at_least": gettext_lazy("%(measure)s: %(value)s; at least %(bound)s is asked for."),
    "at_most": gettext_lazy("%(measure)s: %(value)s; at most %(bound)s is asked for."),
    "at_least_not_known": gettext_lazy("%(measure)s: not known, and at least %(bound)s is asked for."),
    "at_most_not_known": gettext_lazy("%(measure)s: not known, and at most %(bound)s is asked for."),
}
_RATES = {
    "people": gettext_lazy("Win rate against %(parent)s by people"),
    "people_and_model": gettext_lazy("Win rate against %(parent)s by people and the reward model"),
    "people_and_model these_prompts": gettext_lazy(
        "Win rate against %(parent)s on the held-out prompts, by people and the reward model"
    ),
    "reward_model": gettext_lazy("Win rate against %(parent)s by the reward model"),
    "accuracy": gettext_lazy("Accuracy on held-out annotations"),
}
_MEASURES = {
    "reward_gain": gettext_lazy("Mean reward gain"),
    "kl": gettext_lazy("KL divergence from the base in nats per response"),
    "length_ratio": gettext_lazy("Length against the parent's"),
    "rule": gettext_lazy("Mean of rule %(rule)s"),
}
_FORMS = {"value": ".3g", "bound": "g"}


def reason(code: str, **values: Any) -> dict[str, Any]:
    """Return a reason as stored in a round. Raises `KeyError` for an unknown code."""
    _ = _SENTENCES[code]
    return {"code": code, **values}


def reason_text(reason: Reason) -> str:
    """Return a reason as a sentence in the active language."""
    if isinstance(reason, str):
        return reason
    values = {name: value for name, value in reason.items() if name != "code"}
    if "by" in values:
        rate = " ".join(values[name] for name in ("by", "claim") if name in values)
        values["rate"] = str(_RATES[rate]) % values
        values |= {name: _share(values[name]) for name in ("value", "bound") if name in values}
    elif "measure" in values:
        values["measure"] = str(_MEASURES[values["measure"]]) % values
        values |= {name: f"{values[name]:{form}}" for name, form in _FORMS.items() if name in values}
    if "chance" in values:
        values["chance"] = _share(values["chance"])
    return str(_SENTENCES[reason["code"]]) % values


def _share(value: float | Mapping[str, float | None]) -> str:
    """Return a share in whole percents, with its interval if it has one."""
    if not isinstance(value, Mapping):
        return f"{value:.0%}"
    if value["low"] is None or value["high"] is None:
        return f"{value['value']:.0%}"
    return gettext("%(value)s (%(low)s to %(high)s)") % {
        name: f"{share:.0%}" for name, share in value.items()
    }
