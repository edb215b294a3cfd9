"""The API under Schemathesis: all its checks, every operation, the same bounded requests each time."""
