"""Texts: prompts, completions, comparisons made of them, quarantine."""
