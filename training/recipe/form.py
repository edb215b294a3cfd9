"""The form of a recipe, and the help beside its fields."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from django.utils.translation import gettext

from training.contract import ContractError
from training.contract.methods import SETTINGS
from training.contract.methods.policy import RewardPart
from training.recipe.recipe import PRESETS, RULES_WITHOUT_TORCH, PolicySettings, Recipe

# ── Help ──
#
# pydantic keeps them as field descriptions. `.ci/messages.py` collects them for translators through
# `sentences`; the form translates them.


_IN_A_RECIPE = {
    ("RewardPart", "checkpoint"): (
        'The reward model, for kinds model and served: "round" is the one that this round trains; or the '
        "name of an earlier one. One of another base than the policy's is served in any case."
    ),
    ("RewardPart", "checkpoint_digest"): (
        "Digest of that checkpoint's manifest; filled in when training starts, so leave it empty."
    ),
    ("RewardPart", "options"): (
        "Options by name; see the guide. For kind rubric: rubric, the name of a published rubric, and "
        "judge, the name of an AI annotator that scores by it."
    ),
    **{
        (cls, "reference"): (
            "The policy that divergence is measured from: parent, the one that the round continues; base, "
            "the model under all adapters, so that rounds do not drift on and on; or a checkpoint's name."
        )
        for cls in ("PreferenceSettings", "KtoSettings", "PolicyGradientSettings")
    },
}
"""Overrides for a recipe, where a field differs in meaning from the run's."""


@functools.cache
def help_of(cls: type[Any]) -> dict[str, str]:
    """Return the sentence of each field of a record by its name, inherited fields included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for name, declared in getattr(base, "__pydantic_fields__", {}).items():
            texts[name] = " ".join((declared.description or texts.get(name, "")).split())
    return {name: _IN_A_RECIPE.get((cls.__name__, name)) or text for name, text in texts.items()}


def sentences() -> Iterator[tuple[Path, str]]:
    """Yield the help sentences of all recipe forms, each with its file."""
    # Imported here: the recipe itself needs no help texts.
    from training.recipe.recipe import Recipe

    classes: list[Any] = sorted(_within(Recipe, set()), key=lambda cls: cls.__name__)
    for cls in classes:
        source = Path(inspect.getfile(cls))
        for text in help_of(cls).values():
            yield source, text


def _within(cls: type[Any], seen: set[type[Any]]) -> set[type[Any]]:
    """Collect a dataclass and those of its fields, the settings of every policy method included."""
    if cls not in seen:
        seen.add(cls)
        for hint in typing.get_type_hints(cls).values():
            for leaf in _leaves(hint):
                if dataclasses.is_dataclass(leaf) and isinstance(leaf, type):
                    _within(leaf, seen)
    return seen


def _leaves(hint: Any) -> Iterator[Any]:
    yield hint
    for arg in typing.get_args(hint):
        yield from _leaves(arg)


# ── Form ──
#
# Built from the dataclasses, so no setting can be forgotten. Inputs are named by their path,
# `policy-optimiser-learning_rate`; list items are numbered, `samplers-0-checkpoint`.


Data = Mapping[str, Sequence[str]]
"""Submitted form data: values by input name."""
Kind = Literal["flag", "integer", "number", "text", "choice", "choices", "words", "json", "hidden"]

AUTO = "auto"
"""The policy's method that is chosen when training starts, among those of `PRESETS`."""
RULES = "evaluation-rules"
_OF_A_RULE = ("name", "kind", "options")
"""The only fields of an evaluation's rule, which is not weighed against others."""
_SPELT = {
    "lora": "LoRA",
    "kl": "KL",
    "sft_weight": "SFT weight",
    "lam": "λ",
    "gamma": "γ",
    "beta": "β",
    "ai_feedback": "AI feedback",
    "most_kl": "Most KL",
    "stop_at_kl": "Stop at KL",
    "top_p": "Top p",
    "top_k": "Top k",
}


