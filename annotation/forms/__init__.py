"""What a labelling page sends back, read into the words of the services.

A page knows candidates by token, categories and criteria by key. `Entered` is what stands in the
form's fields, right or wrong, so that a refused form comes back as it was sent.
"""

from annotation.forms.entered import Entered, MissingRow, rating_field
from annotation.forms.judgment import STRENGTHS, JudgmentForm
from annotation.forms.reasons import FlagForm, SkipForm

__all__ = ["STRENGTHS", "Entered", "FlagForm", "JudgmentForm", "MissingRow", "SkipForm", "rating_field"]
