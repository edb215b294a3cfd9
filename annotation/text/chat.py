"""Bounds of a chat."""

MOST_TURNS = 1_000
"""Messages of one prompt: pages render each, templates of models loop over them, and none has more in use."""