@dataclass(slots=True)
class Input:
    """A setting on the page."""

    name: str
    label: str
    help: str
    kind: Kind
    values: list[str]
    choices: tuple[tuple[str, str], ...] = ()
    optional: bool = False
    errors: list[str] = field(default_factory=list)
    guide: str = ""
    """Anchor of the setting in the guide's list of recipe fields."""

    @property
    def value(self) -> str:
        """Return the value in the field."""
        return self.values[0] if self.values else ""

    @property
    def suggestions(self) -> str:
        """Return the id of the page's list of names that it may take: of checkpoints or of base models."""
        if self.kind == "text" and self.name.endswith("-checkpoint"):
            return "checkpoint-names"
        return "base-names" if self.name == "reward_base" else ""

    @property
    def is_on(self) -> bool:
        """Return whether a flag is set."""
        return bool(self.values)


@dataclass(slots=True)
class Group:
    """Settings that belong together, and foldable groups within."""

    name: str
    label: str
    help: str = ""
    switch: Input | None = None
    """The flag of an optional part or a list item: present or absent."""
    inputs: list[Input] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    guide: str = ""
    """Anchor in the guide's list of recipe fields; that of the setting which the group is."""

    @property
    def has_errors(self) -> bool:
        """Return whether anything in it has an error; it is then shown unfolded."""
        return bool(
            self.errors
            or any(entry.errors for entry in self.inputs)
            or any(group.has_errors for group in self.groups)
        )


class RecipeForm:
    """The form of one recipe, bound to submitted data, or to `flattened(recipe)`."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self.errors: list[tuple[str, str]] = []
        """Every error with the name of its input."""
        self.whole = Group(name="", label="")
        built = _Part(self, Recipe, "").read(self.whole)
        self.recipe: Recipe | None = built if isinstance(built, Recipe) and not self.errors else None
        """The recipe that the form describes; None where something is wrong."""

    def sent(self, name: str) -> list[str]:
        """Return the values submitted under a name."""
        return list(self._data.get(name, ()))

    def refuse(self, where: Input | Group, message: str) -> None:
        """Record an error at its field."""
        where.errors.append(message)
        self.errors.append((where.name, message))


def flattened(recipe: Recipe) -> dict[str, list[str]]:
    """Return the form data of an unchanged `recipe`."""
    data = _flat(Recipe, recipe, "")
    return with_policy(data, AUTO) if recipe.policy_method == AUTO else data


def with_policy(data: Data, choice: str) -> dict[str, list[str]]:
    """Return the data with the policy settings replaced by a preset, one of `PRESETS`, or chosen when
    training starts (`AUTO`); the settings that are there then stay until it does."""
    if choice == AUTO:
        return {**data, "policy_method": [AUTO], "policy-shown": [AUTO], "policy-choice": [AUTO]}  # type: ignore[dict-item]
    others = {name: list(values) for name, values in data.items() if not name.startswith("policy-")}
    others["policy_method"] = ["fixed"]
    return {**others, **_flat_policy(PRESETS[choice][1](), choice)}


def label_of(name: str) -> str:
    """Return a field's name as words."""
    words = _SPELT.get(name, name.replace("_", " "))
    return words[:1].upper() + words[1:]


