"""Database backends and connections."""
