"""Rewards as a run's settings name them, each kind with its options.

| kind | reward | options |
|---|---|---|
| exact_match | `rules.ExactMatch` | its fields |
| think_answer | `rules.ThinkAnswerFormat` | none |
| pattern | `rules.Pattern` | its fields |
| line_count | `rules.LineCount` | its fields |
| length | `rules.Length` | its fields |
| mathematics | `mathematics.Mathematics` | its arguments |
| unit_tests | `unit_tests.UnitTests` | `workers`, and the fields of `sandbox.Limits` but write_files |
| bleu, rouge, chrf | `metrics.Bleu`, `Rouge`, `Chrf` | their fields |
| judge | `judge.Judge` | its arguments but key and transport |
| rubric | `rubric.RubricReward` | its arguments but key and transport |
| function | `functions.FunctionReward` | `path` |
| model | `learned.LearnedReward` | none; see `RewardPart.checkpoint`, `heads` and `population` |
| served | `served.ServedReward` | none; see `RewardPart.checkpoint` and `heads` |
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from annotation.record.base import require
from training.contract import (
    ContractError,
    Population,
    RewardPart,
    RewardSettings,
    RunSpec,
    manifest_digest,
    read_manifest,
)
from training.contract.run import REWARD_KEY_VARIABLE, REWARD_URL_VARIABLE
from training.rlhf.model.backbone import Backbone
from training.rlhf.rewards.combination import Combination, Part
from training.rlhf.rewards.judge import Judge, RubricReward
from training.rlhf.rewards.protocol import Chat, Reference, Reward, Score
from training.rlhf.rewards.reward_model import LearnedReward, ServedReward
from training.rlhf.rewards.text_rewards import KINDS_OF_TEXTS, construct, reward_of_texts

# ── Rewards that somebody else wrote: a Python function by its dotted path, if the path is allowed ──

UserFunction = Callable[[Sequence[Chat], Sequence[str], Sequence[Reference]], Sequence[Any]]
"""Takes prompts, completions and references; gives a number, None (cannot score) or `Score` for each."""


class FunctionReward:
    """The function at a dotted path, such as `acme.rewards.politeness`, as a reward.

    `allowed` holds the paths that whoever runs this installation vouches for, each in full:
    importing a module runs its code, so a run's settings alone must not choose one. Raises
    `PermissionError` for a path that is not among them, before anything is imported, and
    `ValueError` for one that leads to no function.
    """

    def __init__(self, path: str, *, allowed: Collection[str]) -> None:
        if path not in allowed:
            raise PermissionError(
                f"{path!r} is not on the allow-list of reward functions; whoever runs this installation "
                "can put it there"
            )
        self._path = path
        self._function = _function_at(path)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [_score(value) for value in self._function(prompts, completions, references)]


def _function_at(path: str) -> UserFunction:
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{path!r} is no dotted path; write package.module.function")
    try:
        function: UserFunction = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"the reward function {path!r} does not exist: {error}") from error
    if not callable(function):
        raise ValueError(f"{path!r} is no function")
    return function


def _score(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    if value is None or math.isnan(value):
        return Score.cannot("the function gave no score")
    return Score(float(value))


FUNCTIONS_VARIABLE = "RONDO_REWARD_FUNCTIONS"
"""Environment variable: dotted paths of the reward functions that runs may name, with commas between."""
JUDGE_URL_VARIABLE = "RONDO_JUDGE_URL"
"""Environment variable: the judge that runs ask unless they name another; the only one that gets the key."""
JUDGE_KEY_VARIABLE = "RONDO_JUDGE_KEY"
"""Environment variable: the key of that judge."""


def build_rewards(
    parts: Sequence[RewardPart],
    *,
    backbone: Backbone,
    folder: Path,
    clip: float | None = None,
    context: bool | None = None,
    environment: Mapping[str, str] = os.environ,
    cancelled: Callable[[], bool] = lambda: False,
) -> Combination:
    """Return the weighted sum of `parts`, at least one. Close it after use.

    Reward models become frozen adapters on `backbone`, one for each checkpoint however many parts and calls
    name it, and the model server is asked once about a batch for each. Their weights must stay those of the
    base, so a policy that trains the base itself needs another `Backbone` here. `folder` is the run's: where
    relative paths begin. `context` says whether prompts come with their passages in them: a reward model that
    was trained otherwise is refused; None does not look.
    cancelled: whether the run was asked to stop, so that nothing is waited for any more.

    Raises `RewardServerError` where a model server does not score, and `ContractError`, which names the part,
    for an option that its kind does not have, a function that is not on the allow-list, and a checkpoint that
    is no reward model of this base or head.
    """
    served_rewards: dict[tuple[str | None, str | None], ServedReward] = {}
    built = [
        Part(
            name=part.name,
            reward=_served(part, context, environment, cancelled, served_rewards)
            if part.kind == "served"
            else _reward(part, backbone, folder, context, environment),
            weight=part.weight,
            normalise=part.normalise,
            clip=part.clip,
            required=part.required,
        )
        for part in parts
    ]
    return Combination(built, clip=clip)


def _reward(
    part: RewardPart, backbone: Backbone, folder: Path, context: bool | None, environment: Mapping[str, str]
) -> Reward:
    where = f"reward {part.name!r}"
    if part.checkpoint is not None:
        return _model(part, folder / part.checkpoint, backbone, context, where)
    if part.kind in KINDS_OF_TEXTS:
        return reward_of_texts(part)
    where = f"{where}, options"
    if part.kind == "judge":
        return _judge(Judge, part.options, where, environment)
    if part.kind == "rubric":
        return _judge(RubricReward, part.options, where, environment)
    return _function(part.options, where, environment)


def _served(
    part: RewardPart,
    context: bool | None,
    environment: Mapping[str, str],
    cancelled: Callable[[], bool],
    served_rewards: dict[tuple[str | None, str | None], ServedReward],
) -> ServedReward:
    """Address and key are the machine owner's to say: a spec that named them could have any server asked.

    served_rewards: the reward models of the parts before.
    """
    where = f"reward {part.name!r}"
    url = environment.get(REWARD_URL_VARIABLE, "").strip()
    require(
        bool(url),
        where,
        f"{REWARD_URL_VARIABLE} is not set in the trainer's environment; set it to the model server that has "
        f"{part.checkpoint}, without /v1, and {REWARD_KEY_VARIABLE} to its key",
    )
    key = environment.get(REWARD_KEY_VARIABLE, "")
    known = served_rewards.get((part.checkpoint, part.checkpoint_digest))
    try:
        if known is not None:
            return known.weighed(part.heads)
        made = served_rewards[part.checkpoint, part.checkpoint_digest] = ServedReward(
            str(part.checkpoint),
            url=url,
            key=key,
            digest=part.checkpoint_digest,
            weights=part.heads,
            context=context,
            cancelled=cancelled,
        )
    except ContractError as error:
        raise ContractError(f"{where}: {error}") from None
    return made


def _judge(
    kind: type[Judge | RubricReward],
    options: Mapping[str, Any],
    where: str,
    environment: Mapping[str, str],
) -> Reward:
    """The key goes to the server that the environment names and to no other: a spec could name anyone's."""
    judge_url = environment.get(JUDGE_URL_VARIABLE, "")
    url = options.get("url", judge_url)
    require(
        bool(url), where, f"option 'url' is missing; name the judge's server here or in {JUDGE_URL_VARIABLE}"
    )
    key = environment.get(JUDGE_KEY_VARIABLE, "") if url == judge_url else ""
    made: Reward = construct(kind, {**options, "url": url}, where, hidden=("transport",), key=key)
    return made