class _Part:
    """One dataclass of a recipe: adds its inputs to a group, and is built from their values."""

    def __init__(self, form: RecipeForm, cls: Any, prefix: str, *, muted: bool = False) -> None:
        """muted: shown, but not part of the recipe; its errors are not reported."""
        self.form = form
        self.cls = cls
        self.prefix = prefix
        self.muted = muted
        self.complete = True

    def read(self, group: Group) -> Any:
        """Return the dataclass; None if it cannot be built, with the errors recorded."""
        hints = get_type_hints(self.cls)
        helps = {name: gettext(text) if text else "" for name, text in help_of(self.cls).items()}
        values = {
            name: self._field(name, hints[name], helps[name], group) for name in _shown(self.cls, self.prefix)
        }
        if not self.complete:
            return None
        try:
            return self.cls(**values)
        except ContractError as error:
            self._place(error, group)
            return None

    def _field(self, name: str, hint: Any, text: str, group: Group) -> Any:
        path = f"{self.prefix}{name}"
        if path == "policy":
            return self._checked(self._policy(text, group))
        plain, optional = _without_none(hint)
        if dataclasses.is_dataclass(plain):
            return self._nested(path, name, plain, text, group, optional=optional)
        item = get_args(plain)[0] if get_origin(plain) is tuple else None
        if dataclasses.is_dataclass(item):
            return self._listed(path, name, item, text, group)
        if path == "policy_method":
            # Chosen together with the policy's settings.
            group.inputs.append(Input(path, "", "", "hidden", self.form.sent(path)))
            return "".join(self.form.sent(path)) or "fixed"
        made = _input(path, name, plain, text, optional, self.form.sent(path))
        made.guide = self._guide(name)
        group.inputs.append(made)
        try:
            return _value(made)
        except ValueError as error:
            self._refuse(made, str(error))
            return None

    def _nested(self, path: str, name: str, cls: Any, text: str, group: Group, *, optional: bool) -> Any:
        inner = Group(name=path, label=label_of(name), help=text, guide=self._guide(name))
        group.groups.append(inner)
        if not optional:
            return self._checked(_Part(self.form, cls, f"{path}-", muted=self.muted).read(inner))
        inner.switch = _flag(f"{path}-on", label_of(name), self.form.sent(f"{path}-on"))
        if inner.switch.is_on:
            return self._checked(_Part(self.form, cls, f"{path}-", muted=self.muted).read(inner))
        _Part(self.form, cls, f"{path}-", muted=True).read(inner)
        return None

    def _listed(self, path: str, name: str, cls: Any, text: str, group: Group) -> tuple[Any, ...]:
        """Return the items that are switched on; the last one is blank, for adding another."""
        outer = Group(name=path, label=label_of(name), help=text, guide=self._guide(name))
        group.groups.append(outer)
        built, place = [], 0
        while self.form.sent(f"{path}-{place}-listed"):
            prefix = f"{path}-{place}"
            keep = _flag(f"{prefix}-keep", "", self.form.sent(f"{prefix}-keep"))
            item = Group(name=prefix, label=str(place + 1), switch=keep)
            outer.groups.append(item)
            part = _Part(self.form, cls, f"{prefix}-", muted=self.muted or not keep.is_on)
            built_item = part.read(item)
            if keep.is_on:
                built.append(self._checked(built_item))
            place += 1
        return tuple(built)

    def _policy(self, text: str, group: Group) -> Any:
        """Read the policy's settings by the method in a hidden input."""
        method = "".join(self.form.sent("policy-method"))
        inner = Group(name="policy", label=label_of("policy"), help=text, guide=self._guide("policy"))
        group.groups.append(inner)
        inner.inputs.append(Input("policy-method", "", "", "hidden", [method]))
        cls = SETTINGS.get(method)
        if cls is None or method == "reward":
            self._refuse(inner, f"{method!r} is no way to train a policy")
            return None
        return _Part(self.form, cls, "policy-", muted=self.muted).read(inner)

    def _guide(self, name: str) -> str:
        return f"{self.cls.__name__.lower()}-{name}"

    def _checked(self, built: Any) -> Any:
        self.complete = self.complete and built is not None
        return built

    def _refuse(self, where: Input | Group, message: str) -> None:
        self.complete = False
        if not self.muted:
            self.form.refuse(where, message)

    def _place(self, error: ContractError, group: Group) -> None:
        """Record an error at the fields that it names, else at the group."""
        known = _by_name(group)
        for path, problem in error.problems:
            # An error inside a setting is shown at the setting.
            names = ("-".join(path[:length]) for length in range(len(path), 0, -1))
            places = (known.get(f"{self.prefix}{name}") for name in names)
            self._refuse(next((place for place in places if place), group), problem)


def _by_name(group: Group) -> dict[str, Input | Group]:
    entries: dict[str, Input | Group] = {entry.name: entry for entry in group.inputs}
    for inner in group.groups:
        entries |= {inner.name: inner, **_by_name(inner)}
    return entries


