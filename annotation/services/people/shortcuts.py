"""Keyboard shortcuts of the labelling screen: the defaults, and each person's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.contrib.auth.models import AnonymousUser
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.errors import Refusal
from annotation.models import User


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a key does. A key of a mark, or of a suggestion, counts while one has the focus, and
    comes first there."""

    name: str
    label: str | Promise
    default: str
    of_a_mark: bool = False
    of_a_suggestion: bool = False

    @property
    def place(self) -> tuple[bool, bool]:
        """Return where the key counts: within one place, every key does one thing."""
        return self.of_a_mark, self.of_a_suggestion


ACTIONS: Final = (
    Action(name="submit", label=gettext_lazy("Submit"), default="Enter"),
    Action(name="help", label=gettext_lazy("Show the keys"), default="?"),
    Action(name="equal", label=gettext_lazy("Equal, or a tie while ranking"), default="="),
    Action(name="both_good", label=gettext_lazy("Both or all good"), default="+"),
    Action(name="both_bad", label=gettext_lazy("Both or all bad"), default="-"),
    Action(name="cannot_judge", label=gettext_lazy("Cannot judge"), default="0"),
    Action(name="type_order", label=gettext_lazy("Type the order"), default="r"),
    Action(name="rest", label=gettext_lazy("Leave the rest unordered"), default=","),
    Action(name="take_back", label=gettext_lazy("Unrank the last ranked response"), default="Backspace"),
    Action(name="missing", label=gettext_lazy("Missing information in this response"), default="m"),
    Action(name="comment", label=gettext_lazy("Comment"), default="t"),
    Action(name="guidelines", label=gettext_lazy("Guidelines"), default="l"),
    Action(name="passages", label=gettext_lazy("Open or fold the context"), default="p"),
    Action(name="skip", label=gettext_lazy("Skip"), default="s"),
    Action(name="flag", label=gettext_lazy("Report a problem"), default="x"),
    Action(name="ask", label=gettext_lazy("Ask the managers"), default="q"),
    Action(name="rate", label=gettext_lazy("Rate the responses"), default="v"),
    Action(name="edit", label=gettext_lazy("Edit this response"), default="o"),
    Action(name="rewrite", label=gettext_lazy("Rewrite the selection"), default="y"),
    Action(name="critique", label=gettext_lazy("Critique of this response"), default="k"),
    Action(name="demonstrate", label=gettext_lazy("Your own response"), default="w"),
    Action(name="questions", label=gettext_lazy("Next question without an answer"), default="n"),
    Action(name="steps", label=gettext_lazy("Steps of a trace"), default="j"),
    Action(name="undo", label=gettext_lazy("Change the last annotation"), default="z"),
    Action(name="suggestion", label=gettext_lazy("Next suggestion without a decision"), default="."),
    Action(
        name="suggestion_accept",
        label=gettext_lazy("Accept the suggestion"),
        default="y",
        of_a_suggestion=True,
    ),
    Action(
        name="suggestion_change",
        label=gettext_lazy("Accept the suggestion and change it"),
        default="o",
        of_a_suggestion=True,
    ),
    Action(
        name="suggestion_reject",
        label=gettext_lazy("Reject the suggestion"),
        default="n",
        of_a_suggestion=True,
    ),
    Action(
        name="suggestion_next",
        label=gettext_lazy("To the next suggestion"),
        default="ArrowDown",
        of_a_suggestion=True,
    ),
    Action(
        name="suggestion_previous",
        label=gettext_lazy("To the previous suggestion"),
        default="ArrowUp",
        of_a_suggestion=True,
    ),
    Action(name="mark_remove", label=gettext_lazy("Remove the span"), default="Delete", of_a_mark=True),
    Action(name="mark_note", label=gettext_lazy("Note on the span"), default="n", of_a_mark=True),
    Action(
        name="mark_end_later",
        label=gettext_lazy("End of the span: later"),
        default="ArrowRight",
        of_a_mark=True,
    ),
    Action(
        name="mark_end_earlier",
        label=gettext_lazy("End of the span: earlier"),
        default="ArrowLeft",
        of_a_mark=True,
    ),
    Action(
        name="mark_start_later",
        label=gettext_lazy("Start of the span: later"),
        default="Shift+ArrowRight",
        of_a_mark=True,
    ),
    Action(
        name="mark_start_earlier",
        label=gettext_lazy("Start of the span: earlier"),
        default="Shift+ArrowLeft",
        of_a_mark=True,
    ),
)
"""Every action of the screen that a key does, in the order in which they are shown."""

