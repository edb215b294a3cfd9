"""Rewards: what says how good a completion is.

`protocol` is what they have in common, `combination` their weighted sum; `rules`, `mathematics`,
`unit_tests`, `metrics`, `judge` and `functions` are kinds of reward. No module is imported here:
each brings packages of its own, and a run uses few.
"""
