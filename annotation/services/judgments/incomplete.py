"""Missing parts of an annotation, in words: form, service and API say it alike.

static/js/label.js and label-answers.js say the same before anything is sent; a test holds them to this table.
"""

from enum import Enum

from django.utils.translation import gettext_lazy as _


class Incomplete(Enum):
    """One thing that is missing, and the sentence that asks for it."""

    PAIR = _("Choose the better response, or a no-preference option.")
    RANKING = _("Rank the responses, or choose a no-preference option.")
    SEEN = _("Confirm that you reviewed it, or choose “cannot judge”.")
    RATINGS = _("Rate the responses, or choose “cannot judge”.")
    DEMONSTRATION = _("Write your own response, or choose “cannot judge”.")

    def __str__(self) -> str:
        return str(self.value)
