"""SQLite for several processes, with a queue for writers (see `base`)."""