_BY_NAME: Final = {action.name: action for action in ACTIONS}

_NAMED: Final = (
    "Enter",
    "Backspace",
    "Delete",
    "Insert",
    "Home",
    "End",
    "PageUp",
    "PageDown",
    "ArrowLeft",
    "ArrowRight",
    "ArrowUp",
    "ArrowDown",
    *(f"F{number}" for number in range(1, 13)),
)
_BY_LOWER_NAME: Final = {
    **{name.lower(): name for name in _NAMED},
    **{f"shift+{name.lower()}": f"Shift+{name}" for name in _NAMED},
}
_SIGNS: Final = {
    "Enter": "↵",
    "Backspace": "⌫",
    "Delete": "Del",
    "ArrowLeft": "←",
    "ArrowRight": "→",
    "ArrowUp": "↑",
    "ArrowDown": "↓",
}
_ON_THE_SCREEN: Final = frozenset(_NAMED[4:12])


class InvalidKey(Refusal):
    """A key that an action cannot have; `field` is the action's name."""


def keys_of(user: User | AnonymousUser) -> dict[str, str]:
    """The key of every action, as it is for this person; the defaults for a visitor without an account."""
    chosen = user.keys if isinstance(user, User) else {}
    return {action.name: chosen.get(action.name) or action.default for action in ACTIONS}


def screen_keys() -> list[str]:
    """Return the single characters that do something on the labelling screen by default, sorted."""
    used = {action.default for action in ACTIONS if len(action.default) == 1}
    return sorted(used | set("123456789"))


def own_keys(user: User) -> dict[str, str]:
    """The keys that this person chose otherwise than they are by default, by action."""
    return {name: key for name, key in keys_of(user).items() if key != _BY_NAME[name].default}


def change_keys(*, user: User, keys: Mapping[str, str]) -> User:
    """Take over the keys that a person chose; what is left out or empty becomes the default again.

    Refuses with `InvalidKey`, naming the action: actions that there are not, what is no key, keys
    that stand for something else on every screen, and one key for two actions.
    """
    chosen = {name: _key(name, text) for name, text in keys.items() if text.strip()}
    complete = {action.name: chosen.get(action.name, action.default) for action in ACTIONS}
    before = keys_of(user)
    # Of two actions with one key, the one that got it now is reported.
    for name in sorted(chosen, key=lambda name: chosen[name] == before[name]):
        _require_free(_BY_NAME[name], complete)
    user.keys = {name: key for name, key in complete.items() if key != _BY_NAME[name].default}
    user.save(update_fields=["keys"])
    return user


def shown_key(key: str) -> list[str]:
    """A key as it stands on keyboards: "Shift+ArrowLeft" is ⇧ and ←."""
    shift, _plus, name = key.rpartition("Shift+")
    sign = _SIGNS.get(name, name.upper() if len(name) == 1 else name)
    return ["⇧", sign] if _plus or shift else [sign]


def _key(name: str, text: str) -> str:
    """The key that a person wrote or pressed, in the words of the browser."""
    if name not in _BY_NAME:
        raise InvalidKey("unknown_action", _("There is no action “%(name)s”."), field=name, name=name)
    key = text.strip()
    if len(key) == 1:
        key = key.lower()
        if key in "123456789abcdefghi" or (key == "0" and _BY_NAME[name].default != "0"):
            raise InvalidKey(
                "key_reserved",
                _("“%(key)s” is the key of a response or of a step on the scale. Choose another key."),
                field=name,
                key=key,
            )
        return key
    if key.lower() not in _BY_LOWER_NAME:
        raise InvalidKey(
            "unknown_key",
            _("“%(key)s” is no key. Write one character, or a name such as Enter, Delete or F2."),
            field=name,
            key=key,
        )
    named = _BY_LOWER_NAME[key.lower()]
    if not any(_BY_NAME[name].place) and named.removeprefix("Shift+") in _ON_THE_SCREEN:
        raise InvalidKey(
            "key_reserved", _("“%(key)s” moves about on the page. Choose another key."), field=name, key=key
        )
    return named


def _require_free(action: Action, complete: Mapping[str, str]) -> None:
    for other in ACTIONS:
        if (
            other.name != action.name
            and other.place == action.place
            and complete[other.name] == complete[action.name]
        ):
            raise InvalidKey(
                "key_in_use",
                _("“%(key)s” is the key of “%(other)s” already."),
                field=action.name,
                key=complete[action.name],
                other=other.label,
            )
