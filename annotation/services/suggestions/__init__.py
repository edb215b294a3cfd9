"""Suggestions: stored ahead, revealed after the first pass, decided in the final pass."""