def _function(options: Mapping[str, Any], where: str, environment: Mapping[str, str]) -> Reward:
    allowed = {path.strip() for path in environment.get(FUNCTIONS_VARIABLE, "").split(",")} - {""}
    try:
        made: Reward = construct(FunctionReward, options, where, allowed=allowed)
    except PermissionError as error:
        raise ContractError(f"{where}: {error}, in {FUNCTIONS_VARIABLE}") from None
    return made


def _model(part: RewardPart, folder: Path, backbone: Backbone, context: bool | None, where: str) -> Reward:
    settings = reward_settings(folder, where)
    digest = manifest_digest(folder)
    require(
        part.checkpoint_digest in (None, digest),
        where,
        f"the digest of {folder} is {digest[:12]}, the spec asks for {(part.checkpoint_digest or '')[:12]}; "
        "name the reward model that the run was made for",
    )
    if context is not None and context != settings.context:
        with_or_without = "with" if settings.context else "without"
        raise ContractError(
            f"{where}: {folder} was trained on prompts {with_or_without} their context passages; "
            f"set context to {str(settings.context).lower()}, or take another reward model"
        )
    try:
        return learned_reward(folder, backbone, settings, weights=part.heads, population=part.population)
    except ContractError as error:
        raise ContractError(f"{where}: {error}") from None


def reward_settings(folder: Path, where: str) -> RewardSettings:
    """Return the settings that a reward model was trained with. Raises `ContractError` for another kind."""
    manifest = read_manifest(folder)
    require(
        manifest.kind == "reward",
        where,
        f"{folder} is a checkpoint of kind {manifest.kind!r}; name one of kind 'reward'",
    )
    settings = RunSpec.from_json(manifest.spec).settings
    if not isinstance(settings, RewardSettings):
        raise ContractError(f"{where}: {folder} was trained with settings of {settings.method!r}")
    return settings


def learned_reward(
    folder: Path,
    backbone: Backbone,
    settings: RewardSettings,
    *,
    weights: Mapping[str, float] | None = None,
    population: Population | None = None,
) -> LearnedReward:
    """Return a checkpoint as a reward, its adapter loaded into the backbone where it is not there yet."""
    adapter = f"reward {manifest_digest(folder)}"
    if adapter not in backbone.adapters:
        backbone.load_adapter(adapter, folder)
    return LearnedReward(backbone, adapter, settings, weights=weights, population=population or Population())
