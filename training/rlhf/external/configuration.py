"""The YAML of TRL's command line, from a run's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.contract import (
    ContractError,
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RunSpec,
    SftSettings,
)
from training.rlhf.external.rows import Rows
from training.rlhf.loop.stepping import steps_in_all
from training.rlhf.methods.kto import weights_of_kinds

DATA, OUTPUT, START = "data", "output", "start"
"""Folders of TRL's working folder: datasets, what it writes, the adapter that it continues."""
REWARD_FUNCTION = "rondo_reward.trl_reward"

_SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}
_LOSSES = {"token": "dapo", "sequence": "grpo", "constant": "dr_grpo"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The machine that TRL trains on."""

    dtype: str
    has_gpu: bool


def configuration(
    spec: RunSpec, rows: Rows, *, modules: Sequence[str], machine: Machine, resume: str | None
) -> dict[str, Any]:
    """Return the entries of the YAML. Paths are relative to TRL's working folder, but for the base's.

    modules: full names of the layers that the adapter lies on. resume: the folder that TRL goes on from.
    """
    settings, optimiser = spec.settings, spec.settings.optimiser
    if settings.lora.alpha != int(settings.lora.alpha):
        raise ContractError("settings, lora, alpha: TRL takes a whole number")
    steps = steps_in_all(len(rows.train), optimiser)
    is_sampled = isinstance(settings, PolicyGradientSettings)
    if isinstance(settings, PolicyGradientSettings):
        # TRL counts every pass over the samples as a step.
        steps *= settings.update.inner_epochs
    evaluates = bool(rows.held_out) and not is_sampled
    every = min(optimiser.evaluate_every or steps, steps)
    keeps_best = evaluates and optimiser.keep_best
    values: dict[str, Any] = {
        "model_name_or_path": spec.base_model,
        "dtype": machine.dtype,
        "dataset_name": DATA,
        "output_dir": OUTPUT,
        "seed": spec.seed,
        "data_seed": spec.seed,
        "use_peft": True,
        "lora_r": settings.lora.rank,
        "lora_alpha": int(settings.lora.alpha),
        "lora_dropout": settings.lora.dropout,
        "lora_target_modules": list(modules),
        "learning_rate": optimiser.peak,
        "lr_scheduler_type": _SCHEDULES[optimiser.schedule],
        "warmup_steps": optimiser.warmup_steps,
        "weight_decay": optimiser.weight_decay,
        "adam_beta1": optimiser.beta1,
        "adam_beta2": optimiser.beta2,
        "max_grad_norm": optimiser.max_gradient_norm,
        "max_steps": steps,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": "none",
        "save_strategy": "steps",
        "save_steps": every if keeps_best else optimiser.save_every,
        "save_total_limit": 2,
        "eval_strategy": "steps" if evaluates else "no",
        "eval_steps": every,
        "load_best_model_at_end": keeps_best,
        "bf16": machine.dtype == "bfloat16",
        "use_cpu": not machine.has_gpu,
        **_of_method(spec, rows),
    }
    if optimiser.gradient_checkpointing:
        values["gradient_checkpointing"] = True
    if keeps_best:
        values |= {"metric_for_best_model": "eval_loss", "greater_is_better": False}
    if resume is not None:
        values["resume_from_checkpoint"] = resume
    return {**values, **(spec.trl.options if spec.trl else {})}


def _of_method(spec: RunSpec, rows: Rows) -> dict[str, Any]:
    settings = spec.settings
    if isinstance(settings, PolicyGradientSettings):
        return _of_policy_gradient(spec, settings)
    # Of one row alone TRL's KTO cannot estimate the divergence.
    together = 2 if isinstance(settings, KtoSettings) else 1
    values: dict[str, Any] = {
        **_batches(spec, settings.optimiser.batch_size, together=together),
        "max_length": settings.max_tokens,
    }
    if isinstance(settings, PreferenceSettings):
        values |= _of_preferences(settings)
    elif isinstance(settings, KtoSettings):
        good = float(sum(row["label"] for row in rows.train))
        desirable, undesirable = weights_of_kinds(settings, good, len(rows.train) - good)
        values |= {
            "beta": settings.beta,
            "desirable_weight": desirable,
            "undesirable_weight": undesirable,
        }
    elif isinstance(settings, SftSettings):
        values |= {"completion_only_loss": True, "packing": False}
    return values


def _of_preferences(settings: PreferenceSettings) -> dict[str, Any]:
    values: dict[str, Any] = {
        "beta": settings.beta,
        "loss_type": [settings.loss],
        "label_smoothing": settings.label_smoothing,
    }
    if settings.sft_weight:
        values |= {"loss_type": [settings.loss, "sft"], "loss_weights": [1.0, settings.sft_weight]}
    return values


def _of_policy_gradient(spec: RunSpec, settings: PolicyGradientSettings) -> dict[str, Any]:
    rollout, update = settings.rollout, settings.update
    values: dict[str, Any] = {
        **_batches(spec, settings.optimiser.batch_size * rollout.samples, least=rollout.samples),
        "num_generations": rollout.samples,
        "max_completion_length": rollout.max_tokens,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "num_iterations": update.inner_epochs,
        "epsilon": update.clip_low,
        "epsilon_high": update.clip_high,
        "beta": settings.kl.beta if settings.kl.place != "none" else 0.0,
        "reward_weights": [settings.rewards[0].weight],
        "reward_funcs": [REWARD_FUNCTION],
        "mask_truncated_completions": rollout.unfinished == "leave_out",
    }
    if settings.advantage.kind == "group_relative":
        values["scale_rewards"] = "group" if settings.advantage.scale else "none"
        values["loss_type"] = _LOSSES[update.aggregate]
    return values


def _batches(spec: RunSpec, rows: int, *, least: int = 1, together: int = 1) -> dict[str, int]:
    """Return the rows of a device at a time and how often, so that a step has `rows` over all processes.

    least: rows that belong together in a step. together: the fewest rows at a time.
    """
    if rows % (spec.processes * least):
        raise ContractError(
            f"settings, optimiser, batch_size: {spec.processes} processes cannot share it equally; set it to "
            "a multiple of the processes"
        )
    mine = rows // spec.processes
    if mine < together:
        raise ContractError(
            f"settings, optimiser, batch_size: TRL needs {together} rows at a time; set it to "
            f"{together * spec.processes} or more"
        )
    most = max(together, spec.settings.optimiser.micro_batch_tokens // spec.settings.max_tokens)
    at_once = max(size for size in range(1, min(mine, most) + 1) if mine % size == 0)
    if at_once < together:
        # No divisor is as small as wished: all of them at once.
        at_once = mine
    return {
        "per_device_train_batch_size": at_once,
        "per_device_eval_batch_size": at_once,
        "gradient_accumulation_steps": mine // at_once,
    }


def to_yaml(values: Mapping[str, Any]) -> str:
    """Return flat entries as YAML 1.1, a line each."""
    return "".join(f"{name}: {_scalar(value)}\n" for name, value in values.items())


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        # 1e-05 is a text in YAML 1.1.
        text = text.replace("e", ".0e")
    return text
