"""Statistics for managers: judgments become plain data, plain data becomes a report.

selection.py    which part of a project a report is about
records.py      the rows of the database as plain data
readings.py     plain data as units, preferences, marks: what `annotation.agreement` takes
report.py       the report, as dataclasses that load no NumPy
compute.py      how each figure of it comes about (loads NumPy)
reliability.py  each annotator's weight, for snapshots
items.py        the comparisons behind a figure
cached.py       the report from Django's cache, or computed now
plots.py        numbers become points of an SVG
"""
