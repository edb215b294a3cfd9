"""Checks of the JSON values by which work is allocated: the rules of a project, the skills of a member."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

MOST_RULES = 50
MOST_SKILLS = 50
LONGEST_SKILL = 60
LONGEST_GROUP = 60
LONGEST_TAG = 200
ALL = 100
"""Percent: the share of a rule that reserves every comparison with its tag."""


def check_skills(value: Any) -> None:
    """Refuse skills that are not a list of different names."""
    if not isinstance(value, list) or not all(_is_name(skill, LONGEST_SKILL) for skill in value):
        raise ValidationError(
            _("Skills are a list of names of at most %(longest)s characters.") % {"longest": LONGEST_SKILL}
        )
    if len(value) > MOST_SKILLS:
        raise ValidationError(_("A member has at most %(most)s skills.") % {"most": MOST_SKILLS})
    _refuse_repeated(value, _("The skill %(name)s is named twice. Leave one out."))


def check_allocation(value: Any) -> None:
    """Refuse rules that are not a list of a tag with a skill and perhaps a share each, every tag once."""
    if not isinstance(value, list) or not all(_is_rule(rule) for rule in value):
        raise ValidationError(
            _(
                "A rule names a tag and a skill in words, perhaps a share in percent from 1 to 100, such as "
                '{"tag": "german", "skill": "German", "share": 100}.'
            )
        )
    if len(value) > MOST_RULES:
        raise ValidationError(_("A project has at most %(most)s rules.") % {"most": MOST_RULES})
    _refuse_repeated(
        [rule["tag"] for rule in value], _("The tag %(name)s has a rule already. Remove it first.")
    )


def _is_rule(rule: Any) -> bool:
    return (
        isinstance(rule, dict)
        and {"tag", "skill"} <= rule.keys() <= {"tag", "skill", "share"}
        and _is_share(rule.get("share", ALL))
        and _is_name(rule["tag"], LONGEST_TAG)
        and _is_name(rule["skill"], LONGEST_SKILL)
    )


def _is_share(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= ALL


def _is_name(value: Any, longest: int) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= longest
        and value == value.strip()
        and "\x00" not in value
    )


def _refuse_repeated(names: Sequence[str], message: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValidationError(message % {"name": name})
