"""Keys of the labelling screen on other pages that judge."""

from django import template
from django.contrib.auth.models import AnonymousUser

from annotation.models import User
from annotation.services.people.shortcuts import ACTIONS, keys_of

register = template.Library()


@register.simple_tag
def labelling_keys(user: User | AnonymousUser) -> dict[str, str]:
    """Return the key of every action for a person; the defaults for a visitor without an account."""
    if isinstance(user, User):
        return keys_of(user)
    return {action.name: action.default for action in ACTIONS}
