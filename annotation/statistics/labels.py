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
    "question-nominal": (
        _("Krippendorff’s α on answers, nominal"),
        _("The choice of each annotator; about spans, where several marked the same span."),
    ),
    "question-ordinal": (
        _("Krippendorff’s α on answers, ordinal"),
        _("The point on the scale; about spans, where several marked the same span."),
    ),
    "question-interval": (
        _("Krippendorff’s α on answers, interval"),
        _("With steps of equal size; dates in days. About spans, where several marked the same span."),
    ),
    "question-sets": (
        _("Krippendorff’s α on several choices, MASI"),
        _("The MASI distance counts choices in common (Passonneau 2006). About spans, of the same span."),
    ),
    "span-alpha": (
        _("Krippendorff’s αᵤ of characters in spans"),
        _("Agreement on the characters in spans, beyond chance (Krippendorff 1995)."),
    ),
    "span-exact": (
        _("Spans with the same start and end"),
        _("F1 over pairs of annotators, whatever the category."),
    ),
    "span-overlap": (
        _("Spans that overlap"),
        _("F1 over pairs of annotators: a span matches at most one of the other’s."),
    ),
    "span-category": (
        _("Same category of overlapping spans"),
        _("Share of matching spans with the same category."),
    ),
    "span-category-alpha": (
        _("Krippendorff’s α on categories, nominal"),
        _("The same beyond chance."),
    ),
    "rewritten": (
        _("Responses rewritten"),
        _("Share of judged responses that annotators rewrote or corrected."),
    ),
    "rewritten-part": (
        _("Changed part of a rewritten response"),
        _("Median share of characters removed or written, of those of both texts."),
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
        _("Share of pairs with the same preference again, in another order."),
    ),
    "circles": (
        _("Intransitive preferences"),
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
    Missing.ONE_VALUE: _("All annotations are the same: chance-corrected agreement is undefined."),
    Missing.NO_MARKS: _("No spans in comparisons with two annotators"),
    Missing.NO_MATCHES: _("No two spans overlap."),
    Missing.ALL_TIED: _("Nothing was decided: all were ties."),
    Missing.TOO_FEW: _("Too few so far"),
}

SHARES = {
    "pair-percent",
    "span-exact",
    "span-overlap",
    "span-category",
    "rewritten",
    "rewritten-part",
    "position",
    "gold",
    "retest",
    "circles",
}
"""Figures that are shares, written as percent; the others are coefficients, where 1 is perfect."""