def _shown(cls: Any, prefix: str) -> list[str]:
    if cls is RewardPart and prefix.startswith(RULES):
        return list(_OF_A_RULE)
    return [field.name for field in dataclasses.fields(cls)]


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without its None, and whether it had one."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    left = [arg for arg in get_args(hint) if arg is not type(None)]
    return (left[0] if len(left) == 1 else hint), len(left) < len(get_args(hint))


def _flag(name: str, label: str, values: list[str]) -> Input:
    return Input(name, label, "", "flag", values)


def _input(path: str, name: str, plain: Any, text: str, optional: bool, values: list[str]) -> Input:
    kind, options = _kind(plain)
    if path.startswith(RULES) and name == "kind":
        options = RULES_WITHOUT_TORCH
    if kind == "choices":
        # The chosen ones come first, in the order of the recipe.
        options = (*values, *(option for option in options if option not in values))
    choices = tuple((option, option.replace("_", " ")) for option in options)
    return Input(path, label_of(name), text, kind, values, choices, optional)


def _kind(plain: Any) -> tuple[Kind, tuple[str, ...]]:
    if plain is bool:
        return "flag", ()
    if plain is int:
        return "integer", ()
    if plain is float:
        return "number", ()
    if get_origin(plain) is Literal:
        return "choice", get_args(plain)
    if get_origin(plain) is tuple and get_origin(get_args(plain)[0]) is Literal:
        return "choices", get_args(get_args(plain)[0])
    return ("text" if plain is str else "json"), ()


def _value(made: Input) -> Any:
    """Return an input's value. Raises `ValueError` with the expected form."""
    text = made.value.strip()
    if made.kind == "flag":
        return made.is_on
    if made.kind == "choices":
        return tuple(made.values)
    if not text and made.optional:
        return None
    if made.kind in ("integer", "number"):
        return _number(text, whole=made.kind == "integer")
    if made.kind == "json":
        return _json(text)
    return text


def _number(text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise ValueError(f"a {'whole ' if whole else ''}number is expected, not {text!r}") from None


def _json(text: str) -> Any:
    try:
        decoded = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from None
    return tuple(decoded) if isinstance(decoded, list) else decoded


def _flat(cls: Any, instance: Any, prefix: str) -> dict[str, list[str]]:
    """Return the inputs of a dataclass; of its defaults if `instance` is None."""
    hints = get_type_hints(cls)
    defaults = {field.name: _default(field) for field in dataclasses.fields(cls)}
    data: dict[str, list[str]] = {}
    for name in _shown(cls, prefix):
        value = defaults[name] if instance is None else getattr(instance, name)
        path = f"{prefix}{name}"
        plain, optional = _without_none(hints[name])
        item = get_args(plain)[0] if get_origin(plain) is tuple else None
        if path == "policy":
            data |= _flat_policy(value, choice_of(value))
        elif dataclasses.is_dataclass(plain):
            data |= _flat(plain, value, f"{path}-")
            if optional and value is not None:
                data[f"{path}-on"] = ["on"]
        elif dataclasses.is_dataclass(item):
            for place, entry in enumerate((*(value or ()), None)):
                data |= {f"{path}-{place}-listed": ["1"], **_flat(item, entry, f"{path}-{place}-")}
                if entry is not None:
                    data[f"{path}-{place}-keep"] = ["on"]
        else:
            data[path] = _sent(value, plain)
    return data


def _flat_policy(policy: PolicySettings, choice: str) -> dict[str, list[str]]:
    return {
        "policy-method": [policy.method],
        "policy-shown": [choice],
        "policy-choice": [choice],
        **_flat(type(policy), policy, "policy-"),
    }


def choice_of(policy: PolicySettings) -> str:
    """Return the preset whose settings these are exactly, else the method's name."""
    same = (name for name, (_, make) in PRESETS.items() if make() == policy)
    return next(same, policy.method)


def _sent(value: Any, plain: Any) -> list[str]:
    kind, _ = _kind(plain)
    if kind == "flag":
        return ["on"] if value else []
    if kind == "choices":
        return list(value or ())
    if value is None:
        return [""]
    return [json.dumps(value, ensure_ascii=False) if kind == "json" else str(value)]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
