"""String reversal: the whole way from demonstrations to reinforcement, small enough to watch.

A language model learns to spell names backwards, first from examples, then from nothing but the news whether
an answer was right. It is the example of CMU 11-711 (spring 2026, lecture 17); `make reverse` runs it.
"""
