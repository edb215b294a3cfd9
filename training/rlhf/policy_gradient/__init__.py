"""The policy gradient: sample, score, hold the score against something, learn from the difference.

In the order of a step: `sampling` draws answers and scores them, which makes `episodes`; `credit` turns
their rewards into advantages; `update` learns from these, through an `actor`; `watch` looks on. What a step
is and how often it is taken stands in `loop`. The teaching examples (`training.rlhf.examples`) use
`episodes`, `credit` and `update` as they are, on policies of a few parameters.
"""
