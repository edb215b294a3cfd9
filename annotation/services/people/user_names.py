"""User names that could be taken for another: letters of one script, and none that only imitates Latin."""

import unicodedata

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

_WRITTEN_TOGETHER = (
    frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}),
    frozenset({"CJK", "HANGUL"}),
    frozenset({"CJK", "BOPOMOFO"}),
)
"""Scripts that one language mixes."""
_LOOK_LATIN = frozenset(
    # Cyrillic, Greek, Armenian, Cherokee: letters that a Latin letter looks like in most fonts.
    "аеіјорсухѕһԁԛԝӏАВЕЅІЈКМНОРСТУХҮԌοονιρυκαχΑΒΕΖΗΙΚΜΝΟΡΤΥΧϲϳօոսհցզՕՍՏԼᎪᎫᎬᎳᎻᏀᏃᏆᏔᏚᏞᏟᏢᏦᏮᏴ"
)


def require_one_meaning(username: str) -> None:
    """Raise `ValidationError` for a name of several scripts, or one whose letters only look Latin."""
    letters = [char for char in username if unicodedata.category(char).startswith("L")]
    scripts = {_script_of(char) for char in letters}
    if len(scripts) > 1 and not any(scripts <= together for together in _WRITTEN_TOGETHER):
        raise ValidationError(_("Use letters of one script in a user name."), code="several_scripts")
    if letters and scripts != {"LATIN"} and all(char in _LOOK_LATIN for char in letters):
        raise ValidationError(
            _("This user name looks like one in Latin letters. Choose another."), code="looks_latin"
        )


def _script_of(char: str) -> str:
    """Return the first word of the letter's name, which is its script for all but a few old letters."""
    return unicodedata.name(char, "UNKNOWN").partition(" ")[0]
