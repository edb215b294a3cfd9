"""PostgreSQL, with kept connections looked at for nothing (see `base`)."""
