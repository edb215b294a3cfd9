"""Inter-annotator agreement: pure functions on plain data. Knows no ORM.

    estimate.py      the result of a statistic: a value with its interval, or why there is none
    intervals.py     Wilson's interval of a share; percentile intervals over items
    coefficients.py  Krippendorff's α, percent agreement, κ, Kendall's τ-b, position bias
    spans.py         matching spans and categories; Krippendorff's α_U of stretches of text
    records.py       database rows as plain data, the units made of them, intransitive triples
    reliability.py   reliability and weight of each annotator

An *item* is what is resampled: a comparison. What is said about one comparison hangs together, so
its pairs, completions and characters always stay together.

intervals.py, coefficients.py, spans.py and reliability.py may load NumPy or SciPy; a web worker
imports them when somebody opens the page.
"""
