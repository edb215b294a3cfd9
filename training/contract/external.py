"""TRL as the trainer of a policy in place of Rondo's own: its settings, and what it can be handed.

TRL runs as a program, in an environment of its own. What its configuration cannot say is refused, so that a
run never means something else than its recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from training.contract.methods import Settings
from training.contract.methods.common import BASE, PARENT, MethodSettings
from training.contract.methods.policy import KtoSettings, PreferenceSettings, SftSettings
from training.contract.methods.policy_gradient import AdvantageSettings, PolicyGradientSettings
from training.contract.record import record, require

TRL_VARIABLE = "RONDO_TRL"
"""Environment variable: the program `trl` in its own environment."""
REWARD_URL_VARIABLE = "RONDO_REWARD_URL"
REWARD_KEY_VARIABLE = "RONDO_REWARD_KEY"
"""Environment variables: the model server that scores samples, and its key."""

TrlCommand = Literal["dpo", "sft", "kto", "grpo", "rloo"]
Option = bool | int | float | str

_OURS = frozenset(
    {
        *("config", "env", "model_name_or_path", "model_revision", "trust_remote_code", "model_init_kwargs"),
        *("dataset_name", "dataset_config", "datasets", "dataset_train_split", "dataset_test_split"),
        *("output_dir", "resume_from_checkpoint", "use_peft", "lora_r", "lora_alpha", "lora_dropout"),
        *("lora_target_modules", "lora_target_parameters", "lora_modules_to_save", "use_dora", "use_rslora"),
        *("reward_funcs", "reward_model_name_or_path", "push_to_hub", "hub_token", "report_to"),
        *("save_strategy", "save_steps", "logging_steps", "logging_strategy", "seed", "data_seed"),
    }
)
"""Entries of TRL's configuration that a recipe does not set: files, weights, code, and what is read back."""


@record
class TrlSettings:
    """Settings of TRL beyond those of the method."""

    options: dict[str, Option] = field(default_factory=dict)
    """More entries of TRL's YAML by name, such as per_device_train_batch_size, gradient_checkpointing or
    use_vllm; they replace those that follow from the method's settings."""

    def __post_init__(self) -> None:
        odd = sorted(_OURS & set(self.options))
        require(not odd, "options", f"{', '.join(odd)} is not yours to set: Rondo needs it")


def trl_command(settings: Settings) -> TrlCommand | None:
    """Return the command of TRL that trains a method; None where there is none."""
    if isinstance(settings, PreferenceSettings):
        return "dpo"
    if isinstance(settings, KtoSettings):
        return "kto"
    if isinstance(settings, SftSettings):
        return "sft"
    if isinstance(settings, PolicyGradientSettings):
        return {"group_relative": "grpo", "leave_one_out": "rloo"}.get(settings.advantage.kind)  # type: ignore[return-value]
    return None


def trl_refusals(settings: Settings, *, parent: bool | None = None) -> Iterator[tuple[str, str]]:
    """Yield each setting that TRL cannot follow, and what to do.

    parent: whether training continues a checkpoint; None where that is not known yet.
    """
    if trl_command(settings) is None:
        kind = settings.advantage.kind if isinstance(settings, PolicyGradientSettings) else settings.method
        yield "method", f"TRL's command line does not train {kind!r}; set trainer to 'rondo'"
        return
    if isinstance(settings, MethodSettings) and settings.adapter != "lora":
        yield "adapter", "TRL is handed LoRA adapters only; set it to 'lora', or trainer to 'rondo'"
    if getattr(settings, "thinking", "train") != "train":
        yield "thinking", "TRL learns from all of a response; set it to 'train'"
    if isinstance(settings, SftSettings):
        return
    if isinstance(settings, PreferenceSettings | KtoSettings | PolicyGradientSettings):
        if settings.reference not in (PARENT, BASE):
            yield "reference", "TRL measures from the base; set it to 'base'"
        measures = not isinstance(settings, PolicyGradientSettings) or settings.kl.place != "none"
        if parent and settings.reference == PARENT and measures:
            yield "reference", "TRL measures from the base under a continued adapter; set it to 'base'"
    if isinstance(settings, PreferenceSettings):
        yield from _of_preferences(settings)
    elif isinstance(settings, PolicyGradientSettings):
        yield from _of_policy_gradient(settings)


def _of_preferences(settings: PreferenceSettings) -> Iterator[tuple[str, str]]:
    if settings.loss == "plackett_luce":
        yield "loss", "TRL has no loss on rankings; take sigmoid, ipo, hinge or robust"
    if settings.length_normalised:
        yield "length_normalised", "trl dpo does not divide by length; set it to false"
    if settings.correction_tokens != "all":
        yield "correction_tokens", "TRL learns from all tokens; set it to 'all'"


def _of_policy_gradient(settings: PolicyGradientSettings) -> Iterator[tuple[str, str]]:
    part, rollout, kl, update = settings.rewards[0], settings.rollout, settings.kl, settings.update
    is_rloo = settings.advantage.kind == "leave_one_out"
    place, kind = ("reward", "k1") if is_rloo else ("loss", "k3")
    is_learned = part.kind in ("model", "served") and part.heads is None
    one_model = len(settings.rewards) == 1 and is_learned and part.weight > 0
    plain = not part.normalise and part.clip is None and settings.reward_clip is None
    checks = (
        (one_model, "rewards", "TRL is handed one reward, a served reward model; name one, weighed above 0"),
        (plain, "rewards", "TRL takes the score as it is; leave normalise, clip and reward_clip off"),
        (
            rollout.server is None,
            "rollout, server",
            "set it to null; TRL has use_vllm (trl, options)",
        ),
        (
            rollout.unfinished in ("score", "leave_out"),
            "rollout, unfinished",
            "TRL scores truncated responses or leaves them out; set it to 'score' or 'leave_out'",
        ),
        (not rollout.stop, "rollout, stop", "TRL knows no stop texts; leave it empty"),
        (
            kl.place in ("none", place),
            "kl, place",
            f"this command of TRL knows one place; set it to {place!r} or 'none'",
        ),
        (
            kl.place != place or kl.kind == kind,
            "kl, kind",
            f"this command of TRL estimates by {kind}; set it to {kind!r}",
        ),
        (kl.target is None, "kl, target", "TRL keeps β fixed; set it to null"),
        (
            update.minibatches == 1 and update.stop_at_kl is None,
            "update",
            "TRL takes all samples of a step in every pass; set minibatches to 1 and stop_at_kl to null",
        ),
        (
            update.truncate is None and not update.entropy,
            "update",
            "TRL has settings of its own for these; set truncate to null and entropy to 0",
        ),
        (not settings.advantage.whiten, "advantage, whiten", "set it to false"),
        (
            settings.advantage.deviation_floor == AdvantageSettings().deviation_floor,
            "advantage, deviation_floor",
            "TRL adds 1e-4 to the deviation and knows no other number; leave it at 1e-4",
        ),
        (not settings.watch.held_out, "watch, held_out", "TRL scores no other rewards; leave it empty"),
    )
    for holds, name, problem in checks:
        if not holds:
            yield name, problem
