"""A small shop as text: search, open, buy."""
