"""Inter-annotator agreement: pure functions on plain data. Knows no ORM.

    estimate.py      what every statistic returns: a value with its interval, or why there is none
    bootstrap.py     percentile intervals over items
    shares.py        shares with an interval: of gold items, of repeated judgments
    coefficients.py  Krippendorff's α, percent agreement, κ, Kendall's τ-b, place on the page
    circles.py       triples in which a beats b, b beats c and c beats a
    spans.py         how many marks match, and how many of these in category
    unitizing.py     Krippendorff's α_U of marked stretches
    records.py       the rows of the database as plain data; readings.py makes units of them
    selection.py     which part of a project a report is about

An *item* is what is resampled: a comparison. What is said about one comparison hangs together, so
its pairs, completions and characters always stay together.

bootstrap.py, shares.py, coefficients.py, spans.py and unitizing.py may load NumPy or SciPy; a web worker
imports them when somebody opens the page.
"""
