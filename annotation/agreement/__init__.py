"""Inter-annotator agreement: pure functions on plain data. Knows no ORM.

    estimate.py   what every statistic returns: a value with its interval, or why there is none
    bootstrap.py  percentile intervals over items
    alpha.py      Krippendorff's α, nominal, ordinal and interval
    pairs.py      percent agreement, Cohen's κ, Fleiss' κ for any number of annotators
    rankings.py   Kendall's τ-b
    position.py   whether what is shown first wins more often
    shares.py     shares with an interval: of gold items, of repeated judgments
    circles.py    triples in which a beats b, b beats c and c beats a
    unitizing.py  Krippendorff's α_U of marked stretches
    spans.py      how many marks match, and how many of these in category

An *item* is what is resampled: a comparison. What is said about one comparison hangs together, so
its pairs, completions and characters always stay together.

All but estimate.py and circles.py load NumPy or SciPy; a web worker imports them when somebody opens
the page.
"""
