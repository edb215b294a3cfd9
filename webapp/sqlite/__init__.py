"""SQLite for several processes: who wants to write takes turns (see `base`)."""
