"""Names, descriptions and reasons of absence of the figures."""

from django.utils.translation import gettext_lazy as _

from annotation.agreement.estimate import Missing

FIGURES = {
    "pair-percent": (
        _("Percent agreement on pairs"),
        _("Share of pairs on which two annotators agree. A tie is a category of its own."),
    ),
    "pair-fleiss": (
        _("Fleiss’ κ on pairs"),
        _(
            "The same beyond chance; for any number of annotators (Gwet’s generalisation; for two it is "
            "Scott’s π)."
        ),
    ),
    "pair-cohen": (
        _("Cohen’s κ on pairs"),
        _("The same beyond chance, for these two annotators; each may have their own leanings."),
    ),
    "pair-alpha": (
        _("Krippendorff’s α on pairs, nominal"),
        _("Better, worse or neither, beyond chance."),
    ),
    "verdict-alpha": (
        _("Krippendorff’s α on preferences, nominal"),
        _("Pairs only; equal, both good, both bad and cannot judge are kept apart."),
    ),
    "strength-ordinal": (
        _("Krippendorff’s α on strength, ordinal"),
        _("Pairs only: how much better, from −4 to 4."),
    ),
    "strength-interval": (
        _("Krippendorff’s α on strength, interval"),
        _("The same, with steps of equal size."),
    ),
    "rank-alpha": (
        _("Krippendorff’s α on ranks, ordinal"),
        _("Rankings of three or more: the rank of each response."),
    ),
    "tau": (
        _("Kendall’s τ-b of rankings"),
        _("Rankings of three or more, with ties; mean over pairs of annotators, then over comparisons."),
    ),
    "rating-ordinal": (
        _("Krippendorff’s α on ratings, ordinal"),
        _("The rating of each response on this criterion."),
    ),
    "rating-interval": (
        _("Krippendorff’s α on ratings, interval"),
        _("The same, with steps of equal size."),
    ),
    "span-alpha": (
        _("Krippendorff’s αᵤ of marked characters"),
        _("Whether the same characters are marked, beyond chance (Krippendorff 1995)."),
    ),
    "span-exact": (
        _("Marks with the same start and end"),
        _("F1 over pairs of annotators, whatever the category."),
    ),
    "span-overlap": (
        _("Marks that overlap"),
        _("F1 over pairs of annotators: a mark meets at most one of the other’s."),
    ),
    "span-category": (
        _("Same category of marks that overlap"),
        _("How often two marks that meet say the same."),
    ),
    "span-category-alpha": (
        _("Krippendorff’s α on categories, nominal"),
        _("The same beyond chance."),
    ),
    "position": (
        _("Won by what was shown first"),
        _("Share of decided pairs won by the response shown first; one half without bias."),
    ),
    "gold": (
        _("Gold accuracy"),
        _(
            "Correct means every pair that the known answer decides is decided the same way; "
            "the first annotation counts. Wilson interval."
        ),
    ),
    "retest": (
        _("Test-retest agreement"),
        _("Share of pairs on which an annotator said the same again, with the order changed."),
    ),
    "circles": (
        _("Preferences that go round in a circle"),
        _(
            "Of three responses to one prompt that an annotator compared in different "
            "comparisons. One in four would be cyclic by chance."
        ),
    ),
}
"""Key of a figure → its name, and one sentence that tells what it is."""

REASONS = {
    Missing.NO_DATA: _("No data yet"),
    Missing.NOBODY_SHARED: _("No comparison has two annotators yet"),
    Missing.ONE_VALUE: _("Everyone always said the same: agreement cannot be told from chance."),
    Missing.NO_MARKS: _("No spans in comparisons with two annotators"),
    Missing.NO_MATCHES: _("No two marks overlap."),
    Missing.ALL_TIED: _("Nothing was decided: all were ties."),
}

SHARES = {
    "pair-percent",
    "span-exact",
    "span-overlap",
    "span-category",
    "position",
    "gold",
    "retest",
    "circles",
}
"""Figures that are shares, written as percent; the others are coefficients, where 1 is perfect."""
