"""Acquisition: which comparison to label next."""
