"""AI annotators."""
