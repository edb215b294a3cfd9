"""Rounds, runs, checkpoints and what they learned from, below /api/v1/. See `annotation.api`."""
