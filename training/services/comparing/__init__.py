"""Comparing checkpoints: arenas, side by side, the leaderboard."""
