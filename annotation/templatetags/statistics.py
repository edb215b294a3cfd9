"""Times on the statistics pages."""

from django import template
from django.utils.translation import gettext as _

register = template.Library()


@register.filter
def time_spent(seconds: float | None) -> str:
    """Seconds as people say them: `45 s`, `3 min 20 s`, `12 h 5 min`; nothing for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 60:
        return _("%(seconds)s s") % {"seconds": whole}
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return _("%(minutes)s min %(seconds)s s") % {"minutes": minutes, "seconds": rest}
    hours, minutes = divmod(minutes, 60)
    return _("%(hours)s h %(minutes)s min") % {"hours": hours, "minutes": minutes}
