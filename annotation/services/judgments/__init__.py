"""Judgments: submitted, checked, drafted, flagged."""
