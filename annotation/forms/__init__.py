"""Forms of the labelling page, read into the inputs of the services.

A page knows candidates by token, categories and criteria by key. `Entered` is what stands in the
form's fields, right or wrong, so that a refused form comes back as it was sent.
"""

from annotation.forms.judgment import Entered, FlagForm, JudgmentForm, MissingRow, SkipForm, rating_field

__all__ = ["Entered", "FlagForm", "JudgmentForm", "MissingRow", "SkipForm", "rating_field"]
