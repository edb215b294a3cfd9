"""Assignments, decided by guarded updates and constraints, so that no luck is needed.

`next` decides what a person gets, retest, gold or work, and finds it; `leases` counts the places of a
comparison, gives, renews and takes back; `display_order` orders responses and names them on a
page. Locks are always taken in the order person, assignment, comparison, tally,
where the person is their row of `AnnotatorTally`.
"""
